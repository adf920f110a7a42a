// Retention and the days ahead: no needed event is removed, no other is kept, and no append ever fails or waits
// for it.

import { installProbe, moveClock } from 'pawl/testing'
import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { LogReader } from '../../test/support/log-readers.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { extendPartitions } from '../kernel/partitions.ts'
import { retain } from './retention.ts'

const dayMs = 86_400_000

let db: TestDatabase
let log: LogReader
let connection: Connection
let impatient: Connection
let firstNoonMs: number
const clients: pg.Client[] = []
beforeEach(async () => {
  db = await createDatabase()
  const { database } = db.pawl().config
  log = new LogReader(database)
  connection = new Connection(database, 'test')
  impatient = new Connection(database, 'test', { lockTimeoutMs: 300 })
  const [first] = await db.query<{ day: Date }>("select min(from_at) as day from pawl.day_partitions('event')")
  firstNoonMs = first!.day.getTime() + dayMs / 2
  await toDay(0)
})
afterEach(async () => {
  installProbe(undefined)
  await Promise.all([log.close(), connection.close(), impatient.close(), ...clients.splice(0).map((client) => client.end())])
  await db.drop()
})

async function client(): Promise<pg.Client> {
  const connected = new pg.Client({ connectionString: db.url })
  await connected.connect()
  clients.push(connected)
  return connected
}

/** Noon, `day` days after the first that the template has a partition for: a midnight since then, or during a test, changes nothing. */
const toDay = (day: number) => moveClock(db.pool, firstNoonMs + day * dayMs - Date.now())
const append = (n: number) => db.query(`select pawl.append('Counted', 'a', 'k', '{"key": "k", "version": ${n}, "n": ${n}}')`)
const oldEvent = (n: number, daysAgo: number) =>
  `insert into pawl.event (aggregatetype, aggregateid, type, payload, created_at) values ('a', 'k', 'Old', '{"n": ${n}}', pawl.now() - interval '${daysAgo} days')`
const partitions = async () =>
  (await db.query<{ name: string }>("select name from pawl.day_partitions('event') order by from_at nulls first")).map(
    ({ name }) => name,
  )
/** Waits for a lock that a stranger keeps for 0.3 seconds instead of five. */
const retainOrGiveUp = () => retain(impatient, { keepDays: 7 })
const eventCount = async () => (await db.query<{ n: number }>('select count(*)::int as n from pawl.event'))[0]!.n
const alerts = async () => (await db.pawl().alerts()).map(({ code, subject }) => [code, subject])

async function cursor(name: string, position: number, state = 'running'): Promise<void> {
  await db.query("insert into pawl.projection (name, kind, live_generation) values ($1, 'log', 1) on conflict do nothing", [name])
  await db.query(
    `insert into pawl.cursor (name, kind, state) values ($1, 'log', $2)
     on conflict (tenant, name, generation, shard) do update set state = excluded.state`,
    [name, state],
  )
  await db.query(
    `insert into pawl.cursor_position (name, position) values ($1, $2)
     on conflict (tenant, name, generation, shard, n) do update set position = excluded.position`,
    [name, position],
  )
}

/** Three events on day 0, one on day 1, and today is day `today`. */
async function daysPass(today: number): Promise<void> {
  for (const n of [1, 2, 3]) await append(n)
  await log.catchUp()
  await toDay(1)
  await append(4)
  await log.catchUp()
  await toDay(today)
}

test('days past keepDays are removed with their pages, and the log continues', async () => {
  await daysPass(10)
  const before = await partitions()
  expect(await db.pawl().events.retain()).toMatchObject({ removed: before.slice(1, 4), held: undefined })
  expect(await eventCount()).toBe(0)
  await append(5)
  await log.catchUp()
  expect(log.positions).toEqual([1, 2, 3, 4, 5])
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true, first: 5, head: 5 })
  await db.pawl().events.retain()
  expect(await db.query('select first_position::int as first from pawl.log_page')).toEqual([{ first: 5 }])
  expect(await db.pawl().events.lag()).toMatchObject({ removedUntil: 4 })
  // An event that is given a time of long ago has a place all the same, and goes again when it was read.
  await db.query(oldEvent(6, 9))
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([1, 2, 3, 4, 5, 6])
  expect(await db.pawl().events.retain()).toMatchObject({ removed: ['event_first'] })
  expect(await eventCount()).toBe(1)
})

test('what is not old enough stays', async () => {
  await daysPass(7)
  expect(await db.pawl().events.retain()).toEqual({ removed: [], held: undefined })
  expect(await db.pawl().events.retain({ keepDays: 5 })).toMatchObject({ removed: [expect.any(String), expect.any(String)] })
})

test('a cursor keeps a day, by name, until past or stale', async () => {
  await daysPass(10)
  const [, day0, day1] = await partitions()
  await cursor('balances', 2)
  await cursor('fast', 4)
  const held = { partition: day0, by: 'cursor balances generation 1 shard 0' }
  expect(await db.pawl().events.retain()).toEqual({ removed: [], held })
  expect(await alerts()).toEqual([['event.retention', 'event']])
  expect(await eventCount()).toBe(4)
  const [who] = (await db.pawl().events.whoHoldsBack()).filter(({ what }) => what === 'cursor')
  expect(who).toMatchObject({
    delays: 'retention',
    name: 'balances generation 1 shard 0',
    endWith: expect.stringContaining('balances'),
  })
  expect(who!.bytes).toBeGreaterThan(8192)
  await cursor('balances', 3)
  expect(await db.pawl().events.retain()).toMatchObject({ removed: [day0], held: { partition: day1 } })
  await cursor('balances', 3, 'stale')
  expect(await db.pawl().events.retain()).toMatchObject({ removed: expect.arrayContaining([day1]), held: undefined })
  expect(await alerts()).toEqual([['cursor.stale', 'balances generation 1 shard 0']])
})

test('[O7] a parked key keeps its day until it is unparked', async () => {
  await daysPass(10)
  const [, day0] = await partitions()
  await cursor('balances', 4)
  await db.query(`insert into pawl.parked_key (name, generation, shard, key_tenant, key, reason, attempts) values ('balances', 1, 0, '', 'k', 'no', 1);
    insert into pawl.parked_event (name, generation, shard, key_tenant, key, position) values ('balances', 1, 0, '', 'k', 2)`)
  expect(await db.pawl().events.retain()).toEqual({
    removed: [],
    held: { partition: day0, by: 'parked key k of balances generation 1 shard 0' },
  })
  expect((await db.pawl().events.whoHoldsBack()).filter(({ what }) => what === 'parked key')).toMatchObject([
    { name: 'k of balances generation 1 shard 0' },
  ])
  await db.query('delete from pawl.parked_event; delete from pawl.parked_key')
  expect((await db.pawl().events.retain()).removed).toContain(day0)
})

test('events that nobody gave a position to yet keep their day', async () => {
  await append(1)
  await toDay(10)
  expect(await db.pawl().events.retain()).toMatchObject({ removed: [], held: { by: 'events in it that have no position yet' } })
  await log.catchUp()
  expect((await db.pawl().events.retain()).held).toBeUndefined()
  expect(log.seen.map(({ n }) => n)).toEqual([1])
})

test('[O13] while a foreign writer is open, appends continue and its event stays', async () => {
  await append(1)
  await log.catchUp()
  const stranger = await client()
  await stranger.query('begin')
  await stranger.query('select pawl.append(\'Late\', \'a\', \'late\', \'{"key": "late", "version": 1, "n": -1}\')')
  await toDay(10)
  const first = await db.pawl().events.retain()
  expect(first).toMatchObject({ removed: [], held: { by: expect.stringContaining('an open transaction that wrote to it') } })
  const holds = await db.pawl().events.whoHoldsBack()
  expect(holds).toContainEqual(
    expect.objectContaining({
      what: 'transaction',
      delays: 'delivery',
      endWith: expect.stringMatching(/pg_terminate_backend\(\d+\)/),
    }),
  )
  await append(2)
  await stranger.query('commit')
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([1, -1, 2])
  expect((await db.pawl().events.retain()).removed).not.toEqual([])
})

test('[O13] a foreign writer of another day delays the removal, not appends', async () => {
  await append(1)
  await log.catchUp()
  await toDay(10)
  const stranger = await client()
  await stranger.query('begin')
  await stranger.query("select pawl.append('Late', 'a', 'late')")
  const retaining = db.pawl().events.retain()
  await until('the removal waits for the stranger', async () => {
    const [row] = await db.query<{ n: number }>(
      "select count(*)::int as n from pg_stat_activity where datname = current_database() and query like 'alter table pawl.event detach%' and wait_event_type = 'Lock'",
    )
    return row!.n === 1
  })
  for (let n = 2; n < 30; n++) await append(n)
  await log.catchUp()
  // The events of the stranger's own day and of today can be read during that.
  expect(log.seen.map(({ n }) => n)).toEqual(Array.from({ length: 29 }, (_, index) => index + 1))
  await stranger.query('commit')
  expect(await retaining).toMatchObject({ held: undefined })
  expect((await retaining).removed.length).toBeGreaterThan(0)
})

test('[O13] a foreign reader delays the removal and is named with its remedy', async () => {
  await append(1)
  await log.catchUp()
  const stranger = await client()
  await stranger.query('begin')
  await stranger.query('select count(*) from pawl.event')
  const { rows } = await stranger.query<{ pid: number }>('select pg_backend_pid() as pid')
  const named = async (keepDays = 7) =>
    (await db.pawl().events.whoHoldsBack({ keepDays })).filter(
      ({ endWith }) => endWith === `select pg_terminate_backend(${rows[0]!.pid})`,
    )
  await toDay(10)
  expect(await retainOrGiveUp()).toMatchObject({ held: { by: 'a transaction that uses pawl.event' } })
  // Readers of less than a second are not named.
  const names = await until('it is named', async () => (await named()).length > 0 && named())
  expect(names).toMatchObject([{ what: 'transaction', delays: 'retention', since: expect.any(Date) }])
  // Where no day is old there is nothing that it could delay.
  expect(await named(30)).toEqual([])
  await stranger.query('rollback')
  expect(await named()).toEqual([])
  expect((await db.pawl().events.retain()).held).toBeUndefined()
}, 60_000)

test('the worst holder comes first; a stopped cursor is to be resumed', async () => {
  await db.query(`insert into pawl.event (aggregatetype, aggregateid, type, payload)
    select 'a', 'k', 'Counted', jsonb_build_object('n', n) from generate_series(1, 200) n`)
  await log.catchUp()
  await cursor('ahead', 100, 'paused')
  await cursor('behind', 9, 'latched')
  await cursor('runs', 50)
  const cursors = (await db.pawl().events.whoHoldsBack()).filter(({ what }) => what === 'cursor')
  expect(cursors.map(({ name, endWith }) => [name, endWith])).toEqual([
    ['behind generation 1 shard 0', "pawl.projections.resume('behind', ...)"],
    ['runs generation 1 shard 0', expect.stringContaining('start a runner')],
    ['ahead generation 1 shard 0', "pawl.projections.resume('ahead', ...)"],
  ])
})

test('[O13] a removal that gave up waiting is finished by the next one', async () => {
  await append(1)
  await log.catchUp()
  await toDay(10)
  const stranger = await client()
  await stranger.query('begin')
  await stranger.query("select pawl.append('Late', 'a', 'late')")
  expect(await retainOrGiveUp()).toMatchObject({ removed: [], held: { by: 'a transaction that uses pawl.event' } })
  expect(await db.query("select name from pawl.day_partitions('event') where is_detaching")).toHaveLength(1)
  await append(2)
  await stranger.query('rollback')
  expect((await db.pawl().events.retain()).held).toBeUndefined()
  expect(await db.query("select name from pawl.day_partitions('event') where is_detaching")).toEqual([])
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([1, 2])
}, 120_000)

test("an event committed during its day's removal is sequenced; the day waits", async () => {
  await append(1)
  await log.catchUp()
  const writer = await client()
  await toDay(10)
  let committed: Promise<void> | undefined
  installProbe(async (name) => {
    if (name !== 'events.retain.before') return
    installProbe(undefined)
    await writer.query('begin')
    await writer.query(oldEvent(2, 10))
    // It commits when the removal waits for it already, and the sequencer has looked past it.
    committed = until('the removal waits', async () => {
      const [row] = await db.query<{ n: number }>(
        "select count(*)::int as n from pg_stat_activity where datname = current_database() and query like 'alter table pawl.event detach%' and wait_event_type = 'Lock'",
      )
      return row!.n === 1
    })
      .then(() => writer.query('commit'))
      .then(() => log.catchUp())
  })
  expect(await db.pawl().events.retain()).toMatchObject({ removed: [], held: { by: 'events in it that have no position yet' } })
  // The reader remembers where it is: two reads of it at once would give the event twice.
  await committed
  await until('it is read', async () => {
    await log.catchUp()
    return log.seen.length === 2
  })
  expect(log.seen.map(({ n }) => n)).toEqual([1, 2])
  expect((await db.pawl().events.retain()).held).toBeUndefined()
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true })
})

test('after a removal died, the next one finds a late event first', async () => {
  await append(1)
  await log.catchUp()
  await toDay(10)
  const [, day0] = await partitions()
  installProbe((name) => {
    if (name === 'events.retain.detached') throw new Error('died here')
  })
  await expect(db.pawl().events.retain()).rejects.toThrow('died here')
  installProbe(undefined)
  // As one that was committed while the removal waited for it; by now the open-ended first partition has taken over the day.
  await db.query(`insert into pawl.${day0} (aggregatetype, aggregateid, type, payload, created_at)
    select 'a', 'k', 'Old', '{"n": 2}', min(created_at) from pawl.${day0}`)
  expect(await db.pawl().events.retain()).toMatchObject({
    removed: [],
    held: { partition: day0, by: 'events in it that have no position yet' },
  })
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([1, 2])
  expect((await db.pawl().events.retain()).held).toBeUndefined()
  expect(await eventCount()).toBe(0)
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true })
  await append(3)
  await log.catchUp()
  expect(log.positions).toEqual([1, 2, 3])
})

test('an event sequenced after its day was checked stays readable', async () => {
  await append(1)
  await log.catchUp()
  await toDay(10)
  installProbe(async (name) => {
    if (name !== 'events.retain.before') return
    installProbe(undefined)
    await db.query(oldEvent(2, 10))
    await connection.query('select pawl.sequence_events()')
  })
  await db.pawl().events.retain()
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([1, 2])
  expect(log.positions).toEqual([1, 2])
})

test('an old event sequenced after its partition was checked stays readable', async () => {
  await daysPass(10)
  await db.pawl().events.retain()
  await db.query(oldEvent(5, 20))
  await log.catchUp()
  installProbe(async (name) => {
    if (name !== 'events.retain.before') return
    installProbe(undefined)
    await db.query(oldEvent(6, 20))
    await connection.query('select pawl.sequence_events()')
  })
  expect(await db.pawl().events.retain()).toMatchObject({ removed: ['event_first'] })
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([1, 2, 3, 4, 5, 6])
  expect(await db.pawl().events.retain()).toMatchObject({ removed: ['event_first'] })
  expect(await eventCount()).toBe(0)
})

test('trimming pages during a removal keeps the pages that it checks', async () => {
  await daysPass(10)
  await append(5)
  await log.catchUp()
  const pages = async () => (await db.query<{ n: number }>('select count(*)::int as n from pawl.log_page'))[0]!.n
  const before = await pages()
  installProbe(async (name) => {
    if (name !== 'events.retain.detached') return
    installProbe(undefined)
    await connection.run(statement(import.meta.url, 'trim-pages'), { limit: 10_000 })
    expect(await pages()).toBe(before)
  })
  expect(await db.pawl().events.retain()).toMatchObject({ held: undefined })
  await log.catchUp()
  expect(log.positions).toEqual([1, 2, 3, 4, 5])
  expect(await pages()).toBeLessThan(before)
})

test('a detached day with a reader is left for the next removal', async () => {
  await daysPass(10)
  const [, day0] = await partitions()
  installProbe((name) => {
    if (name === 'events.retain.detached') throw new Error('died here')
  })
  await expect(db.pawl().events.retain()).rejects.toThrow('died here')
  installProbe(undefined)
  const stranger = await client()
  await stranger.query('begin')
  await stranger.query(`select from pawl.${day0}`)
  expect(await retainOrGiveUp()).toEqual({ removed: [], held: { partition: day0, by: 'a transaction that uses it' } })
  await stranger.query('commit')
  expect((await db.pawl().events.retain()).removed).toHaveLength(3)
}, 60_000)

test('of two removals of a detached day the second finds it gone', async () => {
  await daysPass(10)
  const [, day0] = await partitions()
  await db.query(`alter table pawl.event detach partition pawl.${day0}`)
  const [first, second] = [await client(), await client()]
  await first.query('begin')
  await first.query('select pawl.drop_detached_events($1)', [day0])
  const waiting = second.query('select pawl.drop_detached_events($1) as is_all', [day0])
  await until('the second one waits', async () => {
    const [row] = await db.query<{ n: number }>(
      "select count(*)::int as n from pg_stat_activity where datname = current_database() and query like 'select pawl.drop_detached_events%' and wait_event_type = 'Lock'",
    )
    return row!.n === 1
  })
  await first.query('commit')
  expect((await waiting).rows).toEqual([{ is_all: true }])
})

test('a removal that died before its drop is finished by the next', async () => {
  await daysPass(10)
  installProbe((name) => {
    if (name === 'events.retain.detached') throw new Error('died here')
  })
  await expect(db.pawl().events.retain()).rejects.toThrow('died here')
  installProbe(undefined)
  expect((await db.pawl().events.retain()).removed).toHaveLength(3)
  expect(await eventCount()).toBe(0)
  expect(await db.query("select relname from pg_class where relname ~ '^event_[0-9]{8}$' and not relispartition")).toEqual([])
})

test('[O14] without maintenance appends and settles succeed, with an alert until it runs', async () => {
  const pawl = db.pawl()
  pawl.jobs.define('work', { run: () => 'done' })
  await toDay(20)
  await append(1)
  const { id } = await pawl.jobs.enqueue('work', {})
  const worker = pawl.worker()
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', result: 'done' })
  expect(await db.query('select count(*)::int as n from pawl.event_last')).toEqual([{ n: 1 }])
  // A stranger holds the tables, so there is no room to be made: the alert stays.
  const stranger = await client()
  await stranger.query('begin')
  await stranger.query("select pawl.append('Late', 'a', 'k', '{\"n\": 2}')")
  await extendPartitions(connection)
  expect(await alerts()).toEqual(expect.arrayContaining([['partition.last', 'event']]))
  await append(3)
  await stranger.query('commit')
  expect(await extendPartitions(connection)).toContain('event')
  expect(await alerts()).toEqual([])
  expect(await db.query('select count(*)::int as n from pawl.event_last')).toEqual([{ n: 0 }])
  expect(await db.query('select count(*)::int as n from pawl.job_history_last')).toEqual([{ n: 0 }])
  await append(4)
  await log.catchUp()
  expect(log.seen.map(({ n }) => n).sort((a, b) => a - b)).toEqual([1, 2, 3, 4])
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done' })
  // And the days that were late go in their time.
  await toDay(40)
  expect((await db.pawl().events.retain()).held).toBeUndefined()
  expect(await eventCount()).toBe(0)
})

test('[O14] partitions made during appends lose no append and skip no day', async () => {
  let isExtending = true
  const writing = Array.from({ length: 4 }, async () => {
    let appended = 0
    while (isExtending) {
      await append(1)
      appended++
    }
    return appended
  })
  for (let day = 4; day <= 40; day += 6) {
    await toDay(day)
    await until('there is room', async () => (await extendPartitions(connection)).includes('event'))
  }
  isExtending = false
  const counts = await Promise.all(writing)
  expect(await eventCount()).toBe(counts.reduce((sum, count) => sum + count, 0))
  const bounds = await db.query<{ from: string | null; to: string | null }>(
    `select from_at::text as from, to_at::text as to from pawl.day_partitions('event') order by from_at nulls first`,
  )
  for (const [index, { from }] of bounds.entries()) expect(from).toBe(index === 0 ? null : bounds[index - 1]!.to)
  expect(bounds.at(-1)!.to).toBeNull()
  await log.catchUp()
  expect(log.positions.length).toBe(await eventCount())
})
