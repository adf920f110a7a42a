// Samples of the measures of batches: a new process in a fresh database for each.

import type { Context } from '../../harness/context.ts'
import type { System } from '../../harness/system/child.ts'
import { withChild } from '../../harness/system/with-child.ts'

export const pawl: System = { name: 'pawl', module: 'batches/pawl' }
export const plainJobs: System = { name: 'plain jobs', module: 'batches/pawl', variant: 'jobs' }
export const flows: System = { name: 'BullMQ flows', module: 'batches/bullmq' }
export const byHand: System = { name: 'by hand on graphile localQueue', module: 'batches/graphile' }
export const seed: System = { name: 'select_for_update', module: 'batches/seed' }
/** Our statements of completion, without a worker. */
export const completions: System = { name: 'completions', module: 'batches/completions' }
export const copy: System = { name: 'COPY', module: 'batches/copy' }

/** Moments of a batch, by the machine's clock. */
export interface Through {
  readonly from: number
  /** Its start is committed. */
  readonly startedAt: number
  readonly to: number
  /** Of Pawl: the first handler is called, and `onEnd` is. */
  readonly firstAt?: number
  readonly calledAt?: number
  /** Items in a flush, on average. */
  readonly flush?: number
}

/** The end of all items of a batch whose items have jobs already. */
export function complete(
  context: Context,
  system: System,
  task: string,
  count: number,
  ...args: readonly unknown[]
): Promise<Through> {
  return context.server.withDatabase((database) =>
    withChild(context, database, system, (child) => child.call<Through>('run', task, count, ...args)),
  )
}

/** From the start of a batch to its end, with a worker that was idle before. */
export function through(context: Context, system: System, count: number, ...args: readonly unknown[]): Promise<Through> {
  return context.server.withDatabase((database) =>
    withChild(context, database, system, (child) => child.call<Through>('run', 'through', count, ...args)),
  )
}
