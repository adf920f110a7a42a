// What users' own tests lean on must itself hold.

import { endLease, moveClock, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

test('runAll runs what is ready with follow-ups, and returns each outcome', async () => {
  const pawl = db.pawl()
  pawl.jobs.define<{ depth: number }>('parent', {
    run: async (job) => {
      if (job.payload.depth > 0) await pawl.jobs.enqueue('parent', { depth: job.payload.depth - 1 })
    },
  })
  // It is tried again long after the others have ended.
  pawl.jobs.define('fails', { retry: { initialMs: 600_000, jitter: false }, run: () => Promise.reject(new Error('not today')) })
  pawl.jobs.define('hopeless', { retry: { attempts: 1 }, run: () => Promise.reject(new Error('never')) })
  await pawl.jobs.enqueue('parent', { depth: 20 })
  const fails = await pawl.jobs.enqueue('fails', {})
  const hopeless = await pawl.jobs.enqueue('hopeless', {})
  const later = await pawl.jobs.enqueue('parent', { depth: 0 }, { delay: '1h' })
  const report = await runAll(pawl)
  expect(report.done).toHaveLength(21)
  expect(report.retrying).toEqual([
    { id: fails.id, kind: 'fails', attempt: 1, error: expect.stringContaining('not today'), inMs: 600_000 },
  ])
  expect(report.dead).toEqual([{ id: hopeless.id, kind: 'hopeless', reason: expect.stringContaining('never') }])
  expect((await pawl.jobs.get(later.id))?.state).toBe('scheduled')
})

test('runAll on an empty queue reports nothing and leaves no worker behind', async () => {
  const pawl = db.pawl()
  pawl.jobs.define('work', { run: () => undefined })
  expect(await runAll(pawl)).toEqual({ done: [], retrying: [], dead: [] })
  expect(await db.query('select close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
})

test('when moveClock moves database time, a scheduled job becomes ready', async () => {
  const pawl = db.pawl()
  pawl.jobs.define('later', { run: () => 'ran' })
  const { id } = await pawl.jobs.enqueue('later', {}, { delay: '1h' })
  expect((await runAll(pawl)).done).toEqual([])
  await moveClock(db.pool, 3_600_000)
  const worker = pawl.worker()
  await worker.start()
  await until('it ran', async () => (await pawl.jobs.get(id))?.state === 'done')
  await worker.stop()
  await moveClock(db.pool, 0)
  const [row] = await db.query<{ shift: number }>('select extract(epoch from pawl.now() - clock_timestamp())::float as shift')
  expect(Math.abs(row!.shift)).toBeLessThan(1)
})

test('endLease lets the next worker take over', async () => {
  const pawl = db.pawl()
  const started = deferred()
  const go = deferred()
  pawl.jobs.define('work', {
    run: async (job) => {
      if (job.attempt > 1) return 'the next worker'
      started.resolve()
      await go.promise
      return 'the first'
    },
  })
  const [first, second] = [
    pawl.worker({ lease: '10s', tuning: { beatMs: 100 } }),
    pawl.worker({ lease: '10s', tuning: { beatMs: 100 } }),
  ]
  await first.start()
  const { id } = await pawl.jobs.enqueue('work', {})
  await started.promise
  await second.start()
  await endLease(db.pool, first.id!)
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  go.resolve()
  await Promise.all([first.stop(), second.stop()])
  expect(await pawl.jobs.get(id)).toMatchObject({ result: 'the next worker', attempt: 2, crashes: 1 })
})
