// Giving a submission up. What it wrote is purged, last chunk first, while it still holds its slot: a later number that commits would make
// those versions visible. Only then is the slot free.

import type { AnyTx } from '../db/adapters.ts'
import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { read } from '../kernel/retry.ts'
import { failureEvent, lockScope } from './commit.ts'
import { type DefinedSet, keepDefaults, type Registry } from './sets.ts'
import { readSubmission, type StoredSubmission } from './submissions.ts'
import type { FailureClass } from './types.ts'

const purgeStartStatement = statement(import.meta.url, 'purge-start')
const purgeChunkStatement = statement(import.meta.url, 'purge-chunk')
const failStatement = statement(import.meta.url, 'submission-fail')
const jobLockStatement = statement(import.meta.url, 'job-lock')

const chunkRows = 5000

export interface Failing {
  readonly failureClass: FailureClass
  readonly error: string
  readonly keepMs: number
  readonly events: DefinedSet['events']
  /** First in each transaction: makes sure that nobody else works on it, and keeps it so until the end of the transaction. */
  readonly hold: (tx: TxDb) => Promise<void>
  /** Last, in the transaction that frees the slot. */
  readonly finish: (tx: TxDb) => Promise<void>
}

/** Thrown where what was taken for ours is not any more: the job is alive again, or somebody else has ended the submission. */
class Overtaken extends Error {
  override readonly name = 'Overtaken'
}

/** false: somebody else has ended it, or goes on with it. */
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
      // It may have been ended and resumed meanwhile, with the same records under another number: what was deleted must come back.
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

/** Somebody else has ended it; or it keeps its slot, because a later commit would show what could not be taken back. */
async function notFailed(registry: Registry, { id, number, internal }: StoredSubmission): Promise<false> {
  const now = await readSubmission(registry, internal.tenant, id)
  if (now?.state !== 'submitting' || now.number !== number) return false
  throw new Error(
    `Submission ${id} has written versions that its staged rows no longer name, so they cannot be undone and its scope stays busy. Staged rows were removed by hand: restore them from a backup, or delete the versions of number ${number} of its scope and set applied_created, applied_updated and applied_deleted to 0.`,
  )
}

/** Whoever finds the slot taken by a submission whose job is dead or gone ends that first. Not in a caller's transaction, which holds the scope. */
export async function freeingSlot<Answer>(
  registry: Registry,
  tenant: string,
  tx: AnyTx | undefined,
  attempt: () => Promise<Answer>,
): Promise<Answer> {
  try {
    return await attempt()
  } catch (error) {
    if (tx !== undefined || !isPawlError(error, 'PAWL_SCOPE_BUSY') || !isOrphaned(error.details)) throw error
    await failDead(registry, tenant, String(error.details.holder)).catch((cause: unknown) => {
      throw new PawlError('PAWL_SCOPE_BUSY', `${error.message} It cannot be ended: ${String(cause)}`, {
        cause,
        details: error.details,
      })
    })
    return attempt()
  }
}

function isOrphaned({ jobState }: Readonly<Record<string, unknown>>): boolean {
  return jobState === 'dead' || jobState === 'gone'
}

/** For a submission whose job died or was cancelled without a last word. Does nothing while the job lives. */
export async function failDead(registry: Registry, tenant: string, id: string): Promise<boolean> {
  const submission = await readSubmission(registry, tenant, id)
  if (submission?.state !== 'submitting') return false
  const jobId = submission.jobId!
  let isDead = false
  const hold = async (tx: TxDb) => {
    const [job] = await tx.run<{ state: string }>(jobLockStatement, { tenant, job_id: jobId })
    if (job !== undefined && job.state !== 'dead') throw new Overtaken()
    isDead = job !== undefined
  }
  const set = registry.sets.get(submission.set)
  const job = await registry.jobs(tenant).get(jobId)
  const error = `Its job ended without finishing it: ${job?.lastError ?? 'it was cancelled'}`
  const failing: Failing = {
    failureClass: 'unknown',
    error,
    keepMs: set?.keepMs.ended ?? keepDefaults.ended,
    events: set?.events ?? 'submission',
    hold,
    // The submission says it all from here on; a dead job beside it would be a second alert for one failure.
    finish: async (tx) => {
      if (isDead) await registry.jobs(tenant).cancel(jobId, { tx, reason: `submission ${id} failed` })
    },
  }
  return fail(registry, submission, failing)
}
