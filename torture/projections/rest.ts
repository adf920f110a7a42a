// When projections are at rest. Until then somebody mends whatever is parked, resumes whatever is paused, and lifts holds.

import type pg from 'pg'
import { statement } from '../../packages/pawl/src/db/statement.ts'
import { runsOf } from '../../packages/pawl/src/projections/acts.ts'
import { mendAll } from '../events/mend.ts'
import { isAtRest as isLogAtRest } from '../events/rest.ts'
import type { Rig } from '../rig.ts'
import { foldedName } from './handlers.ts'
import { resumeAll } from './mend.ts'
import { readOnceMore } from './traffic.ts'

const folder = new URL('../../packages/pawl/src/projections/any.ts', import.meta.url).href
const unholdStatement = statement(folder, 'unhold-generations')

export async function isAtRest(rig: Rig): Promise<boolean> {
  await Promise.all([mendAll(rig.admin), resumeAll(rig.admin), liftHolds(rig.admin)]).catch(() => undefined)
  await readOnceMore(rig)
  return isLogAtRest(rig)
}

/** A hold of somebody who died ends by itself after a minute, or with the next comparison, which does this. */
async function liftHolds(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query('select from pawl.cursor where hold_at is not null')
  if (rows.length > 0) await runsOf(pool as never).run(unholdStatement, { tenant: '', name: foldedName })
}
