// The apply of a submission: a job. Chunks of versions that nobody can see, each with its progress in one fenced transaction; then the
// commit, which moves one number. A crash anywhere leaves chunks that are there or not; the next attempt goes on behind them.

import type { Tx } from '../db/adapters.ts'
import { classify } from '../db/classify.ts'
import { statement } from '../db/statement.ts'
import { describeError, isPawlError, NonRetryable } from '../errors.ts'
import type { Job, JobContext } from '../jobs/types.ts'
import { probe } from '../kernel/probe.ts'
import { backoffMs } from '../kernel/retry.ts'
import { type RecordsCore, read, run, transact, wholeMs } from './core.ts'
import { fail } from './fail.ts'
import { commitEvents } from './record-events.ts'
import { lockScope } from './slot.ts'
import { readSubmission, type SubmissionRow } from './submissions.ts'
import type { FailureClass } from './types.ts'
import type { ApplyPayload } from './work.ts'

const chunkEndStatement = statement(import.meta.url, 'chunk-end')
const applyChunkStatement = statement(import.meta.url, 'apply-chunk')
const commitStatement = statement(import.meta.url, 'commit')
const noteFailureStatement = statement(import.meta.url, 'note-failure')

export async function apply(core: RecordsCore, job: Job<ApplyPayload>, context: JobContext): Promise<unknown> {
  const submission = await readSubmission(core, job.tenant, job.payload.submission)
  // Not ours: it has ended, or was resumed under another job.
  if (submission?.state !== 'submitting' || submission.job_id !== job.id) return { state: submission?.state ?? 'gone' }
  try {
    await applyChunks(core, job, context, submission)
    return await commit(core, job, submission)
  } catch (error) {
    return failed(core, job, submission, error)
  }
}

async function applyChunks(
  core: RecordsCore,
  job: Job<ApplyPayload>,
  context: JobContext,
  submission: SubmissionRow,
): Promise<void> {
  const { tenant } = job
  const { id } = submission
  const of = Number(submission.created) + Number(submission.updated) + Number(submission.deleted)
  let after = submission.applied_line
  for (;;) {
    context.signal.throwIfAborted()
    const [end] = await read<{ line: string | null }>(core, chunkEndStatement, {
      tenant,
      id,
      after,
      limit: job.payload.chunkRows,
    })
    if (end!.line === null) return
    const upto = end!.line
    if (probe.on) await probe.hit('records.apply.before', { id, after })
    const write = async (tx: Tx) => {
      await job.guard(tx)
      const [row] = await run<{ applied: string }>(tx, applyChunkStatement, {
        tenant,
        id,
        scope_id: submission.scope_id,
        number: submission.number,
        schema_version: submission.schema_version,
        after,
        upto,
      })
      if (row === undefined) throw new Error(`Submission ${id} is no longer at line ${after}.`)
      if (probe.on) await probe.hit('records.apply.written', { id, upto })
      return Number(row.applied)
    }
    const applied = await transact(core, write, { isInert: true })
    after = upto
    if (probe.on) await probe.hit('records.apply.chunk', { id, applied, of })
  }
}

async function commit(core: RecordsCore, job: Job<ApplyPayload>, submission: SubmissionRow): Promise<unknown> {
  const { tenant } = job
  const { id } = submission
  const answer = { state: 'submitted', number: submission.number }
  if (probe.on) await probe.hit('records.commit.before', { id })
  const inOne = async (tx: Tx) => {
    await job.guard(tx)
    await lockScope(tx, tenant, submission.scope_id)
    const [row] = await run<{
      scope: string
      revision: string
      created: string
      updated: string
      unchanged: string
      deleted: string
    }>(tx, commitStatement, {
      tenant,
      id,
      number: submission.number,
    })
    if (row === undefined) throw new Error(`Submission ${id} is no longer submitting under number ${submission.number}.`)
    await commitEvents(tx, tenant, job.payload.events, {
      set: submission.record_set,
      scope: row.scope,
      submission: id,
      number: submission.number!,
      counts: {
        created: Number(row.created),
        updated: Number(row.updated),
        unchanged: Number(row.unchanged),
        deleted: Number(row.deleted),
      },
      changed: 'staged',
    })
    await job.complete(tx, answer)
    if (probe.on) await probe.hit('records.commit.written', { id })
  }
  // An event for each record is written in it too, if they are wanted.
  await transact(core, inOne, { statementMs: wholeMs })
  core.ends.wake()
  core.sweep.wake()
  if (probe.on) await probe.hit('records.commit.after', { id })
  return answer
}

/** Try again later, or give up: purge what was written, then free the slot. A lost lease is none of our business any more. */
async function failed(core: RecordsCore, job: Job<ApplyPayload>, submission: SubmissionRow, error: unknown): Promise<unknown> {
  const kind = classify(error)
  if (
    kind === 'fenced' ||
    kind === 'unwritable' ||
    isPawlError(error, 'PAWL_CANCELLED') ||
    isPawlError(error, 'PAWL_TIMED_OUT') ||
    isPawlError(error, 'PAWL_STOPPED')
  )
    throw error
  const { tenant, payload } = job
  const failureClass = failureClassOf(error)
  const text = describeError(error, 2000)
  const [noted] = await transact(core, async (tx) => {
    await job.guard(tx)
    return run<{ failures: number }>(tx, noteFailureStatement, {
      tenant,
      id: submission.id,
      number: submission.number,
      failure_class: failureClass,
      error: text,
    })
  })
  // It has ended meanwhile: our own commit, whose answer was lost.
  if (noted === undefined) return { state: 'ended' }
  if (failureClass !== 'permanent' && noted.failures < payload.retry.attempts)
    return job.snooze(Math.max(1, backoffMs({ factor: 2, ...payload.retry }, noted.failures)))
  await fail(core, tenant, submission, {
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
  if (error instanceof NonRetryable) return 'permanent'
  if (isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) return 'transient'
  switch (classify(error)) {
    case 'transient':
    case 'connection':
    case 'replan':
      return 'transient'
    case 'permanent':
      return 'permanent'
    default:
      return 'unknown'
  }
}
