import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

test('an enqueued job runs once; outcome, attempt and result are in history', async () => {
  const pawl = db.pawl()
  const kind = pawl.jobs.define<{ n: number }>('double', { run: async (job) => job.payload.n * 2 })
  const { id } = await pawl.jobs.enqueue(kind, { n: 21 })
  const worker = pawl.worker()
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
  const job = await pawl.jobs.get(id)
  expect(job).toMatchObject({ state: 'done', result: 42, attempt: 1, crashes: 0 })
  expect(await db.query('select count(*)::int as n from pawl.job')).toEqual([{ n: 0 }])
})

test('a tx handler writes its effects and its completion in one transaction', async () => {
  await db.query('create table effect (job_id bigint)')
  const pawl = db.pawl()
  const kind = pawl.jobs.define('effect', {
    tx: async (job, tx) => void (await tx.query('insert into effect values ($1)', [job.id])),
  })
  const { ids } = await pawl.jobs.enqueueMany(
    kind,
    Array.from({ length: 50 }, () => ({})),
  )
  const worker = pawl.worker()
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
  expect(await db.query('select count(*)::int as n, count(distinct job_id)::int as jobs from effect')).toEqual([
    { n: ids.length, jobs: ids.length },
  ])
  const together =
    "select count(*)::int as n from pawl.job_history h join effect e on e.job_id = h.id and e.xmin = h.xmin where h.outcome = 'done'"
  expect(await db.query(together)).toEqual([{ n: ids.length }])
})

test('what a finished job was is in its history: payload, headers, priority', async () => {
  const pawl = db.pawl()
  const go = { payloadVersion: 3, upgrade: (payload: unknown) => payload }
  pawl.jobs.define('run', { ...go, run: () => undefined })
  pawl.jobs.define('tx', { ...go, tx: () => undefined })
  pawl.jobs.define('shared', { ...go, share: 10, tx: () => undefined })
  pawl.jobs.define('cancelled', { ...go, run: () => undefined })
  const was = { headers: { traceparent: 'abc' }, priority: 7 }
  const jobs = await Promise.all(
    ['run', 'tx', 'shared', 'cancelled'].map(async (kind) => (await pawl.jobs.enqueue(kind, { of: kind }, was)).id),
  )
  await pawl.jobs.cancel(jobs[3]!)
  await runAll(pawl)
  for (const [index, kind] of ['run', 'tx', 'shared', 'cancelled'].entries()) {
    const state = kind === 'cancelled' ? 'cancelled' : 'done'
    expect(await pawl.jobs.get(jobs[index]!)).toMatchObject({ ...was, kind, state, payload: { of: kind } })
  }
  expect(await db.query('select distinct payload_version from pawl.job_history')).toEqual([{ payload_version: 3 }])
})

test('jobs that share a transaction are each applied once', async () => {
  await db.query('create table effect (job_id bigint)')
  const pawl = db.pawl()
  const kind = pawl.jobs.define('shared', {
    share: 20,
    tx: async (job, tx) => void (await tx.query('insert into effect values ($1)', [job.id])),
  })
  await pawl.jobs.enqueueMany(
    kind,
    Array.from({ length: 200 }, () => ({})),
  )
  const worker = pawl.worker()
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
  expect(await db.query('select count(*)::int as n, count(distinct job_id)::int as jobs from effect')).toEqual([
    { n: 200, jobs: 200 },
  ])
})

test('a failing job is retried with backoff, recorded, then dead', async () => {
  const pawl = db.pawl()
  const kind = pawl.jobs.define('fails', {
    retry: { attempts: 3, initialMs: 1, jitter: false },
    run: () => Promise.reject(new Error('no')),
  })
  const { id } = await pawl.jobs.enqueue(kind, {})
  const worker = pawl.worker()
  const delaysMs: (number | undefined)[] = []
  pawl.on('job.failed', ({ retryInMs }) => delaysMs.push(retryInMs))
  const dead = new Promise<unknown>((resolve) => pawl.on('job.dead', resolve))
  await worker.start()
  expect(await dead).toMatchObject({ id })
  expect(delaysMs).toEqual([1, 2, undefined])
  await worker.stop()
  expect((await pawl.jobs.attempts(id)).map(({ attempt, outcome }) => [attempt, outcome])).toEqual([
    [1, 'failed'],
    [2, 'failed'],
    [3, 'failed'],
  ])
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.dead', subject: 'fails', count: 1 }])
})
