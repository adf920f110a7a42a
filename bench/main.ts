// npm run bench -- <name>: one benchmark per capability.

import { type Bench, runBench } from './harness/bench.ts'
import { parseOptions, usage } from './harness/options.ts'
import { jobs } from './jobs.ts'
import { outbox } from './outbox.ts'
import { outboxReaders } from './outbox-readers.ts'
import { projections } from './projections.ts'
import { records } from './records.ts'

const benches: readonly Bench[] = [jobs, outbox, projections, records, outboxReaders]

const [name = '', ...args] = process.argv.slice(2)
const bench = benches.find((one) => one.name === name)
if (bench === undefined) {
  process.stderr.write(`${usage}\n`)
  process.exit(2)
}
try {
  // A bar that is not met is a result, not a failure of the run.
  await runBench(bench, parseOptions(args))
} catch (error) {
  process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`)
  process.exitCode = 1
}
