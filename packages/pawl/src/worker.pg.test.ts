// One worker that runs jobs and cursors: one incarnation for both, whatever happens to it.

import { type Pawl, silentLogger, type WorkerOptions } from 'pawl'
import { endLease, installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../test/support/database.ts'
import type { Worker } from './worker.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  await db.query('create table seen (key text)')
  pawl = db.pawl()
})
afterEach(() => db.drop())

async function startWorker(options: WorkerOptions = {}, of = pawl): Promise<Worker> {
  const worker = of.worker({ lease: '60s', ...options, tuning: { beatMs: 100, ...options.tuning } })
  onTestFinished(async () => void (await worker.stop({ grace: 0 })))
  await worker.start()
  return worker
}

const append = (key: string) => pawl.events.append({ type: 'Placed', aggregateType: 'order', key, data: {} })
const seen = async () => (await db.query<{ key: string }>('select key from seen order by key')).map(({ key }) => key)

/** A projection that writes the keys it gets, after `step` has let it. */
function defineSeen(of: Pawl, step: (key: string, signal: AbortSignal) => Promise<void> | void = () => undefined): void {
  of.projections.define('seen', {
    retry: { initialMs: 10 },
    each: async ({ key }, tx, { signal }) => {
      await step(key, signal)
      await tx.query('insert into seen values ($1)', [key])
    },
  })
}

test('[K19] jobs and cursors of a process have one incarnation and one keeper', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  defineSeen(pawl)
  const worker = await startWorker()
  await pawl.jobs.enqueue('work', {})
  await append('a')
  await until('the event is folded', async () => (await seen()).length === 1)
  await worker.whenIdle()
  expect(worker.held()).toMatchObject([{ name: 'seen', generation: 1, shard: 0 }])
  expect(await db.query('select id, queues, kinds from pawl.worker_process')).toEqual([
    { id: worker.id, queues: ['default'], kinds: ['work', 'projection:/seen/1'] },
  ])
  const sessions = await db.query<{ name: string }>(
    "select application_name as name from pg_stat_activity where datname = current_database() and application_name like 'pawl %'",
  )
  const engine = sessions.map(({ name }) => name).filter((name) => !/caller|handler/.test(name))
  expect(engine.filter((name) => /keeper|listen|claim|engine/.test(name))).toHaveLength(4)
  expect(engine.length).toBeLessThanOrEqual(8)
})

const handlerSessions = async () =>
  (await db.query("select from pg_stat_activity where datname = current_database() and application_name like '% handler %'"))
    .length

test('[K19] while tx jobs take every connection that they may, events are folded', async () => {
  const go = deferred()
  let running = 0
  pawl.jobs.define('slow', {
    tx: async (_job, tx) => {
      await tx.query('select 1')
      running++
      await go.promise
    },
  })
  defineSeen(pawl)
  const worker = await startWorker({ tuning: { handlerConnectionsMax: 3 } })
  await pawl.jobs.enqueueMany('slow', [{}, {}, {}, {}])
  await until('two run', () => running === 2)
  await append('a')
  await until('the event is folded', async () => (await seen()).length === 1)
  expect(running).toBe(2)
  expect(await handlerSessions()).toBeLessThanOrEqual(3)
  go.resolve()
  await worker.whenIdle()
  expect(worker.metrics()).toMatchObject({ done: 4, failed: 0 })
})

test('[K19] while projections take every connection that they may, tx jobs run', async () => {
  const go = deferred()
  let folding = 0
  for (const name of ['a', 'b', 'c'])
    pawl.projections.define(name, {
      each: async ({ key }, tx) => {
        folding++
        await go.promise
        await tx.query('insert into seen values ($1)', [name + key])
      },
    })
  pawl.jobs.define('work', { tx: async (_job, tx) => void (await tx.query('select 1')) })
  const worker = await startWorker({ tuning: { handlerConnectionsMax: 3 } })
  await append('1')
  await until('two fold', () => folding === 2)
  await pawl.jobs.enqueueMany('work', [{}, {}, {}])
  await worker.whenIdle()
  expect(worker.metrics()).toMatchObject({ done: 3, failed: 0 })
  expect(await handlerSessions()).toBeLessThanOrEqual(3)
  expect(folding).toBe(2)
  go.resolve()
  await until('all fold', async () => (await seen()).length === 3)
})

test('[K19] a tx job that waits for a projection gets its answer', async () => {
  const runs = deferred()
  defineSeen(pawl)
  pawl.jobs.define('waits', {
    tx: async (_job, tx) => {
      await tx.query('select 1')
      runs.resolve()
      await until('the event is folded', async () => (await seen()).length === 1)
    },
  })
  const worker = await startWorker({ tuning: { handlerConnectionsMax: 2 } })
  await pawl.jobs.enqueue('waits', {})
  await runs.promise
  await append('a')
  await worker.whenIdle()
  expect(worker.metrics()).toMatchObject({ done: 1, failed: 0 })
})

test('one connection for the handlers of jobs and projections is refused', () => {
  pawl.jobs.define('work', { run: () => undefined })
  defineSeen(pawl)
  expect(() => pawl.worker({ tuning: { handlerConnectionsMax: 1 } })).toThrow(/must be at least 2/)
})

test('[K1] a lost lease aborts the handlers of jobs and of cursors', async () => {
  const aborted: string[] = []
  const [jobRuns, cursorRuns] = [deferred(), deferred()]
  const hang = (what: string, signal: AbortSignal) =>
    new Promise<void>((_resolve, reject) => {
      signal.addEventListener('abort', () => {
        aborted.push(what)
        reject(signal.reason)
      })
    })
  pawl.jobs.define('work', {
    run: async (job, { signal }) => {
      if (job.attempt > 1) return
      jobRuns.resolve()
      await hang('job', signal)
    },
  })
  let times = 0
  defineSeen(pawl, async (_key, signal) => {
    if (times++ > 0) return
    cursorRuns.resolve()
    await hang('cursor', signal)
  })
  const worker = await startWorker()
  const first = worker.id!
  const { id } = await pawl.jobs.enqueue('work', {})
  await append('a')
  await Promise.all([jobRuns.promise, cursorRuns.promise])
  await endLease(db.pool, first)
  await until('both are done under another incarnation', async () => {
    return (await pawl.jobs.get(id))?.state === 'done' && (await seen()).length === 1
  })
  expect(aborted.sort()).toEqual(['cursor', 'job'])
  expect(worker.id).not.toBe(first)
})

test('[K13] a stop gives cursors back; a running job keeps its lease', async () => {
  const [runs, go] = [deferred(), deferred()]
  pawl.jobs.define('work', {
    run: async () => {
      runs.resolve()
      await go.promise
      return 'answered'
    },
  })
  defineSeen(pawl)
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('work', {})
  await runs.promise
  await until('it holds the cursor', () => worker.held().length === 1)
  const report = await worker.stop({ grace: 10 })
  expect(report).toMatchObject({ stillRunning: [id], aborted: [] })
  expect(worker.held()).toEqual([])
  const other = db.pawl()
  defineSeen(other)
  await startWorker({}, other)
  await append('a')
  await until('the other one folds', async () => (await seen()).length === 1)
  expect(await db.query('select closed_at from pawl.worker where id = $1', [worker.id])).toEqual([{ closed_at: null }])
  go.resolve()
  await until('its answer is stored', async () => (await pawl.jobs.get(id))?.state === 'done')
  await until('its incarnation is closed', async () => {
    const [row] = await db.query<{ reason: string }>('select close_reason as reason from pawl.worker where id = $1', [worker.id])
    return row!.reason === 'stopped'
  })
})

test('[K13] a cursor whose handler outlives the grace rolls back and is free', async () => {
  const runs = deferred()
  let isAborted = false
  defineSeen(pawl, async (_key, signal) => {
    runs.resolve()
    await new Promise<void>(() => signal.addEventListener('abort', () => (isAborted = true)))
  })
  const worker = await startWorker()
  await append('a')
  await runs.promise
  expect(await worker.stop({ grace: 10 })).toEqual({
    finished: 0,
    released: 0,
    stillRunning: [],
    unsettled: [],
    aborted: ['seen'],
  })
  expect(isAborted).toBe(true)
  expect(await seen()).toEqual([])
  expect(await db.query('select holder from pawl.cursor')).toEqual([{ holder: null }])
})

test('[K19] continuous jobs do not take the wake-up of events away', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  defineSeen(pawl)
  const worker = await startWorker({ tuning: { pollMs: 1000 } })
  const sleeping = async () =>
    (await db.query<{ queue: string }>('select queue from pawl.sleeper order by queue')).map(({ queue }) => queue)
  await until('both sleep', async () => (await sleeping()).length === 2)
  await pawl.jobs.enqueueMany('work', Array.from({ length: 2000 }))
  await worker.whenIdle()
  const busy = await sleeping()
  expect(busy).toContain('pawl.events')
})

test('[G2] a worker without anything to run is refused, with the fix', () => {
  expect(() => pawl.worker()).toThrow(/nothing to do: define at least one kind or projection before you create it/)
  pawl.jobs.define('elsewhere')
  expect(() => pawl.worker()).toThrow(/nothing to do: no kind has a handler in this process: elsewhere\. Import the module/)
  defineSeen(pawl)
  expect(() => pawl.worker({ projections: [] })).toThrow(/nothing to do: queues and projections leave nothing/)
  expect(() => pawl.worker({ queues: ['mail'] })).toThrow(/nothing to do in the queues mail: no kind has a handler/)
  expect(pawl.worker().projections).toEqual(['seen'])
})

test('a queue that no kind is defined for is logged', () => {
  const lines: string[] = []
  pawl = db.pawl({ logger: { ...silentLogger, warn: (_fields, message) => void lines.push(message) } })
  pawl.jobs.define('charge', { queue: 'orders', run: () => undefined })
  pawl.worker()
  pawl.worker({ queues: ['orders'] })
  expect(lines).toEqual([])
  pawl.worker({ queues: ['orders', 'ordres'] })
  expect(lines).toEqual([
    expect.stringMatching(/^no kind here is defined for queue 'ordres': .* The kinds are defined for 'orders'$/),
  ])
})

test('a locked cursor row keeps no job from being claimed', async () => {
  const define = (of: Pawl) => of.projections.define('seen', { shards: 2, each: () => undefined })
  pawl.jobs.define('work', { run: () => undefined })
  define(pawl)
  const worker = await startWorker({ tuning: { pollMs: 50 } })
  await until('it holds both shards', () => worker.held().length === 2)
  const stranger = await db.pool.connect()
  await stranger.query('begin; select from pawl.cursor for update')
  const other = db.pawl()
  define(other)
  const second = await startWorker({ tuning: { pollMs: 50 } }, other)
  const waiting: unknown[] = []
  const withoutWaiting = (what: string, look: () => boolean | Promise<boolean>) =>
    until(what, async () => {
      waiting.push(
        ...(await db.query(`select query from pg_stat_activity
          where datname = current_database() and application_name like 'pawl claim%' and wait_event_type = 'Lock'`)),
      )
      return look()
    })
  await withoutWaiting('it gives one back', () => worker.held().length === 1)
  const { id } = await pawl.jobs.enqueue('work', {})
  await withoutWaiting('the job is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  stranger.release(true)
  expect(waiting).toEqual([])
  await until('the other one has it', () => second.held().length === 1)
})

test('a stop while a lost incarnation is replaced leaves none open', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  const worker = await startWorker()
  const stranger = await db.pool.connect()
  await stranger.query('begin; lock table pawl.worker_process in exclusive mode')
  await db.query("update pawl.worker set closed_at = pawl.now(), close_reason = 'lost'")
  await until('it opens another', async () => {
    const waits = await db.query(`select from pg_stat_activity
      where datname = current_database() and application_name = 'pawl engine' and wait_event_type = 'Lock'`)
    return waits.length > 0
  })
  const closed = deferred()
  installProbe((name) => {
    if (name === 'worker.closed') closed.resolve()
  })
  onTestFinished(() => installProbe(undefined))
  const stopping = worker.stop({ grace: 0 })
  // Time for a stop that does not wait for it.
  await Promise.race([closed.promise, db.query('select pg_sleep(0.5)')])
  stranger.release(true)
  await stopping
  await closed.promise
  expect(await db.query('select id from pawl.worker where closed_at is null')).toEqual([])
})
