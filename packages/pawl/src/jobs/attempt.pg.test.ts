// One attempt, from its handler to its end: whatever a handler does, it ends once, and takes nothing from the other jobs.

import type { Job, Pawl, Tx } from 'pawl'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { silentLogger } from '../config.ts'
import { markOwn } from '../db/classify.ts'
import { Connection, createPool } from '../db/driver.ts'
import { PawlError } from '../errors.ts'
import { resolveConfig } from '../pawl-options.ts'
import { ClaimedRow, HeldJob } from './held.ts'
import { defineKind } from './kinds.ts'
import { Runner } from './runner.ts'
import type { Worker } from './worker.ts'

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

async function startWorker(options: Parameters<Pawl['jobs']['worker']>[0] = {}): Promise<Worker> {
  const worker = pawl.jobs.worker(options)
  workers.push(worker)
  await worker.start()
  return worker
}

const isIn = (id: string, state: string) => async () => (await pawl.jobs.get(id))?.state === state
const twice = { attempts: 2, initialMs: 1, jitter: false } as const

test('[J31] more hung tx handlers than connections: the other jobs run', async () => {
  pawl.jobs.define('hangs', { timeout: 200, retry: { attempts: 1 }, tx: () => new Promise(() => undefined) })
  pawl.jobs.define('waits', {
    timeout: 200,
    retry: { attempts: 1 },
    tx: async (_job, tx) => tx.query('select pg_sleep(3600)'),
  })
  pawl.jobs.define('good', { tx: async (_job, tx) => tx.query('select 1') })
  const worker = await startWorker({ concurrency: 2 })
  await pawl.jobs.enqueueMany('hangs', [1, 2])
  await pawl.jobs.enqueueMany('waits', [1, 2])
  await until('all are timed out', () => worker.metrics().timedOut === 4)
  const { id } = await pawl.jobs.enqueue('good', {})
  await until('the other one is done', isIn(id, 'done'))
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 1 })
})

test('[J31] timed-out handlers that wait for a lock leave no sessions behind', async () => {
  await db.query('create table effect (n integer); insert into effect values (0)')
  const locker = await db.pool.connect()
  await locker.query('begin; update effect set n = 1')
  pawl.jobs.define('waits', {
    timeout: 100,
    retry: { attempts: 1 },
    tx: async (_job, tx) => tx.query('update effect set n = n + $1::integer', [1]),
  })
  const worker = await startWorker({ concurrency: 2, handlerConnectionsMax: 2 })
  await pawl.jobs.enqueueMany('waits', [1, 2, 3, 4, 5, 6])
  await until('all are timed out', () => worker.metrics().timedOut === 6)
  await until('none of their sessions waits', async () => {
    const waiting = await db.query(
      "select from pg_stat_activity where datname = current_database() and application_name like 'pawl handler %' and state <> 'idle'",
    )
    return waiting.length === 0
  })
  await locker.query('rollback')
  locker.release()
  expect(await db.query('select n from effect')).toEqual([{ n: 0 }])
})

test('[J31] a handler that timed out meets a closed transaction', async () => {
  const isGone = deferred()
  const met = deferred<unknown>()
  await db.query('create table effect (job bigint)')
  pawl.jobs.define('late', {
    timeout: 200,
    retry: { attempts: 1 },
    tx: async (job, tx, { signal }) => {
      await tx.query('insert into effect values ($1::bigint)', [job.id])
      signal.addEventListener('abort', () => isGone.resolve())
      await isGone.promise
      await tx.query('insert into effect values ($1::bigint)', [job.id]).catch(met.resolve)
    },
  })
  await startWorker()
  const { id } = await pawl.jobs.enqueue('late', {})
  expect(await met.promise).toMatchObject({ code: 'PAWL_TIMED_OUT' })
  await until('it is dead', isIn(id, 'dead'))
  expect(await db.query('select from effect')).toEqual([])
})

test('[J31] a tx handler that completes its own job is done, once', async () => {
  await db.query('create table effect (job bigint)')
  pawl.jobs.define('completes', {
    retry: twice,
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1::bigint)', [job.id])
      await job.complete(tx, { by: 'hand' })
      return 'not this'
    },
  })
  await startWorker()
  const { id } = await pawl.jobs.enqueue('completes', {})
  await until('it is done', isIn(id, 'done'))
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 1, result: { by: 'hand' } })
  expect(await db.query('select from effect')).toHaveLength(1)
})

test('[J31] a handler that lets a lost lease through ends as an attempt', async () => {
  await db.query('create table effect (job bigint)')
  const ways: Record<string, (job: Job<unknown>, tx: Tx) => Promise<unknown>> = {
    'another job': async (_job, tx) => tx.query("select pawl.guard_job('', 1, 1)"),
    twice: async (job, tx) => {
      await job.complete(tx)
      await job.complete(tx)
    },
    'elsewhere, rolled back': async (job) => {
      const client = await db.pool.connect()
      await client.query('begin')
      await job.complete(client)
      await client.query('rollback')
      client.release()
    },
  }
  let runs = 0
  for (const [name, way] of Object.entries(ways))
    pawl.jobs.define(name, {
      retry: twice,
      tx: async (job, tx) => {
        runs++
        await tx.query('insert into effect values ($1::bigint)', [job.id])
        await way(job, tx)
      },
    })
  await startWorker()
  for (const name of Object.keys(ways)) {
    const { id } = await pawl.jobs.enqueue(name, {})
    await until(`'${name}' is dead`, isIn(id, 'dead'))
    expect((await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['failed', 'failed'])
  }
  expect(runs).toBe(6)
  expect(await db.query('select from effect')).toEqual([])
})

test.each(['25006', '53100', 'ECONNRESET', '40001'])("[J36] a %s of the handler's own server is its attempt", async (code) => {
  let runs = 0
  const fail = () => {
    runs++
    throw Object.assign(new Error('of another server'), { code })
  }
  pawl.jobs.define('run', { retry: twice, run: fail })
  pawl.jobs.define('tx', { retry: twice, tx: fail })
  await startWorker()
  for (const kind of ['run', 'tx']) {
    runs = 0
    const { id } = await pawl.jobs.enqueue(kind, {})
    await until('it is dead', isIn(id, 'dead'))
    expect(runs).toBe(2)
    expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 2, snoozes: 0 })
  }
})

test('[J36] a tx handler whose own transaction cannot write waits, without an attempt', async () => {
  pawl.jobs.define('reads', {
    tx: async (_job, tx) => {
      await tx.query('set transaction read only')
      await tx.query('create table no (a integer)')
    },
  })
  await startWorker()
  const { id } = await pawl.jobs.enqueue('reads', {})
  await until('it waits', async () => (await pawl.jobs.get(id))?.snoozes === 1)
  expect(await pawl.jobs.get(id)).toMatchObject({
    state: 'scheduled',
    attempt: 0,
    lastError: expect.stringContaining('read-only transaction'),
  })
  expect(await pawl.jobs.attempts(id)).toEqual([])
})

/** A runner by itself, with a pool of one connection. */
async function withRunner(work: (runner: Runner, pool: ReturnType<typeof createPool>) => Promise<void>): Promise<void> {
  const { database } = resolveConfig({ databaseUrl: db.url })
  const pool = createPool(database, 'handler', 1)
  const engine = new Connection(database, 'engine')
  const nothing = () => undefined
  const runner = new Runner({
    pool,
    isNamed: true,
    engine,
    logger: silentLogger,
    limits: { bytesMax: 1000, depthMax: 10 },
    durability: 'durable',
    touchMs: 1000,
    onConflict: nothing,
    onTouch: nothing,
    onRefused: nothing,
  })
  try {
    await work(runner, pool)
  } finally {
    await engine.close()
    await pool.end()
  }
}

function held(run: () => void): HeldJob {
  const row = { tenant: '', id: '1', fence: '1', kind: 'work', payload: '{}', payload_version: 1, attempt: 1 }
  const rest = { max_attempts: 5, crashes: 0, headers: null, due_us: '0' }
  return new HeldJob(new ClaimedRow({ ...row, ...rest }, 'default'), defineKind('work', { tx: async () => run() }), '', 1)
}

test('[J31] a job that ended while it waited for a connection does not start', async () => {
  await withRunner(async (runner, pool) => {
    let runs = 0
    for (const end of ['ended', 'lost'] as const) {
      const job = held(() => runs++)
      const client = await pool.connect()
      const ran = runner.run(job)
      await until('it waits', () => pool.waitingCount === 1)
      if (end === 'ended') job.isEnded = true
      else job.lose(new PawlError('PAWL_STOPPED', 'over'))
      client.release()
      expect(await ran).toEqual(
        end === 'ended' ? 'stopped' : expect.objectContaining({ failed: expect.objectContaining({ outcome: 'released' }) }),
      )
    }
    expect(runs).toBe(0)
  })
})

test('[J36] the eleventh wait in a row for a database that cannot write is an attempt', async () => {
  await withRunner(async (runner) => {
    const job = held(() => undefined)
    const error = () => markOwn(Object.assign(new Error('read-only'), { code: '25006' }))
    const ends = Array.from({ length: 12 }, () => runner.failedEnd(job, error()).failed!.outcome)
    expect(ends).toEqual([...Array.from({ length: 10 }, () => 'snoozed'), 'failed', 'snoozed'])
  })
})

test('a run of more days than an integer of milliseconds has is stored as that', () => {
  const job = held(() => undefined)
  job.startedMs = -1e13
  expect(job.ranMs()).toBe(2 ** 31 - 1)
})

test('[J25] what a tx handler left behind may enqueue once its attempt has ended', async () => {
  const go = deferred()
  let left: Promise<unknown> | undefined
  pawl.jobs.define('leaves', {
    tx: async () => {
      left = go.promise.then(() => pawl.jobs.enqueue('other', {}))
    },
  })
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('leaves', {})
  await until('it is done', isIn(id, 'done'))
  await until('the worker knows it', () => worker.metrics().done === 1)
  go.resolve()
  await expect(left).resolves.toHaveProperty('id')
})

test('[J17] a cancelled handler that stops by its signal is no refused write', async () => {
  const lines: string[] = []
  const log = (_fields: unknown, message: string) => lines.push(message)
  pawl = db.pawl({ logger: { debug: log, info: log, warn: log, error: log } })
  const ended: unknown[] = []
  const started = deferred()
  const stops = async ({ signal }: { signal: AbortSignal }) => {
    const aborted = new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    started.resolve()
    await aborted.finally(() => ended.push(signal.reason))
  }
  pawl.jobs.define('stops', { run: (_job, context) => stops(context) })
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('stops', {})
  await started.promise
  await pawl.jobs.cancel(id)
  await until('it has stopped', () => ended.length === 1)
  await worker.whenIdle()
  expect(worker.metrics().refused).toBe(0)
  expect(lines).toEqual([])
})
