// The log after a move to another server: into a cluster whose transaction ids are lower, and to a standby that was promoted.

import { createPawl, type LogEvent, silentLogger } from 'pawl'
import { migrate } from 'pawl/admin'
import pg from 'pg'
import { expect, onTestFinished, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { faultsOf, noFaults } from '../../test/support/log-readers.ts'
import { append, appendMany, eventOf, optionsOf, readerOf } from '../../test/support/restored-log.ts'
import { killPostmaster, promote, query, startOwnServer, startPair } from '../../test/support/standby.ts'
import { auditLog } from './audit.ts'

async function burnTransactions(url: string, count: number): Promise<void> {
  await query(url, `do $$ begin for n in 1..${count} loop perform pg_current_xact_id(); commit; end loop; end $$`)
}

const nextXid = async (url: string) =>
  Number((await query<{ xid: string }>(url, 'select pg_snapshot_xmax(pg_current_snapshot())::text as xid'))[0]!.xid)

/** As a dump and restore: the rows of every table and the values of sequences, and nothing of the old cluster's transactions. */
async function copyInto(from: string, to: string): Promise<void> {
  const tables = await query<{ name: string }>(
    from,
    `select c.relname as name from pg_class c join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
     where c.relkind in ('r', 'p') and not c.relispartition and c.relname in ('event', 'log_page', 'sequencer', 'installation')`,
  )
  for (const { name } of tables) {
    const [row] = await query<{ rows: string }>(
      from,
      `select coalesce(jsonb_agg(to_jsonb(t)), '[]')::text as rows from pawl.${name} t`,
    )
    await query(to, `truncate pawl.${name}`)
    await query(to, `insert into pawl.${name} select * from jsonb_populate_recordset(null::pawl.${name}, $1::jsonb)`, [row!.rows])
  }
  const [seq] = await query<{ last: string }>(from, 'select last_value::text as last from pawl.event_seq')
  await query(to, 'select setval($1, $2::bigint)', ['pawl.event_seq', seq!.last])
}

async function sides(): Promise<{ old: string; fresh: string }> {
  const [old, fresh] = [(await startOwnServer()).url, (await startOwnServer()).url]
  await migrate(optionsOf(old))
  await migrate(optionsOf(fresh))
  return { old, fresh }
}

test('[O12] after a restore into lower transaction ids nothing is lost or repeated', async () => {
  const { old, fresh } = await sides()
  await burnTransactions(old, 3000)
  const committed = Array.from({ length: 6065 }, (_, index) => eventOf(index + 1))
  const before = readerOf(old)
  // Ticks of many sizes, so that the pages have too.
  for (let n = 1; n <= 4000; n += 400) {
    await appendMany(old, n, n + 399)
    await before.catchUp()
  }
  // These became visible and had no position when the copy was taken.
  await appendMany(old, 4001, 5000)
  expect(await nextXid(old)).toBeGreaterThan((await nextXid(fresh)) + 1000)
  await copyInto(old, fresh)
  // And these were appended after it, before anyone ticked, some in a transaction that is still open at the rebase.
  await appendMany(fresh, 5001, 6000)
  const writer = new pg.Client({ connectionString: fresh })
  await writer.connect()
  onTestFinished(() => writer.end())
  await writer.query('begin')
  for (let n = 6001; n <= 6050; n++)
    await writer.query(`select pawl.append('Counted', 'a', 'k${n % 5}', '${JSON.stringify(eventOf(n))}')`)
  const after = readerOf(fresh)
  await after.catchUp()
  expect(after.seen).toEqual(committed.slice(0, 6000))
  expect(after.seen.slice(0, 4000)).toEqual(before.seen)
  expect(await query(fresh, 'select generation, position::int as head from pawl.sequencer')).toEqual([
    { generation: 2, head: 6000 },
  ])
  await writer.query('commit')
  await after.catchUp()
  // The new cluster's transaction ids now pass through those that the old events carry.
  for (let n = 6051; n <= 6065; n++) {
    await append(fresh, n)
    await burnTransactions(fresh, 600)
    await after.catchUp()
  }
  expect(await nextXid(fresh)).toBeGreaterThan(await nextXid(old))
  expect(faultsOf(after.seen, committed)).toEqual(noFaults)
  expect(after.positions).toEqual(committed.map((_, index) => index + 1))
  expect(await auditLog({ direct: optionsOf(fresh) } as never)).toMatchObject({ isSound: true, head: 6065 })
}, 180_000)

test('[O12] a copy with an older sequence repeats no number and loses nothing', async () => {
  const { old, fresh } = await sides()
  for (let n = 1; n <= 10; n++) await append(old, n)
  await readerOf(old).catchUp()
  await copyInto(old, fresh)
  await query(fresh, "select setval('pawl.event_seq', 1, false)")
  for (let n = 11; n <= 15; n++) await append(fresh, n)
  const reader = readerOf(fresh)
  await reader.catchUp()
  for (let n = 16; n <= 20; n++) await append(fresh, n)
  await reader.catchUp()
  expect(reader.seen.map(({ n }) => n)).toEqual(Array.from({ length: 20 }, (_, index) => index + 1))
  expect(
    await query(
      fresh,
      'select count(*)::int as n from (select seq from pawl.event where seq > 10 group by seq having count(*) > 1) x',
    ),
  ).toEqual([{ n: 0 }])
}, 180_000)

test('[O12] after a failover the generation grows and the log continues', async () => {
  const { primary, standby } = await startPair()
  await migrate(optionsOf(primary.url))
  const before = readerOf(primary.url)
  for (let n = 1; n <= 10; n++) await append(primary.url, n)
  await before.catchUp()
  for (let n = 11; n <= 15; n++) await append(primary.url, n)
  await killPostmaster(primary)
  await promote(standby)
  await append(standby.url, 16)
  const after = readerOf(standby.url)
  await after.catchUp()
  expect(after.seen.map(({ n }) => n)).toEqual(Array.from({ length: 16 }, (_, index) => index + 1))
  expect(after.seen.slice(0, 10)).toEqual(before.seen)
  expect(await query(standby.url, 'select generation, position::int as head from pawl.sequencer')).toEqual([
    { generation: 2, head: 16 },
  ])
  expect(await query(standby.url, 'select distinct generation from pawl.log_page order by 1')).toEqual([
    { generation: 1 },
    { generation: 2 },
  ])
}, 180_000)

test('[O12] after a failover lost a tail a runner delivers its replacement', async () => {
  const { primary, standby } = await startPair({ isSynchronous: false })
  await migrate(optionsOf(primary.url))
  await query(primary.url, 'create table seen (position bigint primary key, n integer not null)')
  const proxy = await FaultProxy.start(primary.url)
  onTestFinished(() => proxy.stop())
  const pawl = createPawl({
    databaseUrl: proxy.url,
    logger: silentLogger,
    tuning: { connectTimeoutMs: 2000, queryTimeoutMs: 5000 },
  })
  onTestFinished(() => pawl.close())
  const handed: { position: number; n: number }[] = []
  const numberOf = ({ data }: LogEvent) => (data as { n: number }).n
  pawl.projections.define('seen', {
    each: (event, tx) => tx.send('insert into seen values ($1, $2)', [event.position, numberOf(event)]),
  })
  pawl.projections.sink('out', { handle: (event) => void handed.push({ position: event.position, n: numberOf(event) }) })
  const runner = pawl.worker({ lease: '10s', tuning: { pollMs: 50 } })
  onTestFinished(async () => void (await runner.stop()))
  await runner.start()
  await appendMany(primary.url, 1, 1000)
  const stood = async (url: string) =>
    (await query<{ at: number }>(url, 'select min(position)::int as at from pawl.cursor_at'))[0]?.at
  await until('all are delivered', async () => (await stood(primary.url)) === 1000, 30_000)
  await until('the standby has them', async () => (await stood(standby.url)) === 1000, 30_000)
  // From here on nothing reaches the standby: events, positions and cursors go on without it.
  await until('it is cut off', async () => {
    await query(primary.url, 'select pg_terminate_backend(pid) from pg_stat_replication')
    // Without its slot it cannot come back; while it is connected the slot cannot go.
    const dropping = query(primary.url, "select pg_drop_replication_slot('standby')")
    return dropping.then(
      () => true,
      () => false,
    )
  })
  await appendMany(primary.url, 1001, 1700)
  await until('the tail is delivered', async () => (await stood(primary.url)) === 1700, 30_000)
  await killPostmaster(primary)
  await promote(standby)
  await appendMany(standby.url, 2001, 3000)
  proxy.redirect(standby.url)
  await until('what grew instead is delivered', async () => (await stood(standby.url)) === 2000, 60_000)
  const log = await query<{ position: number; n: number }>(
    standby.url,
    `select (p.first_position + u.n - 1)::int as position, (e.payload ->> 'n')::int as n
     from pawl.log_page p cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
     join pawl.event e on e.xid = u.xid and e.seq = u.seq order by 1`,
  )
  expect(log.map(({ n }) => n)).toEqual([...numbers(1, 1000), ...numbers(2001, 3000)])
  // What was applied was lost with the events, and what is there is applied once.
  expect(await query(standby.url, 'select position::int, n from seen order by 1')).toEqual(log)
  expect(handed.map(({ n }) => n)).toEqual(expect.arrayContaining([...numbers(1, 1700), ...numbers(2001, 3000)]))
  const keyOf = (n: number) => n % 5
  for (const key of [0, 1, 2, 3, 4]) {
    const after = handed.map(({ n }) => n).filter((n) => n > 2000 && keyOf(n) === key)
    expect(after).toEqual([...after].sort((a, b) => a - b))
  }
  expect((await pawl.projections.status()).map(({ state }) => state)).toEqual(['running', 'running'])
}, 180_000)

const numbers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, index) => from + index)
