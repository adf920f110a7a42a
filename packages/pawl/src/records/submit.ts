// Submit and resume: state and revision compared and set, the scope's slot taken, the baseline checked, all under the scope's lock; then the
// apply is a job of the same transaction. The answer comes at once. What changes nothing is committed here.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { transactIn } from '../kernel/retry.ts'
import { assertAttributes } from './attributes.ts'
import { type RecordsCore, setOf } from './core.ts'
import { freeingSlot } from './fail.ts'
import { commitEvents } from './record-events.ts'
import { assertSlotFree, lockScope } from './slot.ts'
import { needSubmission, type SubmissionRow } from './submissions.ts'
import type { SubmissionState, SubmitOptions } from './types.ts'
import { type ApplyPayload, applyKind } from './work.ts'

const submissionLockStatement = statement(import.meta.url, 'submission-lock')
const submitStatement = statement(import.meta.url, 'submit')
const unchangedStatement = statement(import.meta.url, 'submit-unchanged')
const supersedeStatement = statement(import.meta.url, 'supersede')

export interface SubmitAnswer {
  readonly id: string
  readonly revision: number
  readonly number: string
  /** null: it changes nothing, and is committed already. */
  readonly jobId: string | null
}

export async function submit(
  core: RecordsCore,
  tenant: string,
  id: string,
  from: 'validated' | 'failed',
  options: SubmitOptions,
): Promise<SubmitAnswer> {
  const before = await needSubmission(core, tenant, id)
  const attempt = () => transactIn(core.pool, options.tx, (tx) => submitIn(core, tx, tenant, before, from, options.revision))
  const answer = await freeingSlot(core, tenant, options.tx, attempt)
  if (answer instanceof PawlError) throw answer
  if (answer.jobId === null) core.sweep.wake()
  return answer
}

/** An error that must be committed with what it tells is answered; the others are thrown, and nothing was written. */
async function submitIn(
  core: RecordsCore,
  tx: TxDb,
  tenant: string,
  before: SubmissionRow,
  from: 'validated' | 'failed',
  revision: number | undefined,
): Promise<SubmitAnswer | PawlError> {
  const { id } = before
  const scope = await lockScope(tx, tenant, before.scope_id)
  const [row] = await tx.run<{ state: SubmissionState; revision: number; baseline: string; is_expired: boolean }>(
    submissionLockStatement,
    { tenant, id },
  )
  if (row === undefined || row.is_expired) throw expired(id)
  if (revision !== undefined && revision !== row.revision) throw revisionConflict(id, revision, row.revision)
  if (row.state !== from) throw wrongState(id, row.state, from)
  await assertSlotFree(tx, tenant, scope)
  assertAttributes(before.attributes, scope.attributes)
  if (row.baseline !== scope.revision) {
    const error = superseded(id, row.baseline, scope.revision)
    const { keepMs } = setOf(core, before.record_set)
    await tx.run(supersedeStatement, {
      tenant,
      id,
      state: from,
      revision: row.revision,
      keep_ms: keepMs.ended,
      error: error.message,
    })
    return error
  }
  const changes = Number(before.created) + Number(before.updated) + Number(before.deleted)
  return changes === 0 && from === 'validated'
    ? commitUnchanged(core, tx, tenant, before, row.revision)
    : take(core, tx, tenant, before, from, row.revision)
}

async function commitUnchanged(
  core: RecordsCore,
  tx: TxDb,
  tenant: string,
  { id, record_set }: SubmissionRow,
  revision: number,
): Promise<SubmitAnswer> {
  const set = setOf(core, record_set)
  const [row] = await tx.run<{ scope: string; number: string; revision: number; unchanged: string }>(unchangedStatement, {
    tenant,
    id,
    revision,
  })
  if (row === undefined) throw notTaken(id)
  const { scope, number } = row
  const counts = { created: 0, updated: 0, unchanged: Number(row.unchanged), deleted: 0 }
  await commitEvents(tx, tenant, set.events, { set: record_set, scope, submission: id, number, counts, changed: [] })
  return { id, revision: row.revision, number, jobId: null }
}

async function take(
  core: RecordsCore,
  tx: TxDb,
  tenant: string,
  before: SubmissionRow,
  from: string,
  revision: number,
): Promise<SubmitAnswer> {
  const { id } = before
  const set = setOf(core, before.record_set)
  const payload: ApplyPayload = {
    submission: id,
    events: set.events,
    retry: set.retry,
    keepMs: set.keepMs.ended,
    chunkRows: set.chunkRows,
  }
  const { id: jobId } = await core.jobs(tenant).enqueue(applyKind, payload, { tx })
  const [taken] = await tx.run<{ number: string; revision: number }>(submitStatement, {
    tenant,
    id,
    state: from,
    revision,
    job_id: jobId,
  })
  if (taken === undefined) throw notTaken(id)
  if (probe.on) await probe.hit('records.submit.written', { id })
  return { id, revision: taken.revision, number: taken.number, jobId }
}

/** Its row and its scope are locked and were looked at: nothing can have changed. */
function notTaken(id: string): PawlError {
  return new PawlError('PAWL_ROLLED_BACK', `Submission ${id} could not be submitted. Try again.`)
}

export function revisionConflict(id: string, expected: number, actual: number): PawlError {
  return new PawlError(
    'PAWL_REVISION_CONFLICT',
    `Submission ${id} is at revision ${actual}, not ${expected}: it has changed. Read it again and retry with the new revision.`,
    { details: { id, expected, actual } },
  )
}

export function expired(id: string): PawlError {
  return new PawlError('PAWL_NOT_FOUND', `Submission ${id} expired. Upload the file again.`, { details: { id } })
}

export function wrongState(id: string, state: SubmissionState, needed: string): PawlError {
  return new PawlError('PAWL_WRONG_STATE', `Submission ${id} is ${state}; it must be ${needed}.`, {
    details: { id, state },
  })
}

function superseded(id: string, baseline: string, revision: string): PawlError {
  return new PawlError(
    'PAWL_SUPERSEDED',
    `Submission ${id} was compared with revision ${baseline} of its scope, which is now at ${revision}: its preview no longer shows what would be applied. Rebase it, or upload the file again.`,
    { details: { id, baseline, revision } },
  )
}
