// The sequencer with a lot to do: one transaction of very many events, and a log of very many pages that was restored into lower transaction ids.

import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { pagesOf } from '../../test/support/pages.ts'
import { readerOf } from '../../test/support/restored-log.ts'
import { sql } from '../../test/support/sql.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { sequence } from './sequence.ts'

async function createLog(): Promise<{ db: TestDatabase; connection: Connection }> {
  const db = await createDatabase()
  const connection = new Connection(db.pawl().config.database, 'test')
  onTestFinished(async () => {
    await connection.close()
    await db.drop()
  })
  await sequence(connection, db.pawl().config.direct)
  return { db, connection }
}

const insert = (db: TestDatabase, events: number) =>
  db.query(
    `insert into pawl.event (aggregatetype, aggregateid, type, payload)
     select 'a', (n % 1000)::text, 'Counted', '1' from generate_series(1, $1::integer) n`,
    [events],
  )

test('[P12] 800,000 events of one transaction are sequenced in linear time', {
  timeout: 300_000,
}, async () => {
  const { db, connection } = await createLog()
  const { direct } = db.pawl().config
  const positions = async () => Number((await db.query<{ n: string }>('select position as n from pawl.sequencer'))[0]!.n)
  const pagesFor = async (events: number) => {
    await insert(db, events)
    const found = await pagesOf(connection, ...sql('select pawl.sequence_events(20000)'))
    // Another writer, while the window of the first is known and has no positions.
    await db.query("select pawl.append('Counted', 'a', 'k')")
    return found + (await pagesOf(connection, ...sql('select pawl.sequence_events(null)')))
  }
  const [few, many] = [await pagesFor(100_000), await pagesFor(800_000)]
  // Linear: eight times. In parts of 20,000, each of which reads the window, it was more than fifty times.
  expect(many / few).toBeLessThan(12)
  expect(await positions()).toBe(900_002)
  // As a worker does it: whatever the size of the window, no event waits for more than one tick.
  await insert(db, 100_000)
  await db.query("select pawl.append('Counted', 'a', 'k')")
  expect(await sequence(connection, direct)).toMatchObject({ outcome: 'sequenced', sequenced: 100_001, head: 1_000_003 })
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true })
})

test('[P12] after a restore with 360,000 pages the sequencer continues', {
  timeout: 600_000,
}, async () => {
  const { db, connection } = await createLog()
  const { direct } = db.pawl().config
  const [row] = await db.query<{ xid: string }>('select pg_current_xact_id()::text as xid')
  // Of another cluster: the ids of most are those of transactions that come next here. Each got its position in a tick of its own.
  await db.query(
    `insert into pawl.event (xid, aggregatetype, aggregateid, type, payload)
     select ($1::bigint + n / 40)::text::xid8, 'a', (n % 1000)::text, 'Counted', '1' from generate_series(1, 360000) n`,
    [row!.xid],
  )
  await db.query(
    `insert into pawl.log_page (first_position, last_position, from_at, to_at, generation, channels, xids, seqs)
     select e.n, e.n, e.created_at, e.created_at, 1, '{default}', array[e.xid], array[e.seq]
     from (select x.xid, x.seq, x.created_at, row_number() over (order by x.seq) as n from pawl.event x) e`,
  )
  await db.query('analyze pawl.event; analyze pawl.log_page')
  await db.query('update pawl.sequencer set system_id = 0, position = 360000')
  expect(await sequence(connection, direct)).toMatchObject({ outcome: 'rebased', sequenced: 0, head: 360_000 })
  const pages: number[] = []
  for (let n = 1; n <= 50; n++) {
    await db.query("select pawl.append('Counted', 'a', 'k')")
    pages.push(await pagesOf(connection, ...sql('select pawl.sequence_events()')))
    expect(await db.query('select position::int as head from pawl.sequencer')).toEqual([{ head: 360_000 + n }])
  }
  // The log itself is asked at most right after the rebase, for transactions that were open then.
  expect(pages.filter((each) => each > 2000).length).toBeLessThanOrEqual(2)
  const reader = readerOf(db.url, 5000)
  await reader.catchUp()
  expect(reader.seen).toHaveLength(360_050)
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true })
})

test('beside an old snapshot ticks and head reads stay cheap', { timeout: 300_000 }, async () => {
  const { db, connection } = await createLog()
  const head = statement(new URL('../projections/any.ts', import.meta.url).href, 'log-bounds')
  const tick = async () => {
    await db.query("select pawl.append('Counted', 'a', 'k')")
    return [await pagesOf(connection, ...sql('select pawl.sequence_events()')), await pagesOf(connection, head, {})] as const
  }
  await tick()
  const before = await tick()
  const stranger = await db.pool.connect()
  onTestFinished(() => stranger.release())
  await stranger.query('begin isolation level repeatable read')
  await stranger.query('select count(*) from pawl.event')
  await db.query(`do $$ begin
    for n in 1..5000 loop
      perform pawl.append('Counted', 'a', 'k');
      commit;
      perform pawl.sequence_events();
      commit;
    end loop;
  end $$`)
  const after = await tick()
  expect(await db.query('select position::int from pawl.sequencer')).toEqual([{ position: 5003 }])
  await stranger.query('commit')
  expect(after[0]).toBeLessThanOrEqual(3 * before[0])
  expect(after[1]).toBeLessThanOrEqual(3 * before[1])
})
