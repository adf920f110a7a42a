// A lease that ended and was taken over: whatever its former holder still writes is refused, with a typed error, counted, and kept.

import { isPawlError, type Job, type JobContext, type Pawl, type PawlError, silentLogger } from 'pawl'
import { endLease, installProbe, keeperTesting } from 'pawl/testing'
import type pg from 'pg'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import type { Worker } from '../worker.ts'

// With a beat this slow, and without a session to listen in, the worker hears of nothing by itself: only the database can refuse.
const deaf = { lease: '1h', tuning: { beatMs: 600_000, pollMs: 20 } } as const
const deafPawl = () => db.pawl({ pooler: 'transaction' })
const quick = { lease: '10s', tuning: { beatMs: 100 } } as const

let db: TestDatabase
const workers: Worker[] = []
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  vi.restoreAllMocks()
  installProbe(undefined)
  await Promise.all(workers.splice(0).map((worker) => worker.stop({ grace: 0 })))
  await db.drop()
})

async function startWorker(pawl: Pawl, options: Parameters<Pawl['worker']>[0]): Promise<Worker> {
  const worker = pawl.worker(options)
  workers.push(worker)
  await worker.start()
  return worker
}

/** Stands the process's clock still, so that a worker does none of its chores, such as giving back what it holds without knowing it. */
function stopClock(): void {
  vi.spyOn(performance, 'now').mockReturnValue(performance.now())
}

/** A transaction of the test's own, committed only if the work does not throw. */
async function inTransaction<T>(work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    const result = await work(client)
    await client.query('commit')
    return result
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

async function caught(work: () => Promise<unknown>): Promise<PawlError> {
  try {
    await work()
  } catch (error) {
    if (isPawlError(error)) return error
    throw error
  }
  throw new Error('It was not refused.')
}

/** What another claim does to the row: a new fence. The holder is the same, and it does not matter: the fence is a number, not a name. */
async function takeOver(id: string): Promise<void> {
  await db.query('update pawl.job set fence = pawl.next_fence(), attempt = attempt + 1 where id = $1', [id])
}

async function refusals(): Promise<{ what: string; subject: string; fence: string; holder: number }[]> {
  return db.query('select what, subject, fence::text as fence, holder from pawl.refusal order by id')
}

type Verb = (job: Job, context: JobContext) => Promise<unknown>
const verbs: Readonly<Record<string, { act: Verb; what: string; isTyped: boolean }>> = {
  'settle as done': { act: async () => 'late', what: 'job settle', isTyped: false },
  'settle as failed': { act: () => Promise.reject(new Error('late')), what: 'job settle', isTyped: false },
  snooze: { act: async (job) => job.snooze('1m'), what: 'job settle', isTyped: false },
  touch: { act: (_job, context) => context.touch(), what: 'job touch', isTyped: true },
  progress: { act: (_job, context) => context.touch({ percent: 50 }), what: 'job touch', isTyped: true },
  guard: { act: (job) => inTransaction((client) => job.guard(client)), what: 'job guard', isTyped: true },
  complete: { act: (job) => inTransaction((client) => job.complete(client, 'late')), what: 'job complete', isTyped: true },
}

for (const [name, { act, what, isTyped }] of Object.entries(verbs)) {
  test(`[K2] ${name} after a take-over is refused, counted, kept; the signal fires`, async () => {
    stopClock()
    const pawl = deafPawl()
    const started = deferred<Job>()
    const go = deferred()
    const ended = deferred<{ error: unknown; signal: AbortSignal }>()
    pawl.jobs.define('work', {
      run: async (job, context) => {
        started.resolve(job)
        await go.promise
        let error: unknown
        try {
          return await act(job, context)
        } catch (thrown) {
          error = thrown
          throw thrown
        } finally {
          ended.resolve({ error, signal: context.signal })
        }
      },
    })
    const worker = await startWorker(pawl, deaf)
    const { id } = await pawl.jobs.enqueue('work', {})
    const job = await started.promise
    await takeOver(id)
    const before = await db.query('select fence, state, progress, attempt, revision from pawl.job')
    go.resolve()
    const { error, signal } = await ended.promise
    if (isTyped) {
      expect(error).toMatchObject({ code: 'PAWL_LEASE_LOST', details: { id, fence: job.fence } })
    }
    // A settle has no caller to tell: the refusal reaches the signal, the counter and the evidence.
    await until('the signal fires', () => signal.aborted)
    expect(signal.reason).toMatchObject({ code: 'PAWL_LEASE_LOST' })
    await until('the refusal is kept', async () => (await refusals()).some((row) => row.what === what))
    expect(await refusals()).toContainEqual({ what, subject: id, fence: job.fence, holder: worker.id })
    await until('each counted refusal is kept', async () => (await refusals()).length === worker.metrics().refused)
    expect(worker.metrics()).toMatchObject({ done: 0, failed: 0, dead: 0 })
    expect(await db.query('select fence, state, progress, attempt, revision from pawl.job')).toEqual(before)
    expect(await db.query('select from pawl.job_history')).toHaveLength(0)
    expect(await db.query('select from pawl.job_attempt')).toHaveLength(0)
  })
}

test("[K2] after a take-over a tx handler's commit is refused and leaves nothing", async () => {
  stopClock()
  await db.query('create table effect (fence bigint)')
  const pawl = deafPawl()
  const started = deferred<Job>()
  const go = deferred()
  pawl.jobs.define('work', {
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1::bigint)', [job.fence])
      started.resolve(job)
      await go.promise
    },
  })
  const worker = await startWorker(pawl, deaf)
  const { id } = await pawl.jobs.enqueue('work', {})
  const job = await started.promise
  await takeOver(id)
  go.resolve()
  await until('the refusal is kept', async () => (await refusals()).length > 0)
  expect(await refusals()).toEqual([{ what: 'job complete', subject: id, fence: job.fence, holder: worker.id }])
  expect(worker.metrics()).toMatchObject({ refused: 1, done: 0, failed: 0 })
  expect(await db.query('select from effect')).toHaveLength(0)
  expect(await db.query('select from pawl.job_history')).toHaveLength(0)
})

test('[K2] after a take-over, a release of unstarted jobs is refused and kept', async () => {
  stopClock()
  const pawl = deafPawl()
  const go = deferred()
  let ran = 0
  pawl.jobs.define<{ n: number; waits: boolean }>('work', {
    run: async (job) => {
      ran++
      if (job.payload.waits) await go.promise
    },
  })
  const worker = await startWorker(pawl, { ...deaf, concurrency: 1 })
  // The first hundred make the worker claim ahead; then one holds its only slot.
  await pawl.jobs.enqueueMany(
    'work',
    Array.from({ length: 200 }, (_, n) => ({ n, waits: n === 100 })),
  )
  await until('the slot is held and others wait in the buffer', () => ran === 101 && worker.metrics().buffered > 0)
  const [waiting] = await until('a waiting job', async () => {
    const rows = await db.query<{ id: string; fence: string }>(
      "select id::text as id, fence::text as fence from pawl.job where state = 'running' and (payload->>'n')::integer > 100 order by id desc limit 1",
    )
    return rows.length > 0 && rows
  })
  await takeOver(waiting!.id)
  const stopped = worker.stop()
  go.resolve()
  await stopped
  await until('the refusal is kept', async () => (await refusals()).length > 0)
  expect(await refusals()).toEqual([
    { what: 'job release', subject: waiting!.id, fence: waiting!.fence, holder: expect.any(Number) },
  ])
  expect(worker.metrics().refused).toBe(1)
})

test('[K2] after its lease ended a holder is refused; the next one finishes', async () => {
  await db.query('create table effect (attempt integer)')
  const pawl = db.pawl()
  const started = deferred<JobContext>()
  const go = deferred()
  const errors: PawlError[] = []
  pawl.jobs.define('work', {
    retry: { crashes: 3 },
    run: async (job, context) => {
      if (job.attempt === 1) {
        started.resolve(context)
        await go.promise
        errors.push(await caught(() => context.touch({ n: 1 })))
        errors.push(await caught(() => inTransaction((client) => job.guard(client))))
        errors.push(
          await caught(() =>
            inTransaction(async (client) => {
              await client.query('insert into effect values (1)')
              await job.complete(client, 'first')
            }),
          ),
        )
      } else await db.query('insert into effect values ($1)', [job.attempt])
      return job.attempt
    },
  })
  const first = await startWorker(pawl, quick)
  const { id } = await pawl.jobs.enqueue('work', {})
  const { signal } = await started.promise
  const incarnation = first.id!
  const lost: number[] = []
  pawl.on('worker.lost', ({ worker }) => lost.push(worker))
  await startWorker(pawl, { ...quick, name: 'second' })
  await endLease(db.pool, incarnation)
  await until('the next holder has done it', async () => (await pawl.jobs.get(id))?.state === 'done')
  await until('the first is told', () => signal.aborted)
  expect(signal.reason).toMatchObject({ code: 'PAWL_LEASE_LOST' })
  // The worker may find its job gone before its keeper finds the lease gone: the two poll on connections of their own.
  await until('the worker is told too', () => lost.includes(incarnation))
  go.resolve()
  await until('the late end is refused', () => first.metrics().refused > 0)
  expect(errors.map(({ code }) => code)).toEqual(['PAWL_LEASE_LOST', 'PAWL_LEASE_LOST', 'PAWL_LEASE_LOST'])
  await until('the refusal is kept', async () =>
    (await refusals()).some((row) => row.subject === id && row.holder === incarnation),
  )
  expect(await db.query('select attempt from effect')).toEqual([{ attempt: 2 }])
  const job = await pawl.jobs.get(id)
  expect(job).toMatchObject({ state: 'done', result: 2, attempt: 2, crashes: 1 })
  // The second worker or the first took it, under another incarnation.
  expect(job?.holder).not.toBe(incarnation)
  expect(first.id).not.toBe(incarnation)
})

test('[K2] a handler whose incarnation closed still settles before the rescue', async () => {
  const pawl = db.pawl()
  const started = deferred<AbortSignal>()
  const go = deferred()
  pawl.jobs.define('work', {
    run: async (_job, { signal }) => {
      started.resolve(signal)
      await go.promise
      return 'in time'
    },
  })
  const worker = await startWorker(pawl, quick)
  const { id } = await pawl.jobs.enqueue('work', {})
  const signal = await started.promise
  await inTransaction(async (rescueless) => {
    // A rescue records what it takes and a settle does not, so as long as this transaction is open no worker can take the job.
    await rescueless.query('lock table pawl.job_attempt in share mode')
    await inTransaction(async (client) => {
      await client.query('select from pawl.job where id = $1 for update', [id])
      await endLease(db.pool, worker.id!)
      await until('the worker is told', () => signal.aborted)
      go.resolve()
      // It waits for half a second, then gives up for now.
      await until('its settle meets the lock', async () => {
        const rows = await db.query(
          "select from pg_stat_activity where datname = current_database() and application_name like '% settle' and wait_event_type = 'Lock'",
        )
        return rows.length > 0 || worker.metrics().conflicts > 0
      })
    })
    await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  })
  expect(await pawl.jobs.get(id)).toMatchObject({ result: 'in time', attempt: 1, crashes: 0 })
  expect(worker.metrics().refused).toBe(0)
})

function pawlWhoseKeeperDies(onDeath: () => void): Pawl {
  const error = (_fields: unknown, message: string) => {
    if (message.includes('keeper thread died')) onDeath()
  }
  const pawl = db.pawl({ logger: { ...silentLogger, error } })
  pawl.jobs.define('work', { run: () => undefined })
  return pawl
}

test('[J3] a keeper closes as soon as a question has waited long enough', async () => {
  const pawl = db.pawl()
  pawl.jobs.define('work', { run: () => undefined })
  await startWorker(pawl, {})
  const tookMs: number[] = []
  // It polls twice a second, and the dead one has 600 ms to answer: together at least a second. A busy machine may be slow once.
  while (tookMs.length < 10 && tookMs.every((ms) => ms >= 900)) {
    const [dead] = await db.query<{ id: number }>(`
      insert into pawl.worker (look_ms, lease_until) values (300, pawl.now()) returning id`)
    const [row] = await until('it is closed', async () => {
      const rows = await db.query<{ ms: number }>(
        "select date_part('epoch', closed_at - asked_at) * 1000 as ms from pawl.worker where id = $1 and closed_at is not null",
        [dead!.id],
      )
      return rows.length > 0 && rows
    })
    tookMs.push(row!.ms)
  }
  expect(Math.min(...tookMs)).toBeLessThan(900)
}, 120_000)

test('[K2] a keeper thread that ends without an error is restarted and renews', async () => {
  const died = deferred()
  const pawl = pawlWhoseKeeperDies(() => died.resolve())
  keeperTesting.probeModule = new URL('../../test/support/ending-keeper.ts', import.meta.url).href
  let worker: Worker
  try {
    worker = await startWorker(pawl, { lease: '60s', tuning: { beatMs: 100 } })
  } finally {
    keeperTesting.probeModule = undefined
  }
  const { id } = worker
  await died.promise
  const [{ now }] = (await db.query<{ now: Date }>('select clock_timestamp() as now')) as [{ now: Date }]
  await until(
    'it beats again',
    async () => (await db.query('select from pawl.worker where id = $1 and seen_at > $2', [id, now])).length > 0,
  )
  expect(worker.id).toBe(id)
})

test('[K2] a keeper thread that dies while its worker opens is replaced', async () => {
  const died = deferred()
  const pawl = pawlWhoseKeeperDies(() => {
    keeperTesting.probeModule = undefined
    died.resolve()
  })
  keeperTesting.probeModule = new URL('../../test/support/ending-keeper.ts', import.meta.url).href
  onTestFinished(() => {
    keeperTesting.probeModule = undefined
  })
  const starting = await inTransaction(async (client) => {
    await client.query('lock table pawl.worker in share mode')
    const start = startWorker(pawl, { lease: '60s', tuning: { beatMs: 100 } })
    start.catch(() => undefined)
    await died.promise
    return { start }
  })
  const { id } = await starting.start
  const renewed =
    'select from pawl.worker w join pawl.worker_process p on p.id = w.id where w.id = $1 and w.seen_at > p.started_at'
  await until('it is renewed', async () => (await db.query(renewed, [id])).length > 0)
})
