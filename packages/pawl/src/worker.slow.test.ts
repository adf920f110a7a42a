// What an idle process costs its database, and what it does for it.

import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, until } from '../test/support/database.ts'

/** Polls of the keeper, two a second: the window lasts at least 12 s. */
const looks = 24
/** By the database's clock, whatever the machine is busy with. */
const statementsPerSecondMax = 4

interface Sent {
  readonly query: string
  readonly calls: number
  readonly wal_bytes: number
}

test.each([1, 100])('[K19] an idle process with %i queues writes only its beat', { timeout: 300_000 }, async (count) => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  await db.query('create extension pg_stat_statements; create table seen (key text)')
  const pawl = db.pawl()
  for (let n = 0; n < count; n++) pawl.jobs.define(`kind ${n}`, { queue: `queue ${n}`, run: () => undefined })
  pawl.jobs.define('limited', { queue: 'queue 0', concurrency: 1, run: () => undefined })
  pawl.projections.define('seen', { each: ({ key }, tx) => tx.send('insert into seen values ($1)', [key]) })
  pawl.projections.sink('out', { handle: () => undefined })
  pawl.projections.define('state', { kind: 'state', entity: ({ key }) => key, refresh: () => undefined })
  const worker = pawl.worker()
  onTestFinished(async () => void (await worker.stop()))
  await worker.start()
  await pawl.events.append({ type: 'Placed', aggregateType: 'order', key: 'a', data: {} })
  await until('the log is read', async () => (await db.query('select from seen')).length === 1)
  await until('all sleep', async () => (await db.query('select from pawl.sleeper')).length === count + 1)
  const sent = () =>
    db.query<Sent>(
      `select s.query, s.calls::integer as calls, s.wal_bytes::integer as wal_bytes from pg_stat_statements s
       join pg_database d on d.oid = s.dbid where d.datname = current_database() and s.toplevel and s.query not like '%pg_stat_statements%' order by s.calls desc`,
    )
  const looked = async () => (await sent()).find(({ query }) => /as is_turn/.test(query))?.calls ?? 0
  const isSent = async (match: RegExp) => (await sent()).some(({ query }) => match.test(query))
  // Ten seconds after the start, and every quarter of an hour.
  await until('the slow chores are done', async () => (await isSent(/show_worker/)) && (await isSent(/with kept as/)), 60_000)
  const settled = (await looked()) + 12
  await until('and what follows from the last event', async () => (await looked()) >= settled, 60_000)
  const [begun] = await db.query<{ at: string }>(
    'select clock_timestamp()::text as at, pg_stat_statements_reset(0, (select oid from pg_database where datname = current_database()))',
  )
  await until('the keeper has looked', async () => (await looked()) >= looks, 120_000)
  const statements = await sent()
  const [window] = await db.query<{ seconds: number }>('select date_part($1, clock_timestamp() - $2::timestamptz) as seconds', [
    'epoch',
    begun!.at,
  ])
  const total = statements.reduce((sum, { calls }) => sum + calls, 0)
  const list = statements.map(
    ({ query, calls, wal_bytes }) => `${calls} ${wal_bytes} ${query.replaceAll(/\s+/g, ' ').slice(0, 100)}`,
  )
  expect(total, list.join('\n')).toBeLessThanOrEqual(statementsPerSecondMax * window!.seconds)
  expect(statements.filter(({ query, wal_bytes }) => wal_bytes > 0 && !/lease_until/.test(query))).toEqual([])
  expect(await db.query('select count(*)::integer as n from pawl.worker')).toEqual([{ n: 1 }])
})

test('a worker with cursors only removes expired once keys', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  await db.query("insert into pawl.once (namespace, key, expires_at) values ('n', 'k', pawl.now() - interval '1 day')")
  const pawl = db.pawl()
  pawl.projections.define('seen', { each: () => undefined })
  const worker = pawl.worker()
  onTestFinished(async () => void (await worker.stop()))
  await worker.start()
  await until('the key is removed', async () => (await db.query('select from pawl.once')).length === 0, 60_000)
})
