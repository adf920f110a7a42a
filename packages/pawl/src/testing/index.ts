// What tests import: a clock that can be moved, probes, and cutting connections. Nothing here is loaded by the library itself.

import type { Tx } from '../db/adapters.ts'

export { resetConnections } from '../db/driver.ts'
export { keeperTesting } from '../jobs/keeper.ts'
export { installProbe, type ProbeName, probeNames } from '../kernel/probe.ts'

/** Moves database time for everyone: pawl.now() becomes the real time plus this much, until it is moved again. */
export async function moveClock(db: Tx, shiftMs: number): Promise<void> {
  await db.query('create table if not exists pawl.clock_shift (ms bigint not null)')
  await db.query('delete from pawl.clock_shift')
  await db.query('insert into pawl.clock_shift values ($1::bigint)', [Math.round(shiftMs)])
  await db.query(
    `create or replace function pawl.now() returns timestamptz language sql volatile as
     'select clock_timestamp() + coalesce((select sum(ms) from pawl.clock_shift), 0) * interval ''1 millisecond'''`,
  )
}
