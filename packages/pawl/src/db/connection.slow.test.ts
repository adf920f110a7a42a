// A worker all of whose connections are half-open. Each of them takes its own timeout to notice.

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
  await proxy.stop()
  await db.drop()
})

test('[K9] a worker whose connections all fell silent recovers and runs new jobs', async () => {
  const direct = db.pawl()
  const pawl = db.pawl({ databaseUrl: proxy.url, tuning: { queryTimeoutMs: 3000, connectTimeoutMs: 3000 } })
  const ran: string[] = []
  pawl.jobs.define('k', { run: async (job) => void ran.push(job.id) })
  const worker = pawl.worker({ lease: '10s' })
  await worker.start()
  const { id: first } = await direct.jobs.enqueue('k', {})
  await until('the first ran', () => ran.includes(first))
  await until('it is done', async () => (await direct.jobs.get(first))?.state === 'done')
  proxy.blackhole()
  const { id: second } = await direct.jobs.enqueue('k', {})
  proxy.restore()
  // Each connection is given up after its own timeout, one after another.
  await until('the second ran', () => ran.includes(second), 40_000)
  await until('it is done', async () => (await direct.jobs.get(second))?.state === 'done')
  expect(ran).toEqual([first, second])
  await worker.stop()
})
