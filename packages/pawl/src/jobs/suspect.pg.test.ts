// What counts as a crash of a job, on the product's own statements.

import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { type Holder, leaseStatements } from '../kernel/lease.ts'
import { Fetcher } from './fetcher.ts'
import { defineKind } from './kinds.ts'

const rescueStatement = statement(import.meta.url, 'rescue')
const failStatement = statement(import.meta.url, 'settle-failed')
const kinds = [defineKind('work', { run: () => undefined })]

let db: TestDatabase
let connection: Connection
let fetcher: Fetcher
beforeEach(async () => {
  db = await createDatabase()
  connection = new Connection(db.pawl().config.database, 'test')
  fetcher = new Fetcher(connection, 10_000, Number.POSITIVE_INFINITY)
})
afterEach(async () => {
  await connection.close()
  await db.drop()
})

/** A process claims the job, with others or alone, and dies. */
async function dieWith(claim: (worker: Holder) => Promise<unknown>): Promise<void> {
  const worker = await openIncarnation(connection)
  await claim(worker)
  await connection.run(leaseStatements.close, { ...asHolder(worker), reason: 'process died' })
  await connection.run(rescueStatement, { workers: `{${worker.id}}`, limit: 1000, max_crashes: 3 })
}

async function endAlone(outcome: 'failed' | 'snoozed'): Promise<void> {
  const worker = await openIncarnation(connection)
  const row = await fetcher.claimSuspect(worker, 'default', kinds)
  expect(row).toBeDefined()
  await connection.run(failStatement, {
    worker: worker.id,
    tenants: '{""}',
    ids: `{${row!.id}}`,
    fences: `{${row!.fence}}`,
    outcomes: `{${outcome}}`,
    delays_ms: '{0}',
    errors: '{null}',
    ran_ms: '{1}',
  })
}

const together = (worker: Holder) => fetcher.claim(worker, 'default', kinds, 10)
const alone = (worker: Holder) => fetcher.claimSuspect(worker, 'default', kinds)

test("[J21] a job that fails in order after each crash is never dead of others' crashes, and none of them uses up an attempt", async () => {
  const { id } = await db.pawl().jobs.enqueue('work', {}, { maxAttempts: 10 })
  for (let round = 1; round <= 5; round++) {
    await dieWith(together)
    expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'ready', suspect: true, crashes: round })
    await endAlone('failed')
    expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'ready', suspect: false, attempt: 2 * round, crashes: round })
  }
})

test('[J21] a job that kills its process each time is dead at its limit, also when it snoozes in between', async () => {
  const { id } = await db.pawl().jobs.enqueue('work', {})
  await dieWith(together)
  await endAlone('snoozed')
  expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'ready', suspect: true, crashes: 1 })
  await dieWith(alone)
  await dieWith(alone)
  expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'dead', crashes: 3 })
})
