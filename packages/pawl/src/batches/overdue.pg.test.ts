// A batch that is overdue before it began, or between two of its steps: nothing begins after the deadline.

import { moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { closed, files, startWorker } from '../../test/support/batches.ts'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

/** Without it the poll of a worker ends the batch, a second after its first step has begun. */
const cancelWatch = () => db.query("select pawl.cancel_jobs('', array(select id from pawl.job where kind = 'pawl.batch.watch'))")

/** A batch that notes what it calls. */
function define({ prepares = false, boundary = async () => {} }: { prepares?: boolean; boundary?: () => Promise<void> } = {}) {
  const pawl = db.pawl()
  const calls: string[] = []
  const batch = pawl.batches.define('reparse', {
    allowance: { perItemMs: 0, minMs: 60_000 },
    item: { run: () => void calls.push('item') },
    ...(prepares ? { prepare: () => void calls.push('prepare') } : {}),
    boundary: async () => {
      calls.push('boundary')
      await boundary()
    },
    restore: (items) => void calls.push(`restore ${items.length}`),
    onEnd: ({ state }) => void calls.push(state),
  })
  return { pawl, batch, calls }
}

test.each([false, true])('a worker comes after the deadline, prepare %s: items are restored', async (prepares) => {
  const { pawl, batch, calls } = define({ prepares })
  const { id } = await pawl.batches.start(batch, files(2))
  await cancelWatch()
  await moveClock(db.pool, 61_000)
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'timed-out', boundaryAt: null, counts: { restored: 2, waiting: 2 } })
  expect(calls).toEqual(['restore 2', 'timed-out'])
})

test('a worker comes after the deadline: no item starts', async () => {
  const { pawl, batch, calls } = define()
  const { id } = await pawl.batches.start(batch, files(3))
  await cancelWatch()
  await db.query('update pawl.batch set boundary_at = pawl.now()')
  await db.query("select pawl.feed_batch('', id, fence) from pawl.batch")
  await moveClock(db.pool, 61_000)
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'timed-out', counts: { done: 0, late: 0, waiting: 3 } })
  expect(calls).toEqual(['timed-out'])
})

test('the deadline passes in the boundary: it commits, and no item starts', async () => {
  const { pawl, batch, calls } = define({ boundary: () => moveClock(db.pool, 61_000) })
  const { id } = await pawl.batches.start(batch, files(3))
  await startWorker(pawl)
  const ended = await closed(pawl, id)
  expect(ended).toMatchObject({ state: 'timed-out', counts: { waiting: 3, restored: 0 } })
  expect(ended.boundaryAt).not.toBeNull()
  expect(calls).toEqual(['boundary', 'timed-out'])
})

test('an overdue batch is extended before its end: it goes on', async () => {
  const { pawl, batch, calls } = define({ prepares: true })
  const { id } = await pawl.batches.start(batch, files(1))
  await cancelWatch()
  await moveClock(db.pool, 61_000)
  // A transaction that holds the batch keeps it from its end.
  const holder = await db.pool.connect()
  await holder.query('begin')
  await holder.query("select pg_advisory_xact_lock_shared(pawl.batch_lock('', $1))", [id])
  await startWorker(pawl)
  await until(
    'its step waits',
    async () => (await db.query("select from pawl.job where snoozes > 0 and kind like '%.prepare'")).length > 0,
  )
  await pawl.batches.extend(id, { for: '10m', by: 'ada', reason: 'it was down' })
  await holder.query('commit')
  holder.release()
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 1 } })
  expect(calls).toEqual(['prepare', 'boundary', 'item', 'finished'])
})
