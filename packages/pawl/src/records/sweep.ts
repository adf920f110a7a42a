// The sweep: every process that defines a record set looks for submissions whose job is dead or gone, and ends them, so that a slot frees itself
// whatever was cancelled. A job could not do it: jobs can be cancelled too.

import { statement } from '../db/statement.ts'
import { Failures, type LoopWatch } from '../kernel/failures.ts'
import { read } from '../kernel/retry.ts'
import type { RecordsCore } from './core.ts'
import { failDead } from './fail.ts'

const orphansStatement = statement(import.meta.url, 'orphans')

const everyMs = 10_000
const orphansMax = 100

/** Until the pool is closed. It keeps no process alive. */
export function sweepRegularly(core: RecordsCore): void {
  planSweep(core, new Failures(core).loop('sweep of submissions', core.pool))
}

function planSweep(core: RecordsCore, watch: LoopWatch): void {
  // Processes that were started together do not sweep together.
  const timer = setTimeout(() => void sweepAndGoOn(core, watch), everyMs * (0.75 + Math.random() / 2))
  timer.unref()
}

async function sweepAndGoOn(core: RecordsCore, watch: LoopWatch): Promise<void> {
  if (core.pool.isEnded) return
  try {
    await sweep(core)
    watch.succeeded()
  } catch (error) {
    if (!core.pool.isEnded) watch.failed(error)
  }
  if (!core.pool.isEnded) planSweep(core, watch)
}

/** One that cannot be ended does not keep the slots of the others. */
async function sweep(core: RecordsCore): Promise<void> {
  const errors: unknown[] = []
  for (const { tenant, id } of await read<{ tenant: string; id: string }>(core.pool, orphansStatement, { limit: orphansMax }))
    await failDead(core, tenant, id).catch((error: unknown) => errors.push(error))
  if (errors.length > 0) throw errors[0]
}
