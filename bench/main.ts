// npm run bench -- <name>: one benchmark per capability.

import { type Options, parseOptions, usage } from './harness/options.ts'
import { jobs } from './jobs.ts'

const benches: Readonly<Record<string, (options: Options) => Promise<boolean>>> = { jobs }

const [name = '', ...args] = process.argv.slice(2)
const bench = benches[name]
if (bench === undefined) {
  process.stderr.write(`${usage}\n`)
  process.exit(2)
}
try {
  // A bar that is not met is a result, not a failure of the run.
  await bench(parseOptions(args))
} catch (error) {
  process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`)
  process.exitCode = 1
}
