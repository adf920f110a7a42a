// What a reader of the log is given: everything that matches, in order, how far was looked, and an error where events are missing.

import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { Connection } from '../db/driver.ts'
import { type LogRead, type ReadLogOptions, readLog } from './read-log.ts'
import { sequence } from './sequence.ts'

let db: TestDatabase
let connection: Connection
beforeEach(async () => {
  db = await createDatabase()
  connection = new Connection(db.pawl().config.database, 'test')
})
afterEach(async () => {
  await connection.close()
  await db.drop()
})

async function fill(events = 1000): Promise<void> {
  await db.query(
    `insert into pawl.event (aggregatetype, aggregateid, type, payload, channel, tenant)
     select 'order', (n % 37)::text, 'Counted', jsonb_build_object('n', n), case when n % 250 = 0 then 'rare' else 'default' end,
       case when n % 3 = 0 then 'acme' else '' end
     from generate_series(1, $1::integer) n`,
    [events],
  )
  await sequence(connection, db.pawl().config.database)
}

async function readAll(options: Omit<ReadLogOptions, 'after'>): Promise<{ numbers: number[]; reads: LogRead[] }> {
  const reads: LogRead[] = []
  for (let after = 0; ; ) {
    const read = await readLog(connection, { ...options, after })
    if (read.next === after) break
    after = read.next
    reads.push(read)
  }
  return { numbers: reads.flatMap(({ events }) => events.map(({ data }) => (data as { n: number }).n)), reads }
}

const upTo = (last: number) => Array.from({ length: last }, (_, index) => index + 1)

test('pages have events in order of their positions, and the head', async () => {
  await fill()
  const { numbers, reads } = await readAll({ limit: 333 })
  expect(numbers).toEqual(upTo(1000))
  expect(reads.map(({ events, next, head }) => [events.length, next, head])).toEqual([
    [333, 333, 1000],
    [333, 666, 1000],
    [333, 999, 1000],
    [1, 1000, 1000],
  ])
  expect(reads.flatMap(({ events }) => events.map(({ position }) => position))).toEqual(upTo(1000))
})

test('after a page cut at large events the reader continues there', async () => {
  // Hexadecimal noise of 900 kB, of which compression leaves more than half.
  const noise = "(select string_agg(md5((n * 100000 + m)::text), '') from generate_series(1, 28125) m)"
  await db.query(
    `insert into pawl.event (aggregatetype, aggregateid, type, payload)
     select 'order', 'a', 'Counted', jsonb_build_object('n', n, 'text', ${noise}) from generate_series(1, 9) n`,
  )
  await sequence(connection, db.pawl().config.database)
  const { numbers, reads } = await readAll({ limit: 500 })
  expect(numbers).toEqual(upTo(9))
  expect(reads.length).toBeGreaterThan(2)
  for (const { events, next, head } of reads) expect([events.at(-1)!.position, head]).toEqual([next, 9])
  // With a filter too.
  expect(await readAll({ limit: 500, channel: 'default' })).toEqual({ numbers, reads })
})

test('a reader of one channel learns how far it read without matches', async () => {
  await fill()
  const { numbers, reads } = await readAll({ limit: 3, channel: 'rare' })
  expect(numbers).toEqual([250, 500, 750, 1000])
  expect(reads.at(-1)!.next).toBe(1000)
  expect(await readLog(connection, { after: 0, limit: 10, channel: 'none' })).toMatchObject({
    events: [],
    next: 1000,
    head: 1000,
  })
})

test('of several shards each event belongs to one, by its key', async () => {
  await fill()
  const shards = await Promise.all([0, 1, 2].map((index) => readAll({ limit: 100, shard: { index, of: 3 } })))
  expect(shards.flatMap(({ numbers }) => numbers).sort((a, b) => a - b)).toEqual(upTo(1000))
  const keysOf = (reads: LogRead[]) => new Set(reads.flatMap(({ events }) => events.map(({ tenant, key }) => `${tenant}/${key}`)))
  const all = shards.map(({ reads }) => keysOf(reads))
  expect(all[0]!.size + all[1]!.size + all[2]!.size).toBe(new Set(all.flatMap((each) => [...each])).size)
  for (const each of all) expect(each.size).toBeGreaterThan(0)
})

test('a reader ahead of the log gets no events and the head', async () => {
  await fill(10)
  expect(await readLog(connection, { after: 50, limit: 10 })).toMatchObject({ events: [], next: 50, head: 10 })
})

test.each([undefined, 'default'])('a missing event is an error (channel %s)', async (channel) => {
  await fill(10)
  await db.query("delete from pawl.event where payload ->> 'n' = '7'")
  await expect(readLog(connection, { after: 0, limit: 10, channel })).rejects.toMatchObject({
    code: 'PAWL_LOG_GAP',
    details: { after: 6, until: 7 },
  })
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: false, positionsWithoutEvent: 1, firstWithoutEvent: 7 })
})

test.each([undefined, 'rare'])('a page that is not there is an error too (channel %s)', async (channel) => {
  await fill()
  await db.query('delete from pawl.log_page where first_position = 401')
  await expect(readLog(connection, { after: 300, limit: 500, channel })).rejects.toMatchObject({ code: 'PAWL_LOG_GAP' })
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: false, breaks: 1, eventsWithoutPosition: 200 })
})

/** Of the transaction of the last 300 of 600 events, none of which is there any more. */
async function passedOver(): Promise<NonNullable<ReadLogOptions['passedOver']>> {
  await fill(300)
  await fill(300)
  const [row] = await db.query<{ xid: string; era: string }>(`
    with gone as (delete from pawl.event where seq > 300 returning xid)
    select distinct g.xid::text as xid, h.generation || '/' || extract(epoch from pg_postmaster_start_time()) as era from gone g, pawl.log_head h`)
  return { era: row!.era, xids: [row!.xid], heads: ['300'] }
}

test('events of a transaction to pass over are left out unread', async () => {
  const { numbers, reads } = await readAll({ limit: 500, passedOver: await passedOver() })
  expect(numbers).toEqual(upTo(300))
  expect(reads.at(-1)).toMatchObject({ next: 600, head: 600 })
})

test.each([
  ['another era', { era: '1/1' }],
  ['another transaction', { xids: ['3'] }],
  ['a head behind the event', { heads: ['500'] }],
])('for %s no event is passed over', async (_, other) => {
  const given = { ...(await passedOver()), ...other }
  await expect(readAll({ limit: 500, passedOver: given })).rejects.toMatchObject({ code: 'PAWL_LOG_GAP' })
})

test('after a change of generation events with the same transaction are read', async () => {
  const given = await passedOver()
  await db.query('update pawl.sequencer set generation = generation + 1')
  await db.query('update pawl.log_page set generation = generation + 1 where first_position > 300')
  await expect(readAll({ limit: 500, passedOver: given })).rejects.toMatchObject({ code: 'PAWL_LOG_GAP' })
})

test('a missing page of events to pass over is an error', async () => {
  const given = await passedOver()
  await db.query('delete from pawl.log_page where first_position = 301')
  await expect(readAll({ limit: 500, passedOver: given })).rejects.toMatchObject({ code: 'PAWL_LOG_GAP' })
})

test('the audit finds an event that has two positions', async () => {
  await fill(300)
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true, head: 300, first: 1, positions: 300 })
  await db.query(`insert into pawl.log_page (first_position, last_position, from_at, to_at, generation, channels, xids, seqs)
    select 301, 301, from_at, to_at, generation, channels, xids[1:1], seqs[1:1] from pawl.log_page where first_position = 1`)
  await db.query('update pawl.sequencer set position = 301')
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: false, eventsWithTwoPositions: 1 })
})

test('a page that is not dense cannot be stored', async () => {
  await fill(10)
  await expect(db.query('update pawl.log_page set last_position = 11')).rejects.toMatchObject({
    code: '23514',
    constraint: 'dense',
  })
})

test('events across midnight and of many days are read back', async () => {
  await db.query(`insert into pawl.event (aggregatetype, aggregateid, type, payload, created_at)
    select 'order', '1', 'Counted', jsonb_build_object('n', n), pawl.now() + (n % 12 - 3) * interval '1 day' from generate_series(1, 500) n`)
  await sequence(connection, db.pawl().config.database)
  expect((await readAll({ limit: 100 })).numbers).toEqual(upTo(500))
})

test('lag says where the log stands and what waits for a position', async () => {
  await fill(10)
  expect(await db.pawl().events.lag()).toMatchObject({
    head: 10,
    generation: 1,
    waiting: 0,
    oldestMs: undefined,
    removedUntil: 0,
  })
  await db.pawl().events.append({ type: 'T', aggregateType: 'a', key: 'k' })
  const lag = await db.pawl().events.lag()
  expect(lag).toMatchObject({ head: 10, waiting: 1 })
  expect(lag.oldestMs).toBeGreaterThanOrEqual(0)
})
