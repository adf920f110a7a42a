// Batches through kill -9 of whole processes: workers, and starters.

import type { Pawl } from 'pawl'
import { moveClock, type ProbeName } from 'pawl/testing'
import pg from 'pg'
import { expect, inject, onTestFinished, test } from 'vitest'
import { closed, files, startWorker } from '../support/batches.ts'
import { createDatabase, endLeasesOf, type TestDatabase, until } from '../support/database.ts'
import { TalkingProcess } from '../support/talking-process.ts'
import { calm, quick } from '../support/worker-process.ts'
import type { BatchesSaid, BatchesSpec } from './batches-worker.ts'

class BatchesProcess extends TalkingProcess<BatchesSaid, 'stop'> {
  constructor(db: TestDatabase, spec: Partial<BatchesSpec>) {
    super(inject('programs')['batches-worker'], { url: db.url, shape: 'run', worker: calm, ...spec })
  }
}

async function createScene(): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  // Ledgers without unique keys, but for the first delivery of each item.
  await db.query(`
    create table delivery (n integer not null);
    create table first_delivery (n integer primary key);
    create sequence first_deliveries;
    create table effect (n integer not null);
    create table hook (batch text not null, waiting integer not null, at timestamptz not null default clock_timestamp())`)
  return db
}

/** As the processes define it. */
function defineReparse(pawl: Pawl, minMs = 1): void {
  const step = () => undefined
  pawl.batches.define('reparse', { prepare: step, boundary: step, item: { run: step }, allowance: { minMs } })
}

test.each(['run', 'tx'] as const)(
  '[B3] workers killed every 50 %s items, each delivered twice: counts exact',
  { timeout: 180_000 },
  async (shape) => {
    const db = await createScene()
    const pawl = db.pawl()
    defineReparse(pawl, 3_600_000)
    const { id } = await pawl.batches.start('reparse', files(1000))
    const spawn = () => new BatchesProcess(db, { shape, isRough: true, worker: { ...quick, concurrency: 4 } })
    const workers = Array.from({ length: 4 }, spawn)
    const all = [...workers]
    const batch = await until(
      'the batch is closed, and every killed worker is replaced',
      async () => {
        for (const [slot, worker] of workers.entries()) {
          if (worker.signal === null) continue
          workers[slot] = spawn()
          all.push(workers[slot])
        }
        return pawl.batches.get(id)
      },
      ({ state, phase }) => state !== 'running' && phase === null,
      150_000,
    )
    expect(batch).toMatchObject({ state: 'finished', isSuccess: true, sums: { ones: 1000, deleted: 1 } })
    expect(batch.counts).toEqual({ total: 1000, done: 1000, failed: 0, late: 0, restored: 0, waiting: 0 })
    const kills = all.filter((each) => each.heard('killing').length > 0)
    expect(kills.map(({ signal }) => signal)).toEqual(Array.from({ length: 20 }, () => 'SIGKILL'))
    // Each but the last of a killed process, and what it held, was settled twice: under the old fence, which is refused, and under the new one.
    const [seen] = await db.query<{ items: number; refused: number }>(
      `select (select count(*)::integer from (select from delivery group by n having count(*) >= 2)) as items,
         (select count(distinct r.subject)::integer from pawl.refusal r) as refused`,
    )
    expect(seen!.items).toBe(1000)
    expect(seen!.refused).toBeGreaterThan(700)
    expect(await db.query('select count(*)::integer as n, count(distinct n)::integer as items from effect')).toEqual([
      shape === 'tx' ? { n: 1000, items: 1000 } : { n: 0, items: 0 },
    ])
    expect(
      await db.query('select h.batch, h.waiting, h.at > (select max(i.ended_at) from pawl.batch_item i) as is_after from hook h'),
    ).toEqual([{ batch: id, waiting: 0, is_after: true }])
  },
)

const starts = ['batches.start.inserted', 'batches.start.items', 'batches.start.written'] as const
const killed: [probe: ProbeName | 'returned', isInTx: boolean, track: 'free' | 'overdue' | 'replaced'][] = [
  ...starts.flatMap((probe) => (['free', 'overdue', 'replaced'] as const).map((track) => [probe, false, track] as never)),
  ...([...starts, 'returned'] as const).map((probe) => [probe, true, 'free'] as never),
  ['returned', true, 'replaced'],
]

test.each(killed)('[B7] starter killed at %s, in tx %s, track %s: next start runs', async (probe, isInTx, track) => {
  const db = await createScene()
  const pawl = db.pawl()
  defineReparse(pawl)
  const before = track === 'free' ? undefined : await pawl.batches.start('reparse', files(2))
  if (track === 'overdue') await moveClock(db.pool, 60_000)
  const policy = track === 'replaced' ? 'replace' : 'refuse'
  const starter = new BatchesProcess(db, { killAt: { probe, hit: 1 }, start: { items: 2500, policy, isInTx } })
  await starter.hears('killing')
  expect(await starter.ended()).toBe('SIGKILL')
  const { id, state } = await pawl.batches.start('reparse', files(3), { policy })
  expect(state).toBe('running')
  const left = await db.query<{ id: string; state: string; items: number }>(
    `select b.id, b.state, (select count(*)::integer from pawl.batch_item i where i.batch_id = b.id) as items from pawl.batch b order by b.id`,
  )
  const ended = { free: [], overdue: ['timed-out'], replaced: ['replaced'] }[track]
  expect(left).toEqual([...ended.map((each) => ({ id: before!.id, state: each, items: 2 })), { id, state: 'running', items: 3 }])
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 3 } })
})

const points: [ProbeName, number][] = [
  ['batches.prepared', 1],
  ['batches.boundary.written', 1],
  ['batches.feed.written', 1],
  ['batches.settled', 1],
  ['batches.end.before', 1],
  ['batches.end.after', 1],
  ['batches.end.written', 1],
]

test.each(points)('[B3] worker killed at %s, hit %i: another ends the batch', async (probe, hit) => {
  const db = await createScene()
  const pawl = db.pawl()
  defineReparse(pawl, 3_600_000)
  const { id } = await pawl.batches.start('reparse', files(20))
  const victim = new BatchesProcess(db, { killAt: { probe, hit }, shape: 'tx' })
  await victim.hears('killing')
  expect(await victim.ended()).toBe('SIGKILL')
  await endLeasesOf(db, victim)
  const survivor = new BatchesProcess(db, { shape: 'tx' })
  await survivor.hears('ready')
  // The watch looks 15 s after it looked last.
  await moveClock(db.pool, 16_000)
  const batch = await closed(pawl, id, 40_000)
  expect(batch).toMatchObject({ state: 'finished', isSuccess: true, sums: { ones: 20, deleted: 1 } })
  expect(await db.query('select count(*)::integer as n, count(distinct n)::integer as items from effect')).toEqual([
    { n: 20, items: 20 },
  ])
  expect(await db.query('select batch, waiting from hook')).toEqual([{ batch: id, waiting: 0 }])
})

test('[B3] worker killed in a watch: another watches on', async () => {
  const db = await createScene()
  const pawl = db.pawl()
  defineReparse(pawl)
  const { id } = await pawl.batches.start('reparse', files(2))
  const hidden =
    "update pawl.job set run_at = run_at + interval '1 day', due = due + interval '1 day' where kind like '%.prepare'"
  await db.query(hidden)
  await moveClock(db.pool, 16_000)
  const victim = new BatchesProcess(db, { killAt: { probe: 'batches.watch.lost', hit: 1 } })
  await victim.hears('killing')
  await endLeasesOf(db, victim)
  new BatchesProcess(db, {})
  await moveClock(db.pool, 60_000)
  expect(await closed(pawl, id, 40_000)).toMatchObject({ state: 'timed-out', counts: { waiting: 2 } })
  expect(await db.query('select batch from hook')).toEqual([{ batch: id }])
})

test('[B8] 64 connections settle one batch while it ends: no deadlock', { timeout: 90_000 }, async () => {
  const db = await createScene()
  const pawl = db.pawl()
  pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start('reparse', files(3200))
  const [batch] = await db.query<{ fence: string }>('update pawl.batch set boundary_at = pawl.now() returning fence')
  // The first feed is a small one.
  for (let feeds = 0; feeds < 2; feeds++) await db.query("select pawl.feed_batch('', $1, $2)", [id, batch!.fence])
  await db.query(
    "update pawl.job set state = 'running', fence = 7, holder = 1, claimed_at = pawl.now(), run_until = pawl.now() + interval '1 hour' where kind like '%.item'",
  )
  const items = await db.query<{ job_id: string; n: number }>('select job_id, n from pawl.batch_item order by n')
  const clients = new pg.Pool({ connectionString: db.url, max: 64 })
  // end() resolves before the last sockets have closed, and the drop of the database terminates those.
  clients.on('connect', (client) => client.on('error', () => undefined))
  onTestFinished(() => clients.end())
  const errors: unknown[] = []
  const query = (text: string, values: unknown[]) =>
    clients.query(text, values).catch((error: unknown) => void errors.push(error))
  const settle = (chunk: typeof items) =>
    query(
      `select from pawl.settle_items(array_fill(''::text, array[$1::integer]), $2::bigint[], array_fill(7::bigint, array[$1::integer]),
         array_fill('{"ones": 1}'::jsonb, array[$1::integer]), array_fill(null::jsonb, array[$1::integer]), array_fill(1, array[$1::integer]),
         array_fill($3::bigint, array[$1::integer]), $4::integer[], array_fill($5::bigint, array[$1::integer]))`,
      [chunk.length, chunk.map(({ job_id }) => job_id), id, chunk.map(({ n }) => n), batch!.fence],
    )
  const ask = () => query("select pawl.end_batch('', $1, 'finished')", [id])
  // Connection k settles every item that is k modulo 64 or k + 1, every other one backwards: each item twice, in both orders.
  const rounds = Array.from({ length: 64 }, async (_, k) => {
    const mine = items.filter(({ n }) => n % 64 === k || n % 64 === (k + 1) % 64)
    if (k % 2 === 1) mine.reverse()
    for (let from = 0; from < mine.length; from += 10) {
      await settle(mine.slice(from, from + 10))
      if (from % 30 === 0) await ask()
    }
  })
  await Promise.all(rounds)
  // Items of a batch that was being asked to end are left, as a flush leaves them to the next.
  for (let left = items; left.length > 0; ) {
    await settle(left)
    left = await db.query('select job_id, n from pawl.batch_item where outcome is null')
  }
  await ask()
  expect(errors).toEqual([])
  expect(await pawl.batches.get(id)).toMatchObject({ state: 'finished', counts: { done: 3200 }, sums: { ones: 3200 } })
  expect(await db.query("select from pawl.event where type = 'batch.finished'")).toHaveLength(1)
  expect(await db.query('select deadlocks::integer from pg_stat_database where datname = current_database()')).toEqual([
    { deadlocks: 0 },
  ])
})
