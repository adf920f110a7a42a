// The scan for jobs that are no longer ours, on a connection that stalls.

import { afterEach, beforeEach, expect, test } from 'vitest'
import { attemptOf } from '../../test/support/attempt.ts'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import { defineKind } from './kinds.ts'
import { prune } from './maintenance.ts'
import { reconciler } from './reconcile.ts'

let db: TestDatabase
let connection: Connection
let looks: number
beforeEach(async () => {
  db = await createDatabase()
  looks = 0
  const watch = { succeeded: () => void looks++, failed: () => undefined, repeated: () => undefined }
  connection = new Connection(db.pawl().config.database, 'engine', { watch })
})
afterEach(async () => {
  await connection.close()
  await db.drop()
})

const held = attemptOf(defineKind('work', { run: () => undefined }))

test('[K17] a bug in the look for lost jobs is told', async () => {
  const bug = new TypeError('planted')
  const told: unknown[] = []
  let isPlanted = true
  const loseOne = () => {
    if (isPlanted) throw bug
    return true
  }
  const stop = new AbortController()
  const service = reconciler({
    process: { engine: connection },
    everyMs: 60_000,
    slots: { heldJobs: () => [held], loseOne },
    outcomes: { lost: () => undefined },
    signal: stop.signal,
    loop: { succeeded: () => void told.push('well'), failed: (error) => void told.push(error) },
  })
  const running = service.run()
  await until('the bug is told', () => told.length > 0)
  expect(new Set(told)).toEqual(new Set([bug]))
  isPlanted = false
  await until('the next one succeeds', () => told.at(-1) === 'well')
  stop.abort()
  await running
  expect(new Set(told)).toEqual(new Set([bug, 'well']))
})

test('[J17] while one scan is unanswered, no other is sent; requests follow', async () => {
  const told: string[] = []
  const stop = new AbortController()
  const service = reconciler({
    process: { engine: connection },
    everyMs: 60_000,
    slots: { heldJobs: () => [held], loseOne: () => true },
    outcomes: { lost: (job) => void told.push(job.id) },
    signal: stop.signal,
    loop: { succeeded: () => undefined, failed: () => undefined },
  })
  const stranger = await db.pool.connect()
  await stranger.query('begin; lock table pawl.job')
  const running = service.run()
  await until('the scan waits', async () => {
    const waiting = await db.query(
      "select from pg_stat_activity where datname = current_database() and application_name = 'pawl engine' and wait_event_type = 'Lock'",
    )
    return waiting.length === 1
  })
  for (let n = 0; n < 100; n++) service.wake()
  await stranger.query('rollback')
  stranger.release()
  await until('another follows', () => told.length >= 2)
  stop.abort()
  await running
  expect(looks).toBe(2)
  expect(told).toEqual(['1', '1'])
})

test('pruning removes expired once keys, however many, and no other', async () => {
  await db.query(`insert into pawl.once (namespace, key, expires_at)
    select 'test', n::text, pawl.now() - interval '1 second' from generate_series(1, 45) n
    union all select 'test', 'later', pawl.now() + interval '1 hour'
    union all select 'test', 'never', null`)
  await prune(connection, undefined, 10)
  expect(await db.query('select key from pawl.once order by key')).toEqual([{ key: 'later' }, { key: 'never' }])
})

test('pruning keeps 10,000 refusals, and resolved alerts for 30 days', async () => {
  await db.query(`insert into pawl.refusal (tenant, what, subject, fence)
    select case when n % 2 = 0 then 'acme' else '' end, 'settle', n::text, 1 from generate_series(1, 10050) n`)
  await db.query(`insert into pawl.alert (code, subject, message, resolved_at)
    values ('c', 'open', 'm', null), ('c', 'resolved', 'm', pawl.now() - interval '29 days'), ('c', 'old', 'm', pawl.now() - interval '31 days')`)
  await prune(connection, undefined, 20)
  expect(await db.query('select count(*)::integer as n, min(subject::integer) as oldest from pawl.refusal')).toEqual([
    { n: 10_000, oldest: 51 },
  ])
  expect(await db.query('select subject from pawl.alert order by subject')).toEqual([
    { subject: 'open' },
    { subject: 'resolved' },
  ])
})

test('a worker closed a week ago is removed unless it holds jobs', async () => {
  await openIncarnation(connection)
  const holding = await openIncarnation(connection)
  const open = await openIncarnation(connection)
  await db.query(
    "update pawl.worker set closed_at = pawl.now() - interval '8 days', close_reason = 'stopped', emptied_at = pawl.now() where id <> $1",
    [open.id],
  )
  await db.query(
    `insert into pawl.job (queue, kind, state, payload, due, run_at, holder, run_until)
     values ('default', 'work', 'running', '{}', pawl.now(), pawl.now(), $1, pawl.now())`,
    [holding.id],
  )
  await prune(connection)
  expect(await db.query('select w.id, w.emptied_at from pawl.worker w order by w.id')).toEqual([
    { id: holding.id, emptied_at: null },
    { id: open.id, emptied_at: null },
  ])
  expect(await db.query('select p.id from pawl.worker_process p order by p.id')).toEqual([{ id: holding.id }, { id: open.id }])
})
