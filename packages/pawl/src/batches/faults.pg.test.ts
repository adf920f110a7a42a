import { type BatchOptions, NonRetryable, type Pawl } from 'pawl'
import { moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { closed, files, startWorker } from '../../test/support/batches.ts'
import { createDatabase, deferred, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const act = { by: 'ada', reason: 'enough' }

test('[B5] all slots hang: the deadline ends the batch all the same', async () => {
  const pawl = db.pawl()
  const hung = deferred()
  let running = 0
  const reparse = pawl.batches.define('reparse', {
    policy: 'queue',
    item: {
      run: async (_, { signal }) => {
        if (++running === 2) hung.resolve()
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
      },
    },
  })
  const first = await pawl.batches.start(reparse, files(4))
  const second = await pawl.batches.start(reparse, [])
  await startWorker(pawl, 2)
  await hung.promise
  await moveClock(db.pool, 51_000)
  expect(await closed(pawl, first.id)).toMatchObject({ state: 'timed-out', counts: { done: 0, waiting: 4 } })
  expect(await closed(pawl, second.id)).toMatchObject({ state: 'finished' })
})

test('SQL cancels the job of an end: it runs again', async () => {
  const pawl = db.pawl()
  const ended = deferred()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined }, onEnd: () => ended.resolve() })
  const { id } = await pawl.batches.start(reparse, files(1))
  await pawl.batches.cancel(id, act)
  await db.query("select pawl.cancel_jobs('', array(select id from pawl.job where kind = 'pawl.batch.reparse.end'))")
  await startWorker(pawl)
  await ended.promise
  expect(await closed(pawl, id)).toMatchObject({ state: 'cancelled' })
})

/** Items that guard for more than 250 ms, one always begun before the last ends. Resolves when two hold the batch. */
function overlapping(pawl: Pawl, options: Partial<BatchOptions> = {}) {
  const held = deferred()
  let holders = 0
  const batch = pawl.batches.define('reparse', {
    allowance: { perItemMs: 0, minMs: 60_000 },
    ...options,
    item: {
      run: async (item) => {
        const client = await db.pool.connect()
        try {
          await client.query('begin')
          await item.guard(client)
          if (++holders === 2) held.resolve()
          await client.query('select pg_sleep(0.3 + 0.1 * ($1::integer % 3))', [item.n])
          await client.query('commit')
        } catch (error) {
          await client.query('rollback')
          throw error
        } finally {
          client.release()
        }
      },
    },
  })
  return { batch, held: held.promise }
}

test('[B5] guards that overlap do not keep a batch from its deadline', async () => {
  const pawl = db.pawl()
  const { batch, held } = overlapping(pawl)
  const { id } = await pawl.batches.start(batch, files(200))
  await startWorker(pawl, 6)
  await held
  await moveClock(db.pool, 61_000)
  expect(await closed(pawl, id)).toMatchObject({ state: 'timed-out' })
})

test('guards that overlap do not keep a cancel waiting', async () => {
  const pawl = db.pawl()
  const { batch, held } = overlapping(pawl)
  const { id } = await pawl.batches.start(batch, files(200))
  await startWorker(pawl, 6)
  await held
  expect(await pawl.batches.cancel(id, act)).toEqual({ state: 'cancelled' })
})

test('guards that overlap do not keep a replacement waiting', async () => {
  const pawl = db.pawl()
  const { batch, held } = overlapping(pawl)
  const first = await pawl.batches.start(batch, files(200))
  await startWorker(pawl, 6)
  await held
  expect(await pawl.batches.start(batch, [], { policy: 'replace' })).toMatchObject({ state: 'finished' })
  expect(await pawl.batches.get(first.id)).toMatchObject({ state: 'replaced' })
})

test('onEnd throws NonRetryable: it runs again', async () => {
  const pawl = db.pawl()
  let ends = 0
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => undefined },
    onEnd: () => {
      if (++ends === 1) throw new NonRetryable('not now')
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished' })
  expect(ends).toBe(2)
})

test('an item returns numbers that JSON makes strings: it fails', async () => {
  const pawl = db.pawl()
  const sums = { eur: 1, toJSON: () => ({ eur: '1.00' }) }
  const reparse = pawl.batches.define('reparse', { item: { run: ({ n }) => (n === 1 ? sums : { eur: 2 }) } })
  const { id } = await pawl.batches.start(reparse, files(2))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 1, failed: 1 }, sums: { eur: 2 } })
})
