// The sweep: every process that defines a record set looks for submissions whose job is dead or gone, and ends them, so that a slot frees itself
// whatever was cancelled. A job could not do it: jobs can be cancelled too.

import { statement } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import { type RecordsCore, read } from './core.ts'
import { failDead } from './fail.ts'

const orphansStatement = statement(import.meta.url, 'orphans')

const everyMs = 10_000
const orphansMax = 100

/** Until the pool is closed. It keeps no process alive. */
export function sweepRegularly(core: RecordsCore): void {
  // Processes that were started together do not sweep together.
  const timer = setTimeout(() => void sweepAndGoOn(core), everyMs * (0.75 + Math.random() / 2))
  timer.unref()
}

async function sweepAndGoOn(core: RecordsCore): Promise<void> {
  if (core.pool.ended) return
  try {
    await sweep(core)
  } catch (error) {
    if (!core.pool.ended) core.logger.error({ error: describeError(error, 1000) }, 'the sweep of submissions failed; retrying')
  }
  if (!core.pool.ended) sweepRegularly(core)
}

async function sweep(core: RecordsCore): Promise<void> {
  for (const { tenant, id } of await read<{ tenant: string; id: string }>(core, orphansStatement, { limit: orphansMax }))
    await failDead(core, tenant, id)
}
