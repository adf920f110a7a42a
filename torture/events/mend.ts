// Bad events: handlers refuse them until an operator has mended the cause, and lets their keys go on.

import { NonRetryable } from 'pawl'
import type pg from 'pg'
import { borrowPool } from '../../packages/pawl/src/db/borrowed-pool.ts'
import { unpark } from '../../packages/pawl/src/projections/acts.ts'

const act = { reason: 'mended', actor: 'torture' }
const mendedSql = 'select from torture.mended where position = $1::bigint'

export async function assertMended(
  { position }: { readonly position: number },
  runs: { query(text: string, values: unknown[]): Promise<{ rows: readonly unknown[] }> },
): Promise<void> {
  const { rows } = await runs.query(mendedSql, [position])
  if (rows.length === 0) throw new NonRetryable(`event ${position} is bad, and nobody has mended it`)
}

/** Everything that is parked now. What fails again is parked again. */
export async function mendAll(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ name: string }>(
    `with mended as (
       insert into torture.mended
       select distinct e.position from pawl.parked_event e
       where not exists (select from torture.mended m where m.position = e.position)
     )
     select distinct k.name from pawl.parked_key k where k.state = 'parked'
     union
     select distinct d.name from pawl.dirty d where d.due_at = 'infinity'`,
  )
  for (const { name } of rows) await unpark(borrowPool(pool, 10_000), { tenant: '', name }, { key: null, keyTenant: null }, act)
  return rows.length
}
