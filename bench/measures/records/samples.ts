// Samples of the measures of records: each process of a system is new, and everything of one sample happens in one fresh database.

import type { Context } from '../../harness/context.ts'
import { now, pause } from '../../harness/machine/clock.ts'
import type { Database } from '../../harness/machine/server.ts'
import { type Results, resultsOf, type Sample } from '../../harness/rounds.ts'
import type { System } from '../../harness/system/child.ts'
import { withChild } from '../../harness/system/with-child.ts'

export const pawl: System = { name: 'pawl', module: 'records/pawl' }
export const copy: System = { name: 'COPY', module: 'records/copy', variant: 'jsonb' }
export const copyJson: System = { name: 'COPY into json', module: 'records/copy', variant: 'json' }
export const copyCsv: System = { name: 'COPY csv into typed columns', module: 'records/copy', variant: 'csv' }
export const array: System = { name: 'versions in an array', module: 'records/array' }
export const plain: System = { name: 'plain table', module: 'records/plain' }

/** One task of a new process. */
export function runTask(
  context: Context,
  database: Database,
  system: System,
  task: string,
  ...args: readonly unknown[]
): Promise<Sample> {
  return withChild(context, database, system, (child) => child.call<Sample>('run', task, ...args))
}

/** Submits files one after the other in a new process, and gives the sample of the last. */
export function submitFiles(context: Context, database: Database, files: readonly string[]): Promise<Sample> {
  return withChild(context, database, pawl, async (child) => {
    let sample: Sample = {}
    for (const file of files) {
      sample = await child.call<Sample>('run', 'submit', file)
      await tended(database)
    }
    return sample
  })
}

/** Staged rows go after the commit. The next submission shall not pay for that, as it would not minutes later. */
export async function tended(database: Database): Promise<void> {
  for (const deadline = now() + 60_000; ; await pause(20)) {
    const [row] = await database.query<{ some: boolean }>(
      `select exists (select from pawl.submission_row r join pawl.submission u on u.id = r.submission where u.state = 'submitted') as some`,
    )
    if (!row!.some) return
    if (now() > deadline) throw new Error('staged rows were not removed within 60 s')
  }
}

/** Results of several runs under other names: each is some contender's metric of some run. */
export function pick(chosen: Readonly<Record<string, readonly [results: Results, contender: string, metric: string]>>): Results {
  const taken = new Map<string, Sample[]>()
  const failures = new Map<string, string>()
  const noises: number[] = []
  for (const [name, [results, contender, metric]] of Object.entries(chosen)) {
    taken.set(
      name,
      results.samples(contender, metric).map((value) => ({ value })),
    )
    const failure = results.failures.get(contender)
    if (failure !== undefined) failures.set(name, failure)
    if (results.noise !== undefined) noises.push(results.noise)
  }
  return resultsOf(taken, failures, noises)
}
