// The scope's lock and its slot: whoever takes a number or commits one holds the lock, and finds the slot free.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { read } from '../kernel/retry.ts'
import type { RecordsCore } from './core.ts'

const scopeLockStatement = statement(import.meta.url, 'scope-lock')
const slotStatement = statement(import.meta.url, 'slot')

export interface LockedScope {
  id: string
  scope: string
  revision: string
  committed: string
  live: string
  next_number: string
  attributes: string | null
}

export async function lockScope(tx: TxDb, tenant: string, scopeId: string): Promise<LockedScope> {
  const [scope] = await tx.run<LockedScope>(scopeLockStatement, { tenant, scope_id: scopeId })
  if (scope === undefined) throw new PawlError('PAWL_NOT_FOUND', 'The scope does not exist.')
  return scope
}

interface Holder {
  id: string
  submitting_at: Date
  job_id: string
  job_state: string
}

/** Who holds the slot, as of now: without the scope's lock it may be another at once. */
export async function slotHolder(core: RecordsCore, tenant: string, scopeId: string): Promise<string | undefined> {
  const [holder] = await read<Holder>(core.pool, slotStatement, { tenant, scope_id: scopeId })
  return holder?.id
}

/** Under the scope's lock. Whoever writes a number must know that no other number is under way. */
export async function assertSlotFree(tx: TxDb, tenant: string, scope: LockedScope): Promise<void> {
  const [holder] = await tx.run<Holder>(slotStatement, { tenant, scope_id: scope.id })
  if (holder === undefined) return
  throw new PawlError(
    'PAWL_SCOPE_BUSY',
    `Submission ${holder.id} is being applied to this scope. Try again when it is done; records.why('${holder.id}') says what it waits for.`,
    { details: { holder: holder.id, jobId: holder.job_id, jobState: holder.job_state, scope: scope.scope } },
  )
}
