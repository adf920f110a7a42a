// Cancelling: what waits never starts, what runs is told within a heartbeat, and its late result finds no row.

import type { Job, JobContext, Pawl, PawlOptions } from 'pawl'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import type { Worker } from '../worker.ts'

let db: TestDatabase
const workers: Worker[] = []
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  await Promise.all(workers.splice(0).map((worker) => worker.stop({ grace: 0 })))
  await db.drop()
})

async function startWorker(pawl: Pawl, options: Parameters<Pawl['worker']>[0] = {}): Promise<Worker> {
  const worker = pawl.worker(options)
  workers.push(worker)
  await worker.start()
  return worker
}

test('[J17] a queued job that was cancelled never starts, whatever it waited for', async () => {
  const pawl = db.pawl()
  const ran: string[] = []
  pawl.jobs.define('work', {
    run: (job) => {
      ran.push(job.id)
    },
  })
  const ready = await pawl.jobs.enqueue('work', {})
  const scheduled = await pawl.jobs.enqueue('work', {}, { delay: 50 })
  const later = await pawl.jobs.enqueue('work', {}, { delay: '1h' })
  const kept = await pawl.jobs.enqueue('work', {})
  expect(await pawl.jobs.cancel(ready.id, { reason: 'not needed' })).toEqual({ was: 'ready' })
  await pawl.jobs.cancel(scheduled.id)
  expect(await pawl.jobs.cancel(later.id)).toEqual({ was: 'scheduled' })
  await startWorker(pawl)
  await until('the other one is done', async () => (await pawl.jobs.get(kept.id))?.state === 'done')
  // Enqueued afterwards with a later time than the cancelled one had: once it ran, that one would have too.
  const after = await pawl.jobs.enqueue('work', {}, { delay: 100 })
  await until('a later one is done', async () => (await pawl.jobs.get(after.id))?.state === 'done')
  expect(ran).toEqual([kept.id, after.id])
  expect(await pawl.jobs.get(ready.id)).toMatchObject({ state: 'cancelled', attempt: 0, lastError: 'not needed' })
  expect((await pawl.jobs.why(ready.id)).reasons).toMatchObject([
    { code: 'cancelled', text: expect.stringContaining('not needed') },
  ])
  await expect(pawl.jobs.cancel(ready.id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE', details: { state: 'cancelled' } })
})

test('[J17] a claimed job cancelled before its start never starts', async () => {
  const pawl = db.pawl()
  const go = deferred()
  const ran: number[] = []
  pawl.jobs.define<{ n: number }>('work', {
    run: async (job) => {
      ran.push(job.payload.n)
      if (job.payload.n === 100) await go.promise
    },
  })
  const worker = await startWorker(pawl, { concurrency: 1, tuning: { bufferMs: 60_000 } })
  const { ids } = await pawl.jobs.enqueueMany(
    'work',
    Array.from({ length: 150 }, (_, n) => ({ n })),
  )
  await until('one holds the slot and others wait here', () => ran.length === 101 && worker.metrics().buffered > 0)
  expect(await pawl.jobs.cancel(ids[101]!)).toEqual({ was: 'running' })
  // The buffer may still grow: what was claimed and neither started, nor waits, nor was given back, was dropped.
  await until('it is dropped', () => {
    const { claimed, started, buffered, released } = worker.metrics()
    return claimed - started - buffered - released === 1
  })
  go.resolve()
  await until('the others are done', async () => (await db.query('select from pawl.job')).length === 0)
  expect(ran).toHaveLength(149)
  expect(ran).not.toContain(101)
})

test('[J17] a dead job can be cancelled; the last one clears the alert', async () => {
  const pawl = db.pawl()
  pawl.jobs.define('fails', { retry: { attempts: 1 }, run: () => Promise.reject(new Error('no')) })
  const { ids } = await pawl.jobs.enqueueMany('fails', [{}, {}])
  await startWorker(pawl)
  await until('both are dead', async () => (await pawl.jobs.list({ state: 'dead' })).items.length === 2)
  expect(await pawl.jobs.cancel(ids[0]!)).toEqual({ was: 'dead' })
  expect(await pawl.alerts()).toHaveLength(1)
  await pawl.jobs.cancel(ids[1]!)
  expect(await pawl.alerts()).toEqual([])
})

interface Running {
  readonly pawl: Pawl
  readonly worker: Worker
  readonly id: string
  readonly job: Job
  readonly context: JobContext
  readonly answer: () => void
}

async function running(shape: 'run' | 'tx', options: Partial<PawlOptions>, beatMs: number): Promise<Running> {
  const pawl = db.pawl(options)
  const started = deferred<{ job: Job; context: JobContext }>()
  const go = deferred()
  const body = async (job: Job, context: JobContext) => {
    started.resolve({ job, context })
    await go.promise
    return 'late'
  }
  if (shape === 'run') pawl.jobs.define('work', { run: body })
  else {
    await db.query('create table effect (job bigint)')
    pawl.jobs.define('work', {
      tx: async (job, tx, context) => {
        await tx.query('insert into effect values ($1::bigint)', [job.id])
        const result = await body(job, context)
        await tx.query('insert into effect values ($1::bigint)', [job.id])
        return result
      },
    })
  }
  // However late a beat comes, the lease itself is never what is lost here.
  const worker = await startWorker(pawl, { lease: '10m', tuning: { beatMs } })
  const { id } = await pawl.jobs.enqueue('work', {})
  return { pawl, worker, id, ...(await started.promise), answer: go.resolve }
}

describe.each(['run', 'tx'] as const)('a running %s handler', (shape) => {
  test('[J17] gets its signal within a heartbeat, and its late result is refused', async () => {
    const beatMs = 5000
    const { pawl, worker, id, job, context, answer } = await running(shape, {}, beatMs)
    const fired = deferred<number>()
    context.signal.addEventListener('abort', () => fired.resolve(performance.now()))
    const cancelledMs = performance.now()
    expect(await pawl.jobs.cancel(id, { reason: 'enough' })).toEqual({ was: 'running' })
    expect((await fired.promise) - cancelledMs).toBeLessThan(beatMs)
    expect(context.signal.reason).toMatchObject({ code: 'PAWL_CANCELLED', message: expect.stringContaining('enough') })
    answer()
    await until('the late result is refused', async () => (await db.query('select from pawl.refusal')).length > 0)
    expect(worker.metrics()).toMatchObject({ refused: 1, done: 0, failed: 0 })
    expect(await db.query('select subject, fence::text as fence from pawl.refusal')).toEqual([{ subject: id, fence: job.fence }])
    expect(await pawl.jobs.get(id)).toMatchObject({ state: 'cancelled', result: null, attempt: 1, lastError: 'enough' })
    if (shape === 'tx') expect(await db.query('select from effect')).toHaveLength(0)
    // Its slot is free and nothing of it is left: the next job runs.
    const next = await pawl.jobs.enqueue('work', {})
    await until('the next one is done', async () => (await pawl.jobs.get(next.id))?.state === 'done')
  })

  test('[J17] gets its signal by the heartbeat alone without notifications', async () => {
    const beatMs = 300
    const { pawl, id, context, answer } = await running(shape, { pooler: 'transaction' }, beatMs)
    await pawl.jobs.cancel(id)
    await until('the signal fires', () => context.signal.aborted)
    expect(context.signal.reason).toMatchObject({ code: 'PAWL_CANCELLED' })
    answer()
    await until('the late result is refused', async () => (await db.query('select from pawl.refusal')).length > 0)
    expect(await pawl.jobs.get(id)).toMatchObject({ state: 'cancelled', result: null })
    if (shape === 'tx') expect(await db.query('select from effect')).toHaveLength(0)
  })

  test('[J17] gets its signal on listening again when cancelled without a listener', async () => {
    const { pawl, id, context, answer } = await running(shape, {}, 60_000)
    const listeners = () =>
      db.query<{ pid: number }>(
        // Its heartbeat is the only thing that it says after it has begun to listen.
        `select pid from pg_stat_activity where datname = current_database() and application_name = 'pawl listen' and state = 'idle'
           and query not in ('', 'listen pawl_wake')`,
      )
    const { pid } = await until('it listens', async () => (await listeners())[0])
    const allowConnections = (isAllowed: boolean) =>
      db.query('update pg_database set datallowconn = $1 where datname = current_database()', [isAllowed])
    try {
      await allowConnections(false)
      await db.query('select pg_terminate_backend($1, 10000)', [pid])
      await pawl.jobs.cancel(id, { reason: 'enough' })
    } finally {
      await allowConnections(true)
    }
    await until('the signal fires', () => context.signal.aborted)
    expect(context.signal.reason).toMatchObject({ code: 'PAWL_CANCELLED', message: expect.stringContaining('enough') })
    answer()
    await until('the late result is refused', async () => (await db.query('select from pawl.refusal')).length > 0)
  })

  test('[J17] a cancellation that rolled back changes nothing', async () => {
    const { pawl, worker, id, context, answer } = await running(shape, {}, 100)
    const client = await db.pool.connect()
    await client.query('begin')
    await pawl.jobs.cancel(id, { tx: client })
    await client.query('rollback')
    client.release()
    answer()
    await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
    expect(await pawl.jobs.get(id)).toMatchObject({ result: 'late', attempt: 1 })
    expect(context.signal.aborted).toBe(false)
    expect(worker.metrics().refused).toBe(0)
  })
})

test("[J17] cancel and retry refuse Pawl's own jobs and name the capability's verb", async () => {
  const pawl = db.pawl()
  await db.query("select pawl.enqueue_given('', 'default', 'pawl.records.apply', array[12], array[jsonb '{}'])")
  await expect(pawl.jobs.cancel('12')).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringMatching(/records\.cancel/),
    details: { kind: 'pawl.records.apply' },
  })
  await expect(pawl.jobs.retry('12')).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE', details: { use: 'records.resume(id)' } })
  expect(await db.query("select pawl.cancel_jobs('', array[12, 13], 'by SQL') as id")).toEqual([{ id: '12' }])
  expect(await pawl.jobs.get('12')).toMatchObject({ state: 'cancelled', lastError: 'by SQL' })
})

test('[J17] a change with `by` has one audit row; without, none', async () => {
  const pawl = db.pawl().for('acme')
  const { ids } = await pawl.jobs.enqueueMany('work', [1, 2], { delay: '1h' })
  const [named, unnamed] = ids as [string, string]
  await pawl.jobs.retry(named, { by: 'ada', reason: 'urgent' })
  await pawl.jobs.retry(unnamed, { reason: 'urgent' })
  await expect(pawl.jobs.retry(named, { by: 'ada' })).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await pawl.jobs.cancel(named, { by: 'ada', tx: client })
    await client.query('rollback')
  } finally {
    client.release()
  }
  await pawl.jobs.cancel(named, { by: 'ben' })
  await pawl.jobs.cancel(unnamed)
  expect(await db.query('select tenant, actor, action, subject, reason from pawl.audit order by id')).toEqual([
    { tenant: 'acme', actor: 'ada', action: 'jobs.retry', subject: `job ${named}`, reason: 'urgent' },
    { tenant: 'acme', actor: 'ben', action: 'jobs.cancel', subject: `job ${named}`, reason: '' },
  ])
})
