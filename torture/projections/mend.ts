// What an operator does about parked keys, paused projections and refreshes that were given up: mends the cause and lets them go on.

import type pg from 'pg'
import { resume, unpark } from '../../packages/pawl/src/projections/acts.ts'
import { copiedName, foldedName, handedName, shardedName } from './handlers.ts'

const act = { reason: 'mended', actor: 'torture' }

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
  for (const { name } of rows) await unpark(pool as never, { tenant: '', name }, { key: null, keyTenant: null }, act)
  return rows.length
}

export async function resumeAll(pool: pg.Pool): Promise<void> {
  for (const name of [foldedName, shardedName, copiedName, handedName]) {
    const { rows } = await pool.query("select from pawl.cursor where name = $1 and state = 'paused'", [name])
    if (rows.length > 0) await resume(pool as never, { tenant: '', name }, act, null)
  }
}
