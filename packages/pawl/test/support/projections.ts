// Small things that tests of projections share: appending by SQL, a ledger of wallets, and a runner that never outlives its test.

import type { Pawl, Worker, WorkerOptions } from 'pawl'
import { onTestFinished } from 'vitest'
import { createDatabase, type TestDatabase, until } from './database.ts'

/** Leases that do not end while a test runs; looks that come quickly. */
export const calmRunner = { lease: '60s', tuning: { beatMs: 200, pollMs: 50 } } as const
/** Leases that end quickly; beats that a busy machine makes three seconds late still come in time. */
export const quickRunner = { lease: 3500, tuning: { beatMs: 200, pollMs: 50 } } as const

export const walletSql = `
  create table wallet (id text primary key, balance bigint not null check (balance >= 0), changes integer not null default 0);
  create table entry (
    nth bigint generated always as identity, position bigint not null, wallet text not null, amount bigint not null,
    pid integer not null default pg_backend_pid()
  )`

/** A database that is dropped after everything that the test started on it has ended. */
export async function createLog(sql = walletSql): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  await db.query(sql)
  return db
}

export interface Appending {
  readonly type?: string
  readonly key: string
  readonly data?: unknown
  readonly tenant?: string
  readonly channel?: string
}

/** Appends in one transaction, in order; gives the token. */
export async function append(db: Pick<TestDatabase, 'query'>, ...events: readonly Appending[]): Promise<string> {
  const list = events.map(({ type = 'Added', key, data = {}, channel }) => ({
    type,
    aggregatetype: 'thing',
    aggregateid: key,
    payload: data,
    channel,
  }))
  const rows = await db.query<{ answer: string }>('select a.answer from pawl.append_events($1, $2::jsonb) as a(answer)', [
    events[0]?.tenant ?? '',
    JSON.stringify(list),
  ])
  const [, xid, seq] = rows.at(-1)!.answer.split(' ')
  return `${xid}:${seq}`
}

/** A worker in the test's own process that runs projections only, stopped with the test. */
export async function startRunner(pawl: Pawl, options: WorkerOptions = calmRunner): Promise<Worker> {
  const runner = pawl.worker({ queues: [], ...options })
  onTestFinished(async () => void (await runner.stop()))
  await runner.start()
  return runner
}

/** A projection whose first generation is live, as a runner registers it, with whatever a test needs its cursor to be. */
export async function addCursor(
  db: Pick<TestDatabase, 'query'>,
  name: string,
  { kind = 'log', channel = null, position = 0, state = 'running', fence = 0 }: Partial<AddedCursor> = {},
): Promise<void> {
  await db.query('insert into pawl.projection (name, kind, live_generation) values ($1, $2, 1)', [name, kind])
  await db.query('insert into pawl.cursor (name, kind, channel, state, fence, is_live) values ($1, $2, $3, $4, $5, true)', [
    name,
    kind,
    channel,
    state,
    fence,
  ])
  await db.query('insert into pawl.cursor_position (name, position) values ($1, $2)', [name, position])
}

interface AddedCursor {
  readonly kind: 'log' | 'state' | 'reaction' | 'sink'
  readonly channel: string | null
  readonly position: number
  readonly state: string
  readonly fence: number
}

export interface Cursor {
  readonly position: number
  readonly fence: string
  readonly holder: number | null
  readonly state: string
  readonly attempts: number
  readonly crashes: number
  readonly done: string
  readonly reason: string | null
}

export async function cursorOf(db: TestDatabase, name: string, { generation = 1, shard = 0 } = {}): Promise<Cursor> {
  const [row] = await db.query<Cursor>(
    `select position::integer, fence::text, holder, state, attempts, crashes, done::text, reason
     from pawl.cursor_at where name = $1 and generation = $2 and shard = $3`,
    [name, generation, shard],
  )
  return row!
}

/** Waits until every cursor of the generation has passed everything that was sequenced, and everything appended was. */
export async function caughtUp(db: TestDatabase, name: string, generation = 1): Promise<void> {
  await until(
    `${name} has caught up`,
    async () => {
      const [row] = await db.query<{ behind: number }>(
        `select (
         (select count(*) from pawl.event) - (select position from pawl.sequencer)
         + (select max(s.position - c.position) from pawl.cursor_at c, pawl.sequencer s where c.name = $1 and c.generation = $2)
       )::integer as behind`,
        [name, generation],
      )
      return row!.behind === 0
    },
    30_000,
  )
}
