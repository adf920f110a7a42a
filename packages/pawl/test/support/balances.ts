// A projection of balances in two tables, with two generations, for the tests of rebuilding.

import type { LogEvent, Pawl, ProjectionContext, ProjectionTx } from 'pawl'
import { type TestDatabase, until } from './database.ts'
import { addCursor, append, createLog, startRunner } from './projections.ts'

export const balanceSql = `
  create table balance (id text primary key, amount bigint not null, note text, written_at timestamptz not null default clock_timestamp());
  create table total (id integer primary key, events bigint not null)`
export const tables = [
  { name: 'balance', key: ['id'], columns: ['id', 'amount', 'note'] },
  { name: 'total', key: ['id'], columns: ['id', 'events'] },
] as const

export const reason = 'a test'

/** Folds into two tables. */
function apply(factor: number) {
  return (event: LogEvent, tx: ProjectionTx, { table }: ProjectionContext) => {
    const { amount } = event.data as { amount: number }
    tx.send(
      `insert into ${table('balance')} as b (id, amount) values ($1, $2) on conflict (id) do update set amount = b.amount + excluded.amount`,
      [event.key, amount * factor],
    )
    tx.send(`insert into ${table('total')} as t values (1, 1) on conflict (id) do update set events = t.events + 1`)
  }
}

export function define(pawl: Pawl, generation: number, factor = 1): void {
  pawl.projections.define('balances', { generation, channel: 'default', tables, on: { Added: apply(factor) } })
}

/** One process that runs two generations, of which the first is live and the second is still to be built. */
export async function runBoth(): Promise<{ db: TestDatabase; pawl: Pawl }> {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  define(pawl, 1)
  define(pawl, 2)
  await addCursor(db, 'balances', { channel: 'default' })
  await startRunner(pawl)
  return { db, pawl }
}

export const add = (db: TestDatabase, n: number) => append(db, { key: `k${n % 17}`, data: { amount: n } })

/**
 * Waits until everything appended has its position, and the generation is past all events of its channel. Past those of other
 * channels a cursor moves only once a second.
 */
export async function applied(db: TestDatabase, generation: number): Promise<void> {
  await until(
    `generation ${generation} has applied everything`,
    async () => {
      const [row] = await db.query<{ left: number }>(
        `select (
           (select count(*) from pawl.event) - (select position from pawl.sequencer)
           + (
             select count(*)
             from pawl.cursor_at c
             cross join pawl.log_page p
             cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
             join pawl.event e on e.xid = u.xid and e.seq = u.seq
             where c.name = 'balances' and c.generation = $1 and e.channel = c.channel and p.first_position + u.n - 1 > c.position
           )
         )::integer as left`,
        [generation],
      )
      return row!.left === 0
    },
    30_000,
  )
}
