// What operators do, and what cursors do by themselves: pause, resume, skip, shards, stale, latch.

import type { LogEvent, Pawl } from 'pawl'
import { installProbe, moveClock } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { append, caughtUp, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'
import { Connection } from '../db/driver.ts'
import type { Statement } from '../db/statement.ts'

// By nth, the order of the inserts: ctid is not, since two connections that fill a page at once go on in pages of their own.
const seenSql =
  'create table seen (nth bigint generated always as identity, position bigint not null, key text not null, shard integer not null default 0)'

function define(db: TestDatabase, options: { shards?: number; channel?: string; maxLag?: string } = {}) {
  const pawl = db.pawl()
  pawl.projections.define('p', {
    ...options,
    each: (event, tx) => tx.send('insert into seen (position, key) values ($1, $2)', [event.position, event.key]),
  })
  return pawl
}

const positions = async (db: TestDatabase) =>
  (await db.query<{ position: number }>('select position::integer from seen order by 1')).map(({ position }) => position)

test('after pause nothing is applied until resume, and both are audited', async () => {
  const db = await createLog(seenSql)
  const pawl = define(db)
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await caughtUp(db, 'p')
  await pawl.projections.pause('p', { reason: 'a migration', by: 'ann' })
  const applied = await positions(db)
  for (let n = 0; n < 5; n++) await append(db, { key: 'a' })
  await until('they have positions', async () => (await pawl.projections.status('p'))[0]!.lag === 5)
  expect(await positions(db)).toEqual(applied)
  expect(await pawl.projections.status('p')).toMatchObject([{ state: 'paused', reason: 'a migration' }])
  await expect(pawl.projections.pause('p', { reason: 'again' })).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
  await expect(pawl.projections.pause('q', { reason: 'who' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(pawl.projections.resume('p', { reason: ' ' })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  await pawl.projections.resume('p', { reason: 'it is done' })
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual([1, 2, 3, 4, 5, 6])
  expect(await db.query('select actor, action, reason from pawl.audit order by id')).toEqual([
    { actor: 'ann', action: 'projection.pause', reason: 'a migration' },
    { actor: null, action: 'projection.resume', reason: 'it is done' },
  ])
})

test('after pause an idle sink starts no call until resume', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: Record<string, number[]> = { paused: [], other: [] }
  for (const name of ['paused', 'other'])
    pawl.projections.sink(name, { handle: ({ position }) => void got[name]!.push(position) })
  await startRunner(pawl)
  await append(db, { key: 'a' })
  for (const name of ['paused', 'other']) await caughtUp(db, name)
  await pawl.projections.pause('paused', { reason: 'the outside is repaired' })
  await append(db, ...Array.from({ length: 20 }, (_, n) => ({ key: `k${n}` })))
  // Both are woken by the same tick.
  await caughtUp(db, 'other')
  expect(got.other).toHaveLength(21)
  expect(got.paused).toEqual([1])
  await pawl.projections.resume('paused', { reason: 'it is' })
  await caughtUp(db, 'paused')
  expect(got.paused).toHaveLength(21)
})

test('while its holder retries an event, skip passes it with an audit', async () => {
  const db = await createLog(seenSql)
  const pawl = db.pawl()
  pawl.projections.define('p', {
    retry: { attempts: 1000, initialMs: 20, factor: 1, jitter: false },
    each: async (event, tx) => {
      if (event.key === 'bad') throw new Error('no')
      await tx.query('insert into seen (position, key) values ($1, $2)', [event.position, event.key])
    },
  })
  await append(db, { key: 'a' }, { key: 'bad' }, { key: 'b' })
  await startRunner(pawl)
  await until('it is retried', async () => (await cursorOf(db, 'p')).attempts >= 2)
  await expect(pawl.projections.skip('p', { position: 3, reason: 'no' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await pawl.projections.skip('p', { position: 2, reason: 'it never happened' })
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual([1, 3])
  expect(await db.query('select action, reason, detail from pawl.audit')).toEqual([
    { action: 'projection.skip', reason: 'it never happened', detail: { position: 2, parked: false } },
  ])
})

test('a cursor acquired without an answer is acquired again by its process', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: number[] = []
  pawl.projections.define('positions', { each: ({ position }) => void got.push(position) })
  let isLost = false
  installProbe((name) => {
    if (name !== 'projections.acquired' || isLost) return
    isLost = true
    throw Object.assign(new Error('Connection terminated unexpectedly'), { code: 'ECONNRESET' })
  })
  onTestFinished(() => installProbe(undefined))
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await caughtUp(db, 'positions')
  expect(isLost).toBe(true)
  expect(got).toEqual([1])
})

test('a shard whose release was lost goes to the other process', async () => {
  const db = await createLog(seenSql)
  const first = await startRunner(define(db, { shards: 2 }))
  await until('the first holds both', () => first.held().length === 2)
  let isLost = false
  installProbe((name) => {
    if (name !== 'projections.release.before' || isLost) return
    isLost = true
    throw Object.assign(new Error('Connection terminated unexpectedly'), { code: 'ECONNRESET' })
  })
  onTestFinished(() => installProbe(undefined))
  const second = await startRunner(define(db, { shards: 2 }))
  await until('they share', () => first.held().length === 1 && second.held().length === 1)
  expect(isLost).toBe(true)
  await append(db, ...Array.from({ length: 20 }, (_, n) => ({ key: `k${n}` })))
  await caughtUp(db, 'p')
  expect(await positions(db)).toHaveLength(20)
})

test('shards split the keys between processes, and every cursor passes everything', async () => {
  const db = await createLog(seenSql)
  const [one, two] = [define(db, { shards: 4 }), define(db, { shards: 4 })]
  const first = await startRunner(one)
  await until('the first holds all', () => first.held().length === 4)
  const second = await startRunner(two)
  await until('they share', () => first.held().length === 2 && second.held().length === 2)
  for (let n = 0; n < 100; n++) await append(db, { key: `k${n % 25}` }, { key: `k${(n * 7) % 25}` })
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual(Array.from({ length: 200 }, (_, n) => n + 1))
  // In the order of each key.
  const rows = await db.query<{ key: string; position: number }>('select key, position::integer from seen order by nth')
  for (let key = 0; key < 25; key++) {
    const mine = rows.filter((row) => row.key === `k${key}`).map(({ position }) => position)
    expect(mine).toEqual([...mine].sort((a, b) => a - b))
  }
  await second.stop()
  await until('the first has all again', () => first.held().length === 4)
  await expect(startRunner(define(db, { shards: 2 }))).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
})

test('a cursor of one channel moves past events of other channels', async () => {
  const db = await createLog(seenSql)
  await startRunner(define(db, { channel: 'mine' }))
  await append(db, { key: 'a', channel: 'mine' }, { key: 'b' }, { key: 'c' })
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual([1])
  await append(db, { key: 'b' })
  await caughtUp(db, 'p')
  const [row] = await db.query<{ is_known: boolean }>(
    'select c.event_id = (select id from pawl.event order by seq desc limit 1) as is_known from pawl.cursor_at c',
  )
  expect(row).toEqual({ is_known: true })
})

test('a cursor beyond its maxLag becomes stale with an alert until resumed', async () => {
  const db = await createLog(seenSql)
  const pawl = define(db, { maxLag: '1h' })
  const runner = await startRunner(pawl)
  await pawl.projections.pause('p', { reason: 'for too long' })
  await append(db, { key: 'a' })
  await until('it has a position', async () => (await pawl.projections.status('p'))[0]!.lag === 1)
  await runner.stop()
  await moveClock({ query: async (text, values) => ({ rows: await db.query(text, [...(values ?? [])]) }) }, 2 * 3_600_000)
  // A worker marks stale cursors when it starts, and every ten seconds.
  await startRunner(pawl)
  await until('it is stale', async () => (await cursorOf(db, 'p')).state === 'stale')
  expect(await pawl.alerts()).toMatchObject([{ code: 'cursor.stale', subject: 'p generation 1 shard 0' }])
  await db.query('update pawl.cursor set max_lag = null')
  await pawl.projections.resume('p', { reason: 'somebody is at it' })
  expect(await pawl.alerts()).toEqual([])
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual([1])
})

test('[P10] a filter without matches moves its cursor and holds no retention', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const options = { channel: 'mine', maxLag: '1h' } as const
  const handled: Record<string, number[]> = { log: [], state: [], sink: [] }
  pawl.projections.define('log', { ...options, each: ({ position }) => void handled.log!.push(position) })
  pawl.projections.define('state', {
    ...options,
    kind: 'state',
    entity: ({ position }) => String(position),
    refresh: (entity) => void handled.state!.push(Number(entity)),
  })
  pawl.projections.sink('sink', { ...options, handle: ({ position }) => void handled.sink!.push(position) })
  await startRunner(pawl)
  await append(db, { key: 'a', channel: 'mine' })
  await append(db, { key: 'b', channel: 'others' }, { key: 'c', channel: 'others' })
  for (const name of Object.keys(handled)) await caughtUp(db, name)
  expect((await pawl.events.whoHoldsBack()).filter(({ what }) => what === 'cursor')).toEqual([])
  await moveClock({ query: async (text, values) => ({ rows: await db.query(text, [...(values ?? [])]) }) }, 2 * 3_600_000)
  // A worker marks stale cursors when it starts.
  await startRunner(pawl)
  await append(db, { key: 'a', channel: 'mine' })
  await until('each got its own', () => Object.values(handled).every((positions) => positions.length === 2))
  expect(handled).toEqual({ log: [1, 4], state: [1, 4], sink: [1, 4] })
  expect((await pawl.projections.status()).map(({ state }) => state)).toEqual(['running', 'running', 'running'])
})

test('a stale cursor without its events is resumed only with from', async () => {
  const db = await createLog(seenSql)
  const pawl = define(db, { maxLag: '1h' })
  const runner = await startRunner(pawl)
  await append(db, { key: 'a' })
  await caughtUp(db, 'p')
  await runner.stop()
  for (const key of ['b', 'c', 'd']) await append(db, { key })
  const connection = new Connection(db.pawl().config.database, 'test')
  onTestFinished(() => connection.close())
  await connection.query('select pawl.sequence_events()')
  // Retention has removed the second and the third event.
  await db.query("update pawl.cursor set state = 'stale', max_lag = null; update pawl.sequencer set removed_until = 3")
  const reason = 'they are not needed'
  await expect(pawl.projections.resume('p', { reason })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringContaining("from: 'oldest'"),
  })
  await expect(pawl.projections.resume('p', { reason, from: 2 })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringContaining('the log has positions 4 to 4'),
  })
  await expect(pawl.projections.resume('p', { reason, from: 'start' as never })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  await pawl.projections.resume('p', { reason, from: 'oldest' })
  await startRunner(pawl)
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual([1, 4])
  expect(await db.query('select reason, detail from pawl.audit')).toEqual([
    { reason, detail: { generation: null, stood: [1], positions: [3] } },
  ])
})

test.each(['log', 'sink'] as const)('an idle %s cursor resumes after the position that is given', async (kind) => {
  const db = await createLog(seenSql)
  const pawl = kind === 'log' ? define(db) : db.pawl()
  const handled: number[] = []
  if (kind === 'sink') pawl.projections.sink('p', { handle: ({ position }) => void handled.push(position) })
  await startRunner(pawl)
  for (const key of ['a', 'b', 'c']) await append(db, { key })
  await caughtUp(db, 'p')
  await db.query("update pawl.cursor set state = 'latched'")
  await pawl.projections.resume('p', { reason: 'two events were lost and came again', from: 1 })
  const all = async () => (kind === 'log' ? positions(db) : [...handled].sort())
  await until('they are applied again', async () => (await all()).length === 5)
  expect(await all()).toEqual([1, 2, 2, 3, 3])
})

/** A cursor at the second of two events, without a holder. */
async function stoppedAtTwo(): Promise<{ db: TestDatabase; pawl: Pawl }> {
  const db = await createLog(seenSql)
  const pawl = define(db)
  await append(db, { key: 'a' }, { key: 'b' })
  const runner = await startRunner(pawl)
  await caughtUp(db, 'p')
  await runner.stop()
  return { db, pawl }
}

test('[O12] a cursor ahead of the log latches; resumed, it continues there', async () => {
  const { db } = await stoppedAtTwo()
  // As after a restore of the log alone from an older copy.
  await db.query('update pawl.cursor_position set position = 7')
  const again = define(db)
  await startRunner(again)
  await until('it is latched', async () => (await cursorOf(db, 'p')).state === 'latched')
  expect((await cursorOf(db, 'p')).reason).toBe(
    'The cursor is at position 7, but the log ends at 2: the log is older than the cursor.',
  )
  await append(db, { key: 'c' })
  await until(
    'the event has a position',
    async () => (await db.query<{ position: string }>('select position from pawl.sequencer'))[0]!.position === '3',
  )
  expect(await positions(db)).toEqual([1, 2])
  expect(await again.alerts()).toMatchObject([{ code: 'cursor.latched' }])
  await again.projections.resume('p', { reason: 'c is new' })
  await append(db, { key: 'd' })
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual([1, 2, 4])
})

test('[O12] a cursor resumed before its holder knows of the latch skips nothing', async () => {
  const { db, pawl } = await stoppedAtTwo()
  await db.query('update pawl.cursor_position set position = 7')
  const { run } = Connection.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
  })
  let resumed: Promise<void> | undefined
  Connection.prototype.run = async function (this: Connection, sent: Statement, values) {
    const rows = await run.call(this, sent, values)
    // The answer is on its way.
    if (sent.name === 'latch') {
      resumed ??= pawl.projections.resume('p', { reason: 'what comes is new' })
      await resumed
    }
    return rows as never
  }
  await startRunner(define(db))
  await until('it is latched', () => resumed !== undefined)
  await resumed
  await append(db, { key: 'c' }, { key: 'd' })
  await caughtUp(db, 'p')
  expect(await positions(db)).toEqual([1, 2, 3, 4])
})

test("[O12] a cursor lost with the log's tail is not latched", async () => {
  const db = await createLog(seenSql)
  const pawl = define(db)
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await caughtUp(db, 'p')
  await append(db, { key: 'b' }, { key: 'c' })
  await caughtUp(db, 'p')
  // Before its next poll a standby takes over that had only the first: log, effects and cursor.
  const { run } = Connection.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
  })
  const grown = deferred()
  Connection.prototype.run = async function (this: Connection, sent: Statement, values) {
    if (sent.name === 'read-log') await grown.promise
    return run.call(this, sent, values) as never
  }
  await db.query(`
    begin;
    delete from pawl.event where aggregateid <> 'a';
    delete from pawl.log_page where first_position > 1;
    delete from seen where position > 1;
    update pawl.sequencer set position = 1, generation = generation + 1;
    update pawl.cursor_position set position = 1, event_id = (select id from pawl.event);
    commit`)
  await append(db, { key: 'd' }, { key: 'e' }, { key: 'f' })
  await until('they have positions', async () => (await pawl.projections.status('p'))[0]!.lag === 3)
  grown.resolve()
  await caughtUp(db, 'p')
  expect(await db.query('select key from seen order by position')).toEqual(['a', 'd', 'e', 'f'].map((key) => ({ key })))
  expect((await cursorOf(db, 'p')).state).toBe('running')
})

test("[O12] a log that lost the cursor's event and grew latches it", async () => {
  const { db } = await stoppedAtTwo()
  // The events and their positions are others now; the cursor remembers what it passed.
  await db.query('truncate pawl.event, pawl.log_page')
  await db.query('update pawl.sequencer set position = 0')
  await append(db, { key: 'x' }, { key: 'y' }, { key: 'z' })
  await db.query('select pawl.sequence_events()')
  await startRunner(define(db))
  await until('it is latched', async () => (await cursorOf(db, 'p')).state === 'latched')
  expect((await cursorOf(db, 'p')).reason).toMatch(/^At position 2 the log has event .* but the cursor read .* there/)
  expect(await positions(db)).toEqual([1, 2])
})

test.each(['log', 'sink'] as const)('[O12] a %s cursor whose event is missing latches until it is resumed', async (kind) => {
  const db = await createLog(seenSql)
  const pawl = db.pawl()
  const got: number[] = []
  const each = ({ position }: LogEvent) => void got.push(position)
  if (kind === 'log') pawl.projections.define('p', { each })
  else pawl.projections.sink('p', { handle: each })
  await append(db, { key: 'a' }, { key: 'b' })
  const runner = await startRunner(pawl)
  await caughtUp(db, 'p')
  await runner.stop()
  await db.query("delete from pawl.event where aggregateid = 'b'")
  await startRunner(pawl)
  await until('it is latched', async () => (await cursorOf(db, 'p')).state === 'latched')
  expect((await cursorOf(db, 'p')).reason).toMatch(/^Events are missing from the log at positions 2 to 2/)
  await append(db, { key: 'c' })
  await pawl.projections.resume('p', { reason: 'b is lost' })
  await until('it continues', async () => (await cursorOf(db, 'p')).position === 3)
  expect(got).toEqual([1, 2, 3])
})

test.each(['log', 'sink'] as const)('[O13] retention during the check of a %s cursor latches nothing', async (kind) => {
  const db = await createLog(seenSql)
  const pawl = db.pawl()
  const each = () => undefined
  if (kind === 'log') pawl.projections.define('p', { each })
  else pawl.projections.sink('p', { handle: each })
  await append(db, { key: 'a' }, { key: 'b' })
  const runner = await startRunner(pawl)
  await caughtUp(db, 'p')
  await runner.stop()
  const retention = await db.pool.connect()
  onTestFinished(() => retention.release())
  // The check has read how far events were removed, and waits to read the event at its position.
  await retention.query('begin; lock table pawl.log_page')
  await startRunner(pawl)
  await until('the check waits', async () => {
    const waiting = await db.query(
      "select from pg_stat_activity where datname = current_database() and application_name = 'pawl engine' and wait_event_type = 'Lock'",
    )
    return waiting.length === 1
  })
  await retention.query('update pawl.sequencer set removed_until = 2; delete from pawl.event; commit')
  await append(db, { key: 'c' })
  await until('it continues or is latched', async () => {
    const { position, state } = await cursorOf(db, 'p')
    return position === 3 || state !== 'running'
  })
  expect(await cursorOf(db, 'p')).toMatchObject({ position: 3, state: 'running', reason: null })
})

test('a runner whose start failed starts at the next call', async () => {
  const db = await createLog(seenSql)
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  await proxy.refuse()
  const far = db.pawl({ databaseUrl: proxy.url })
  far.projections.define('p', {
    each: (event, tx) => tx.send('insert into seen (position, key) values ($1, $2)', [event.position, 'a']),
  })
  const runner = far.worker()
  await expect(runner.start()).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE' })
  await expect(runner.start()).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE' })
  await proxy.accept()
  await runner.start()
  await append(db, { key: 'a' })
  await caughtUp(db, 'p')
  await runner.stop()
  expect(await positions(db)).toEqual([1])
  await expect(far.worker().stop()).resolves.toMatchObject({ finished: 0 })
})

test('status and parked of a name that nothing defines are refused', async () => {
  const db = await createLog(seenSql)
  const pawl = define(db)
  const missing = {
    code: 'PAWL_NOT_FOUND',
    message: "There is no projection or sink 'mialer'. A worker that defines it creates it when it starts.",
  }
  await expect(pawl.projections.status('mialer')).rejects.toMatchObject(missing)
  await expect(pawl.projections.parked('mialer')).rejects.toMatchObject(missing)
  // Defined here, and no worker has started yet.
  expect(await pawl.projections.status('p')).toEqual([])
  expect((await pawl.projections.parked('p')).items).toEqual([])
  await startRunner(pawl)
  const other = db.pawl()
  expect(await other.projections.status('p')).toMatchObject([{ name: 'p' }])
  expect((await other.projections.parked('p')).items).toEqual([])
})
