// Progress: many touches, few writes, the last one always stored, and a typed error once the job has another holder.

import { setTimeout as pause } from 'node:timers/promises'
import type { Job, JobContext, Pawl } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
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

async function startWorker(options: Parameters<Pawl['worker']>[0], of: Pawl = pawl): Promise<Worker> {
  const worker = of.worker(options)
  workers.push(worker)
  await worker.start()
  return worker
}

/** Every write of progress that the table saw. */
async function recordProgressWrites(): Promise<void> {
  await db.query('create table progress_write (progress jsonb)')
  await db.query(`create function record_progress() returns trigger language plpgsql set search_path from current as $$
    begin
      insert into progress_write values (new.progress);
      return new;
    end $$`)
  await db.query(
    'create trigger record_progress after update of progress on pawl.job for each row execute function record_progress()',
  )
}

async function progressOf(id: string): Promise<unknown> {
  const job = await pawl.jobs.get(id)
  return { state: job?.state, progress: job?.progress }
}

test('[J6] a touch storm writes once per interval and never loses the lease', async () => {
  await recordProgressWrites()
  const leaseMs = 800
  const touchMs = 50
  const stormMs = 1.5 * leaseMs
  const storm = deferred<{ touches: number; tookMs: number }>()
  pawl.jobs.define('storm', {
    run: async (_job, { touch }) => {
      const startedMs = performance.now()
      let touches = 0
      // About one a millisecond: a timer of its own tick, so that the loop turns as it would in a real handler.
      while (performance.now() - startedMs < stormMs) {
        for (let n = 0; n < 2; n++) await touch({ n: ++touches })
        await pause(1)
      }
      storm.resolve({ touches, tookMs: performance.now() - startedMs })
    },
  })
  const lost: number[] = []
  pawl.on('worker.lost', ({ worker }) => lost.push(worker))
  const worker = await startWorker({ lease: leaseMs, tuning: { beatMs: 100, touchMs } })
  const { id } = await pawl.jobs.enqueue('storm', {})
  const { touches, tookMs } = await storm.promise
  const job = await until('it is done', async () => {
    const found = await pawl.jobs.get(id)
    return found?.state === 'done' && found
  })
  // One at the start, one per interval, one at the end.
  const writesMax = Math.floor(tookMs / touchMs) + 2
  const writes = await db.query<{ progress: { n: number } }>('select progress from progress_write')
  expect(touches).toBeGreaterThan(stormMs / 10)
  expect(writes.length).toBeGreaterThan(2)
  expect(writes.length).toBeLessThanOrEqual(writesMax)
  expect(worker.metrics().touches).toBe(writes.length)
  expect(job).toMatchObject({ progress: { n: touches }, attempt: 1, crashes: 0 })
  expect(await db.query('select progress from pawl.job_history')).toEqual([{ progress: { n: touches } }])
  expect(lost).toEqual([])
})

test('[J6] the last progress is stored even if no touch follows', async () => {
  const quiet = deferred()
  pawl.jobs.define('quiet', {
    run: async (_job, { touch }) => {
      for (let n = 1; n <= 50; n++) await touch({ n })
      await quiet.promise
    },
  })
  await startWorker({ tuning: { touchMs: 100 } })
  const { id } = await pawl.jobs.enqueue('quiet', {})
  await until('the last one is stored', async () => {
    const job = await pawl.jobs.get(id)
    return (job?.progress as { n?: number } | null)?.n === 50
  })
  expect(await progressOf(id)).toEqual({ state: 'running', progress: { n: 50 } })
  quiet.resolve()
})

test('[J6] a lease shorter than the interval shrinks it to a third', async () => {
  const quiet = deferred()
  pawl.jobs.define('short', {
    run: async (_job, { touch }) => {
      await touch('first')
      await touch('second')
      await quiet.promise
    },
  })
  await startWorker({ lease: '2s', tuning: { beatMs: 200, touchMs: 3_600_000 } })
  const { id } = await pawl.jobs.enqueue('short', {})
  await until('the second is stored long before the hour is over', async () => (await pawl.jobs.get(id))?.progress === 'second')
  expect(await progressOf(id)).toEqual({ state: 'running', progress: 'second' })
  quiet.resolve()
})

test("[J6] a tx handler's and a failed attempt's last progress is stored", async () => {
  pawl.jobs.define('tx', {
    tx: async (_job, _tx, { touch }) => {
      for (let n = 1; n <= 20; n++) await touch({ n })
    },
  })
  pawl.jobs.define('fails', {
    retry: { attempts: 1 },
    run: async (_job, { touch }) => {
      for (let n = 1; n <= 20; n++) await touch({ n })
      throw new Error('no')
    },
  })
  await startWorker({})
  const { id } = await pawl.jobs.enqueue('tx', {})
  const failing = await pawl.jobs.enqueue('fails', {})
  await until(
    'both have ended',
    async () => (await pawl.jobs.get(id))?.state === 'done' && (await pawl.jobs.get(failing.id))?.state === 'dead',
  )
  expect(await progressOf(id)).toEqual({ state: 'done', progress: { n: 20 } })
  expect(await progressOf(failing.id)).toEqual({ state: 'dead', progress: { n: 20 } })
})

async function held(of: Pawl): Promise<{ id: string; job: Job; context: JobContext; end: () => void }> {
  const started = deferred<{ job: Job; context: JobContext }>()
  const go = deferred()
  of.jobs.define('held', {
    run: async (job, context) => {
      started.resolve({ job, context })
      await go.promise
    },
  })
  await startWorker({ lease: '1h', tuning: { beatMs: 600_000 } }, of)
  const { id } = await pawl.jobs.enqueue('held', {})
  return { id, ...(await started.promise), end: go.resolve }
}

test.each(['done', 'dead'])('[J6] last progress that no touch stored is stored at the end: %s', async (state) => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const far = db.pawl({ databaseUrl: proxy.url })
  far.jobs.define('reports', {
    retry: { attempts: 1 },
    run: async (_job, { touch }) => {
      for (const n of [1, 2]) await touch({ n })
      proxy.loseRequest(/set progress/)
      if (state === 'dead') throw new Error('planned')
    },
  })
  await startWorker({}, far)
  const { id } = await pawl.jobs.enqueue('reports', {})
  await until('it has ended', async () => (await pawl.jobs.get(id))?.state === state)
  expect(await progressOf(id)).toEqual({ state, progress: { n: 2 } })
})

test('[J6] jobs that share a transaction store last progress with its commit', async () => {
  pawl.jobs.define('shares', {
    share: 10,
    tx: async (job, _tx, { touch }) => {
      for (let n = 1; n <= 3; n++) await touch({ n, of: job.id })
    },
  })
  const { ids } = await pawl.jobs.enqueueMany('shares', [1, 2, 3, 4, 5])
  await runAll(pawl, { concurrency: 20 })
  for (const id of ids) expect(await progressOf(id)).toEqual({ state: 'done', progress: { n: 3, of: id } })
})

test('[J6] touch in a shared transaction rejects once the job timed out', async () => {
  const met = deferred<unknown>()
  pawl.jobs.define('shares', {
    share: 10,
    // Longer than a connection takes on a busy machine: the handler must have begun.
    timeout: '1s',
    retry: { attempts: 1 },
    tx: async (_job, _tx, { signal, touch }) => {
      await touch(1)
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
      await touch(2).then(met.resolve, met.resolve)
    },
  })
  await startWorker({})
  await pawl.jobs.enqueue('shares', {})
  expect(await met.promise).toMatchObject({ code: 'PAWL_TIMED_OUT' })
})

test('[J6] touch on a cancelled job rejects with a typed error', async () => {
  const { id, context, end } = await held(pawl)
  await context.touch(1)
  await pawl.jobs.cancel(id, { reason: 'changed my mind' })
  await until('the signal fires', () => context.signal.aborted)
  await expect(context.touch(2)).rejects.toMatchObject({
    code: 'PAWL_CANCELLED',
    message: expect.stringContaining('changed my mind'),
  })
  expect(await progressOf(id)).toEqual({ state: 'cancelled', progress: 1 })
  end()
})

test('[J6] touch on a lost job rejects before news of the loss', async () => {
  // Without a session to listen in, it does not scan for lost jobs when it begins to listen either.
  const { id, context, end } = await held(db.pawl({ pooler: 'transaction' }))
  await db.query('update pawl.job set fence = pawl.next_fence() where id = $1', [id])
  expect(context.signal.aborted).toBe(false)
  await expect(context.touch(1)).rejects.toMatchObject({ code: 'PAWL_LEASE_LOST' })
  expect(context.signal.aborted).toBe(true)
  await expect(context.touch(2)).rejects.toMatchObject({ code: 'PAWL_LEASE_LOST' })
  expect(await progressOf(id)).toEqual({ state: 'running', progress: null })
  end()
})

test('[J6] touch after a timeout rejects with a typed error', async () => {
  const touched = deferred<unknown>()
  pawl.jobs.define('slow', {
    timeout: '200ms',
    retry: { attempts: 1 },
    run: async (_job, { signal, touch }) => {
      await until('the signal fires', () => signal.aborted)
      touched.resolve(await touch(1).catch((error: unknown) => error))
    },
  })
  // The keeper would also end it, as lost, when the main thread stalls; here it does not watch it.
  await startWorker({ lease: '1h', tuning: { beatMs: 600_000 } })
  const { id } = await pawl.jobs.enqueue('slow', {})
  expect(await touched.promise).toMatchObject({ code: 'PAWL_TIMED_OUT' })
  await until('it is dead', async () => (await pawl.jobs.get(id))?.state === 'dead')
  expect((await pawl.jobs.get(id))?.progress).toBeNull()
})

test('a touch pending after job.complete(tx) is no refused write', async () => {
  const refused: unknown[] = []
  pawl.on('job.refused', (event) => refused.push(event))
  const isAborted: boolean[] = []
  pawl.jobs.define('completes', {
    run: async (job, { touch, signal }) => {
      await touch('stored at once')
      await touch('pending')
      const client = await db.pool.connect()
      await client.query('begin')
      await job.complete(client, 'done')
      await client.query('commit')
      client.release()
      await touch('after the end')
      isAborted.push(signal.aborted)
    },
  })
  const worker = await startWorker({ tuning: { touchMs: 60_000 } })
  const { id } = await pawl.jobs.enqueue('completes', {})
  await worker.whenIdle()
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', result: 'done', attempt: 1 })
  expect(refused).toEqual([])
  expect(isAborted).toEqual([false])
  expect(worker.metrics()).toMatchObject({ refused: 0 })
})

test('progress is stored although the transaction of job.complete(tx) was rolled back', async () => {
  pawl.jobs.define('undecided', {
    retry: { attempts: 1 },
    run: async (job, { touch }) => {
      await touch(1)
      await touch(2)
      const client = await db.pool.connect()
      await client.query('begin')
      await job.complete(client)
      await client.query('rollback')
      client.release()
    },
  })
  const worker = await startWorker({ tuning: { touchMs: 60_000 } })
  const { id } = await pawl.jobs.enqueue('undecided', {})
  await worker.whenIdle()
  expect(await progressOf(id)).toEqual({ state: 'dead', progress: 2 })
})

test('progress that cannot be stored fails the touch, not the job', async () => {
  pawl.jobs.define('odd', {
    run: async (_job, { touch }) => {
      const error = await touch({ big: 1n }).catch((thrown: unknown) => thrown)
      return (error as { code: string }).code
    },
  })
  await startWorker({})
  const { id } = await pawl.jobs.enqueue('odd', {})
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  expect((await pawl.jobs.get(id))?.result).toBe('PAWL_INVALID_PAYLOAD')
})

test('[J6] a touch without a value leaves the progress and resolves', async () => {
  const stored = deferred<Date>()
  const go = deferred()
  const at = async (id: string) =>
    (await db.query<{ at: Date }>('select progress_at as at from pawl.job where id = $1', [id]))[0]!.at
  pawl.jobs.define('goes on', {
    run: async (job, { touch }) => {
      await touch({ done: 50 })
      stored.resolve(await at(job.id))
      await pause(20)
      await touch()
      await go.promise
    },
  })
  await startWorker({ tuning: { touchMs: 1 } })
  const { id } = await pawl.jobs.enqueue('goes on', {})
  const before = await stored.promise
  await until('the second is stored', async () => (await at(id)) > before)
  expect(await progressOf(id)).toEqual({ state: 'running', progress: { done: 50 } })
  go.resolve()
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  expect(await progressOf(id)).toEqual({ state: 'done', progress: { done: 50 } })
})

test('[J6] progress of a job locked by its own transaction is stored', async () => {
  pawl.jobs.define('guards', {
    tx: async (job, tx, { touch }) => {
      await job.guard(tx)
      for (let n = 1; n <= 3; n++) await touch({ n })
    },
  })
  pawl.jobs.define('completes', {
    tx: async (job, tx, { touch }) => {
      await job.guard(tx)
      await touch({ n: 1 })
      await touch({ n: 2 })
      await job.complete(tx)
    },
  })
  pawl.jobs.define('elsewhere', {
    run: async (job, { touch }) => {
      await touch({ n: 1 })
      await touch({ n: 2 })
      const client = await db.pool.connect()
      await client.query('begin')
      await job.complete(client)
      await client.query('commit')
      client.release()
    },
  })
  pawl.jobs.define('fails', {
    retry: { attempts: 1 },
    tx: async (job, tx, { touch }) => {
      await job.guard(tx)
      await touch({ n: 3 })
      throw new Error('no')
    },
  })
  const worker = await startWorker({ tuning: { touchMs: 60_000 } })
  const ids: Record<string, string> = {}
  for (const kind of ['guards', 'completes', 'elsewhere', 'fails']) ids[kind] = (await pawl.jobs.enqueue(kind, {})).id
  await worker.whenIdle()
  expect(await progressOf(ids.guards!)).toEqual({ state: 'done', progress: { n: 3 } })
  expect(await progressOf(ids.completes!)).toEqual({ state: 'done', progress: { n: 2 } })
  expect(await progressOf(ids.elsewhere!)).toEqual({ state: 'done', progress: { n: 2 } })
  expect(await progressOf(ids.fails!)).toEqual({ state: 'dead', progress: { n: 3 } })
  expect(worker.metrics().refused).toBe(0)
})

test.each(['repeatable read', 'serializable'])('[J6] a tx handler at %s that touches is done in one attempt', async (level) => {
  pawl.jobs.define('reports', {
    retry: { attempts: 1 },
    tx: async (_job, tx, { touch }) => {
      await tx.query(`set transaction isolation level ${level}`)
      await tx.query('select 1')
      await touch({ n: 1 })
    },
  })
  const { id } = await pawl.jobs.enqueue('reports', {})
  await runAll(pawl)
  expect(await progressOf(id)).toEqual({ state: 'done', progress: { n: 1 } })
})
