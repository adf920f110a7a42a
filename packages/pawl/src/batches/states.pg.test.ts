import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { batchStates, batchTransitions } from './states.ts'

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
})
afterAll(() => db.drop())

test.each(['./README.md', '../../../../docs/guides/batches.md'])('states are equal in code, table and %s', async (page) => {
  const [row] = await db.query<{ text: string }>(
    "select pg_get_constraintdef(oid) as text from pg_constraint where conname = 'state_known' and conrelid = 'pawl.batch'::regclass",
  )
  expect([...row!.text.matchAll(/'([a-z-]+)'/g)].map(([, state]) => state!).sort()).toEqual([...batchStates].sort())
  const diagram = readFileSync(new URL(page, import.meta.url), 'utf8')
  const drawn = [...diagram.matchAll(/^ {4}([a-z-]+) --> ([a-z-]+): (.+)$/gm)].map(([, from, to, by]) => ({ from, to, by }))
  expect(drawn).toEqual(batchTransitions)
})

test.each([
  ["state = 'running'", 'running_has_deadline'],
  ["state = 'finished'", 'ended_has_time'],
  ['ended_at = now()', 'ended_has_time'],
  ['fed = 1', 'boundary_before_items'],
  ['fed = 2, boundary_at = now()', 'fed_within_total'],
  ["policy = 'guess'", 'policy_known'],
])('the table refuses %s', async (change, name) => {
  await db.query(
    `insert into pawl.batch (id, name, track, queue, policy, steps, total, allowance, allowance_ms)
     values (1, 'a', 'a', 'default', 'refuse', '{}', 1, '{}', 1) on conflict do nothing`,
  )
  await expect(db.query(`update pawl.batch set ${change} where id = 1`)).rejects.toMatchObject({ constraint: name })
})
