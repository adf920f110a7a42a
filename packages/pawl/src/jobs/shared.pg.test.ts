// Jobs that share a transaction take turns in it. Where their handlers overlap, the database must see them one after another all the same.

import type { Pawl } from 'pawl'
import { installProbe, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(async () => {
  vi.restoreAllMocks()
  await db.drop()
})

interface Numbered {
  readonly n: number
}

const numbered = (count: number): Numbered[] => Array.from({ length: count }, (_, n) => ({ n }))
/** Claims of twenty or more, and one group at a time, so that what a group taught is known to the next. */
const oneGroup = { concurrency: 20, tuning: { handlerConnectionsMax: 1 } } as const

async function done(): Promise<number> {
  const [row] = await db.query<{ n: number }>(
    "select count(*)::int as n from pawl.job_history where outcome = 'done' and attempt = 1",
  )
  return row!.n
}

test('handlers that send their statements at once overlap after the first group, and each is applied once', async () => {
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
  expect(Math.max(...together.slice(0, 2))).toBe(1)
  expect(Math.max(...together)).toBeGreaterThan(5)
  expect(await db.query('select count(*)::int as n, count(distinct job_id)::int as jobs from effect')).toEqual([
    { n: 50, jobs: 50 },
  ])
  expect(await done()).toBe(50)
  expect(ranMs).toHaveLength(50)
  for (const ms of ranMs) expect(ms).toBeLessThan(20_000)
})

test('[J2] handlers that write by what they read see each other one after another', async () => {
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

test('[J2] a kind that has shown to send at once and then waits for an answer loses no update', async () => {
  await db.query('create table counter (n integer)')
  await db.query('insert into counter values (0)')
  const calls = new Map<number, number>()
  pawl.jobs.define<Numbered>('changes', {
    share: 10,
    tx: async (job, tx) => {
      calls.set(job.payload.n, (calls.get(job.payload.n) ?? 0) + 1)
      const { rows } = await tx.query<{ n: number }>('select n from counter where $1::integer is not null', [job.payload.n])
      if (job.payload.n >= 30) await tx.query('update counter set n = $1', [rows[0]!.n + 1])
    },
  })
  await pawl.jobs.enqueueMany('changes', numbered(90))
  // One claim of all and a clock that stands still make every group a full one. Else the first that waits could be the last of its group,
  // with nobody behind it, and would teach the same without a conflict.
  vi.spyOn(performance, 'now').mockReturnValue(performance.now())
  await runAll(pawl, { ...oneGroup, concurrency: 100 })
  expect(await db.query('select n from counter')).toEqual([{ n: 60 }])
  expect(await done()).toBe(90)
  // It was tried together once, undone, and each of that group ran again alone; afterwards nobody runs twice.
  const twice = [...calls.values()].filter((count) => count > 1).length
  expect(twice).toBeGreaterThan(0)
  expect(twice).toBeLessThanOrEqual(10)
})

test('[J2] settings and role of one handler do not reach the next, nor the commit', async () => {
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

test('[J2] a job whose row somebody has locked holds up none of its group', async () => {
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
