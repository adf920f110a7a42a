// The apply of a submission: a job. Chunks of versions that no reader sees, each with its progress in one fenced transaction; then the
// commit, which moves one number. A crash anywhere leaves chunks that are there or not; the next attempt continues after them.

import { classify } from '../db/classify.ts'
import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { describeError, isPawlError, NonRetryable } from '../errors.ts'
import type { Job, JobContext } from '../jobs/types.ts'
import { probe } from '../kernel/probe.ts'
import { backoffMs, read } from '../kernel/retry.ts'
import { commitEvents, inert, lockScope, wholeMs } from './commit.ts'
import { fail } from './fail.ts'
import type { DefinedSet, Registry } from './sets.ts'
import { readSubmission, type StoredSubmission } from './submissions.ts'
import type { FailureClass } from './types.ts'

const chunkEndStatement = statement(import.meta.url, 'chunk-end')
const applyChunkStatement = statement(import.meta.url, 'apply-chunk')
const commitStatement = statement(import.meta.url, 'commit')
const noteFailureStatement = statement(import.meta.url, 'note-failure')

export const applyKind = 'pawl.records.apply'

/** As the set said when it was submitted: the process that applies it may not define the set. */
export interface ApplyPayload extends Pick<DefinedSet, 'events' | 'retry' | 'chunkRows'> {
  readonly submission: string
  readonly keepMs: number
}

export async function apply(registry: Registry, job: Job<ApplyPayload>, context: JobContext): Promise<unknown> {
  const submission = await readSubmission(registry, job.tenant, job.payload.submission)
  // Not ours: it has ended, or was resumed under another job.
  if (submission?.state !== 'submitting' || submission.jobId !== job.id) return { state: submission?.state ?? 'gone' }
  try {
    await applyChunks(registry, job, context, submission)
    return await commit(registry, job, submission)
  } catch (error) {
    return failed(registry, job, submission, error)
  }
}

async function applyChunks(
  registry: Registry,
  job: Job<ApplyPayload>,
  context: JobContext,
  { id, number, progress, internal }: StoredSubmission,
): Promise<void> {
  const { tenant } = job
  const its = { tenant, id, scope_id: internal.scopeId, number, schema_version: internal.schemaVersion }
  for (let after = internal.appliedLine; ; ) {
    context.signal.throwIfAborted()
    const next = { tenant, id, after, limit: job.payload.chunkRows }
    const [end] = await read<{ line: string | null }>(registry.pool, chunkEndStatement, next)
    if (end!.line === null) return
    const upto = end!.line
    if (probe.on) await probe.hit('records.apply.before', { id, after })
    const write = async (tx: TxDb) => {
      await job.guard(tx)
      const [row] = await tx.run<{ applied: string }>(applyChunkStatement, { ...its, after, upto })
      if (row === undefined) throw new Error(`Submission ${id} is no longer at line ${after}.`)
      if (probe.on) await probe.hit('records.apply.written', { id, upto })
      return Number(row.applied)
    }
    const applied = await registry.pool.transaction(write, inert)
    after = upto
    if (probe.on) await probe.hit('records.apply.chunk', { id, applied, of: progress.of })
  }
}

async function commit(registry: Registry, job: Job<ApplyPayload>, submission: StoredSubmission): Promise<unknown> {
  const { tenant } = job
  const { id, set, counts, internal } = submission
  const number = submission.number!
  const answer = { state: 'submitted', number }
  if (probe.on) await probe.hit('records.commit.before', { id })
  const inOne = async (tx: TxDb) => {
    await job.guard(tx)
    await lockScope(tx, tenant, internal.scopeId)
    const [row] = await tx.run(commitStatement, { tenant, id, number })
    if (row === undefined) throw new Error(`Submission ${id} is no longer submitting under number ${number}.`)
    const { created, updated, unchanged, deleted } = counts
    const changes = { counts: { created, updated, unchanged, deleted }, changed: 'staged' } as const
    await commitEvents(tx, job.payload.events, { tenant, set, scope: internal.scope, submission: id, number, ...changes })
    await job.complete(tx, answer)
    if (probe.on) await probe.hit('records.commit.written', { id })
  }
  // An event for each record is written in it too, if they are wanted.
  await registry.pool.transaction(inOne, { statementMs: wholeMs })
  registry.ends.wake()
  registry.sweep.wake()
  if (probe.on) await probe.hit('records.commit.after', { id })
  return answer
}

const notOurs = ['PAWL_CANCELLED', 'PAWL_TIMED_OUT', 'PAWL_STOPPED'] as const

/** Try again later, or give up: purge what was written, then free the slot. After a lost lease another process decides. */
async function failed(
  registry: Registry,
  job: Job<ApplyPayload>,
  submission: StoredSubmission,
  error: unknown,
): Promise<unknown> {
  const kind = classify(error)
  if (kind === 'fenced' || kind === 'unwritable' || notOurs.some((code) => isPawlError(error, code))) throw error
  const { tenant, payload } = job
  const { id, number } = submission
  const failureClass = failureClassOf(error)
  const text = describeError(error, 2000)
  const [noted] = await registry.pool.transaction(async (tx) => {
    await job.guard(tx)
    const values = { tenant, id, number, failure_class: failureClass, error: text }
    return tx.run<{ failures: number }>(noteFailureStatement, values)
  })
  // It has ended since: by this job's own commit, whose answer was lost.
  if (noted === undefined) return { state: 'ended' }
  if (failureClass !== 'permanent' && noted.failures < payload.retry.attempts)
    return job.snooze(Math.max(1, backoffMs({ factor: 2, ...payload.retry }, noted.failures)))
  await fail(registry, submission, {
    failureClass,
    error: text,
    keepMs: payload.keepMs,
    events: payload.events,
    hold: (tx) => job.guard(tx),
    finish: (tx) => job.complete(tx, { state: 'failed' }),
  })
  return { state: 'failed' }
}

function failureClassOf(error: unknown): FailureClass {
  const kind = classify(error)
  if (error instanceof NonRetryable || kind === 'permanent') return 'permanent'
  const isTransient = kind === 'transient' || kind === 'connection' || kind === 'replan'
  return isTransient || isPawlError(error, 'PAWL_COMMIT_UNKNOWN') ? 'transient' : 'unknown'
}
