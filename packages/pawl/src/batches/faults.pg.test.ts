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
