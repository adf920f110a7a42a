// What a worker claims and when, and what runs beside what after a crash.

import type { Pawl } from 'pawl'
import { endLease, installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../../test/support/database.ts'
import type { Worker } from '../../worker.ts'
import type { WorkerOptions } from '../../worker-options.ts'

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

async function startWorker(options: WorkerOptions = {}, of = pawl): Promise<Worker> {
  const worker = of.worker(options)
  workers.push(worker)
  await worker.start()
  return worker
}

const isDone = async (id: string) => (await pawl.jobs.get(id))?.state === 'done'
const many = (kind: string, count: number) =>
  pawl.jobs
    .enqueueMany(
      kind,
      Array.from({ length: count }, (_, n) => ({ n })),
    )
    .then(({ ids }) => ids)

/** Ready again after this number of crashes, as a rescue leaves them. */
const suspect = (ids: readonly string[], crashes: number) =>
  db.query("update pawl.job set state = 'ready', suspect = true, crashes = $2 where id = any ($1::bigint[])", [ids, crashes])

/** Enqueued so that no worker takes them before they are suspects. */
async function enqueueSuspects(kind: string, count: number, crashes: number): Promise<string[]> {
  const payloads = Array.from({ length: count }, () => ({}))
  const { ids } = await pawl.jobs.enqueueMany(kind, payloads, { delay: '1h' })
  await suspect(ids, crashes)
  return ids
}

async function isAsleep(worker: Worker): Promise<boolean> {
  const before = worker.metrics().claims
  await db.query('select pg_sleep(0.1)')
  return worker.metrics().claims === before
}

test('a lone job costs one claim statement', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  const worker = await startWorker({ tuning: { pollMs: 3_600_000 } })
  await until('it sleeps', () => isAsleep(worker))
  const costs: number[] = []
  for (let n = 0; n < 9; n++) {
    const before = worker.metrics().claims
    const { id } = await pawl.jobs.enqueue('work', {})
    await until('it is done', () => isDone(id))
    await until('it sleeps again', () => isAsleep(worker))
    costs.push(worker.metrics().claims - before)
  }
  // Where the machine is so slow that scans count as expensive, one comes on top each second.
  expect(costs.sort((a, b) => a - b)[4]).toBe(1)
})

test('a suspect that nothing announced runs after the next lone job', async () => {
  const ran: string[] = []
  pawl.jobs.define('work', { run: (job) => void ran.push(job.id) })
  const worker = await startWorker({ tuning: { pollMs: 3_600_000 } })
  await until('it sleeps', () => isAsleep(worker))
  const [suspected] = await enqueueSuspects('work', 1, 1)
  const { id } = await pawl.jobs.enqueue('work', {})
  await until('both ran', () => ran.length === 2)
  expect(ran).toEqual([id, suspected])
})

test('a worker with a backlog claims suspects four times a second', async () => {
  let ran = 0
  pawl.jobs.define('short', {
    run: async () => {
      await new Promise((resolve) => setTimeout(resolve, 1))
      ran++
    },
  })
  const worker = await startWorker({ concurrency: 4 })
  await worker.whenIdle()
  let scans = 0
  installProbe((name, detail) => {
    if (name === 'jobs.claim.before' && 'deciding' in (detail as object) && ran > 0 && ran < 1000) scans++
  })
  onTestFinished(() => installProbe(undefined))
  await many('short', 1000)
  const startedMs = performance.now()
  await until('all ran', () => ran === 1000)
  expect(scans).toBeLessThanOrEqual(2 + (performance.now() - startedMs) / 250)
})

test('[J33] a worker full of long jobs claims none that another could start', async () => {
  const go = deferred()
  const define = (of: Pawl) => {
    of.jobs.define('long', { run: () => go.promise })
    of.jobs.define('quick', { run: () => undefined })
  }
  define(pawl)
  const other = db.pawl()
  define(other)
  const full = await startWorker({ concurrency: 5 })
  // It has learnt that jobs are short.
  await many('quick', 200)
  await full.whenIdle()
  await many('long', 5)
  await until('its slots are full', () => full.metrics().running === 5)
  const { claimed } = full.metrics()
  const idle = await startWorker({ concurrency: 5 }, other)
  const ids = await many('quick', 200)
  await until('all are done', async () => (await Promise.all(ids.map(isDone))).every(Boolean))
  expect(full.metrics()).toMatchObject({ claimed, buffered: 0 })
  expect(idle.metrics().done).toBe(200)
  go.resolve()
})

test('[J33] buffered jobs behind long ones are given back to free workers', async () => {
  const go = deferred()
  const started: string[] = []
  const define = (of: Pawl, name: string) => {
    of.jobs.define('quick', { run: () => undefined })
    of.jobs.define('long', {
      run: async () => {
        started.push(name)
        await go.promise
      },
    })
  }
  define(pawl, 'first')
  const other = db.pawl()
  define(other, 'second')
  const first = await startWorker({ concurrency: 2 })
  await many('quick', 300)
  await first.whenIdle()
  await many('long', 20)
  await until('it has claimed more than it runs', () => started.length === 2)
  await startWorker({ concurrency: 18 }, other)
  await until('all run', () => started.length === 20)
  expect(started.filter((name) => name === 'first')).toHaveLength(2)
  go.resolve()
})

test('[J33] a kind with a limit is claimed into its free places only', async () => {
  const go = deferred()
  pawl.jobs.define('quick', { run: () => undefined })
  pawl.jobs.define('narrow', { concurrency: 1, run: () => go.promise })
  const worker = await startWorker()
  await many('narrow', 50)
  await many('quick', 500)
  await until('the others are done', async () => (await pawl.jobs.list({ kind: 'quick' })).items.length === 0)
  expect(await db.query('select state, count(*)::integer as n from pawl.job group by 1 order by 1')).toEqual([
    { state: 'ready', n: 49 },
    { state: 'running', n: 1 },
  ])
  go.resolve()
  await worker.whenIdle()
  expect(worker.metrics()).toMatchObject({ done: 550, released: 0 })
})

test('[J3] a kind with one crash allowed is never buffered nor starved', async () => {
  const go = deferred()
  let running = 0
  pawl.jobs.define('quick', { run: () => new Promise((resolve) => setTimeout(resolve, 1)) })
  pawl.jobs.define('once', {
    retry: { crashes: 1 },
    run: async () => {
      running++
      await go.promise
    },
  })
  const worker = await startWorker({ concurrency: 4 })
  await many('quick', 1000)
  await until('it has a buffer', () => worker.metrics().buffered > 0)
  await many('once', 10)
  await until('they took a share', () => running > 0)
  await until('they fill it', () => running === 4)
  expect(await db.query("select count(*)::integer as n from pawl.job where kind = 'once' and state = 'running'")).toEqual([
    { n: 4 },
  ])
  go.resolve()
  await worker.whenIdle()
})

test('[J3] an idle kind with one crash allowed keeps no slot', async () => {
  pawl.jobs.define('short', { run: () => new Promise((resolve) => setTimeout(resolve, 20)) })
  pawl.jobs.define('once', { retry: { crashes: 1 }, run: () => undefined })
  const worker = await startWorker({ concurrency: 1 })
  await many('short', 50)
  await worker.whenIdle()
  expect(worker.metrics()).toMatchObject({ done: 50, released: 0 })
})

test('[J3] suspects take at most half of the slots, beside fresh jobs', async () => {
  const go = deferred()
  let running = 0
  pawl.jobs.define('work', {
    run: async (job) => {
      if (job.crashes === 0) return
      running++
      await go.promise
      running--
    },
  })
  const ids = await enqueueSuspects('work', 6, 1)
  await startWorker({ concurrency: 5 })
  await until('some run', () => running === 3)
  const fresh = await many('work', 20)
  await until('fresh ones are done', async () => (await Promise.all(fresh.map(isDone))).every(Boolean))
  expect(running).toBe(3)
  expect(await db.query("select count(*)::integer as n from pawl.job where state = 'running'")).toEqual([{ n: 3 }])
  go.resolve()
  await until('all are done', async () => (await Promise.all(ids.map(isDone))).every(Boolean))
})

test('[J3] with one slot, suspects and ready jobs take turns', async () => {
  const order: string[] = []
  pawl.jobs.define('work', { run: (job) => void order.push(job.crashes > 0 ? 'suspect' : 'fresh') })
  const suspects = await enqueueSuspects('work', 10, 1)
  const fresh = await many('work', 40)
  await startWorker({ concurrency: 1 })
  await until('all are done', async () => (await Promise.all([...suspects, ...fresh].map(isDone))).every(Boolean))
  expect(order.indexOf('fresh')).toBeLessThan(order.lastIndexOf('suspect'))
  expect(order.indexOf('suspect')).toBeLessThan(order.lastIndexOf('fresh'))
})

/** The most starts in a row that were none of these, while both waited. */
function longestWait(order: readonly boolean[], of: boolean): number {
  const both = order.slice(0, Math.min(order.lastIndexOf(true), order.lastIndexOf(false)) + 1)
  const starts = [...both.flatMap((isSuspect, at) => (isSuspect === of ? [at] : [])), both.length]
  return Math.max(...starts.map((at, n) => at - (starts[n - 1] ?? -1)))
}

test.each([
  { suspects: 25, fresh: 400 },
  { suspects: 200, fresh: 50 },
])('[J7] of $suspects suspects and $fresh fresh jobs neither starves', async (backlog) => {
  const order: boolean[] = []
  pawl.jobs.define('work', {
    run: async (job) => {
      order.push(job.crashes > 0)
      await new Promise((resolve) => setTimeout(resolve, 10))
    },
  })
  await enqueueSuspects('work', backlog.suspects, 1)
  await many('work', backlog.fresh)
  const worker = await startWorker({ concurrency: 8 })
  await worker.whenIdle()
  expect(order).toHaveLength(backlog.suspects + backlog.fresh)
  // One of eight starts; while the statement that claims suspects is on its way, what is buffered goes on.
  expect(longestWait(order, true)).toBeLessThanOrEqual(8 * 8)
  expect(longestWait(order, false)).toBeLessThanOrEqual(8)
})

test('[J21] the deciding run is claimed first, then its process empties itself', async () => {
  const go = { long: deferred(), last: deferred() }
  const events: string[] = []
  pawl.jobs.define('long', { run: () => go.long.promise })
  pawl.jobs.define('fresh', { run: () => void events.push('fresh') })
  pawl.jobs.define('last', {
    run: async () => {
      events.push('last')
      await go.last.promise
    },
  })
  const worker = await startWorker({ concurrency: 5 })
  await many('long', 1)
  await until('it runs', () => worker.metrics().running === 1)
  const [last] = await enqueueSuspects('last', 1, 2)
  await db.query("select pawl.wake('default')")
  await until('it is claimed', async () => (await pawl.jobs.get(last!))?.state === 'running')
  expect((await pawl.jobs.why(last!)).reasons).toMatchObject([
    { code: 'alone', text: expect.stringContaining(`Worker ${worker.id}`) },
  ])
  const [fresh] = await many('fresh', 1)
  expect(events).toEqual([])
  expect((await pawl.jobs.get(last!))?.claimedAt).toBeNull()
  go.long.resolve()
  await until('it runs alone', () => events.length === 1)
  expect((await pawl.jobs.get(last!))?.claimedAt).not.toBeNull()
  expect(worker.metrics()).toMatchObject({ running: 1, buffered: 0, unsettled: 0 })
  expect((await pawl.jobs.get(fresh!))?.state).toBe('ready')
  go.last.resolve()
  await until('all are done', () => isDone(fresh!))
  expect(events).toEqual(['last', 'fresh'])
  expect(await pawl.jobs.get(last!)).toMatchObject({ state: 'done', crashes: 2, attempt: 1 })
})

test('[J21] beside a worker for deciding runs no process empties itself', async () => {
  const go = deferred()
  pawl.jobs.define('long', { run: () => go.promise })
  pawl.jobs.define('last', { run: () => 'alone' })
  pawl.jobs.define('fresh', { run: () => undefined })
  let asked = 0
  pawl.on('worker.deciding', () => void asked++)
  const worker = await startWorker({ concurrency: 5, deciding: 'leave' })
  await many('long', 1)
  await until('it runs', () => worker.metrics().running === 1)
  const [last] = await enqueueSuspects('last', 1, 2)
  await db.query("select pawl.wake('default')")
  await until('it says that one waits', () => asked > 0)
  const [fresh] = await many('fresh', 1)
  await until('others go on', () => isDone(fresh!))
  const apart = await startWorker({ deciding: 'only', concurrency: 1 })
  await until('it is done', () => isDone(last!))
  expect(apart.metrics().claimed).toBe(1)
  go.resolve()
})

test('[J21] a deciding run that leaves its guard open stops nobody', async () => {
  const stranger = await db.pool.connect()
  pawl.jobs.define('leaks', {
    run: async (job) => {
      await stranger.query('begin')
      await job.guard(stranger)
    },
  })
  pawl.jobs.define('fresh', { run: () => undefined })
  const [leaking] = await enqueueSuspects('leaks', 1, 2)
  const worker = await startWorker()
  await until('it has run', () => worker.metrics().started === 1 && worker.metrics().unsettled === 1)
  const fresh = await pawl.jobs.enqueue('fresh', {})
  await until('others run', () => isDone(fresh.id))
  expect(worker.metrics().unsettled).toBe(1)
  await stranger.query('commit')
  stranger.release()
  await until('its end is stored', () => isDone(leaking!))
})

test('a deciding job cancelled while its process empties itself never runs', async () => {
  const go = deferred()
  let runs = 0
  pawl.jobs.define('long', { run: () => go.promise })
  pawl.jobs.define('last', { run: () => void runs++ })
  const worker = await startWorker({ concurrency: 5, tuning: { beatMs: 100 } })
  await many('long', 1)
  await until('it runs', () => worker.metrics().running === 1)
  const [last] = await enqueueSuspects('last', 1, 2)
  await db.query("select pawl.wake('default')")
  await until('it is claimed', async () => (await pawl.jobs.get(last!))?.state === 'running')
  await pawl.jobs.cancel(last!)
  const [fresh] = await many('long', 1)
  await until('the worker goes on', async () => (await pawl.jobs.get(fresh!))?.state === 'running')
  go.resolve()
  await worker.whenIdle()
  expect(runs).toBe(0)
})

test('a group that failed runs again within the limit of its kind', async () => {
  const calls = new Map<number, number>()
  let now = 0
  let most = 0
  pawl.jobs.define<{ n: number }>('shared', {
    concurrency: 1,
    share: 10,
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      const { n } = job.payload
      calls.set(n, (calls.get(n) ?? 0) + 1)
      if (calls.get(n)! > 1) most = Math.max(most, ++now)
      await tx.query('select pg_sleep(0.01)')
      if (calls.get(n)! > 1) now--
      if (n === 9) throw new Error('no')
    },
  })
  await many('shared', 10)
  const worker = await startWorker()
  await worker.whenIdle()
  expect(most).toBe(1)
  expect(worker.metrics()).toMatchObject({ done: 9, dead: 1, released: 0 })
})

test('a claim answered after its incarnation was lost runs nothing', async () => {
  const ran: string[] = []
  pawl.jobs.define('work', { run: (job) => void ran.push(job.fence) })
  const worker = await startWorker({ lease: '10s', tuning: { beatMs: 100 } })
  const lost = worker.id!
  const fences: string[] = []
  installProbe(async (name, detail) => {
    const rows = detail as { fence: string }[]
    if (name !== 'jobs.claim.after' || rows.length === 0 || fences.length > 0) return
    fences.push(...rows.map(({ fence }) => fence))
    await endLease(db.pool, lost)
    await until('it goes on under another', () => worker.id !== undefined && worker.id !== lost)
  })
  onTestFinished(() => installProbe(undefined))
  const ids = await many('work', 3)
  await until('they are done', async () => (await Promise.all(ids.map(isDone))).every(Boolean))
  expect(ran).toHaveLength(3)
  for (const fence of ran) expect(fences).not.toContain(fence)
})

test('fifteen deciding runs in turn leave no listener behind', async () => {
  const warnings: Error[] = []
  const hear = (warning: Error) => warnings.push(warning)
  process.on('warning', hear)
  onTestFinished(() => void process.off('warning', hear))
  pawl.jobs.define('last', { run: () => undefined })
  const ids = await enqueueSuspects('last', 15, 2)
  await startWorker()
  await until('they are done', async () => (await Promise.all(ids.map(isDone))).every(Boolean))
  expect(warnings.filter(({ name }) => name === 'MaxListenersExceededWarning')).toEqual([])
})
