import { installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { csv, defineLoads, loadRows } from '../../test/support/records.ts'

let db: TestDatabase
let proxy: FaultProxy
beforeEach(async () => {
  db = await createDatabase()
  proxy = await FaultProxy.start(db.url)
})
afterEach(async () => {
  installProbe(undefined)
  await db.drop()
  await proxy.stop()
})

const here = { organisation: '17', registration: '4' }

test('[R10] a validated upload is answered although the network lost one answer', async () => {
  const pawl = db.pawl({ databaseUrl: proxy.url })
  const scope = pawl.records.in(defineLoads(pawl), here)
  let happened: Promise<void> | undefined
  installProbe((name) => {
    if (name === 'records.validate.before') happened = proxy.loseReply(/^commit/i).happened
  })
  const upload = await scope.upload(csv(loadRows(20)), { format: 'csv' })
  await happened
  expect(upload).toMatchObject({ state: 'validated', counts: { created: 20 } })
  await pawl.records.submit(upload.id, { revision: upload.revision })
})
