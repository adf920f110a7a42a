// The log after a move, on one server: others while one rebases, events with foreign transaction ids, and roles without rights.

import { moveClock } from 'pawl/testing'
import pg from 'pg'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { append, readerOf } from '../../test/support/restored-log.ts'

test('[O12] while one process rebases, the others are told and lose nothing', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  await append(db.url, 1)
  const first = new pg.Client({ connectionString: db.url })
  await first.connect()
  onTestFinished(() => first.end())
  await first.query('begin')
  expect((await first.query('select head::int from pawl.rebase_events()')).rows).toEqual([{ head: 1 }])
  const other = readerOf(db.url)
  await other.poll()
  expect(other.seen).toEqual([])
  await append(db.url, 2)
  await first.query('commit')
  await other.catchUp()
  expect(other.seen.map(({ n }) => n)).toEqual([1, 2])
  expect(await db.query('select generation from pawl.sequencer')).toEqual([{ generation: 1 }])
})

test('[O12] events with transaction ids of the old cluster keep their positions', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  // Noon of the first day that the template has a partition for: a midnight since then changes nothing.
  const [first] = await db.query<{ day: Date }>("select min(from_at) as day from pawl.day_partitions('event')")
  const toDay = (day: number) => moveClock(db.pool, first!.day.getTime() + (day + 0.5) * 86_400_000 - Date.now())
  await toDay(0)
  await db.query(`insert into pawl.event (xid, aggregatetype, aggregateid, type, payload)
    select (1000000000 + n)::text::xid8, 'a', 'k', 'Counted', jsonb_build_object('n', n) from generate_series(1, 30000) n`)
  await db.query('update pawl.sequencer set system_id = 0')
  const reader = readerOf(db.url, 5000)
  await reader.catchUp()
  expect(reader.seen).toHaveLength(30_000)
  const { events } = db.pawl()
  expect(await events.lag()).toMatchObject({ head: 30_000, waiting: 0, oldestMs: undefined })
  await append(db.url, 30_001)
  expect(await events.lag()).toMatchObject({ head: 30_000, waiting: 1 })
  await toDay(10)
  // Its own event waits in the same day.
  expect(await events.retain()).toMatchObject({ removed: [], held: { by: 'events in it that have no position yet' } })
  await reader.catchUp()
  // In one pass: looked up one by one they would take longer than a test may.
  expect((await events.retain()).held).toBeUndefined()
  expect(await db.query('select count(*)::int as n from pawl.event')).toEqual([{ n: 0 }])
})

async function asPlainRole(db: TestDatabase): Promise<pg.Client> {
  const role = `plain_${db.name}`
  await db.query(`create role ${role}; grant usage on schema pawl to ${role};
    grant select, insert, update, delete on all tables in schema pawl to ${role}; grant usage, select on all sequences in schema pawl to ${role}`)
  const client = new pg.Client({ connectionString: db.url })
  await client.connect()
  onTestFinished(async () => {
    await client.end()
    await db.query(`drop owned by ${role}; drop role ${role}`)
    await db.drop()
  })
  await client.query(`set role ${role}`)
  return client
}

test('a role without rights beyond its tables appends and gives positions', async () => {
  const db = await createDatabase()
  const client = await asPlainRole(db)
  await client.query("select pawl.append('T', 'a', 'k')")
  const tick = async () => (await client.query<{ outcome: string }>('select outcome, head::int from pawl.sequence_events()')).rows
  expect(await tick()).toEqual([{ outcome: 'foreign', head: 0 }])
  await client.query('select pawl.rebase_events()')
  await client.query("select pawl.append('T', 'a', 'k')")
  expect(await tick()).toEqual([{ outcome: 'sequenced', head: 2 }])
})

test('a role that cannot read the cluster relies on decreasing transaction ids', async () => {
  const db = await createDatabase()
  await db.query('revoke execute on function pg_control_system() from public')
  const client = await asPlainRole(db)
  await client.query("select pawl.append('T', 'a', 'k')")
  await client.query('select pawl.rebase_events()')
  const tick = async () => (await client.query<{ outcome: string }>('select outcome, head::int from pawl.sequence_events()')).rows
  await client.query("select pawl.append('T', 'a', 'k')")
  expect(await tick()).toEqual([{ outcome: 'sequenced', head: 2 }])
  await db.query("update pawl.sequencer set snapshot = '99999999999:99999999999:'")
  await client.query("select pawl.append('T', 'a', 'k')")
  expect(await tick()).toEqual([{ outcome: 'foreign', head: 2 }])
  await client.query('select pawl.rebase_events()')
  expect((await client.query('select position::int as head, generation from pawl.sequencer')).rows).toEqual([
    { head: 3, generation: 2 },
  ])
})
