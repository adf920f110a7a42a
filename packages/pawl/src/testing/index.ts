// What tests import: a clock that can be moved, leases that end at will, one call that runs what is ready, probes, and cutting
// connections. Nothing here is loaded by the library itself.

import type { Tx } from '../db/adapters.ts'
import type { Pawl } from '../pawl.ts'
import type { WorkerOptions } from '../worker-options.ts'

export { resetConnections } from '../db/client.ts'
export { keeperTesting } from '../kernel/keeper/keeper.ts'
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

/**
 * Ends the lease of one incarnation (`worker.id`) and closes it now, as if its process had hung and had not answered: it cannot renew, and the
 * next sweep takes its jobs over.
 */
export async function endLease(db: Tx, worker: number): Promise<void> {
  await db.query(
    `with closed as (
       update pawl.worker
       set lease_until = pawl.now() - interval '1 second', closed_at = pawl.now(), close_reason = 'lease ended'
       where tenant = '' and id = $1::integer and closed_at is null
       returning id
     )
     delete from pawl.sleeper s using closed c where s.tenant = '' and s.worker = c.id`,
    [worker],
  )
  await db.query("select pg_notify('pawl_workers', '')")
}

export interface RunReport {
  readonly done: readonly { readonly id: string; readonly kind: string; readonly attempt: number }[]
  /** Failed attempts that are tried again later; move the clock and run again to see them. */
  readonly retrying: readonly {
    readonly id: string
    readonly kind: string
    readonly attempt: number
    readonly error: unknown
    readonly inMs: number
  }[]
  readonly dead: readonly { readonly id: string; readonly kind: string; readonly reason: string }[]
}

/** Runs everything that is ready now, follow-up jobs included, in this process, and says how each ended. */
export async function runAll(pawl: Pawl, options: WorkerOptions = {}): Promise<RunReport> {
  const report = {
    done: [] as RunReport['done'][number][],
    retrying: [] as RunReport['retrying'][number][],
    dead: [] as RunReport['dead'][number][],
  }
  const stops = [
    pawl.on('job.done', ({ id, kind, attempt }) => report.done.push({ id, kind, attempt })),
    pawl.on('job.failed', ({ id, kind, attempt, error, retryInMs }) => {
      if (retryInMs !== undefined) report.retrying.push({ id, kind, attempt, error, inMs: retryInMs })
    }),
    pawl.on('job.dead', ({ id, kind, reason }) => report.dead.push({ id, kind, reason })),
  ]
  const worker = pawl.worker({ projections: [], ...options })
  try {
    await worker.start()
    await worker.whenIdle()
  } finally {
    await worker.stop()
    for (const stop of stops) stop()
  }
  return report
}
