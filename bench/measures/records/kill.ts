import { type Context, setupOf, sized } from '../../harness/context.ts'
import { now, pause } from '../../harness/machine/clock.ts'
import type { Database } from '../../harness/machine/server.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave, type Sample } from '../../harness/rounds.ts'
import { Child, type System } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'
import { csvFile } from './files.ts'
import { pawl, tended } from './samples.ts'
import { changeEvery } from './submissions.ts'

const uploader: System = { ...pawl, variant: 'uploader' }
const secondsMax = 3
const chunkRows = 5_000

/** kill -9 of the process that applies a submission, half way: how much later it is committed than one that nobody disturbed. */
export const kill: Group = {
  name: 'kill',
  measures: ['kill'],
  async run(context) {
    const results = await interleave(
      context,
      'kill',
      [{ name: 'pawl', run: () => lost(context) }],
      sized(context, Math.max(5, context.rounds), 1),
    )
    const [value, chunk] = [results.value('pawl'), results.value('pawl', 'chunk')]
    return [
      measure({
        name: 'kill',
        unit: 's',
        better: 'lower',
        results,
        bars: [
          {
            says: `<= ${secondsMax} + the lost chunk`,
            isMet: value !== null && chunk !== null && value <= secondsMax + chunk,
          },
        ],
        notes: [
          `from submit to commit ${shown(results.value('pawl', 'undisturbed'))} s, and ${shown(results.value('pawl', 'killed'))} s with the kill`,
          `the next chunk is there ${shown(results.value('pawl', 'still'))} s after the kill; a chunk takes ${shown(chunk)} s`,
        ],
      }),
    ]
  },
}

/** Two scopes of one database: the one is applied undisturbed, the other with a kill. Another worker is there all the time. */
function lost(context: Context): Promise<Sample> {
  const rows = sized(context, 60_000, 20_000)
  const file = csvFile({ rows, edition: 1, changeEvery })
  return context.server.withDatabase(async (database) => {
    const [sender, ...workers] = [new Child(uploader), new Child(pawl), new Child(pawl)]
    try {
      for (const child of [sender, ...workers]) await child.prepare(setupOf(context, database))
      const ids: string[] = []
      for (const registration of ['undisturbed', 'killed'])
        ids.push((await sender.call<{ id: string }>('run', 'upload', file, registration)).id)
      const undisturbed = await apply(sender, database, ids[0]!)
      await tended(database)
      const killed = await apply(sender, database, ids[1]!, async () => {
        const [holder] = await database.query<{ pid: number }>(
          `select p.pid from pawl.job j join pawl.worker_process p on p.id = j.holder where j.kind = 'pawl.records.apply'`,
        )
        workers.find(({ pid }) => pid === holder?.pid)!.kill9()
      })
      return {
        value: killed.seconds - undisturbed.seconds,
        undisturbed: undisturbed.seconds,
        killed: killed.seconds,
        still: killed.stillSeconds,
        chunk: undisturbed.seconds / Math.ceil(rows / chunkRows),
      }
    } finally {
      for (const child of [sender, ...workers]) child.kill9()
    }
  })
}

interface Applied {
  /** From submit to commit. */
  readonly seconds: number
  /** From the kill to the next chunk that is there. */
  readonly stillSeconds: number
}

/** Submits, does something half way, and waits for the commit. */
async function apply(sender: Child, database: Database, id: string, half?: () => Promise<void>): Promise<Applied> {
  const from = now()
  await sender.call('run', 'submit id', id)
  let [killedAt, goesOnAt, appliedThen] = [0, 0, 0]
  for (;;) {
    const [row] = await database.query<{ state: string; created: number; applied: number }>(
      `select state, created::integer, applied_created::integer as applied from pawl.submission where id = ${id}`,
    )
    const { state, created, applied } = row!
    if (killedAt > 0 && goesOnAt === 0 && applied > appliedThen) goesOnAt = now()
    if (state === 'submitted') {
      if (half !== undefined && killedAt === 0) throw new Error('it was committed before it could be killed')
      return { seconds: (now() - from) / 1_000, stillSeconds: (goesOnAt - killedAt) / 1_000 }
    }
    if (state !== 'submitting' || now() - from > 120_000) throw new Error(`the submission is ${state}`)
    if (half !== undefined && killedAt === 0 && applied * 2 >= created) {
      await half()
      killedAt = now()
      appliedThen = applied
    }
    await pause(5)
  }
}
