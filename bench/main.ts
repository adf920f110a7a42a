// npm run bench -- <name>: one benchmark per capability; `compare` runs two builds of Pawl, `page` writes the stored results into the page.

import { batches } from './batches.ts'
import { compare } from './compare.ts'
import { documents } from './documents.ts'
import { events } from './events.ts'
import { type Bench, runBench } from './harness/bench.ts'
import { parseOptions, usage } from './harness/options.ts'
import { readPublished, refresh } from './harness/report/publish.ts'
import { jobs } from './jobs.ts'
import { projections } from './projections.ts'
import { readersBench } from './readers.ts'
import { records } from './records.ts'

const benches: readonly Bench[] = [jobs, events, projections, records, batches, documents, readersBench]

async function main([name = '', ...args]: readonly string[]): Promise<void> {
  if (name === 'page') return readPublished().forEach(refresh)
  if (name === 'compare') return compare(args)
  const bench = benches.find((one) => one.name === name)
  if (bench === undefined) throw new Error(usage)
  // A bar that is not met is a result, not a failure of the run.
  await runBench(bench, parseOptions(args))
}

main(process.argv.slice(2)).catch((error: unknown) => {
  process.stderr.write(`${error instanceof Error && error.message !== usage ? error.stack : usage}\n`)
  process.exitCode = error instanceof Error && error.message === usage ? 2 : 1
})
