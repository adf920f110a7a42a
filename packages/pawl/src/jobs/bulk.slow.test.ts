// Bulk enqueue over a time and a volume that no test in the normal run can take.

import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

test('[J32] a bulk enqueue that takes longer than the query timeout succeeds', async () => {
  await db.query('create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return null; end $$')
  await db.query('create trigger slow after insert on pawl.job for each statement execute function slow()')
  const payloads = Array.from({ length: 12_000 }, (_, n) => ({ n }))
  const { ids } = await db.pawl({ tuning: { queryTimeoutMs: 3000 } }).jobs.enqueueMany('many', payloads)
  expect(new Set(ids).size).toBe(12_000)
  expect(await db.query('select count(*)::integer as n from pawl.job')).toEqual([{ n: 12_000 }])
})

test('[J32] 400 MB from a generator pass through a heap of 128 MB', { timeout: 300_000 }, async () => {
  const root = fileURLToPath(new URL('../../../../', import.meta.url))
  const script = fileURLToPath(new URL('../../test/support/bulk-process.ts', import.meta.url))
  const flags = ['--max-old-space-size=128', '--import', 'tsx', '--conditions=@pawl/source']
  const { stdout } = await promisify(execFile)(process.execPath, [...flags, script, db.url, '200000'], { cwd: root })
  expect(stdout).toBe('200000\n')
  expect(await db.query('select count(*)::integer as n from pawl.job')).toEqual([{ n: 200_000 }])
})
