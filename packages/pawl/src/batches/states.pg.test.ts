import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { files } from '../../test/support/batches.ts'
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
    `insert into pawl.batch (id, name, track, queue, policy, step, total, allowance, allowance_ms)
     values (1, 'a', 'a', 'default', 'refuse', 'step', 1, '{}', 1) on conflict do nothing`,
  )
  await expect(db.query(`update pawl.batch set ${change} where id = 1`)).rejects.toMatchObject({ constraint: name })
})

const runs = 'select'
const queues = "update pawl.batch set state = 'queued', started_at = null, deadline = null, fence = null where id = $1"
const isOverdue = "update pawl.batch set deadline = pawl.now() - interval '1 second' where id = $1"
const itemsEnded = "update pawl.batch_item set outcome = 'done', ended_at = pawl.now() where batch_id = $1"
const hasEnded = "select pawl.end_batch('', $1, 'failed')"

// The table "Which end wins" of README.md.
test.each([
  { asked: 'cancelled', of: 'one that has ended', by: hasEnded, state: 'failed', is_ended: false },
  { asked: 'cancelled', of: 'a queued one', by: queues, state: 'cancelled', is_ended: true },
  { asked: 'timed-out', of: 'a queued one', by: queues, state: 'queued', is_ended: false },
  { asked: 'cancelled', of: 'one whose items have ended', by: itemsEnded, state: 'finished', is_ended: true },
  { asked: 'timed-out', of: 'one whose items have ended', by: itemsEnded, state: 'finished', is_ended: true },
  { asked: 'replaced', of: 'one whose items have ended', by: itemsEnded, state: 'finished', is_ended: true },
  { asked: 'failed', of: 'one whose items have ended', by: itemsEnded, state: 'finished', is_ended: true },
  { asked: 'finished', of: 'a running one', by: runs, state: 'running', is_ended: false },
  { asked: 'timed-out', of: 'a running one', by: runs, state: 'running', is_ended: false },
  { asked: 'timed-out', of: 'an overdue one', by: isOverdue, state: 'timed-out', is_ended: true },
  { asked: 'cancelled', of: 'an overdue one', by: isOverdue, state: 'cancelled', is_ended: true },
  { asked: 'replaced', of: 'a running one', by: runs, state: 'replaced', is_ended: true },
  { asked: 'failed', of: 'a running one', by: runs, state: 'failed', is_ended: true },
])('$asked asked of $of: it is $state', async ({ asked, of, by, state, is_ended }) => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(2), { track: `${asked} ${of}` })
  await db.query(by, by.includes('$1') ? [id] : [])
  const [ended] = await db.query("select state, is_ended from pawl.end_locked_batch('', $1, $2)", [id, asked])
  expect(ended).toEqual({ state, is_ended })
  expect((await pawl.batches.get(id)).state).toBe(state)
})
