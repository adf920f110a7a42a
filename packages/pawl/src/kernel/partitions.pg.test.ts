// Tables that are partitioned by days, those of jobs included.

import { moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { Connection } from '../db/driver.ts'
import { dropOldPartitions } from '../jobs/maintenance.ts'
import { extendPartitions } from './partitions.ts'

const dayMs = 86_400_000

let db: TestDatabase
let connection: Connection
let firstNoonMs: number
beforeEach(async () => {
  db = await createDatabase()
  connection = new Connection(db.pawl().config.database, 'test')
  const [first] = await db.query<{ day: Date }>("select min(from_at) as day from pawl.day_partitions('event')")
  firstNoonMs = first!.day.getTime() + dayMs / 2
  await toDay(0)
})
afterEach(async () => {
  await connection.close()
  await db.drop()
})

/** Noon, this many days after the first that the template has a partition for: a midnight since then, or during a test, changes nothing. */
const toDay = (day: number) => moveClock(db.pool, firstNoonMs + day * dayMs - Date.now())
const finish = (id: number) =>
  db.query(
    `insert into pawl.job_history (id, fence, created_at, finished_at, attempt, crashes, priority, payload_version, tenant, queue, kind, outcome, payload)
     values ($1, 1, pawl.now(), pawl.now(), 1, 0, 0, 1, '', 'q', 'k', 'done', '1')`,
    [id],
  )
const daysOf = (table: string) =>
  db.query<{ name: string; days: number | null }>(
    'select name, (extract(epoch from to_at - from_at) / 86400)::int as days from pawl.day_partitions($1) order by from_at nulls first',
    [table],
  )
const ids = async () => (await db.query<{ id: string }>('select id::text from pawl.job_history order by id')).map(({ id }) => id)

test('there is always room ahead: seven days, and an open end', async () => {
  expect(await extendPartitions(connection)).toEqual([])
  for (const day of [3, 4, 9, 30]) {
    await toDay(day)
    await extendPartitions(connection)
    expect(await extendPartitions(connection)).toEqual([])
    for (const table of ['event', 'job_history', 'job_attempt']) {
      const [row] = await db.query<{ ahead: number }>(
        "select ((select max(from_at) from pawl.day_partitions($1)) at time zone 'UTC')::date - (pawl.now() at time zone 'UTC')::date as ahead",
        [table],
      )
      expect(row!.ahead).toBeGreaterThanOrEqual(4)
    }
  }
})

test('a used last partition becomes an ordinary one and goes in time', async () => {
  await finish(1)
  await toDay(20)
  await finish(2)
  expect(await extendPartitions(connection)).toContain('job_history')
  const wide = (await daysOf('job_history')).find(({ days }) => days !== null && days > 1)
  expect(wide!.days).toBe(14)
  await toDay(25)
  await dropOldPartitions(connection, 7)
  expect(await ids()).toEqual(['2'])
  await toDay(29)
  expect(await dropOldPartitions(connection, 7)).toContain(wide!.name)
  expect(await ids()).toEqual([])
})

test('rows of a clock a year ahead wait for their day', async () => {
  await toDay(365)
  await finish(1)
  await toDay(0)
  await finish(2)
  expect(await extendPartitions(connection)).toEqual([])
  expect(await db.pawl().alerts()).toEqual([])
  const widest = async () => Math.max(...(await daysOf('job_history')).map(({ days }) => days ?? 0))
  await toDay(5)
  expect(await extendPartitions(connection)).toContain('job_history')
  expect(await widest()).toBe(1)
  // Maintenance is late, so the last partition has rows of both kinds.
  await toDay(20)
  await finish(3)
  expect(await extendPartitions(connection)).toContain('job_history')
  expect(await extendPartitions(connection)).toEqual([])
  expect(await widest()).toBe(9)
  expect(await ids()).toEqual(['1', '2', '3'])
  await toDay(40)
  await extendPartitions(connection)
  await dropOldPartitions(connection, 7)
  expect(await ids()).toEqual(['1'])
  await toDay(366)
  await extendPartitions(connection)
  await toDay(380)
  await dropOldPartitions(connection, 7)
  expect(await ids()).toEqual([])
})

test('a table unused for a year gets one partition for that year', async () => {
  await toDay(365)
  await extendPartitions(connection)
  expect((await daysOf('event')).filter(({ days }) => days !== null).map(({ days }) => days)).toEqual([
    ...Array(7).fill(1),
    358,
    ...Array(7).fill(1),
  ])
  await finish(1)
  expect(await ids()).toEqual(['1'])
})

test('days before the first that is kept have a place too', async () => {
  await toDay(10)
  await extendPartitions(connection)
  expect((await dropOldPartitions(connection, 7)).length).toBeGreaterThan(0)
  await extendPartitions(connection)
  // A clock that was set right: it is ten days earlier than it was.
  await toDay(0)
  await finish(1)
  expect(await ids()).toEqual(['1'])
})

test('eight at once make room once', async () => {
  await toDay(5)
  const connections = Array.from({ length: 8 }, () => new Connection(db.pawl().config.database, 'test'))
  const answers = await Promise.all(connections.map((each) => extendPartitions(each)))
  await Promise.all(connections.map((each) => each.close()))
  await extendPartitions(connection)
  expect(answers.filter((tables) => tables.includes('event')).length).toBeLessThanOrEqual(1)
  const bounds = await daysOf('event')
  expect(bounds.at(-1)).toEqual({ name: 'event_last', days: null })
})
