// Giving a submission up. Its versions are purged, last chunk first, while it still holds its slot: a later number that commits would make
// them visible. Only then is the slot free.

import type { AnyTx } from '../db/adapters.ts'
import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { read, retryingCall } from '../kernel/retry.ts'
import { failureEvent, lockScope } from './commit.ts'
import { type DefinedSet, keepDefaults, type Registry } from './sets.ts'
import { expired, needSubmission, readSubmission, type StoredSubmission, wrongState } from './submissions.ts'
import type { CancelSubmissionOptions, FailureClass, SubmissionState } from './types.ts'

const purgeStartStatement = statement(import.meta.url, 'purge-start')
const purgeChunkStatement = statement(import.meta.url, 'purge-chunk')
const failStatement = statement(import.meta.url, 'submission-fail')
const jobLockStatement = statement(import.meta.url, 'job-lock')
const cancelStatement = statement(import.meta.url, 'cancel')
const cancelJobStatement = statement(import.meta.url, 'cancel-job')

const chunkRows = 5000
/** How long a cancel waits for another process that is purging the submission. */
const purgeMs = 60_000

export interface Failing {
  readonly failureClass: FailureClass
  readonly error: string
  readonly keepMs: number
  readonly events: DefinedSet['events']
  /** First in each transaction: locks the job, so that no other process works on the submission until the transaction ends. */
  readonly hold: (tx: TxDb) => Promise<void>
  /** Last, in the transaction that frees the slot. */
  readonly finish: (tx: TxDb) => Promise<void>
}

/** Thrown where another process has ended the submission, or its job is alive again. */
class Overtaken extends Error {
  override readonly name = 'Overtaken'
}

/** false: another process has ended the submission, or goes on with it. */
export async function fail(registry: Registry, submission: StoredSubmission, failing: Failing): Promise<boolean> {
  try {
    const hasFailed = await purgeAndFail(registry, submission, failing)
    registry.ends.wake()
    return hasFailed
  } catch (error) {
    if (error instanceof Overtaken) return false
    throw error
  }
}

async function purgeAndFail(registry: Registry, submission: StoredSubmission, failing: Failing): Promise<boolean> {
  const { id, set, number, internal } = submission
  const { tenant, scopeId, scope } = internal
  const now = await readSubmission(registry, tenant, id)
  if (now === undefined) return false
  let from = now.internal.appliedLine
  while (from !== '0') {
    const [start] = await read<{ line: string }>(registry.pool, purgeStartStatement, { tenant, id, from, limit: chunkRows })
    const downto = start!.line
    const values = { tenant, id, scope_id: scopeId, number, from, downto }
    from = await registry.pool.transaction(async (tx) => {
      await failing.hold(tx)
      const [purged] = await tx.run<{ applied_line: string }>(purgeChunkStatement, values)
      // Ended and resumed since, it has the same records under another number: the deleted rows must come back.
      if (purged === undefined) throw new Overtaken()
      return purged.applied_line
    })
    if (probe.on) await probe.hit('records.purge.chunk', { id, from })
  }
  return registry.pool.transaction(async (tx) => {
    await failing.hold(tx)
    await lockScope(tx, tenant, scopeId)
    const { failureClass, error, keepMs } = failing
    const [failed] = await tx.run(failStatement, { tenant, id, number, failure_class: failureClass, error, keep_ms: keepMs })
    if (failed === undefined) return notFailed(registry, submission)
    await failureEvent(tx, failing.events, { tenant, set, scope, submission: id, failureClass, error })
    await failing.finish(tx)
    if (probe.on) await probe.hit('records.fail.written', { id })
    return true
  })
}

/** Another process has ended it; or it keeps its slot, because a later commit would show the versions that are left. */
async function notFailed(registry: Registry, { id, number, internal }: StoredSubmission): Promise<false> {
  const now = await readSubmission(registry, internal.tenant, id)
  if (now?.state !== 'submitting' || now.number !== number) return false
  throw new Error(
    `Submission ${id} has written versions that its staged rows no longer name, so they cannot be undone and its scope stays busy. Staged rows were removed by hand: restore them from a backup, or delete the versions of number ${number} of its scope and set applied_created, applied_updated and applied_deleted to 0.`,
  )
}

/** Ends the holder of the slot first if its job is dead or gone. Not in a caller's transaction, which holds the scope. */
export async function freeingSlot<Answer>(
  registry: Registry,
  tenant: string,
  tx: AnyTx | undefined,
  attempt: () => Promise<Answer>,
): Promise<Answer> {
  try {
    return await attempt()
  } catch (error) {
    if (tx !== undefined || !isPawlError(error, 'PAWL_SCOPE_BUSY')) throw error
    const { holder, jobState } = error.details
    if (jobState !== 'dead' && jobState !== 'gone') throw error
    await failDead(registry, tenant, String(holder)).catch((cause: unknown) => {
      throw new PawlError('PAWL_SCOPE_BUSY', `${error.message} It cannot be ended: ${String(cause)}`, {
        cause,
        details: error.details,
      })
    })
    return attempt()
  }
}

/** For a submission whose job died or was cancelled. Does nothing while the job lives. */
export async function failDead(registry: Registry, tenant: string, id: string): Promise<boolean> {
  const submission = await readSubmission(registry, tenant, id)
  if (submission?.state !== 'submitting') return false
  const jobId = submission.jobId!
  const hold = async (tx: TxDb) => {
    const [job] = await tx.run<{ state: string }>(jobLockStatement, { tenant, job_id: jobId })
    if (job!.state !== 'dead' && job!.state !== 'gone') throw new Overtaken()
  }
  // A dead job beside the failed submission would be a second alert for one failure.
  const finish = async (tx: TxDb) => {
    await tx.run(cancelJobStatement, { tenant, job_id: jobId, reason: `submission ${id} failed` })
  }
  const { failureClass, error } =
    submission.failureClass === 'cancelled'
      ? { failureClass: 'cancelled' as const, error: submission.error! }
      : { failureClass: 'unknown' as const, error: await endOfJob(registry, tenant, jobId) }
  return fail(registry, submission, { failureClass, error, ...rulesOf(registry, submission), hold, finish })
}

async function endOfJob(registry: Registry, tenant: string, jobId: string): Promise<string> {
  const job = await registry.jobs(tenant).get(jobId)
  return `Its job ended without finishing it: ${job?.lastError ?? 'it was cancelled'}`
}

/** Of its set, or the defaults where this process does not define the set. */
function rulesOf({ sets }: Registry, { set }: StoredSubmission): Pick<Failing, 'keepMs' | 'events'> {
  const defined = sets.get(set)
  return { keepMs: defined?.keepMs.ended ?? keepDefaults.ended, events: defined?.events ?? 'submission' }
}

const cancellable: readonly SubmissionState[] = ['uploading', 'validating', 'validated', 'submitting']

/** Ends a submission at the word of a person. A crash after the first transaction leaves one that the sweep ends. */
export async function cancel(registry: Registry, tenant: string, id: string, options: CancelSubmissionOptions): Promise<void> {
  for (;;) {
    const submission = await needSubmission(registry, tenant, id)
    if (submission.internal.isExpired) throw expired(id)
    if (!cancellable.includes(submission.state))
      throw wrongState(id, submission.state, 'uploading, validating, validated or submitting')
    const state = await retryingCall(() => registry.pool.transaction((tx) => cancelIn(registry, tx, submission, options)))
    // It has moved on since it was read.
    if (state === undefined) continue
    registry.ends.wake()
    const isEnding = state === 'submitting' && !(await failDead(registry, tenant, id))
    if (isEnding) await registry.ends.wait(registry, tenant, id, purgeMs, undefined)
    return
  }
}

async function cancelIn(
  registry: Registry,
  tx: TxDb,
  submission: StoredSubmission,
  { by, reason }: CancelSubmissionOptions,
): Promise<SubmissionState | undefined> {
  const { id, set, state, revision, jobId, internal } = submission
  const { tenant, scope, scopeId } = internal
  const { keepMs, events } = rulesOf(registry, submission)
  const error = `Cancelled${by ? ` by ${by}` : ''}: ${reason}`
  // The job of a submission that has moved on since has ended, and this changes nothing.
  if (state === 'submitting') await tx.run(cancelJobStatement, { tenant, job_id: jobId, reason: error })
  await lockScope(tx, tenant, scopeId)
  const values = { tenant, id, revision, error, by: by ?? null, reason, keep_ms: keepMs }
  const [row] = await tx.run<{ state: SubmissionState }>(cancelStatement, values)
  if (row?.state === 'failed')
    await failureEvent(tx, events, { tenant, set, scope, submission: id, failureClass: 'cancelled', error })
  return row?.state
}
