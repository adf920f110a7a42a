// The clock of the torture database, which steps.

import type pg from 'pg'
import type { Rig } from './rig.ts'

/** In one transaction, so that nobody sees a time in between. */
export async function stepClock(client: pg.PoolClient, ms: number): Promise<void> {
  await client.query('create table if not exists pawl.clock_shift (ms bigint not null)')
  await client.query('insert into pawl.clock_shift values ($1::bigint)', [Math.round(ms)])
  await client.query('insert into torture.step (ms) values ($1::bigint)', [Math.round(ms)])
  await client.query(
    `create or replace function pawl.now() returns timestamptz language sql volatile as
     'select clock_timestamp() + coalesce((select sum(ms) from pawl.clock_shift), 0) * interval ''1 millisecond'''`,
  )
}

/** By how much all steps together have moved it. */
export async function clockShiftMs(rig: Rig): Promise<number> {
  const [found] = await rig.query<{ isThere: boolean }>(`select to_regclass('pawl.clock_shift') is not null as "isThere"`)
  if (!found!.isThere) return 0
  const [shift] = await rig.query<{ ms: string }>('select coalesce(sum(ms), 0)::text as ms from pawl.clock_shift')
  return Number(shift!.ms)
}
