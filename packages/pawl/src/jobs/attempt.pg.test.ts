// One attempt, from its handler to its end: whatever a handler does, it ends once, and takes nothing from the other jobs.

import type { Job, Pawl, Tx } from 'pawl'
import { installProbe, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { attemptOf, observed } from '../../test/support/attempt.ts'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { markOwn } from '../db/classify.ts'
import { createPool, SharedPool } from '../db/driver.ts'
import { PawlError } from '../errors.ts'
import type { Worker } from '../worker.ts'
import type { Attempt } from './attempt.ts'
import { failedEnd } from './endings.ts'
import { defineKind } from './kinds.ts'
import { runAttempt } from './run.ts'
import { HandlerTransactions } from './tx/handler-transactions.ts'

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
  const worker = await startWorker({ concurrency: 2, tuning: { handlerConnectionsMax: 2 } })
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

test('[J31] a job that ended while waiting for a connection does not start', async () => {
  const { process } = observed()
  const handlers = new SharedPool(createPool(pawl.config.database, 'handler test', 1), 1)
  onTestFinished(() => handlers.end())
  const transactions = new HandlerTransactions({ ...process, handlers, config: pawl.config })
  const runtime = observed({ transactions })
  let runs = 0
  const kind = defineKind('work', { tx: async () => void runs++ })
  const waits = async (stop: (job: Attempt) => void) => {
    const job = attemptOf(kind, runtime)
    const client = await transactions.connect([])
    const ran = runAttempt(job)
    await until('it waits', () => job.state === 'connecting')
    stop(job)
    client.release()
    await ran
  }
  await waits((job) => void job.end())
  expect(runtime.ends).toEqual([])
  await waits((job) => job.abort(new PawlError('PAWL_STOPPED', 'over')))
  expect(runtime.released).toEqual(['1'])
  expect(runs).toBe(0)
})

test('[J36] the eleventh wait in a row for a read-only database counts', () => {
  const job = attemptOf(defineKind('work', { run: () => undefined }))
  const error = () => markOwn(Object.assign(new Error('read-only'), { code: '25006' }))
  const ends = Array.from({ length: 12 }, () => failedEnd(job, error()).failed!.outcome)
  expect(ends).toEqual([...Array.from({ length: 10 }, () => 'snoozed'), 'failed', 'snoozed'])
})

test('a run longer than integer milliseconds is stored as their maximum', () => {
  const job = attemptOf(defineKind('work', { run: () => undefined }))
  job.startedMs = -1e13
  expect(job.ranMs()).toBe(2 ** 31 - 1)
})

test('[J25] after its attempt ended, code a tx handler left may enqueue', async () => {
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

test('several statements in one text give the rows of the last', async () => {
  const seen: unknown[] = []
  pawl.jobs.define('reads', {
    tx: async (_job, tx) => {
      seen.push((await tx.query('select 1 as a; select 2 as b union select 3 order by b')).rows)
      seen.push((await tx.query('select 1 as a; create table made (a integer)')).rows)
    },
  })
  const worker = await startWorker()
  await pawl.jobs.enqueue('reads', {})
  await worker.whenIdle()
  expect(seen).toEqual([[{ b: 2 }, { b: 3 }], []])
})

test.each([1, 10])('[J31] promises that a handler does not await never crash (share %i)', async (share) => {
  const unhandled: unknown[] = []
  const note = (reason: unknown) => unhandled.push(reason)
  process.on('unhandledRejection', note)
  const float = async (calls: (() => Promise<unknown>)[]) => {
    for (const call of calls) void call()
    await new Promise((resolve) => setImmediate(resolve))
  }
  let left: (() => Promise<unknown>)[] = []
  pawl.jobs.define('floats', {
    share,
    retry: { attempts: 1 },
    tx: async (job, tx, { touch }) => {
      left = [() => tx.query('select $1::integer', [1]), () => touch(1), () => job.guard(tx), () => job.complete(tx)]
      await float([() => tx.query('no sql'), () => tx.query('select $1::integer', ['x']), () => touch(Number.NaN)])
    },
  })
  pawl.jobs.define('touches', {
    retry: { attempts: 1 },
    run: async (job, { touch, signal }) => {
      await pawl.jobs.cancel(job.id)
      await until('the signal fires', () => signal.aborted)
      await float([() => touch(1), () => job.guard(db.pool as never)])
    },
  })
  const worker = await startWorker({ tuning: { touchMs: 1 } })
  await pawl.jobs.enqueue('floats', {})
  await worker.whenIdle()
  await float(left)
  await pawl.jobs.enqueue('touches', {})
  await worker.whenIdle()
  expect(worker.metrics()).toMatchObject({ dead: 1, done: 0 })
  process.off('unhandledRejection', note)
  expect(unhandled).toEqual([])
})

test.each([1, 10])('[J31] a second completion is refused; the first stands (share %i)', async (share) => {
  await db.query('create table effect (job bigint)')
  const codes: unknown[] = []
  const codeOf = (promise: Promise<unknown>) => promise.catch((error: { code: string }) => codes.push(error.code))
  pawl.jobs.define('completes', {
    share,
    retry: twice,
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.id])
      await job.complete(tx, 'first')
      await codeOf(job.complete(tx, 'second'))
      await codeOf(job.guard(tx))
    },
  })
  const worker = await startWorker({ concurrency: 1 })
  const { ids } = await pawl.jobs.enqueueMany('completes', [1, 2, 3])
  await worker.whenIdle()
  for (const id of ids) expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', attempt: 1, result: 'first' })
  expect(new Set(codes)).toEqual(new Set(['PAWL_WRONG_STATE']))
  expect(await db.query('select from effect')).toHaveLength(3)
  expect(worker.metrics()).toMatchObject({ refused: 0, released: 0 })
})

test.each([1, 10])('[J31] a handler that hides a refused fence ends its attempt (share %i)', async (share) => {
  let runs = 0
  pawl.jobs.define('hides', {
    share,
    retry: twice,
    tx: async (job, tx) => {
      runs++
      await tx.query('update pawl.job set fence = 1 where id = $1', [job.id])
      await job.guard(tx).catch(() => undefined)
    },
  })
  await startWorker({ concurrency: 1 })
  const { id } = await pawl.jobs.enqueue('hides', {})
  await until('it is dead', isIn(id, 'dead'))
  expect((await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['failed', 'failed'])
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 2, lastError: expect.stringContaining('no longer held under fence') })
  expect(runs).toBeLessThanOrEqual(4)
})

test('[J31] after its transaction rolled back, a run handler may complete again', async () => {
  let code: unknown
  pawl.jobs.define('tries', {
    retry: { attempts: 1 },
    run: async (job) => {
      const client = await db.pool.connect()
      await client.query('begin')
      await job.complete(client, 'first')
      await client.query('rollback; begin')
      await job.complete(client, 'second')
      code = await job.complete(client).catch((error: { code: string }) => error.code)
      await client.query('rollback; begin')
      await job.complete(client, 'third')
      await client.query('commit')
      client.release()
    },
  })
  await startWorker()
  const { id } = await pawl.jobs.enqueue('tries', {})
  await until('it is done', isIn(id, 'done'))
  expect(code).toBe('PAWL_WRONG_STATE')
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 1, result: 'third' })
})

test('[K15] a session that the server ends during its commit burns no attempt', async () => {
  await db.query(`create table effect (n integer); create table slow ();
    create function wait() returns trigger language plpgsql set search_path from current as
      $$ begin if exists (select from slow) then perform pg_sleep(60); end if; return null; end $$;
    create constraint trigger wait after insert on effect deferrable initially deferred for each row execute function wait();
    insert into slow default values`)
  pawl.jobs.define('commits', { retry: { attempts: 1 }, tx: async (_job, tx) => tx.query('insert into effect values ($1)', [1]) })
  const { id } = await pawl.jobs.enqueue('commits', {})
  await startWorker()
  const end = `select pg_terminate_backend(pid) as was_ended from pg_stat_activity
    where datname = current_database() and application_name like 'pawl handler %' and wait_event = 'PgSleep'`
  await until('its session was ended', async () => (await db.query(end)).length > 0)
  await until('it waits', isIn(id, 'scheduled'))
  expect(await pawl.jobs.get(id)).toMatchObject({
    attempt: 0,
    lastError: expect.stringContaining('The connection broke during the commit'),
  })
  expect(await pawl.jobs.attempts(id)).toEqual([])
  await db.query('delete from slow')
  await pawl.jobs.retry(id)
  await until('it is done', isIn(id, 'done'))
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 1 })
  expect(await db.query('select from effect')).toHaveLength(1)
})

test.each([1, 5])('[K15] a tx job that finds no connection burns no attempt (share %i)', async (share) => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const far = db.pawl({ databaseUrl: proxy.url })
  far.jobs.define('writes', { share, timeout: 200, retry: { attempts: 1 }, tx: (_job, tx) => tx.query('select $1::text', ['x']) })
  const worker = far.worker()
  workers.unshift(worker)
  const { ids } = await pawl.jobs.enqueueMany('writes', [{}, {}])
  installProbe((name) => (name === 'jobs.claim.after' ? proxy.refuse() : undefined))
  onTestFinished(() => installProbe(undefined))
  await worker.start()
  await until('their time is over', () => worker.metrics().unsettled === 2)
  installProbe(undefined)
  await proxy.accept()
  for (const id of ids) {
    await until(
      'it has ended',
      async () => (await pawl.jobs.get(id))!.state,
      (state) => state === 'done' || state === 'dead',
    )
    expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', attempt: 1 })
  }
  expect(await db.query('select from pawl.job_attempt')).toEqual([])
  expect(await db.query('select from pawl.refusal')).toEqual([])
})

test("[K15] a run handler's Pawl calls without database burn no attempt", async () => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const far = db.pawl({ databaseUrl: proxy.url })
  const calls: Record<string, () => Promise<unknown>> = {
    enqueue: () => far.jobs.enqueue('later', {}),
    'many from a generator': () => far.jobs.enqueueMany('later', [1, 2].values()),
    get: () => far.jobs.get('1'),
    append: () => far.events.append({ aggregateType: 'order', key: 'a', type: 'made', data: {} }),
  }
  const go = deferred()
  far.jobs.define<string>('calls', {
    retry: { attempts: 1 },
    run: async (job) => {
      await go.promise
      await calls[job.payload]!()
    },
  })
  const { ids } = await pawl.jobs.enqueueMany('calls', Object.keys(calls))
  const worker = far.worker()
  workers.unshift(worker)
  await worker.start()
  await until('they run', () => worker.metrics().running === ids.length)
  await proxy.refuse()
  proxy.reset()
  go.resolve()
  await until('all have ended', () => worker.metrics().running === 0)
  await proxy.accept()
  for (const id of ids) {
    await until('it waits', isIn(id, 'scheduled'))
    expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 0, lastError: expect.stringContaining('PawlError') })
    expect(await pawl.jobs.attempts(id)).toEqual([])
  }
})

test('[J36] a session that times out idle in its transaction counts', async () => {
  pawl.jobs.define('idles', {
    retry: twice,
    tx: async (_job, tx) => {
      await tx.query("set local idle_in_transaction_session_timeout = '20ms'")
      await new Promise((resolve) => setTimeout(resolve, 60))
      await tx.query('select 1')
    },
  })
  await startWorker()
  const { id } = await pawl.jobs.enqueue('idles', {})
  await until('it is dead', isIn(id, 'dead'))
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 2, snoozes: 0 })
})

test("a tx handler's statement longer than the answer time runs once", async () => {
  await db.query('create table effect (n integer)')
  let runs = 0
  const patient = db.pawl({ tuning: { queryTimeoutMs: 700 } })
  patient.jobs.define('slow', {
    retry: { attempts: 1 },
    tx: async (_job, tx) => {
      runs++
      await tx.query('with e as (insert into effect values ($1::integer)) select pg_sleep(1.6)', [1])
      await tx.query('select pg_sleep(0.3); insert into effect values (2)')
    },
  })
  const { id } = await pawl.jobs.enqueue('slow', {})
  const worker = patient.worker()
  workers.push(worker)
  await worker.start()
  await until('it is done', isIn(id, 'done'))
  expect(runs).toBe(1)
  expect(await db.query('select n from effect order by n')).toEqual([{ n: 1 }, { n: 2 }])
})

test('[K9] a handler whose connection fell silent runs again within its attempt', async () => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  await db.query('create table effect (n integer)')
  const far = db.pawl({ databaseUrl: proxy.url, tuning: { queryTimeoutMs: 1000 } })
  let runs = 0
  far.jobs.define('work', {
    retry: { attempts: 1 },
    tx: async (_job, tx) => {
      await tx.query('select $1::integer', [1])
      if (++runs === 1) proxy.blackhole(/handler/)
      await tx.query('insert into effect values ($1)', [runs])
    },
  })
  const { id } = await pawl.jobs.enqueue('work', {})
  const worker = far.worker()
  workers.unshift(worker)
  await worker.start()
  await until('it is done', isIn(id, 'done'))
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 1, snoozes: null })
  expect(await db.query('select n from effect')).toEqual([{ n: 2 }])
})

const swallow = () => undefined
const swallowers: Record<string, (tx: Tx) => Promise<unknown>> = {
  'and returns': async (tx) => tx.query('select 1 / 0').catch(swallow),
  'and does not wait for it': async (tx) => {
    void tx.query('select 1 / 0')
  },
  'and sends another': async (tx) => {
    await tx.query('select 1 / 0').catch(swallow)
    await tx.query('select $1::integer', [1])
  },
  'after one that it went back from': async (tx) => {
    await tx.query('savepoint before')
    await tx.query("select 'x'::integer").catch(swallow)
    await tx.query('rollback to savepoint before')
    await tx.query('select 1 / 0').catch(swallow)
    await tx.query('select 1')
  },
}

test.each(Object.entries(swallowers))('a handler swallows an error %s: the attempt names it', async (_how, act) => {
  pawl.jobs.define('swallows', { retry: { attempts: 1 }, tx: (_job, tx) => act(tx) })
  const { id } = await pawl.jobs.enqueue('swallows', {})
  await runAll(pawl)
  const { lastError } = (await pawl.jobs.get(id))!
  expect(lastError).toMatch(/^error: division by zero\n/)
  expect(lastError).not.toMatch(/transaction is aborted|invalid input syntax/)
})

test('a swallowed serialization failure runs again within the attempt', async () => {
  let calls = 0
  pawl.jobs.define('swallows', {
    retry: { attempts: 1 },
    tx: async (_job, tx) => {
      if (++calls === 1) await tx.query("do $$ begin raise exception using errcode = '40001'; end $$").catch(swallow)
    },
  })
  const { id } = await pawl.jobs.enqueue('swallows', {})
  await runAll(pawl)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', attempt: 1 })
  expect(calls).toBe(2)
})

test("[K16] a refused commit does not repeat its session's next job", async () => {
  const calls: string[] = []
  pawl.jobs.define<{ fails: boolean }>('writes', {
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      calls.push(job.id)
      await tx.query(job.payload.fails ? 'select 1/0' : 'select 1').catch(() => undefined)
    },
  })
  await startWorker({ concurrency: 1 })
  const failed = await pawl.jobs.enqueue('writes', { fails: true })
  await until('it is dead', isIn(failed.id, 'dead'))
  const { id } = await pawl.jobs.enqueue('writes', { fails: false })
  await until('the next is done', isIn(id, 'done'))
  expect(calls).toEqual([failed.id, id])
})
