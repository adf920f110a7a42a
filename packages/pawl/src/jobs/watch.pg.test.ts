// The watch over other incarnations: it closes none that was not asked, and none that answers.

import { moveClock } from 'pawl/testing'
import pg from 'pg'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { type Holder, leaseStatements, lockClass, Trouble } from '../kernel/lease.ts'
import { installProbe } from '../kernel/probe.ts'
import { Fetcher } from './claim/fetcher.ts'
import { defineKind } from './kinds.ts'
import { Watch } from './watch.ts'

const kinds = [defineKind('work', { run: () => undefined }), defineKind('other', { run: () => undefined })]

let db: TestDatabase
let connection: Connection
let nowMs: number
let messages: { readonly type: string; readonly [detail: string]: unknown }[]
beforeEach(async () => {
  db = await createDatabase()
  connection = new Connection(db.pawl().config.database, 'test')
  messages = []
  // The watcher's clock stands still, so a slow machine does not count as an error; tests move it.
  nowMs = 1_000_000
  vi.spyOn(performance, 'now').mockImplementation(() => nowMs)
})
afterEach(async () => {
  vi.restoreAllMocks()
  installProbe(undefined)
  await connection.close()
  await db.drop()
})

interface Watcher {
  readonly trouble: Trouble
  readonly self: Holder
  /** A scan of all others and the sweep that follows. */
  turn(mayTimeOut?: boolean): Promise<void>
}

function newWatch(trouble: Trouble): Watch {
  return new Watch({
    sweeps: connection,
    trouble,
    maxAttempts: 5,
    maxCrashes: 3,
    onClosed: (workers) => void messages.push({ type: 'closed', workers }),
    onSwept: (news) => void messages.push(news),
  })
}

async function watcher(): Promise<Watcher> {
  const trouble = new Trouble()
  const watch = newWatch(trouble)
  const self = await openIncarnation(connection, { name: 'watcher' })
  return {
    trouble,
    self,
    async turn(mayTimeOut = true) {
      await connection.run(leaseStatements.beat, { ...asHolder(self), lease_ms: 3_600_000 })
      expect(await watch.look(connection, self)).toBe('open')
      await watch.sweep(mayTimeOut ? [] : null)
    },
  }
}

interface Row {
  readonly asked_by: string | null
  readonly close_reason: string | null
}

async function row({ id }: Holder): Promise<Row> {
  return (await db.query<Row>('select asked_by, close_reason from pawl.worker where id = $1', [id]))[0]!
}

async function endLeaseOf({ id }: Holder): Promise<void> {
  await db.query("update pawl.worker set lease_until = pawl.now() - interval '1 second' where id = $1", [id])
}

const answer = (holder: Holder) => connection.run(leaseStatements.beat, { ...asHolder(holder), lease_ms: 3_600_000 })

test('[K2] an ended lease is asked about first, and closed when nobody answers', async () => {
  const watch = await watcher()
  const silent = await openIncarnation(connection)
  await db.query("select pawl.enqueue('work')")
  const [job] = (await new Fetcher(connection, 10_000).claim(silent, ['default'], kinds, 1)).rows
  await watch.turn()
  expect(await row(silent)).toEqual({ asked_by: null, close_reason: null })
  await endLeaseOf(silent)
  await watch.turn()
  const asked = await row(silent)
  expect(asked).toEqual({ asked_by: expect.any(String), close_reason: null })
  nowMs += 999
  await watch.turn()
  expect(await row(silent)).toEqual(asked)
  nowMs += 1
  await watch.turn()
  expect(await row(silent)).toMatchObject({ close_reason: 'lease ended' })
  expect(await db.query('select state, crashes from pawl.job')).toEqual([{ state: 'ready', crashes: 1 }])
  expect(messages).toMatchObject([
    { type: 'closed', workers: [{ id: silent.id, reason: 'lease ended' }] },
    { type: 'rescued', jobs: [{ id: job!.id }] },
  ])
  expect(await answer(silent)).toEqual([])
})

test('[K2] an ended lease whose holder answers in time stays open', async () => {
  const watch = await watcher()
  const slow = await openIncarnation(connection)
  for (let round = 0; round < 3; round++) {
    await endLeaseOf(slow)
    await watch.turn()
    expect(await connection.run(leaseStatements.look, asHolder(slow))).toEqual([{ is_asked: true }])
    expect(await answer(slow)).toHaveLength(1)
    expect(await connection.run(leaseStatements.look, asHolder(slow))).toEqual([{ is_asked: false }])
    nowMs += 60_000
    await watch.turn()
    expect(await row(slow)).toEqual({ asked_by: null, close_reason: null })
  }
})

test('[K2] an answer and a new question restart the wait', async () => {
  const watch = await watcher()
  const slow = await openIncarnation(connection)
  await endLeaseOf(slow)
  await watch.turn()
  await answer(slow)
  const other = '11111111-1111-4111-8111-111111111111'
  expect(await connection.run(leaseStatements.ask, { workers: `{${slow.id}}`, question: other })).toHaveLength(1)
  await endLeaseOf(slow)
  nowMs += 60_000
  await watch.turn()
  expect(await row(slow)).toEqual({ asked_by: other, close_reason: null })
})

test('[K2] a free liveness lock closes only workers that had taken it', async () => {
  const watch = await watcher()
  const [dead, starting, alive] = [
    await openIncarnation(connection),
    await openIncarnation(connection),
    await openIncarnation(connection),
  ]
  for (const holder of [dead, alive]) await connection.run(leaseStatements.lock, asHolder(holder))
  const session = await db.pool.connect()
  try {
    await session.query('select pg_advisory_lock($1::integer, $2::integer)', [lockClass, alive.id])
    await watch.turn()
    nowMs += 1000
    await watch.turn()
    expect(await row(dead)).toMatchObject({ close_reason: 'process died' })
    for (const holder of [starting, alive]) expect(await row(holder)).toEqual({ asked_by: null, close_reason: null })
  } finally {
    session.release(true)
  }
})

test('[K2] a lock that is taken again before the close saves its holder', async () => {
  const watch = await watcher()
  const cut = await openIncarnation(connection)
  await connection.run(leaseStatements.lock, asHolder(cut))
  await watch.turn()
  expect(await row(cut)).toMatchObject({ asked_by: expect.any(String) })
  const session = await db.pool.connect()
  try {
    await session.query('select pg_advisory_lock($1::integer, $2::integer)', [lockClass, cut.id])
    nowMs += 60_000
    await watch.turn()
    expect(await row(cut)).toMatchObject({ close_reason: null })
  } finally {
    session.release(true)
  }
})

test("[K2] another watcher's question closes no worker until old and asked again", async () => {
  const [first, second] = [await watcher(), await watcher()]
  const silent = await openIncarnation(connection)
  await endLeaseOf(silent)
  await first.turn()
  const asked = await row(silent)
  nowMs += 60_000
  await second.turn()
  expect(await row(silent)).toEqual(asked)
  // Its asker died: by the clock of the database its question is old.
  await moveClock(db.pool, 16_000)
  await second.turn()
  const again = await row(silent)
  expect(again.asked_by).not.toBe(asked.asked_by)
  // The first, alive after all, has lost its question.
  await first.turn()
  expect(await row(silent)).toEqual(again)
  nowMs += 1000
  await second.turn()
  expect(await row(silent)).toMatchObject({ close_reason: 'lease ended' })
})

test('[J3] the next look comes when a question has waited long enough', async () => {
  const watch = newWatch(new Trouble())
  const self = await openIncarnation(connection)
  const silent = await openIncarnation(connection, { lookMs: 400 })
  await endLeaseOf(silent)
  expect(watch.lookInMs(500)).toBe(500)
  await watch.look(connection, self)
  await watch.sweep()
  expect(watch.lookInMs(500)).toBe(500)
  nowMs += 500
  expect(watch.lookInMs(500)).toBe(300)
  nowMs += 300
  expect(watch.isTurn()).toBe(true)
  // What kept it from closing may last.
  expect(watch.lookInMs(500)).toBe(500)
})

test('[K2] a question is replaced only when 15 s old or future', async () => {
  const silent = await openIncarnation(connection)
  const question = (n: number) => `11111111-1111-4111-8111-11111111111${n}`
  const ask = async (n: number) =>
    (await connection.run(leaseStatements.ask, { workers: `{${silent.id}}`, question: question(n) })).length === 1
  expect(await ask(1)).toBe(true)
  await moveClock(db.pool, 10_000)
  expect(await ask(2)).toBe(false)
  expect(await row(silent)).toMatchObject({ asked_by: question(1) })
  await moveClock(db.pool, 15_100)
  expect(await ask(3)).toBe(true)
  await moveClock(db.pool, 0)
  expect(await ask(4)).toBe(true)
  expect(await row(silent)).toMatchObject({ asked_by: question(4) })
})

test('[K15] a watcher with database errors allows ten times the answer time', async () => {
  const watch = await watcher()
  const silent = await openIncarnation(connection)
  await endLeaseOf(silent)
  await watch.turn()
  watch.trouble.note()
  nowMs += 9999
  await watch.turn()
  expect(await row(silent)).toMatchObject({ close_reason: null })
  nowMs += 1
  await watch.turn()
  expect(await row(silent)).toMatchObject({ close_reason: 'lease ended' })
})

test('[K15] a statement that fails or takes 0.5 s counts for ten', async () => {
  const trouble = new Trouble()
  const failing = statement(import.meta.url, 'fates')
  const look = asHolder({ id: 1, nonce: '11111111-1111-4111-8111-111111111111' })
  await trouble.run(connection, leaseStatements.look, look)
  expect(trouble.isRecent).toBe(false)
  await expect(trouble.run(connection, failing, { tenants: '{}', ids: 'none', fences: '{}' })).rejects.toThrow()
  expect(trouble.isRecent).toBe(true)
  nowMs += 10_000
  expect(trouble.isRecent).toBe(false)
  const running = trouble.run(connection, leaseStatements.look, look)
  nowMs += 501
  await running
  expect(trouble.isRecent).toBe(true)
})

test('[K4] a clock set back leaves a dead worker no longer lease', async () => {
  const watch = await watcher()
  const silent = await openIncarnation(connection)
  await moveClock(db.pool, -3_600_000)
  await watch.turn()
  nowMs += 1000
  await watch.turn()
  expect(await row(silent)).toMatchObject({ close_reason: 'lease ended' })
})

test('a closing passes over a worker whose row is locked', async () => {
  const watch = await watcher()
  const [locked, silent] = [await openIncarnation(connection), await openIncarnation(connection)]
  for (const holder of [locked, silent]) await endLeaseOf(holder)
  await watch.turn()
  const client = await db.pool.connect()
  await client.query('begin')
  await client.query('select from pawl.worker where id = $1 for update', [locked.id])
  nowMs += 1000
  await watch.turn()
  expect(await row(silent)).toMatchObject({ close_reason: 'lease ended' })
  expect(await row(locked)).toMatchObject({ close_reason: null })
  await client.query('rollback')
  client.release()
  await watch.turn()
  expect(await row(locked)).toMatchObject({ close_reason: 'lease ended' })
})

/** A session as a handler's, inside a transaction. `ended` resolves when the server ends it. */
async function openSession(sessions: string): Promise<{ ended: Promise<void>; close(): Promise<void> }> {
  const client = new pg.Client({ connectionString: db.url, application_name: `pawl handler ${sessions}` })
  const ended = new Promise<void>((resolve) => void client.on('error', () => resolve()))
  await client.connect()
  await client.query('begin')
  await client.query('select from pawl.job')
  return { ended, close: () => client.end() }
}

async function diesAfterClosing(watch: Watcher, silent: Holder): Promise<void> {
  await endLeaseOf(silent)
  await watch.turn()
  nowMs += 1000
  installProbe((name) => {
    if (name === 'keeper.rescue.closed') throw new Error('the watcher dies')
  })
  await expect(watch.turn()).rejects.toThrow('the watcher dies')
  installProbe(undefined)
  expect(await row(silent)).toMatchObject({ close_reason: 'lease ended' })
}

test('[J4] a watcher that dies after a close leaves sessions to the next', async () => {
  const [first, second] = [await watcher(), await watcher()]
  const silent = await openIncarnation(connection, { sessions: 'aaaa1111' })
  const session = await openSession('aaaa1111')
  await db.query("select pawl.enqueue('work')")
  await new Fetcher(connection, 10_000).claim(silent, ['default'], kinds, 1)
  try {
    await diesAfterClosing(first, silent)
    await second.turn()
    expect(await db.query('select state from pawl.job')).toEqual([{ state: 'ready' }])
    await session.ended
  } finally {
    await session.close()
  }
}, 20_000)

test("after a close, a watcher's death leaves jobless sessions to the emptying", async () => {
  const [first, second] = [await watcher(), await watcher()]
  const silent = await openIncarnation(connection, { sessions: 'aaaa1111' })
  const session = await openSession('aaaa1111')
  try {
    await diesAfterClosing(first, silent)
    await moveClock(db.pool, 121_000)
    await second.turn()
    await session.ended
  } finally {
    await session.close()
  }
}, 20_000)

test('a closed worker is rescued though its sessions cannot be ended', async () => {
  const watch = await watcher()
  const silent = await openIncarnation(connection)
  await db.query("select pawl.enqueue('work')")
  await new Fetcher(connection, 10_000).claim(silent, ['default'], kinds, 1)
  await connection.run(leaseStatements.close, { ...asHolder(silent), reason: 'process died' })
  const send = connection.run.bind(connection)
  vi.spyOn(connection, 'run').mockImplementation((sent, values) => {
    if (sent === leaseStatements.endSessions) return Promise.reject(new Error('permission denied'))
    return send(sent, values)
  })
  await expect(watch.turn()).rejects.toThrow('permission denied')
  expect(await db.query('select state from pawl.job')).toEqual([{ state: 'ready' }])
})

test('a claim that commits after the closing of its incarnation is rescued', async () => {
  const watch = await watcher()
  const silent = await openIncarnation(connection)
  await db.query("select pawl.enqueue('work')")
  await connection.run(leaseStatements.close, { ...asHolder(silent), reason: 'process died' })
  await watch.turn()
  await db.query(
    "update pawl.job set state = 'running', holder = $1, run_until = 'infinity', claimed_at = pawl.now(), attempt = 1",
    [silent.id],
  )
  await watch.turn()
  expect(await db.query('select state, crashes from pawl.job')).toEqual([{ state: 'ready', crashes: 1 }])
  // Long after, it is passed over.
  await moveClock(db.pool, 121_000)
  await watch.turn()
  expect(await db.query('select emptied_at is not null as emptied from pawl.worker where id = $1', [silent.id])).toEqual([
    { emptied: true },
  ])
})

test('one sweep raises its alerts in the order of their kinds', async () => {
  const watch = await watcher()
  await db.query(
    `select pawl.enqueue(k, max_attempts => a) from (values ('work', 1), ('work', 5), ('other', 1), ('other', 5)) v(k, a)`,
  )
  await new Fetcher(connection, 10_000).claim(watch.self, ['default'], kinds, 10)
  await db.query("update pawl.job set run_until = pawl.now() - interval '3 seconds'")
  await watch.turn()
  expect(await db.query('select code, subject from pawl.alert order by id')).toEqual([
    { code: 'job.timed-out', subject: 'other' },
    { code: 'job.timed-out', subject: 'work' },
  ])
})

test('[K15] only its own process times a job out, after storing ends', async () => {
  const [other, own] = [await watcher(), await watcher()]
  await db.query("select pawl.enqueue('work')")
  await new Fetcher(connection, 10_000).claim(own.self, ['default'], kinds, 1)
  const state = async () => (await db.query<{ state: string }>('select state from pawl.job'))[0]!.state
  await db.query("update pawl.job set run_until = pawl.now() - interval '1 hour'")
  await other.turn()
  await own.turn(false)
  expect(await state()).toBe('running')
  await own.turn()
  expect(await state()).toBe('scheduled')
  expect(await db.query('select outcome, holder from pawl.job_attempt')).toEqual([{ outcome: 'timed out', holder: own.self.id }])
})

test("[K4] a step of the database's clock ends no job", async () => {
  const { self, turn } = await watcher()
  await turn()
  await db.query("select pawl.enqueue('work')")
  await new Fetcher(connection, 10_000).claim(self, ['default'], kinds, 1)
  const state = async () => (await db.query<{ state: string }>('select state from pawl.job'))[0]!.state
  await moveClock(db.pool, 3_600_000)
  nowMs += 3000
  await turn()
  expect(await state()).toBe('running')
  // Its time passes.
  nowMs += 1_000_000
  await turn()
  expect(await state()).toBe('scheduled')
})

test('with k workers open each watches every k/2-th look', async () => {
  const self = await openIncarnation(connection)
  for (let n = 1; n < 20; n++) await openIncarnation(connection)
  const watch = newWatch(new Trouble())
  expect(watch.isTurn()).toBe(true)
  let watched = 0
  for (let look = 0; look < 200; look++) {
    if (!watch.isTurn()) continue
    watched++
    await watch.look(connection, self)
    await watch.sweep()
  }
  expect(watched).toBeGreaterThan(12)
  expect(watched).toBeLessThan(30)
})

test('one turn promotes everything that is due, and nothing else', async () => {
  const watch = await watcher()
  const payloads = (count: number) => `(select jsonb_agg(n) from generate_series(1, ${count}) n)`
  await db.query(`select count(*) from pawl.enqueue_many('', 'default', 'work', ${payloads(2500)}, p_delay_ms => 60000)`)
  await db.query(`select count(*) from pawl.enqueue_many('', 'default', 'work', ${payloads(1)}, p_delay_ms => 120000)`)
  await watch.turn()
  expect(await db.query("select count(*)::integer as n from pawl.job where state = 'ready'")).toEqual([{ n: 0 }])
  await moveClock(db.pool, 61_000)
  await watch.turn()
  expect(await db.query('select state, count(*)::integer as n from pawl.job group by state order by state')).toEqual([
    { state: 'ready', n: 2500 },
    { state: 'scheduled', n: 1 },
  ])
  expect(messages.map(({ type }) => type)).toEqual(['promoted', 'promoted', 'promoted'])
})
