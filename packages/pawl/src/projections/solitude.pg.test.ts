// A deciding run of a job and the cursors of its process: neither runs beside the other.

import { NonRetryable, type Pawl } from 'pawl'
import { expect, onTestFinished, test, vi } from 'vitest'
import { deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { append, caughtUp, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'
import { solitude } from '../kernel/handler.ts'
import type { Worker } from '../worker.ts'

interface Stage {
  readonly db: TestDatabase
  /** Of the runner; the worker belongs to another. */
  readonly pawl: Pawl
  readonly workers: Pawl
  /** What began and ended, in order. */
  readonly told: string[]
  /** Ends of handlers and of deciding runs, by name. */
  readonly go: (name: string) => ReturnType<typeof deferred<void>>
}

async function createStage(): Promise<Stage> {
  const db = await createLog('create table seen (key text)')
  const ends = new Map<string, ReturnType<typeof deferred<void>>>()
  const go = (name: string) => {
    if (!ends.has(name)) ends.set(name, deferred())
    return ends.get(name)!
  }
  const stage = { db, pawl: db.pawl(), workers: db.pawl(), told: [] as string[], go }
  stage.workers.jobs.define('last', { run: () => step(stage, 'last') })
  return stage
}

async function step({ told, go }: Stage, name: string): Promise<void> {
  told.push(name)
  await go(name).promise
  told.push(`${name} ended`)
}

async function startWorker(stage: Stage, of = stage.workers): Promise<Worker> {
  const worker = of.worker({ tuning: { pollMs: 50 } })
  onTestFinished(async () => void (await worker.stop({ grace: 0 })))
  onTestFinished(() => stage.go('last').resolve())
  await worker.start()
  return worker
}

/** Jobs whose next crash would be their last. */
async function enqueueDeciding({ db, workers }: Stage, count = 1, kind = 'last'): Promise<string[]> {
  const payloads = Array.from({ length: count }, () => ({}))
  const { ids } = await workers.jobs.enqueueMany(kind, payloads, { delay: '1h' })
  await db.query("update pawl.job set state = 'ready', suspect = true, crashes = 2 where id = any ($1::bigint[])", [ids])
  await db.query("select pawl.wake('default')")
  return ids
}

const isHeld = async ({ workers }: Stage, id: string) => (await workers.jobs.get(id))?.state === 'running'
const stateOf = async ({ workers }: Stage, id: string) => (await workers.jobs.get(id))?.state

/** Gives what waits until a cursor was kept out from now on. */
function watchClosed(): () => Promise<unknown> {
  const closed = vi.spyOn(solitude, 'isClosed')
  onTestFinished(() => closed.mockRestore())
  return () => {
    closed.mockClear()
    return until('a cursor is kept out', () => closed.mock.results.some(({ value }) => value === true))
  }
}

const cursors: Record<string, (stage: Stage) => void> = {
  'the handler of a projection': (stage) =>
    stage.pawl.projections.define('view', {
      each: async ({ key }, tx) => {
        await step(stage, key)
        await tx.query('insert into seen values ($1)', [key])
      },
    }),
  'a refresh': (stage) =>
    stage.pawl.projections.define('view', {
      kind: 'state',
      entity: ({ key }) => key,
      refresh: async (key, tx) => {
        await step(stage, key)
        await tx.query('insert into seen values ($1)', [key])
      },
    }),
  'a call of a sink': (stage) =>
    stage.pawl.projections.sink('view', {
      concurrency: 1,
      handle: async ({ key }) => {
        await step(stage, key)
        await stage.db.query('insert into seen values ($1)', [key])
      },
    }),
}

test.each(Object.keys(cursors))('[J21] %s and a deciding run wait for each other', async (what) => {
  const stage = await createStage()
  const { db, told, go } = stage
  const keptOut = watchClosed()
  cursors[what]!(stage)
  const runner = await startRunner(stage.pawl)
  await startWorker(stage)
  await append(db, { key: 'a' })
  await until('it is at it', () => told.includes('a'))
  const held = runner.held()
  const [last] = await enqueueDeciding(stage)
  await until('the job is claimed', () => isHeld(stage, last!))
  expect((await stage.workers.jobs.get(last!))?.claimedAt).toBeNull()
  await append(db, { key: 'b' })
  go('a').resolve()
  await until('the run has started', () => told.includes('last'))
  await Promise.all([keptOut(), append(db, { key: 'c' })])
  expect(told).toEqual(['a', 'a ended', 'last'])
  for (const key of ['b', 'c']) go(key).resolve()
  go('last').resolve()
  await until('the cursor has gone on', async () => (await db.query('select from seen')).length === 3)
  await caughtUp(db, 'view')
  expect(told.slice(0, 4)).toEqual(['a', 'a ended', 'last', 'last ended'])
  expect(await stateOf(stage, last!)).toBe('done')
  expect(runner.held()).toEqual(held)
  expect((await stage.pawl.projections.parked('view')).items).toEqual([])
  expect(await cursorOf(db, 'view')).toMatchObject({ position: 3, attempts: 0, crashes: 0 })
})

test('[J21] events that wait for a deciding run are neither timed nor tried', async () => {
  const stage = await createStage()
  const { db, told, go } = stage
  stage.pawl.projections.define('view', { timeout: 500, each: ({ key }) => void told.push(key) })
  stage.pawl.projections.sink('out', { timeout: 500, handle: ({ key }) => void told.push(key) })
  stage.pawl.on('projection.failed', () => void told.push('failed'))
  await startRunner(stage.pawl)
  await until('both are held', async () => (await db.query('select from pawl.cursor where holder is not null')).length === 2)
  await startWorker(stage)
  await enqueueDeciding(stage)
  await until('it runs', () => told.includes('last'))
  // As after two deaths at this place: one more while the event is tried would park it.
  await db.query('update pawl.cursor set holder = null, fence = 1; update pawl.cursor_position set crashes = 2')
  await append(db, { key: 'a' })
  await until(
    'both are held again',
    async () => (await db.query('select from pawl.cursor where holder is not null')).length === 2,
  )
  await db.query('select pg_sleep(0.6)')
  expect(told).toEqual(['last'])
  expect(await db.query('select crashes, tried_at from pawl.cursor_at')).toEqual(
    Array.from({ length: 2 }, () => ({ crashes: 2, tried_at: null })),
  )
  go('last').resolve()
  for (const name of ['view', 'out']) await caughtUp(db, name)
  expect(told.slice(0, 2)).toEqual(['last', 'last ended'])
  for (const name of ['view', 'out']) expect((await stage.pawl.projections.parked(name)).items).toEqual([])
})

test.each(['define', 'sink'] as const)('[J21] beside a deciding run no parked event is replayed: %s', async (kind) => {
  const stage = await createStage()
  const { db, told, go } = stage
  const { projections } = stage.pawl
  const each = ({ key }: { key: string }): void => {
    if (told.length === 0) throw new NonRetryable('not yet')
    told.push(key)
  }
  if (kind === 'define') projections.define('view', { each })
  else projections.sink('view', { handle: each })
  const keptOut = watchClosed()
  await startRunner(stage.pawl)
  await append(db, { key: 'a' })
  await until('its key is parked', async () => (await projections.parked('view')).items.length === 1)
  await startWorker(stage)
  await enqueueDeciding(stage)
  await until('it runs', () => told.includes('last'))
  await projections.unpark('view', { key: 'a', reason: 'mended' })
  await Promise.all([keptOut(), append(db, { key: 'b' })])
  expect(told).toEqual(['last'])
  go('last').resolve()
  await until('both have followed', () => told.length === 4)
  expect(told.slice(2).sort()).toEqual(['a', 'b'])
})

test('[J21] a runner stopped beside a deciding run gives its cursors back', async () => {
  const stage = await createStage()
  const { db, told, go } = stage
  stage.pawl.projections.define('view', { each: ({ key }) => void told.push(key) })
  const refresh = (key: string) => void told.push(key)
  stage.pawl.projections.define('state', { kind: 'state', entity: ({ key }) => key, refresh })
  stage.pawl.projections.sink('out', { handle: ({ key }) => void told.push(key) })
  const keptOut = watchClosed()
  const runner = await startRunner(stage.pawl)
  await until('all are held', () => runner.held().length === 3)
  await startWorker(stage)
  const [last] = await enqueueDeciding(stage)
  await until('it runs', () => told.includes('last'))
  await Promise.all([keptOut(), append(db, { key: 'a' })])
  await runner.stop()
  expect(told).toEqual(['last'])
  expect(await db.query('select distinct holder, crashes, position::integer from pawl.cursor_at')).toEqual([
    { holder: null, crashes: 0, position: 0 },
  ])
  go('last').resolve()
  await until('the run has ended', async () => (await stateOf(stage, last!)) === 'done')
})

test('[J21] two deciding runs in one process run one after the other', async () => {
  const stage = await createStage()
  const { db, told, go } = stage
  const other = db.pawl()
  other.jobs.define('second', { queue: 'other', run: () => step(stage, 'second') })
  stage.pawl.projections.define('view', { each: ({ key }) => step(stage, key) })
  await startRunner(stage.pawl)
  await append(db, { key: 'a' })
  await until('a handler is at it', () => told.includes('a'))
  await startWorker(stage)
  await startWorker(stage, other)
  const [last] = await enqueueDeciding(stage)
  await until('one is held', () => isHeld(stage, last!))
  const { id } = await other.jobs.enqueue('second', {}, { delay: '1h' })
  await db.query("update pawl.job set state = 'ready', suspect = true, crashes = 2 where id = $1", [id])
  await db.query("select pawl.wake('other')")
  await until('both are held', () => isHeld(stage, id))
  go('a').resolve()
  await until('the first runs', () => told.includes('last'))
  expect((await stage.workers.jobs.get(id))?.claimedAt).toBeNull()
  go('last').resolve()
  await until('the second runs', () => told.includes('second'))
  go('second').resolve()
  await until('both are done', async () => (await stateOf(stage, last!)) === 'done' && (await stateOf(stage, id)) === 'done')
  expect(told).toEqual(['a', 'a ended', 'last', 'last ended', 'second', 'second ended'])
})

test('[J21] a stopping worker keeps cursors out until its deciding run is stored', async () => {
  const stage = await createStage()
  const { db, told, go } = stage
  let settled: unknown
  stage.pawl.projections.define('view', {
    each: async ({ key }) => {
      ;[settled] = await db.query('select outcome from pawl.job_history')
      told.push(key)
    },
  })
  const keptOut = watchClosed()
  await startRunner(stage.pawl)
  const worker = await startWorker(stage)
  await enqueueDeciding(stage)
  await until('it runs', () => told.includes('last'))
  expect(await worker.stop({ grace: 0 })).toMatchObject({ stillRunning: [expect.any(String)] })
  await Promise.all([keptOut(), append(db, { key: 'a' })])
  expect(told).toEqual(['last'])
  go('last').resolve()
  await caughtUp(db, 'view')
  expect(told).toEqual(['last', 'last ended', 'a'])
  expect(settled).toEqual({ outcome: 'done' })
})

test('[J21] a stopping worker gives back the deciding job that waits for cursors', async () => {
  const stage = await createStage()
  const { db, told, go } = stage
  stage.pawl.projections.define('view', { each: ({ key }) => step(stage, key) })
  await startRunner(stage.pawl)
  await append(db, { key: 'a' }, { key: 'b' })
  await until('a handler is at it', () => told.includes('a'))
  const worker = await startWorker(stage)
  const [last] = await enqueueDeciding(stage)
  await until('the job is held', () => isHeld(stage, last!))
  expect(await worker.stop()).toMatchObject({ released: 1 })
  expect(await stage.workers.jobs.get(last!)).toMatchObject({ state: 'ready', attempt: 0, crashes: 2 })
  for (const key of ['a', 'b']) go(key).resolve()
  await caughtUp(db, 'view')
  expect(told).toEqual(['a', 'a ended', 'b', 'b ended'])
})

test('[J21] cursors that a deciding run kept out get as long as it', async () => {
  const stage = await createStage()
  const { db } = stage
  const keptOut = watchClosed()
  stage.workers.jobs.define('brief', {
    run: async () => {
      await Promise.all([keptOut(), append(db, { key: 'a' })])
      await db.query('select pg_sleep(0.1)')
    },
  })
  stage.pawl.projections.define('view', { each: () => undefined })
  const runner = await startRunner(stage.pawl)
  await until('it is held', () => runner.held().length === 1)
  const ids = await enqueueDeciding(stage, 2, 'brief')
  await startWorker(stage)
  await until('both are done', async () => (await Promise.all(ids.map((id) => stateOf(stage, id)))).every((s) => s === 'done'))
  const [run] = await db.query<{ ran_ms: number; rest_ms: number }>(`
    select ran_ms, extract(epoch from lead(finished_at - ran_ms * interval '1 ms') over w - finished_at)::float8 * 1000 as rest_ms
    from pawl.job_history window w as (order by finished_at) order by finished_at limit 1`)
  // Two clocks measure it.
  expect(run!.rest_ms).toBeGreaterThan(run!.ran_ms * 0.9)
})

test('[J21] what a sink has finished is stored before a deciding run starts', async () => {
  const stage = await createStage()
  const { db, told, go } = stage
  let position: number | undefined
  stage.workers.jobs.define('asks', {
    run: async () => {
      position = (await cursorOf(db, 'out')).position
    },
  })
  stage.pawl.projections.sink('out', { handle: ({ key }) => step(stage, key) })
  await startRunner(stage.pawl)
  await append(db, { key: 'a' })
  await until('it is handed over', () => told.includes('a'))
  await startWorker(stage)
  const [asks] = await enqueueDeciding(stage, 1, 'asks')
  await until('the job is held', () => isHeld(stage, asks!))
  go('a').resolve()
  await until('it has run', async () => (await stateOf(stage, asks!)) === 'done')
  expect(position).toBe(1)
})
