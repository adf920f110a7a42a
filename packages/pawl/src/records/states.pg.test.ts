import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { submissionStates, submissionTransitions } from './states.ts'

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
})
afterAll(() => db.drop())

async function constraint(name: string): Promise<string[]> {
  const [row] = await db.query<{ text: string }>(
    "select pg_get_constraintdef(oid) as text from pg_constraint where conname = $1 and conrelid = 'pawl.submission'::regclass",
    [name],
  )
  return [...row!.text.matchAll(/'([a-z-]+)'/g)].map(([, state]) => state!)
}

test.each(['./README.md', '../../../../docs/guides/records.md'])('states are equal in code, table and %s', async (page) => {
  expect((await constraint('state_known')).sort()).toEqual([...submissionStates].sort())
  const diagram = readFileSync(new URL(page, import.meta.url), 'utf8')
  const drawn = [...diagram.matchAll(/^ {4}([a-z-]+) --> ([a-z-]+)/gm)]
    .map(([, from, to]) => `${from} ${to}`)
    .filter((each) => !each.includes('['))
  expect([...new Set(drawn)].sort()).toEqual([...new Set(submissionTransitions.map(({ from, to }) => `${from} ${to}`))].sort())
})

test('a state and its expiry change together', async () => {
  expect((await constraint('expiry_by_state')).sort()).toEqual(['submitted', 'submitting'])
})

test.each([
  ["state = 'submitted', ended_at = now(), expires_at = null, number = 1", 'counts_proved'],
  ["state = 'submitting', expires_at = null", 'submitting_has_job'],
  ["state = 'submitting', job_id = 1, number = 1, submitting_at = now()", 'expiry_by_state'],
  ["state = 'failed', failure_class = 'unknown', error = 'x', applied_line = 5", 'failed_is_purged'],
  ["state = 'upload-failed'", 'failed_has_reason'],
  ['errors = 1', 'validated_is_valid'],
  ['expires_at = null', 'expiry_by_state'],
])('the table refuses %s', async (change, name) => {
  await db.query("insert into pawl.record_scope (id, record_set, scope) values (1, 's', '[]') on conflict do nothing")
  await db.query(
    `insert into pawl.submission (id, record_set, scope_id, origin, state, baseline, baseline_number, baseline_live, schema_version, missing_policy, lines,
       created, expires_at) values (1, 's', 1, 'upload', 'validated', 1, 0, 0, 1, 'keep', 10, 10, now() + interval '1 day') on conflict do nothing`,
  )
  await expect(db.query(`update pawl.submission set ${change} where id = 1`)).rejects.toMatchObject({
    code: '23514',
    constraint: name,
  })
})
