// What follows a failure: how long until the next attempt, when there is none, and who is told.

import type { DeadJob, Job, Pawl } from 'pawl'
import { NonRetryable } from 'pawl'
import { endLease, moveClock, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { lockClass } from '../kernel/lease.ts'
import type { Worker } from '../worker.ts'

const promoteStatement = statement(import.meta.url, 'promote')
/** The keeper would also end a job past its time limit, with another message, when the main thread stalls; here it does not watch it. */
const unwatched = { lease: '1h', tuning: { beatMs: 600_000 } } as const

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

/** Stands the database's clock still: nothing becomes due by itself, however long a poll takes. */
async function stopClock(): Promise<void> {
  await db.query(`do $$ begin
    execute format('create or replace function pawl.now() returns timestamptz language sql volatile as %L',
      format('select %L::timestamptz', clock_timestamp()));
  end $$`)
}

/** From the end of an attempt to the time of the next, both of which the database wrote by one clock reading. */
async function lastDelayMs(id: string): Promise<number> {
  const [row] = await db.query<{ ms: string }>(
    `select extract(epoch from j.run_at - a.ended_at) * 1000 as ms
     from pawl.job j
     join pawl.job_attempt a on a.job_id = j.id
     where j.id = $1
     order by a.ended_at desc
     limit 1`,
    [id],
  )
  return Number(row?.ms)
}

async function delays(id: string, count: number): Promise<number[]> {
  const found: number[] = []
  for (let n = 1; n <= count; n++) {
    await until(`attempt ${n} has failed`, async () => {
      const job = await pawl.jobs.get(id)
      return job?.state === 'scheduled' && job.attempt === n
    })
    found.push(await lastDelayMs(id))
    await pawl.jobs.retry(id)
  }
  return found
}

test('[J15] without jitter, delays are exactly 1, 2, 4, 8, 16 seconds', async () => {
  pawl.jobs.define('fails', { retry: { jitter: false }, run: () => Promise.reject(new Error('no')) })
  await stopClock()
  await startWorker()
  const { id } = await pawl.jobs.enqueue('fails', {})
  expect(await delays(id, 5)).toEqual([1000, 2000, 4000, 8000, 16_000])
})

test('[J15] a factor and a cap are kept to, also for tx handlers', async () => {
  const retry = { jitter: false, initialMs: 100, factor: 3, maxMs: 1000 }
  pawl.jobs.define('fails', { retry, tx: () => Promise.reject(new Error('no')) })
  await stopClock()
  await startWorker()
  const { id } = await pawl.jobs.enqueue('fails', {})
  expect(await delays(id, 5)).toEqual([100, 300, 900, 1000, 1000])
})

test('[J15] with jitter each delay is within its bound, and they differ', async () => {
  pawl.jobs.define('fails', { retry: { attempts: 2 }, run: () => Promise.reject(new Error('no')) })
  const { ids } = await pawl.jobs.enqueueMany(
    'fails',
    Array.from({ length: 50 }, () => ({})),
  )
  const { retrying } = await runAll(pawl)
  // Short delays may have passed already and made their job dead; the first failure of each is in the attempts.
  expect(retrying).toHaveLength(ids.length)
  for (const { inMs } of retrying) {
    expect(inMs).toBeGreaterThanOrEqual(1)
    expect(inMs).toBeLessThanOrEqual(1000)
  }
  expect(new Set(retrying.map(({ inMs }) => inMs)).size).toBeGreaterThan(10)
})

test('[J15] a retry becomes ready at its database time, not before', async () => {
  pawl.jobs.define('fails', { retry: { jitter: false, initialMs: 60_000 }, run: () => Promise.reject(new Error('no')) })
  const { id } = await pawl.jobs.enqueue('fails', {})
  await runAll(pawl)
  const connection = new Connection(pawl.config.database, 'test')
  try {
    const values = { lock_class: lockClass, limit: 1000, after_run_at: '-infinity', after_id: 0 }
    const promoted = async () => (await connection.run<{ promoted: number }>(promoteStatement, values))[0]!.promoted
    await moveClock(db.pool, 30_000)
    expect(await promoted()).toBe(0)
    expect((await pawl.jobs.get(id))?.state).toBe('scheduled')
    await moveClock(db.pool, 60_000)
    expect(await promoted()).toBe(1)
    expect((await pawl.jobs.get(id))?.state).toBe('ready')
  } finally {
    await connection.close()
  }
})

test('[J15] NonRetryable and an error that `when` refuses are dead at once', async () => {
  pawl.jobs.define('final', { run: () => Promise.reject(new NonRetryable('of no use')) })
  pawl.jobs.define('final tx', { tx: () => Promise.reject(new NonRetryable('of no use')) })
  pawl.jobs.define<{ status: number }>('when', {
    retry: { when: (error) => (error as { status?: number }).status !== 404, initialMs: 3_600_000 },
    run: (job) => Promise.reject(Object.assign(new Error(`status ${job.payload.status}`), { status: job.payload.status })),
  })
  const final = await pawl.jobs.enqueue('final', {})
  const finalTx = await pawl.jobs.enqueue('final tx', {})
  const gone = await pawl.jobs.enqueue('when', { status: 404 })
  const busy = await pawl.jobs.enqueue('when', { status: 503 })
  const report = await runAll(pawl)
  expect(report.dead.map(({ id }) => id).sort()).toEqual([final.id, finalTx.id, gone.id].sort())
  expect(report.retrying).toMatchObject([{ id: busy.id, attempt: 1 }])
  for (const { id } of [final, finalTx]) {
    expect(await pawl.jobs.get(id)).toMatchObject({
      state: 'dead',
      attempt: 1,
      lastError: expect.stringContaining('NonRetryable: of no use'),
    })
  }
  expect(await pawl.jobs.get(gone.id)).toMatchObject({
    state: 'dead',
    attempt: 1,
    lastError: expect.stringContaining('status 404'),
  })
})

test('[J3] the idempotency key of a job is the same on every attempt', async () => {
  const keys: string[] = []
  const first = deferred()
  pawl.jobs.define<{ crashes?: boolean }>('keyed', {
    retry: { attempts: 2, initialMs: 1, jitter: false },
    run: async (job) => {
      keys.push(job.idempotencyKey)
      if (job.crashes > 0) return
      if (job.payload.crashes) await first.promise
      throw new Error('no')
    },
  })
  const worker = await startWorker({ lease: '60s' })
  const { id } = await pawl.jobs.enqueue('keyed', {})
  await until('it is dead', async () => (await pawl.jobs.get(id))?.state === 'dead')
  await pawl.jobs.retry(id)
  await until('it is dead again', async () => keys.length === 4 && (await pawl.jobs.get(id))?.state === 'dead')
  expect(new Set(keys.splice(0)).size).toBe(1)
  const { id: crashed } = await pawl.jobs.enqueue('keyed', { crashes: true })
  await until('it runs', () => keys.length === 1)
  await endLease(db.pool, worker.id!)
  await until('it is done', async () => (await pawl.jobs.get(crashed))?.state === 'done')
  first.resolve()
  expect(keys).toEqual([keys[0], keys[0]])
})

test('[J15] snoozing burns no attempt, however often, and is counted', async () => {
  let runs = 0
  pawl.jobs.define('sleepy', {
    retry: { attempts: 1 },
    run: async (job) => {
      expect(job.attempt).toBe(1)
      return ++runs <= 5 ? job.snooze('1ms') : 'awake'
    },
  })
  pawl.jobs.define('sleepy tx', {
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.id])
      const { rows } = await tx.query<{ snoozes: number }>('select snoozes from pawl.job where id = $1', [job.id])
      return rows[0]!.snoozes < 3 ? job.snooze(1) : 'awake'
    },
  })
  await db.query('create table effect (job bigint)')
  await startWorker()
  const { id } = await pawl.jobs.enqueue('sleepy', {})
  const inTx = await pawl.jobs.enqueue('sleepy tx', {})
  await until(
    'both are done',
    async () => (await pawl.jobs.get(id))?.state === 'done' && (await pawl.jobs.get(inTx.id))?.state === 'done',
  )
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 1, result: 'awake' })
  expect(await pawl.jobs.get(inTx.id)).toMatchObject({ attempt: 1, result: 'awake' })
  // A job that polls for a day leaves no row for each poll.
  expect(await db.query('select from pawl.job_attempt')).toEqual([])
  expect((await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['done'])
  // A tx handler that returns a snooze commits what it wrote.
  expect(await db.query('select from effect')).toHaveLength(4)
})

test.each([
  ['returned', 1],
  ['thrown', 0],
])('[J15] a snooze that is %s leaves %i writes and follow-ups', async (how, count) => {
  await db.query('create table effect (job bigint)')
  pawl.jobs.define('sleepy', {
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.id])
      await pawl.jobs.enqueue('later', {}, { tx })
      if (how === 'thrown') throw job.snooze('90s')
      return job.snooze('90s')
    },
  })
  await stopClock()
  const { id } = await pawl.jobs.enqueue('sleepy', {}, { priority: 3 })
  const { done } = await runAll(pawl)
  expect(done).toEqual([])
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'scheduled', attempt: 0, snoozes: 1, holder: null, lastError: null })
  expect(
    await db.query(
      `select extract(epoch from run_at - pawl.now())::integer as s, extract(epoch from run_at - due)::integer as lead, fence > 0 as fenced
       from pawl.job where id = $1`,
      [id],
    ),
  ).toEqual([{ s: 90, lead: 180, fenced: true }])
  expect(await db.query('select from effect')).toHaveLength(count)
  expect(await db.query("select from pawl.job where kind = 'later'")).toHaveLength(count)
})

test('[J1] a snooze in a transaction is refused when the job was cancelled', async () => {
  await db.query('create table effect (job bigint)')
  pawl.jobs.define('sleepy', {
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.id])
      await db.query('delete from pawl.job where id = $1', [job.id])
      return job.snooze('90s')
    },
  })
  await pawl.jobs.enqueue('sleepy', {})
  await runAll(pawl)
  expect(await db.query('select from effect')).toEqual([])
  expect(await db.query('select from pawl.job')).toEqual([])
})

test('[J15] a snooze lasts as long as it says', async () => {
  pawl.jobs.define('sleepy', { run: async (job) => job.snooze('90s') })
  await stopClock()
  const { id } = await pawl.jobs.enqueue('sleepy', {})
  await runAll(pawl)
  expect(await db.query('select extract(epoch from run_at - pawl.now())::integer as s, snoozes from pawl.job')).toEqual([
    { s: 90, snoozes: 1 },
  ])
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'scheduled', attempt: 0, snoozes: 1 })
  expect((await pawl.jobs.why(id)).reasons).toMatchObject([
    { code: 'scheduled' },
    { code: 'snoozed', text: 'It was snoozed 1 time(s) without using an attempt.' },
  ])
})

/** The two shapes, and one that shares its transaction. */
const shapes = [
  ['run', {}],
  ['tx', {}],
  ['tx', { share: 10 }],
] as const

test.each(shapes)('[J15] a snooze that is not returned fails its attempt (%s %j)', async (shape, options) => {
  const handler = async (job: Job) => {
    job.snooze('90s')
    return 'forgot it'
  }
  pawl.jobs.define('forgets', { ...options, retry: { attempts: 1 }, [shape]: handler } as never)
  const { id } = await pawl.jobs.enqueue('forgets', {})
  await runAll(pawl)
  expect(await pawl.jobs.get(id)).toMatchObject({
    state: 'dead',
    attempt: 1,
    lastError: expect.stringContaining('Write return job.snooze(...)'),
  })
})

test.each(shapes)('[J15] a thrown snooze counts as a returned one (%s %j)', async (shape, options) => {
  const handler = async (job: Job) => {
    throw job.snooze('90s')
  }
  pawl.jobs.define('throws', { ...options, retry: { attempts: 1 }, [shape]: handler } as never)
  await stopClock()
  const { id } = await pawl.jobs.enqueue('throws', {})
  await runAll(pawl)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'scheduled', attempt: 0, snoozes: 1, lastError: null })
  expect(await pawl.jobs.attempts(id)).toEqual([])
})

test('[J15] a snooze of a repeated transaction does not count for its repetition', async () => {
  let calls = 0
  pawl.jobs.define('repeats', {
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      if (++calls > 1) return 'at last'
      job.snooze('90s')
      await tx.query("do $$ begin raise exception using errcode = '40001'; end $$")
      return undefined
    },
  })
  const { id } = await pawl.jobs.enqueue('repeats', {})
  await runAll(pawl)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', result: 'at last', attempt: 1 })
})

test('[J15] after job.complete(tx) rolled back, the handler may snooze', async () => {
  pawl.jobs.define('undecided', {
    run: async (job) => {
      const client = await db.pool.connect()
      await client.query('begin')
      await job.complete(client)
      await client.query('rollback')
      client.release()
      return job.snooze('90s')
    },
  })
  await stopClock()
  const { id } = await pawl.jobs.enqueue('undecided', {})
  await runAll(pawl)
  expect(await db.query('select extract(epoch from run_at - pawl.now())::integer as s, snoozes from pawl.job')).toEqual([
    { s: 90, snoozes: 1 },
  ])
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'scheduled', attempt: 0 })
})

test('[J15] exhausted retries call hook and event once and raise one alert', async () => {
  const hook: DeadJob[] = []
  const events: DeadJob[] = []
  pawl.jobs.define('fails', {
    retry: { attempts: 3, initialMs: 1, jitter: false },
    onDead: (job) => void hook.push(job),
    run: () => Promise.reject(new Error('no')),
  })
  pawl.jobs.define('fails and its hook too', {
    retry: { attempts: 1 },
    onDead: () => Promise.reject(new Error('the hook fails')),
    run: () => Promise.reject(new Error('no')),
  })
  pawl.on('job.dead', (job) => events.push(job))
  await startWorker()
  const { ids } = await pawl.jobs.enqueueMany('fails', [{}, {}])
  const { id: third } = await pawl.jobs.enqueue('fails and its hook too', {})
  await until('all are dead', () => events.length >= 3)
  await until('the hook heard', () => hook.length >= 2)
  expect(hook.map(({ id }) => id).sort()).toEqual([...ids].sort())
  expect(hook[0]).toMatchObject({ tenant: '', kind: 'fails', reason: expect.stringContaining('Error: no') })
  expect(events.map(({ id }) => id).sort()).toEqual([...ids, third].sort())
  expect(await pawl.alerts()).toEqual(
    expect.arrayContaining([expect.objectContaining({ code: 'job.dead', subject: 'fails', count: 2 })]),
  )
  for (const id of ids) expect(await pawl.jobs.attempts(id)).toHaveLength(3)
  // One action resumes it, with all its attempts.
  await pawl.jobs.retry(ids[0]!)
  await until('it died again', () => events.length >= 4)
  expect((await pawl.jobs.attempts(ids[0]!)).map(({ attempt }) => attempt)).toEqual([1, 2, 3, 1, 2, 3])
})

test('[J15] the enqueuer may allow fewer or more attempts than the kind', async () => {
  pawl.jobs.define('fails', { retry: { attempts: 3, initialMs: 1, jitter: false }, run: () => Promise.reject(new Error('no')) })
  const events: DeadJob[] = []
  pawl.on('job.dead', (job) => events.push(job))
  await startWorker()
  const one = await pawl.jobs.enqueue('fails', {}, { maxAttempts: 1 })
  const five = await pawl.jobs.enqueue('fails', {}, { maxAttempts: 5 })
  await until('both are dead', () => events.length === 2)
  expect(await pawl.jobs.attempts(one.id)).toHaveLength(1)
  expect(await pawl.jobs.attempts(five.id)).toHaveLength(5)
})

test('[J15] a job the rescuer discards calls hook and event in its process', async () => {
  const hook = deferred<DeadJob>()
  const event = deferred<DeadJob>()
  const started = deferred()
  const go = deferred()
  let runs = 0
  pawl.jobs.define('kills', {
    retry: { crashes: 1, attempts: 10 },
    onDead: (job) => hook.resolve(job),
    run: async () => {
      runs++
      started.resolve()
      await go.promise
    },
  })
  pawl.on('job.dead', (job) => event.resolve(job))
  const first = await startWorker({ lease: '10s', tuning: { beatMs: 100 } })
  const { id } = await pawl.jobs.enqueue('kills', {})
  await started.promise
  await startWorker({ lease: '10s', tuning: { beatMs: 100 } })
  await endLease(db.pool, first.id!)
  expect(await hook.promise).toMatchObject({ id, kind: 'kills', reason: expect.stringContaining('worker') })
  expect(await event.promise).toMatchObject({ id, kind: 'kills' })
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'dead', attempt: 1, crashes: 1 })
  expect((await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['crashed'])
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.dead', subject: 'kills', count: 1 }])
  go.resolve()
  await until('the zombie was refused', () => first.metrics().refused === 1)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'dead' })
  expect(runs).toBe(1)
})

test('[J15] a last attempt past its time limit calls hook and event', async () => {
  const hook = deferred<DeadJob>()
  pawl.jobs.define('hangs', {
    timeout: '150ms',
    retry: { attempts: 1 },
    onDead: (job) => hook.resolve(job),
    run: () => new Promise(() => undefined),
  })
  const worker = await startWorker(unwatched)
  const { id } = await pawl.jobs.enqueue('hangs', {})
  expect(await hook.promise).toMatchObject({ id, reason: expect.stringContaining('timeout of 150 ms') })
  expect(worker.metrics()).toMatchObject({ timedOut: 1, dead: 1 })
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'dead', attempt: 1 })
})

test('[J15] a `retry.when` that throws is reported beside the error; limits hold', async () => {
  const retry = {
    attempts: 2,
    initialMs: 1,
    jitter: false,
    when: (error: unknown) => (error as { response: { status: number } }).response.status >= 500,
  }
  pawl.jobs.define('fails', { retry, run: () => Promise.reject(new Error('no response')) })
  pawl.jobs.define('hangs', { retry, timeout: '100ms', run: () => new Promise(() => undefined) })
  const dead: DeadJob[] = []
  pawl.on('job.dead', (job) => dead.push(job))
  await startWorker(unwatched)
  const fails = await pawl.jobs.enqueue('fails', {})
  const hangs = await pawl.jobs.enqueue('hangs', {})
  await until('both are dead', () => dead.length === 2)
  for (const { id } of [fails, hangs]) {
    expect(await pawl.jobs.attempts(id)).toHaveLength(2)
    expect((await pawl.jobs.get(id))!.lastError).toMatch(/retry\.when failed.*TypeError/)
  }
})

test('[J15] any thrown value counts as one attempt, even circular or without message', async () => {
  const circle = new Error('a circle')
  circle.cause = circle
  const thrown: Readonly<Record<string, unknown>> = { circle, bare: Object.create(null) as unknown }
  pawl.jobs.define<{ what: string }>('throws', {
    retry: { attempts: 2, initialMs: 1, jitter: false },
    run: (job) => Promise.reject(thrown[job.payload.what]),
  })
  const dead: DeadJob[] = []
  pawl.on('job.dead', (job) => dead.push(job))
  await startWorker()
  const { ids } = await pawl.jobs.enqueueMany('throws', [{ what: 'circle' }, { what: 'bare' }])
  await until('both are dead', () => dead.length === 2)
  for (const id of ids) expect(await pawl.jobs.attempts(id)).toHaveLength(2)
})

test('[J15] a snooze without a valid length fails its attempt with a message', async () => {
  const lengths = [Number.NaN, Number.POSITIVE_INFINITY, 1e18]
  pawl.jobs.define<{ index: number }>('sleepy', {
    retry: { attempts: 1 },
    run: async (job) => job.snooze(lengths[job.payload.index]!),
  })
  const { ids } = await pawl.jobs.enqueueMany(
    'sleepy',
    lengths.map((_, index) => ({ index })),
  )
  await runAll(pawl)
  for (const id of ids) {
    expect(await pawl.jobs.get(id)).toMatchObject({
      state: 'dead',
      attempt: 1,
      lastError: expect.stringContaining('snooze: delay must be a duration from 0ms'),
    })
  }
})

test('[J15] a `retry.when` that returns a promise is reported; the error is retried', async () => {
  const when = (async () => Promise.reject(new Error('nobody waits for this'))) as unknown as (error: unknown) => boolean
  pawl.jobs.define('asks', {
    retry: { attempts: 2, initialMs: 1, jitter: false, when },
    run: () => {
      throw new Error('no')
    },
  })
  const { id } = await pawl.jobs.enqueue('asks', {})
  await startWorker()
  await until('it is dead', async () => (await pawl.jobs.get(id))?.state === 'dead')
  expect(await pawl.jobs.get(id)).toMatchObject({
    attempt: 2,
    lastError: expect.stringMatching(
      /Error: no[\s\S]*retry\.when failed[\s\S]*must return true or false synchronously, got a promise/,
    ),
  })
})
