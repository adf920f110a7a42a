// A job in a shared transaction that hangs until its timeout. No other handler of the group reaches that timeout.

import { expect, test } from 'vitest'
import { createDatabase, until } from '../../../test/support/database.ts'

test('a handler that never answers times out, and its group runs on', async () => {
  const db = await createDatabase()
  const pawl = db.pawl()
  await db.query('create table effect (job_id bigint)')
  pawl.jobs.define<{ n: number }>('hangs', {
    share: 5,
    // Longer than a slow machine keeps a handler waiting for its answer.
    timeout: 5000,
    retry: { attempts: 3, initialMs: 1, jitter: false },
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.id])
      if (job.payload.n === 2 && job.attempt === 1) await new Promise(() => undefined)
    },
  })
  const { ids } = await pawl.jobs.enqueueMany(
    'hangs',
    [0, 1, 2, 3, 4].map((n) => ({ n })),
  )
  const worker = pawl.worker({ concurrency: 20, tuning: { handlerConnectionsMax: 1 } })
  await worker.start()
  await until('all are done', async () => {
    const [row] = await db.query<{ n: number }>("select count(*)::int as n from pawl.job_history where outcome = 'done'")
    return row!.n === 5
  })
  await worker.stop()
  expect(await db.query('select job_id::text as id from effect order by job_id')).toEqual([...ids].sort().map((id) => ({ id })))
  expect(await db.query('select distinct job_id::text as id, outcome from pawl.job_attempt')).toEqual([
    { id: ids[2], outcome: 'timed out' },
  ])
  await db.drop()
})

test('after a hung neighbour a job has all its time alone', async () => {
  const db = await createDatabase()
  const pawl = db.pawl()
  let calls = 0
  pawl.jobs.define<{ hangs: boolean }>('waits', {
    share: 5,
    timeout: 5000,
    retry: { attempts: 1 },
    tx: async ({ payload }) => {
      if (payload.hangs) await new Promise(() => undefined)
      // Alone it takes long enough for the keeper to poll its row several times.
      else if (++calls > 1) await new Promise((resolve) => setTimeout(resolve, 4500))
    },
  })
  const { ids } = await pawl.jobs.enqueueMany('waits', [{ hangs: false }, { hangs: true }])
  const worker = pawl.worker({ tuning: { bufferMs: 100 } })
  await worker.start()
  const ended = async () => (await pawl.jobs.get(ids[0]!))!.state
  expect(await until('it has ended', ended, (state) => state === 'done' || state === 'dead')).toBe('done')
  await worker.stop({ grace: 0 })
  await db.drop()
})
