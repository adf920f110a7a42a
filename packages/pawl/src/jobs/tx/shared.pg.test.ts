// Jobs that share a transaction run in it one after another.

import type { Pawl } from 'pawl'
import { installProbe, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(async () => {
  await db.drop()
})

interface Numbered {
  readonly n: number
}

const numbered = (count: number): Numbered[] => Array.from({ length: count }, (_, n) => ({ n }))
/** Claims of twenty or more, and one group at a time. */
const oneGroup = { concurrency: 20, tuning: { handlerConnectionsMax: 1 } } as const

async function done(): Promise<number> {
  const [row] = await db.query<{ n: number }>(
    "select count(*)::int as n from pawl.job_history where outcome = 'done' and attempt = 1",
  )
  return row!.n
}

test('[J2] handlers of a group never overlap, and each is applied once', async () => {
  await db.query('create table effect (job_id bigint)')
  let underWay = 0
  const together: number[] = []
  pawl.jobs.define<Numbered>('one', {
    share: 10,
    tx: async (job, tx) => {
      together.push(++underWay)
      await tx.query('insert into effect values ($1)', [job.id])
      underWay--
    },
  })
  await pawl.jobs.enqueueMany('one', numbered(50))
  const ranMs: number[] = []
  pawl.on('job.done', (event) => ranMs.push(event.ranMs))
  await runAll(pawl, oneGroup)
  expect(Math.max(...together)).toBe(1)
  expect(await db.query('select count(*)::int as n, count(distinct job_id)::int as jobs from effect')).toEqual([
    { n: 50, jobs: 50 },
  ])
  expect(await done()).toBe(50)
  expect(ranMs).toHaveLength(50)
  for (const ms of ranMs) expect(ms).toBeLessThan(20_000)
})

test("[J2] handlers that share a transaction see each other's writes in turn", async () => {
  await db.query('create table counter (n integer)')
  await db.query('insert into counter values (0)')
  pawl.jobs.define<Numbered>('count', {
    share: 10,
    tx: async (_job, tx) => {
      const { rows } = await tx.query<{ n: number }>('select n from counter')
      await tx.query('update counter set n = $1', [rows[0]!.n + 1])
    },
  })
  await pawl.jobs.enqueueMany('count', numbered(60))
  await runAll(pawl, oneGroup)
  expect(await db.query('select n from counter')).toEqual([{ n: 60 }])
  expect(await done()).toBe(60)
})

test('[J2] settings of one handler reach neither the next nor the commit', async () => {
  const seen: { who: string; user: string; level: string }[] = []
  pawl.jobs.define<Numbered>('sets', {
    share: 10,
    tx: async (job, tx) => {
      if (job.payload.n % 2 === 0) {
        await tx.query("set local app.who = 'somebody'; set local role pg_read_all_data; set local synchronous_commit = off")
        return
      }
      const { rows } = await tx.query<{ who: string; user: string; level: string }>(
        "select coalesce(current_setting('app.who', true), '') as who, current_user::text as user, current_setting('synchronous_commit') as level where $1::text is not null",
        [job.id],
      )
      seen.push(rows[0]!)
    },
  })
  await pawl.jobs.enqueueMany('sets', numbered(60))
  await runAll(pawl, oneGroup)
  const [{ user }] = (await db.query<{ user: string }>('select current_user::text as user')) as [{ user: string }]
  expect(seen).toHaveLength(30)
  for (const each of seen) expect(each).toEqual({ who: '', user, level: 'on' })
  expect(await done()).toBe(60)
})

test('[J2] a job whose row is locked holds up none of its group', async () => {
  await db.query('create table effect (job_id bigint)')
  pawl.jobs.define<Numbered>('one', {
    share: 10,
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.id])
    },
  })
  const { ids } = await pawl.jobs.enqueueMany('one', numbered(10))
  const stranger = await db.pool.connect()
  installProbe(async (name) => {
    if (name !== 'jobs.claim.after') return
    installProbe(undefined)
    await stranger.query('begin')
    await stranger.query('select from pawl.job where id = $1 for update', [ids[0]])
  })
  onTestFinished(() => installProbe(undefined))
  const worker = pawl.worker()
  await worker.start()
  await until('all others are done', done, (count) => count === 9)
  await stranger.query('rollback')
  stranger.release()
  await until('it is done too', done, (count) => count === 10)
  await worker.stop()
  expect(await db.query('select count(*)::int as n from effect')).toEqual([{ n: 10 }])
})
