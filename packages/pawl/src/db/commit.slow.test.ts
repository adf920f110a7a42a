// A claim that commits after the worker has searched for it. The worker searches again only after five seconds.

import { installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'

let db: TestDatabase
let proxy: FaultProxy
beforeEach(async () => {
  db = await createDatabase()
  proxy = await FaultProxy.start(db.url)
})
afterEach(async () => {
  installProbe(undefined)
  await proxy.stop()
  await db.drop()
})

test('[K6] a claim that commits late is given back without an attempt', async () => {
  await db.query(`create function wait() returns trigger language plpgsql as $$
      begin perform pg_advisory_xact_lock_shared(4711); return new; end $$;
    create trigger wait before update on pawl.job for each row when (new.state = 'running') execute function wait()`)
  const pawl = db.pawl({ databaseUrl: proxy.url, tuning: { queryTimeoutMs: 2000 } })
  const attempts: number[] = []
  pawl.jobs.define('k', { run: async (job) => void attempts.push(job.attempt) })
  const { id } = await pawl.jobs.enqueue('k', {})
  const gate = await db.pool.connect()
  await gate.query('select pg_advisory_lock(4711)')
  let claims = 0
  installProbe((name) => {
    if (name === 'jobs.claim.before') claims++
  })
  const worker = pawl.worker({ tuning: { pollMs: 200 } })
  await worker.start()
  // The server's locks are those of every test that runs now.
  const waiting = `select from pg_locks where locktype = 'advisory' and not granted
    and database = (select oid from pg_database where datname = current_database())`
  await until('its claim is under way', async () => (await db.query(waiting)).length > 0)
  proxy.reset(/claim/)
  const before = claims
  await until('it looked for what it may hold, and claims again', () => claims > before)
  await gate.query('select pg_advisory_unlock(4711)')
  gate.release()
  const direct = db.pawl()
  await until('it is done', async () => (await direct.jobs.get(id))?.state === 'done')
  await worker.stop()
  expect(attempts).toEqual([1])
})
