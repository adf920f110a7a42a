// stop(): what runs may finish, what has not started goes back untouched, and what outlives its grace keeps its lease until it answers.

import type { JobContext, Pawl } from 'pawl'
import { endLease, installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import type { LogFields } from '../config.ts'
import type { Worker } from '../worker.ts'

let db: TestDatabase
let pawl: Pawl
const workers: Worker[] = []
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(async () => {
  await Promise.all(workers.splice(0).map((worker) => worker.stop({ grace: 0 })))
  await db.drop()
})

async function startWorker(options: Parameters<Pawl['worker']>[0] = {}): Promise<Worker> {
  const worker = pawl.worker(options)
  workers.push(worker)
  await worker.start()
  return worker
}

async function closeReason(worker: number): Promise<string | null | undefined> {
  const [row] = await db.query<{ close_reason: string | null }>('select close_reason from pawl.worker where id = $1', [worker])
  return row?.close_reason
}

test('[J13] a stop releases unstarted jobs, starts nothing, and lets running ones finish', async () => {
  const go = deferred()
  const ran: number[] = []
  pawl.jobs.define<{ n: number }>('work', {
    run: async (job) => {
      ran.push(job.payload.n)
      if (job.payload.n === 100) await go.promise
    },
  })
  await pawl.jobs.enqueueMany(
    'work',
    Array.from({ length: 300 }, (_, n) => ({ n })),
  )
  const worker = await startWorker({ concurrency: 1 })
  await until('one holds the slot and others wait here', () => ran.length === 101 && worker.metrics().buffered > 0)
  const stopped = worker.stop()
  go.resolve()
  const report = await stopped
  expect(ran).toHaveLength(101)
  expect(report.stillRunning).toEqual([])
  expect(report.released).toBeGreaterThan(0)
  expect(report.finished).toBeGreaterThanOrEqual(1)
  expect(await db.query('select state, attempt, crashes, holder, count(*)::int as n from pawl.job group by 1, 2, 3, 4')).toEqual([
    { state: 'ready', attempt: 0, crashes: 0, holder: null, n: 199 },
  ])
  expect(await db.query('select from pawl.job_attempt')).toHaveLength(0)
  expect(await closeReason(1)).toBe('stopped')
})

for (const shape of ['run', 'tx'] as const) {
  test(`[J13] a ${shape} handler past its grace keeps its lease; its answer counts`, async () => {
    await db.query('create table effect (attempt integer)')
    const started = deferred<JobContext>()
    const go = deferred()
    let runs = 0
    const body = async (context: JobContext) => {
      runs++
      started.resolve(context)
      await go.promise
    }
    if (shape === 'run') {
      pawl.jobs.define('long', {
        run: async (_job, context) => {
          await body(context)
          return 'answered'
        },
      })
    } else {
      pawl.jobs.define('long', {
        tx: async (job, tx, context) => {
          await tx.query('insert into effect values ($1)', [job.attempt])
          await body(context)
          return 'answered'
        },
      })
    }
    const leaseMs = 1000
    const worker = await startWorker({ lease: leaseMs, tuning: { beatMs: 100 } })
    const { id } = await pawl.jobs.enqueue('long', {})
    const { signal } = await started.promise
    const incarnation = worker.id!
    // Another one stands by the whole time and would take what has no lease.
    const other = await startWorker({ lease: leaseMs, tuning: { beatMs: 100 } })
    const [{ lease_until: leaseUntil } = { lease_until: new Date(0) }] = await db.query<{ lease_until: Date }>(
      'select lease_until from pawl.worker where id = $1',
      [incarnation],
    )
    const report = await worker.stop({ grace: '100ms' })
    expect(report).toMatchObject({ stillRunning: [id], released: 0 })
    expect(signal.aborted).toBe(true)
    expect(signal.reason).toMatchObject({ code: 'PAWL_STOPPED' })
    await until('the lease was renewed past its length after the stop', async () => {
      const rows = await db.query(
        "select from pawl.worker where id = $1 and closed_at is null and lease_until > $2::timestamptz + $3 * interval '1 millisecond'",
        [incarnation, leaseUntil, leaseMs],
      )
      return rows.length > 0
    })
    expect(await pawl.jobs.get(id)).toMatchObject({ state: 'running', holder: incarnation, attempt: 1 })
    expect(await closeReason(incarnation)).toBeNull()
    go.resolve()
    await until('its answer is stored', async () => (await pawl.jobs.get(id))?.state === 'done')
    expect(await pawl.jobs.get(id)).toMatchObject({ result: 'answered', attempt: 1, crashes: 0, holder: incarnation })
    await until('the worker has closed itself', async () => (await closeReason(incarnation)) === 'stopped')
    expect(runs).toBe(1)
    expect(other.metrics().started).toBe(0)
    expect(await db.query('select attempt from effect')).toEqual(shape === 'tx' ? [{ attempt: 1 }] : [])
  })
}

test('[J13] a second stop ends the grace early', async () => {
  const started = deferred<JobContext>()
  const go = deferred()
  pawl.jobs.define('long', {
    run: async (_job, context) => {
      started.resolve(context)
      await go.promise
    },
  })
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('long', {})
  const { signal } = await started.promise
  const stopped = worker.stop({ grace: '1h' })
  expect(signal.aborted).toBe(false)
  void worker.stop({ grace: 0 })
  expect(await stopped).toMatchObject({ stillRunning: [id] })
  expect(signal.aborted).toBe(true)
  go.resolve()
  await until('its answer is stored', async () => (await pawl.jobs.get(id))?.state === 'done')
})

test('[J13] a suspect that runs alone does not extend the grace', async () => {
  const started = [deferred(), deferred()]
  const go = deferred()
  pawl.jobs.define('work', {
    run: async (job) => {
      started[job.attempt - 1]!.resolve()
      await go.promise
    },
  })
  const first = await startWorker({ lease: '10s', tuning: { beatMs: 100 } })
  const { id } = await pawl.jobs.enqueue('work', {})
  await started[0]!.promise
  const second = await startWorker({ lease: '10s', tuning: { beatMs: 100 } })
  await endLease(db.pool, first.id!)
  await started[1]!.promise
  // The first may have opened another incarnation and taken it itself.
  const [row] = await db.query<{ holder: number }>('select holder from pawl.job where id = $1', [id])
  const runner = [first, second].find((worker) => worker.id === row!.holder)!
  expect((await runner.stop({ grace: '100ms' })).stillRunning).toContain(id)
  go.resolve()
  await until('its answer is stored', async () => (await pawl.jobs.get(id))?.state === 'done')
})

test('[J13] stop() twice is one stop, and an idle worker stops at once', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  const worker = await startWorker()
  const reports = await Promise.all([worker.stop(), worker.stop({ grace: 0 })])
  expect(reports[0]).toBe(reports[1])
  expect(reports[0]).toEqual({ finished: 0, released: 0, stillRunning: [], unsettled: [], aborted: [] })
  await until('its connections are gone', async () => {
    const rows = await db.query(
      "select from pg_stat_activity where datname = current_database() and application_name like 'pawl %' and application_name <> 'pawl caller'",
    )
    return rows.length === 0
  })
})

test('stop() right after start() opened the incarnation ends all that start() begins', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  const opened = deferred<void>()
  const held = deferred<void>()
  installProbe(async (name) => {
    if (name !== 'worker.opened') return
    opened.resolve()
    await held.promise
  })
  onTestFinished(() => installProbe(undefined))
  const worker = pawl.worker()
  const starting = worker.start()
  await opened.promise
  const stopping = worker.stop()
  // A stop() that does not wait for start() has ended by then, and nothing ends what start() still begins.
  await Promise.race([stopping, db.query('select pg_sleep(1)')])
  held.resolve()
  await Promise.all([starting, stopping])
  expect(await closeReason(worker.id!)).toBe('stopped')
  await until('its last connection has ended', async () => {
    const sessions = await db.query(
      "select from pg_stat_activity where datname = current_database() and application_name like 'pawl %'",
    )
    return sessions.length === 0
  })
})

test('[J13] last words give back what a claim in progress brings', async () => {
  pawl.jobs.define('once', { retry: { crashes: 1 }, run: () => undefined })
  const worker = await startWorker()
  const id = worker.id!
  const words = deferred<Promise<void>>()
  let isSaid = false
  installProbe((name, detail) => {
    if (name !== 'jobs.claim.after' || (detail as unknown[]).length === 0 || isSaid) return
    isSaid = true
    words.resolve(worker.lastWords('uncaught error'))
  })
  onTestFinished(() => installProbe(undefined))
  await pawl.jobs.enqueue('once', {})
  await words.promise
  expect(await closeReason(id)).toBe('uncaught error')
  expect(await db.query('select state, attempt, crashes from pawl.job')).toEqual([{ state: 'ready', attempt: 0, crashes: 0 }])
})

test('[J13] an unanswered claim is released even if a handler outlives the grace', async () => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  pawl = db.pawl({ databaseUrl: proxy.url })
  const go = deferred()
  pawl.jobs.define('long', { run: () => go.promise })
  pawl.jobs.define('short', { run: () => undefined })
  const worker = await startWorker()
  await pawl.jobs.enqueue('long', {})
  await until('it runs', () => worker.metrics().running === 1)
  // Asleep, so that the next claim is the one that finds the job.
  await until('it sleeps', async () => (await db.query('select from pawl.sleeper where worker = $1', [worker.id])).length > 0)
  const lost = proxy.loseReply(/picked as materialized/i, { of: /claim/ })
  const { id } = await pawl.jobs.enqueue('short', {})
  await lost.happened
  const report = await worker.stop({ grace: 1 })
  expect(report.stillRunning).toHaveLength(1)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'ready', attempt: 0 })
  go.resolve()
})

test('a handler that awaits stop() is named when the grace is over', async () => {
  const said: { jobs: unknown; message: string }[] = []
  const warn = ({ jobs }: LogFields, message: string) => void said.push({ jobs, message })
  pawl = db.pawl({ logger: { debug() {}, info() {}, error() {}, warn } })
  const stopped = deferred()
  pawl.jobs.define('last', {
    run: async () => {
      await worker.stop({ grace: 50 })
      stopped.resolve()
    },
  })
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('last', {})
  await stopped.promise
  expect(said).toEqual([
    { jobs: [`${id} (last)`], message: expect.stringMatching(/awaits stop\(\) or close\(\) waits for itself/) },
  ])
})

for (const abandon of [true, false]) {
  test(`[J13] a handler that obeys its signal burns no attempt (abandon: ${abandon})`, async () => {
    const started = deferred()
    let mayEnd = false
    pawl.jobs.define('heeds', {
      retry: { attempts: 1 },
      run: (_job, { signal }) =>
        new Promise((resolve, reject) => {
          if (mayEnd) resolve(undefined)
          signal.addEventListener('abort', () => reject(signal.reason as Error))
          started.resolve()
        }),
    })
    const { id } = await pawl.jobs.enqueue('heeds', {})
    const worker = await startWorker()
    await started.promise
    const report = await worker.stop({ grace: 0, abandon })
    expect(report).toMatchObject({ stillRunning: [id], unsettled: [] })
    mayEnd = true
    await startWorker()
    await until('it ran elsewhere', async () => (await pawl.jobs.get(id))?.state === 'done')
    // Given up, it may be taken over before its own end is stored: that is recorded, and counts neither.
    const outcomes = (await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)
    expect(outcomes.filter((outcome) => outcome !== 'done' && outcome !== 'interrupted')).toEqual([])
    expect(await pawl.jobs.get(id)).toMatchObject({ crashes: 0 })
    expect(await pawl.alerts()).toEqual([])
  })
}

test('a worker that was stopped says that it does not start again', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  const worker = pawl.worker()
  await expect(worker.whenIdle()).rejects.toMatchObject({ code: 'PAWL_STOPPED' })
  await worker.start()
  await worker.stop()
  await expect(worker.start()).rejects.toMatchObject({
    code: 'PAWL_STOPPED',
    message: expect.stringContaining('Create a new one'),
  })
  await expect(worker.whenIdle()).rejects.toMatchObject({ code: 'PAWL_STOPPED' })
})

test('a worker whose start failed tries again at the next start()', async () => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  await proxy.refuse()
  const far = db.pawl({ databaseUrl: proxy.url })
  far.jobs.define('work', { run: () => undefined })
  const worker = far.worker()
  await expect(worker.start()).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE' })
  await expect(worker.start()).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE' })
  expect(proxy.names).toEqual([])
  await proxy.accept()
  await worker.start()
  await far.jobs.enqueue('work', {})
  await worker.whenIdle()
  expect(worker.metrics().done).toBe(1)
  await worker.stop()
  const stopped = far.worker()
  await stopped.stop()
  await expect(stopped.start()).rejects.toMatchObject({ code: 'PAWL_STOPPED' })
})

test('[J13] a later stop shortens the grace and may abandon running jobs', async () => {
  pawl.jobs.define('hangs', { run: () => new Promise(() => undefined) })
  const { id } = await pawl.jobs.enqueue('hangs', {})
  const worker = await startWorker()
  await until('it runs', () => worker.metrics().running === 1)
  const incarnation = worker.id!
  const first = worker.stop({ grace: '1h' })
  const later = await worker.stop({ grace: 0, abandon: true })
  expect(later).toMatchObject({ stillRunning: [id] })
  expect(await first).toEqual(later)
  expect(await closeReason(incarnation)).toBe('stopped')
})

test('[J13] a stop after the grace of the first still abandons what runs', async () => {
  pawl.jobs.define('hangs', { run: () => new Promise(() => undefined) })
  const { id } = await pawl.jobs.enqueue('hangs', {})
  const worker = await startWorker()
  await until('it runs', () => worker.metrics().running === 1)
  const incarnation = worker.id!
  expect(await worker.stop({ grace: 0 })).toMatchObject({ stillRunning: [id] })
  expect(await closeReason(incarnation)).toBeNull()
  await worker.stop({ abandon: true })
  expect(await closeReason(incarnation)).toBe('stopped')
})

test('[J13] whenIdle rejects when the worker is stopped before it is idle', async () => {
  const go = deferred()
  pawl.jobs.define('work', { run: () => go.promise })
  await pawl.jobs.enqueue('work', {})
  const worker = await startWorker()
  await until('it runs', () => worker.metrics().running === 1)
  const idle = worker.whenIdle().then(
    () => 'idle',
    (error: { code: string }) => error.code,
  )
  const stopping = worker.stop()
  go.resolve()
  await stopping
  expect(await Promise.race([idle, Promise.resolve('waits still')])).toBe('PAWL_STOPPED')
})
