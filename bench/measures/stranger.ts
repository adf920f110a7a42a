import pg from 'pg'
import { type Context, setupOf, sized } from '../harness/context.ts'
import { drainFresh, drainOnce } from '../harness/drain.ts'
import type { Database } from '../harness/machine/server.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { Child } from '../harness/system/child.ts'
import { pawl } from '../harness/system/systems.ts'
import type { Group } from './group.ts'

/** Somebody else's transaction keeps every dead row of the job table alive, while many jobs pass through it. */
export const stranger: Group = {
  name: `drain under a stranger's snapshot`,
  measures: [`drain under a stranger's snapshot`],
  async run(context) {
    const jobs = sized(context, 20_000, 4_000)
    const passing = sized(context, 300_000, 20_000)
    const results = await interleave(
      context,
      `drain under a stranger's snapshot`,
      [
        { name: 'pawl', run: async () => ({ value: await underSnapshot(context, jobs, passing) }) },
        { name: 'drain', run: async () => ({ value: (await drainFresh(context, pawl, { jobs })).rate }) },
      ],
      Math.min(context.rounds, 3),
    )
    return [
      measure({
        name: `drain under a stranger's snapshot`,
        unit: 'jobs/s',
        better: 'higher',
        results,
        limits: ['drain'],
        bars: [{ atLeast: 0.6, times: 'drain' }],
        notes: [
          `after ${passing.toLocaleString('en')} jobs passed under the snapshot; 'drain' is the same drain on a fresh database beside it`,
        ],
      }),
    ]
  },
}

function underSnapshot(context: Context, jobs: number, passing: number): Promise<number> {
  return context.server.withDatabase(async (database) => {
    const child = new Child(pawl)
    try {
      await child.prepare(setupOf(context, database))
    } finally {
      await child.stop()
    }
    return withSnapshot(database, async () => {
      await drainOnce(context, pawl, database, { jobs: passing })
      return (await drainOnce(context, pawl, database, { jobs })).rate
    })
  })
}

async function withSnapshot<Value>(database: Database, use: () => Promise<Value>): Promise<Value> {
  const client = new pg.Client({ connectionString: database.url })
  await client.connect()
  try {
    await client.query('begin isolation level repeatable read')
    await client.query('select count(*) from pawl.job')
    return await use()
  } finally {
    await client.end()
  }
}
