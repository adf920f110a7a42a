// Lookups by id of jobs whose id carries a later day than the one on which they finished.

import { moveClock } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, until } from '../../test/support/database.ts'

const dayMs = 86_400_000

test('[K4] a job enqueued while the clock was ahead is found when finished', async () => {
  const db = await createDatabase()
  const pawl = db.pawl()
  const retry = { attempts: 3, initialMs: 1, jitter: false }
  pawl.jobs.define('plain', {
    retry,
    run: ({ attempt }) => {
      if (attempt === 1) throw new Error('once')
    },
  })
  pawl.jobs.define('completes', { retry, tx: (job, tx) => job.complete(tx) })
  pawl.jobs.define('completes apart', {
    retry,
    run: async (job) => {
      const client = await db.pool.connect()
      await client.query('begin')
      await job.complete(client)
      await client.query('commit')
      client.release()
    },
  })
  await moveClock(db.pool, 5 * dayMs)
  const ids: string[] = []
  for (const kind of ['plain', 'completes', 'completes apart']) ids.push((await pawl.jobs.enqueue(kind, {})).id)
  await moveClock(db.pool, 0)
  const worker = pawl.worker()
  onTestFinished(async () => {
    await worker.stop({ grace: 0 })
    await db.drop()
  })
  await worker.start()
  const areDone = async () => (await Promise.all(ids.map((id) => pawl.jobs.get(id)))).every((job) => job?.state === 'done')
  await until('all are done', areDone)
  await worker.stop()
  expect(worker.metrics()).toMatchObject({ done: 3, failed: 1, refused: 0 })
  for (const laterMs of [0, 3 * dayMs, 9 * dayMs]) {
    await moveClock(db.pool, laterMs)
    expect(await areDone()).toBe(true)
    expect(await pawl.jobs.why(ids[0]!)).toMatchObject({ state: 'done' })
    expect((await pawl.jobs.attempts(ids[0]!)).map(({ outcome }) => outcome)).toEqual(['failed', 'done'])
  }
})
