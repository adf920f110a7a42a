// Submit and resume: state and revision compared and set, the scope's slot taken, the baseline checked, all under the scope's lock; then the
// apply is a job of the same transaction. The answer comes at once. What changes nothing is committed here.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { transactIn } from '../kernel/retry.ts'
import { type ApplyPayload, applyKind } from './apply.ts'
import { assertAttributes, assertSlotFree, commitEvents, lockScope } from './commit.ts'
import { freeingSlot } from './fail.ts'
import { type Registry, setOf } from './sets.ts'
import { expired, needSubmission, type StoredSubmission, wrongState } from './submissions.ts'
import type { SubmissionState, SubmitOptions } from './types.ts'

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
  registry: Registry,
  tenant: string,
  id: string,
  from: 'validated' | 'failed',
  options: SubmitOptions,
): Promise<SubmitAnswer> {
  const before = await needSubmission(registry, tenant, id)
  const attempt = () => transactIn(registry.pool, options.tx, (tx) => submitIn(registry, tx, before, from, options.revision))
  const answer = await freeingSlot(registry, tenant, options.tx, attempt)
  if (answer instanceof PawlError) throw answer
  if (answer.jobId === null) registry.sweep.wake()
  return answer
}

/** An error that must be committed with what it tells is answered; the others are thrown, and nothing was written. */
async function submitIn(
  registry: Registry,
  tx: TxDb,
  before: StoredSubmission,
  from: 'validated' | 'failed',
  expected: number | undefined,
): Promise<SubmitAnswer | PawlError> {
  const { id, internal, progress } = before
  const { tenant } = internal
  const scope = await lockScope(tx, tenant, internal.scopeId)
  const [row] = await tx.run<{ state: SubmissionState; revision: number; baseline: string; is_expired: boolean }>(
    submissionLockStatement,
    { tenant, id },
  )
  if (row === undefined || row.is_expired) throw expired(id)
  const { state, revision } = row
  const baseline = Number(row.baseline)
  if (expected !== undefined && expected !== revision) throw revisionConflict(id, expected, revision)
  if (state !== from) throw wrongState(id, state, from)
  await assertSlotFree(tx, tenant, scope)
  assertAttributes(internal.attributes, scope.attributes)
  if (baseline !== scope.revision) {
    const error = superseded(id, baseline, scope.revision)
    const keep_ms = setOf(registry, before.set).keepMs.ended
    await tx.run(supersedeStatement, { tenant, id, state, revision, keep_ms, error: error.message })
    return error
  }
  const isUnchanged = progress.of === 0 && state === 'validated'
  const taken = isUnchanged ? await commitUnchanged(registry, tx, before, revision) : await take(registry, tx, before, row)
  if (taken !== undefined) return { id, ...taken }
  // Its row and its scope are locked and were looked at: nothing can have changed.
  throw new PawlError('PAWL_ROLLED_BACK', `Submission ${id} could not be submitted. Try again.`)
}

type Taken = Omit<SubmitAnswer, 'id'>

async function commitUnchanged(
  registry: Registry,
  tx: TxDb,
  { id, set, internal: { tenant, scope } }: StoredSubmission,
  revision: number,
): Promise<Taken | undefined> {
  const [taken] = await tx.run<Omit<Taken, 'jobId'> & { unchanged: number }>(unchangedStatement, { tenant, id, revision })
  if (taken === undefined) return undefined
  const { unchanged, ...answer } = taken
  const counts = { created: 0, updated: 0, unchanged, deleted: 0 }
  const committed = { tenant, set, scope, submission: id, number: answer.number, counts, changed: [] }
  await commitEvents(tx, setOf(registry, set).events, committed)
  return { ...answer, jobId: null }
}

async function take(
  registry: Registry,
  tx: TxDb,
  { id, set, internal: { tenant } }: StoredSubmission,
  { state, revision }: { readonly state: string; readonly revision: number },
): Promise<Taken | undefined> {
  const { events, retry, keepMs, chunkRows } = setOf(registry, set)
  const payload: ApplyPayload = { submission: id, events, retry, keepMs: keepMs.ended, chunkRows }
  const { id: jobId } = await registry.jobs(tenant).enqueue(applyKind, payload, { tx })
  const [taken] = await tx.run<Omit<Taken, 'jobId'>>(submitStatement, { tenant, id, state, revision, job_id: jobId })
  if (probe.on && taken !== undefined) await probe.hit('records.submit.written', { id })
  return taken && { ...taken, jobId }
}

function revisionConflict(id: string, expected: number, actual: number): PawlError {
  return new PawlError(
    'PAWL_REVISION_CONFLICT',
    `Submission ${id} is at revision ${actual}, not ${expected}: it has changed. Read it again and retry with the new revision.`,
    { details: { id, expected, actual } },
  )
}

function superseded(id: string, baseline: number, revision: number): PawlError {
  return new PawlError(
    'PAWL_SUPERSEDED',
    `Submission ${id} was compared with revision ${baseline} of its scope, which is now at ${revision}: its preview no longer shows what would be applied. Rebase it, or upload the file again.`,
    { details: { id, baseline, revision } },
  )
}
