// A migration changes the type of a column while workers run: their prepared statements are stale, and no caller must notice.

import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { resolveConfig } from '../pawl-options.ts'
import type { Worker } from '../worker.ts'
import { Connection, createPool } from './driver.ts'
import { statement } from './statement.ts'

const jobs = new URL('../jobs/any.ts', import.meta.url).href

let db: TestDatabase
let worker: Worker | undefined
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  await worker?.stop({ grace: 0 })
  worker = undefined
  await db.drop()
})

/** Every type that a claim, a settle and a sweep return changes. */
async function changeTypes(): Promise<void> {
  await db.query(`alter table pawl.job alter column crashes type integer, alter column holder type bigint,
    alter column kind type varchar collate "C", alter column state type varchar collate "C"`)
}

async function changeBack(): Promise<void> {
  await db.query('alter table pawl.job alter column crashes type smallint')
}

test('[K16] a stale statement costs one repetition on a fresh session', async () => {
  let repeated = 0
  const failed: string[] = []
  const watch = { succeeded: () => undefined, failed: (name: string) => failed.push(name), repeated: () => void repeated++ }
  const connection = new Connection(resolveConfig({ databaseUrl: db.url }).database, 'engine', { watch })
  const pid = async () => (await connection.query<{ pid: number }>('select pg_backend_pid() as pid'))[0]!.pid
  const rescue = statement(jobs, 'rescue')
  const sweep = () => connection.run(rescue, { workers: '{}', limit: 3, max_crashes: 3 })
  await sweep()
  const before = await pid()
  await changeTypes()
  // What was sent after it on the old session is answered there.
  const [, beside] = await Promise.all([sweep(), pid()])
  expect(beside).toBe(before)
  expect(await pid()).not.toBe(before)
  expect(repeated).toBe(1)
  await sweep()
  expect(repeated).toBe(1)
  await connection.query('deallocate all')
  await sweep()
  expect(repeated).toBe(2)
  expect(failed).toEqual([])
  await connection.close()
})

test('[K16] a stale statement on a pool is repeated once', async () => {
  const { database } = resolveConfig({ databaseUrl: db.url })
  const pool = createPool(database, 'caller', 2, 'own')
  const rescue = statement(jobs, 'rescue')
  const values = { workers: '{}', limit: 3, max_crashes: 3 }
  const onBoth = () => Promise.all([pool.run(rescue, values), pool.run(rescue, values)])
  await onBoth()
  await changeTypes()
  await onBoth()
  await changeBack()
  // Under the name of now: a transaction does not repeat itself, so its first failure tells of the stale plan.
  await expect(pool.transaction((tx) => tx.run(rescue, values))).rejects.toMatchObject({ code: '0A000' })
  await pool.transaction((tx) => tx.run(rescue, values))
  await pool.end()
})

test('[K16] during a migration claims, settles and handlers continue without a failed attempt', async () => {
  const pawl = db.pawl()
  pawl.jobs.define('run', { run: () => undefined })
  pawl.jobs.define('fails', { retry: { attempts: 1 }, run: () => Promise.reject(new Error('no')) })
  pawl.jobs.define('tx', {
    tx: async (job, tx) => (await tx.query('select kind, crashes from pawl.job where id = $1::bigint', [job.id])).rows,
  })
  worker = pawl.worker({ tuning: { handlerConnectionsMax: 2 } })
  await worker.start()
  const round = async (times: number) => {
    for (let n = 0; n < times; n++) for (const kind of ['run', 'fails', 'tx']) await pawl.jobs.enqueue(kind, {})
    await worker!.whenIdle()
  }
  await round(6)
  await changeTypes()
  await round(1)
  await until('all have ended', () => worker!.metrics().done === 14 && worker!.metrics().dead === 7)
  expect(worker.metrics()).toMatchObject({ errors: 0 })
  expect(worker.metrics().retries).toBeGreaterThan(0)
  expect(await db.query('select max(attempt) as attempt from pawl.job_history')).toEqual([{ attempt: 1 }])
})
