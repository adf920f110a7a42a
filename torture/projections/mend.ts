// What an operator does about paused projections: lets them go on.

import type pg from 'pg'
import { borrowPool } from '../../packages/pawl/src/db/borrowed-pool.ts'
import { resume } from '../../packages/pawl/src/projections/acts.ts'
import { copiedName, foldedName, handedName, shardedName } from './handlers.ts'

const act = { reason: 'mended', actor: 'torture' }

export async function resumeAll(pool: pg.Pool): Promise<void> {
  for (const name of [foldedName, shardedName, copiedName, handedName]) {
    const { rows } = await pool.query("select from pawl.cursor where name = $1 and state = 'paused'", [name])
    if (rows.length > 0) await resume(borrowPool(pool, 10_000), { tenant: '', name }, act, null)
  }
}
