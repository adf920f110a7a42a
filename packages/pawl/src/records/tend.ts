// Tending: a small job per submission that removes what is over. It expires what nobody submitted, and clears staged rows after a commit.

import { statement } from '../db/statement.ts'
import type { Job } from '../jobs/types.ts'
import { read } from '../kernel/retry.ts'
import type { RecordsCore } from './core.ts'
import { clearStaged } from './upload.ts'
import type { TendPayload } from './work.ts'

const tendStatement = statement(import.meta.url, 'tend')
const expireStatement = statement(import.meta.url, 'expire')
const clearErrorsStatement = statement(import.meta.url, 'errors-clear')
const lockAlertStatement = statement(import.meta.url, 'lock-alert')
const resolveStatement = statement(import.meta.url, 'resolve-alert')

/** How long a submission that is being applied is left alone; its own commit brings a tending job. */
const submittingMs = 600_000
/** Nobody sleeps longer than this: the time of expiry may have moved. */
const sleepMsMax = 6 * 3_600_000

interface Row {
  state: string
  record_set: string
  expires_in_ms: string | null
}

export async function tend(core: RecordsCore, job: Job<TendPayload>): Promise<unknown> {
  const { tenant } = job
  const id = job.payload.submission
  const [row] = await read<Row>(core.pool, tendStatement, { tenant, id })
  if (row === undefined) return { state: 'gone' }
  if (row.state === 'submitted') {
    await clearStaged(core, tenant, id, null)
    await resolve(core, tenant, row.record_set)
    return { state: 'cleared' }
  }
  if (row.state === 'submitting') return job.snooze(submittingMs)
  const leftMs = Number(row.expires_in_ms)
  if (leftMs > 0) return job.snooze(Math.min(Math.max(leftMs, 1000), sleepMsMax))
  // Not over after all: something came in between, and gave it more time.
  if (!(await clearStaged(core, tenant, id, null))) return job.snooze(1000)
  await core.pool.transaction(async (tx) => {
    await tx.run(clearErrorsStatement, { tenant, id })
    await tx.run(expireStatement, { tenant, id })
  })
  return { state: 'expired' }
}

async function resolve(core: RecordsCore, tenant: string, set: string): Promise<void> {
  await core.pool.transaction(async (tx) => {
    const [alert] = await tx.run<{ id: string }>(lockAlertStatement, { tenant, record_set: set })
    if (alert !== undefined) await tx.run(resolveStatement, { tenant, id: alert.id, record_set: set })
  })
}
