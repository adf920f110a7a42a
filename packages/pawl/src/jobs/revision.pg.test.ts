// Every change of a job raises its revision, and a change that names a revision applies to that one or not at all.

import fc from 'fast-check'
import { isPawlError, type Pawl } from 'pawl'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterAll(() => db.drop())

async function scheduled(): Promise<string> {
  return (await pawl.jobs.enqueue('nobody runs this', {}, { delay: '1h' })).id
}

test('[J8] twenty writers of one revision: one wins, nineteen are told both numbers', async () => {
  const id = await scheduled()
  const answers = await Promise.allSettled(Array.from({ length: 20 }, () => pawl.jobs.retry(id, { revision: 1 })))
  const won = answers.filter((answer) => answer.status === 'fulfilled')
  expect(won.map((answer) => answer.value)).toEqual([{ revision: 2 }])
  const told = answers.filter((answer) => answer.status === 'rejected').map((answer) => answer.reason as unknown)
  expect(told).toHaveLength(19)
  for (const error of told) {
    expect(error).toMatchObject({ code: 'PAWL_REVISION_CONFLICT', details: { id, expected: 1, actual: 2 } })
  }
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'ready', revision: 2 })
})

test('[J8] a retry and a cancellation of one revision: exactly one wins', async () => {
  for (let round = 0; round < 10; round++) {
    const id = await scheduled()
    const [retried, cancelled] = await Promise.allSettled([
      pawl.jobs.retry(id, { revision: 1 }),
      pawl.jobs.cancel(id, { revision: 1 }),
    ])
    const job = await pawl.jobs.get(id)
    if (cancelled.status === 'fulfilled') {
      expect(job).toMatchObject({ state: 'cancelled' })
      expect(retried).toMatchObject({ status: 'rejected', reason: { code: 'PAWL_WRONG_STATE', details: { state: 'cancelled' } } })
    } else {
      expect(job).toMatchObject({ state: 'ready', revision: 2 })
      expect(retried.status).toBe('fulfilled')
      expect(cancelled.reason).toMatchObject({ code: 'PAWL_REVISION_CONFLICT', details: { expected: 1, actual: 2 } })
    }
  }
})

test('[J8] two transactions that change one revision: the second waits, then is told', async () => {
  const id = await scheduled()
  const first = await db.pool.connect()
  const second = await db.pool.connect()
  try {
    await first.query('begin')
    await second.query('begin')
    await pawl.jobs.retry(id, { tx: first, revision: 1 })
    const waiting = pawl.jobs.cancel(id, { tx: second, revision: 1 }).catch((error: unknown) => error)
    await until('the second waits for the row', async () => {
      const rows = await db.query("select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
      return rows.length > 0
    })
    await first.query('commit')
    expect(await waiting).toMatchObject({ code: 'PAWL_REVISION_CONFLICT', details: { expected: 1, actual: 2 } })
    await second.query('commit')
  } finally {
    first.release()
    second.release()
  }
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'ready', revision: 2 })
})

test('[J8] every change of a running job raises its revision; stale writers fail', async () => {
  const own = await createDatabase()
  try {
    const other = own.pawl()
    const started = deferred()
    const go = deferred()
    const seen: (number | null | undefined)[] = []
    other.jobs.define('work', {
      retry: { initialMs: 1, jitter: false },
      run: async (job) => {
        seen.push((await other.jobs.get(job.id))?.revision)
        if (job.attempt === 1) throw new Error('once')
        started.resolve()
        await go.promise
      },
    })
    const { id } = await other.jobs.enqueue('work', {})
    const worker = other.worker()
    await worker.start()
    await started.promise
    // 1 enqueued, 2 claimed, 3 failed, 4 promoted, 5 claimed.
    expect(seen).toEqual([2, 5])
    await expect(other.jobs.cancel(id, { revision: 4 })).rejects.toMatchObject({
      code: 'PAWL_REVISION_CONFLICT',
      details: { expected: 4, actual: 5 },
    })
    go.resolve()
    await until('it is done', async () => (await other.jobs.get(id))?.state === 'done')
    await worker.stop()
    await expect(other.jobs.cancel(id, { revision: 5 })).rejects.toMatchObject({
      code: 'PAWL_WRONG_STATE',
      details: { state: 'done' },
    })
    await expect(other.jobs.cancel('1')).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
    await expect(other.jobs.cancel('no number')).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  } finally {
    await own.drop()
  }
})

test('[J8] any sequence of true and stale revisions matches a one-row model', async () => {
  const step = fc.record({
    verb: fc.constantFrom('retry' as const, 'cancel' as const),
    staleness: fc.integer({ min: -1, max: 2 }),
  })
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 6 }), async (steps) => {
      const id = await scheduled()
      const model = { state: 'scheduled', revision: 1 }
      for (const { verb, staleness } of steps) {
        const revision = Math.max(0, model.revision - staleness)
        const isLive = model.state !== 'cancelled'
        const isPossible = isLive && revision === model.revision && (verb === 'cancel' || model.state === 'scheduled')
        const code = await pawl.jobs[verb](id, { revision }).then(
          () => 'changed',
          (error: unknown) => (isPawlError(error) ? error.code : String(error)),
        )
        if (isPossible) {
          expect(code).toBe('changed')
          model.state = verb === 'cancel' ? 'cancelled' : 'ready'
          model.revision++
        } else expect(code).toBe(isLive && revision !== model.revision ? 'PAWL_REVISION_CONFLICT' : 'PAWL_WRONG_STATE')
      }
      const job = await pawl.jobs.get(id)
      expect(job?.state).toBe(model.state)
      if (model.state !== 'cancelled') expect(job?.revision).toBe(model.revision)
    }),
    { numRuns: 25 },
  )
})
