// Crashes that were counted for a process that lives: what excuses them, on the product's own statements.

import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { type Holder, leaseStatements } from '../kernel/lease.ts'
import type { ClaimedRow } from './attempt.ts'
import { Fetcher } from './claim/fetcher.ts'
import { defineKind } from './kinds.ts'
import { excuse } from './reconcile.ts'

const rescueStatement = statement(import.meta.url, 'rescue')
const failStatement = statement(import.meta.url, 'settle-failed')
const kind = defineKind('work', { retry: { attempts: 50 }, run: () => undefined })

let db: TestDatabase
let connection: Connection
let fetcher: Fetcher
let id: string
beforeEach(async () => {
  db = await createDatabase()
  connection = new Connection(db.pawl().config.database, 'test')
  fetcher = new Fetcher(connection, 10_000, Number.POSITIVE_INFINITY)
  id = (await db.pawl().jobs.enqueue('work', {})).id
})
afterEach(async () => {
  await connection.close()
  await db.drop()
})

interface Held {
  readonly holder: Holder
  readonly job: ClaimedRow
}

async function claim(of = kind): Promise<Held> {
  const holder = await openIncarnation(connection)
  const { rows } = await fetcher.claim(holder, ['default'], [of], 1)
  if (rows.length > 0) return { holder, job: rows[0]! }
  const rooms = [{ kind: of, room: 1 }]
  const found = await fetcher.claimSuspects(holder, ['default'], rooms, { limit: 1, deciding: 'alone' })
  if (found.deciding !== undefined) await fetcher.startAlone(holder, found.deciding, of)
  return { holder, job: found.deciding ?? found.rows[0]! }
}

const close = ({ holder }: Held, reason = 'process died') =>
  connection.run(leaseStatements.close, { ...asHolder(holder), reason })
const rescue = ({ holder }: Held) => connection.run(rescueStatement, { workers: `{${holder.id}}`, limit: 10, max_crashes: 3 })

/** A process is closed as dead and its job taken over. */
async function cutOff(of = kind, reason?: string): Promise<Held> {
  const held = await claim(of)
  await close(held, reason)
  await rescue(held)
  return held
}

/** The process of before comes back. */
async function comeBack({ holder, job }: Held, by = connection, known = [job]): Promise<void> {
  const trouble = (error: unknown) => expect.unreachable(String(error))
  await excuse({ engine: by, signal: new AbortController().signal, trouble }, holder, ['default'], known)
}

const counted = async () => (await db.query('select crashes, excused from pawl.job'))[0]
const outcomes = async () => (await db.pawl().jobs.attempts(id)).map(({ outcome }) => outcome)

test('[K15] a process that was cut off and lives excuses its crash once', async () => {
  const held = await cutOff()
  expect(await counted()).toEqual({ crashes: 1, excused: 0 })
  for (let times = 0; times < 3; times++) await comeBack(held)
  expect(await counted()).toEqual({ crashes: 1, excused: 1 })
  const [attempt] = await db.pawl().jobs.attempts(id)
  expect(attempt).toMatchObject({
    outcome: 'interrupted',
    error: expect.stringMatching(/process died.*it is alive and was only cut off/),
  })
})

test('[K15] after ten excused cuts, the next death counts as the first', async () => {
  for (let cut = 1; cut <= 10; cut++) {
    await comeBack(await cutOff())
    expect(await counted()).toEqual({ crashes: cut, excused: cut })
  }
  await cutOff()
  expect(await db.query('select state, crashes - excused as counted from pawl.job')).toEqual([{ state: 'ready', counted: 1 }])
})

test("[K15] an excuse leaves the next holder's fence, state and revision", async () => {
  const held = await cutOff()
  const next = await claim()
  const columns = 'select state, holder, fence, revision, attempt, run_until from pawl.job'
  const before = await db.query(columns)
  await comeBack(held)
  expect(await db.query(columns)).toEqual(before)
  expect(await counted()).toEqual({ crashes: 1, excused: 1 })
  const end = {
    holders: `{${next.holder.id}}`,
    tenants: '{""}',
    ids: `{${id}}`,
    fences: `{${next.job.fence}}`,
    ran_ms: '{1}',
    progress: '{}',
  }
  const accepted = await connection.run(failStatement, { ...end, outcomes: '{failed}', delays_ms: '{0}', errors: '{no}' })
  expect(accepted).toHaveLength(1)
})

test.each(['stopped', 'blocked past a time limit', 'lease ended'])(
  '[K15] an incarnation that was closed as %s excuses nothing',
  async (reason) => {
    const held = await cutOff(kind, reason)
    const before = await counted()
    await comeBack(held)
    expect(await counted()).toEqual(before)
  },
)

test('[K15] an excused crash is not excused again: a later death counts', async () => {
  const held = await cutOff()
  const next = await claim()
  const end = {
    holders: `{${next.holder.id}}`,
    tenants: '{""}',
    ids: `{${id}}`,
    fences: `{${next.job.fence}}`,
    ran_ms: '{1}',
    progress: '{}',
  }
  await connection.run(failStatement, { ...end, outcomes: '{failed}', delays_ms: '{0}', errors: '{no}' })
  await cutOff()
  await comeBack(held)
  expect(await counted()).toEqual({ crashes: 2, excused: 1 })
  expect(await outcomes()).toEqual(['interrupted', 'failed', 'crashed'])
})

test('[K15] a crash counted after its process returned is excused, even when locked', async () => {
  const held = await claim()
  await close(held)
  const back = comeBack(held)
  await rescue(held)
  await back
  expect(await counted()).toEqual({ crashes: 1, excused: 1 })
  const again = await cutOff()
  const client = await db.pool.connect()
  await client.query('begin')
  await client.query('select from pawl.job for update')
  const waiting = comeBack(again)
  await db.query('select 1')
  await client.query('commit')
  client.release()
  await waiting
  expect(await counted()).toEqual({ crashes: 2, excused: 2 })
})

test('[J3] a job that a cut made dead stays dead, with a note', async () => {
  const once = defineKind('work', { retry: { crashes: 1 }, run: () => undefined })
  await comeBack(await cutOff(once))
  expect(await db.pawl().jobs.get(id)).toMatchObject({
    state: 'dead',
    lastError: expect.stringMatching(/process died.*it is alive and was only cut off/),
  })
  await db.pawl().jobs.retry(id)
  expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'ready', suspect: false })
})

test('[K15] a job done elsewhere records no crash of a living process', async () => {
  const held = await cutOff()
  await db.pawl().jobs.cancel(id)
  await comeBack(held)
  expect(await outcomes()).toEqual(['interrupted', 'cancelled'])
})

test('[K15] what a claim without an answer brought is excused too', async () => {
  await comeBack(await cutOff(), connection, [])
  expect(await counted()).toEqual({ crashes: 1, excused: 1 })
  const held = await claim()
  await close(held)
  const back = comeBack(held, connection, [])
  await rescue(held)
  await back
  expect(await counted()).toEqual({ crashes: 2, excused: 2 })
})

test('[K15] a job claimed during its excuse has its crash excused', async () => {
  const held = await cutOff()
  // The clock of the excuse waits, after its snapshot was taken.
  await db.query(`create or replace function pawl.now() returns timestamptz language plpgsql as $$
    begin
      if current_setting('application_name') like '% excuses' then perform pg_advisory_xact_lock(1); end if;
      return clock_timestamp();
    end $$`)
  const gate = await db.pool.connect()
  await gate.query('select pg_advisory_lock(1)')
  const excuses = new Connection(db.pawl().config.database, 'excuses')
  const back = comeBack(held, excuses)
  const waiting = "select from pg_stat_activity where application_name like '% excuses' and wait_event = 'advisory'"
  await until('the excuse has begun', async () => (await db.query(waiting)).length === 1)
  await claim()
  await gate.query('select pg_advisory_unlock(1)')
  gate.release()
  await back
  await excuses.close()
  expect(await counted()).toEqual({ crashes: 1, excused: 1 })
  expect(await outcomes()).toEqual(['interrupted'])
})
