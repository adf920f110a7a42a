// What the answer or the error of a handler means for its job.

import { classify, isOwn, sqlState } from '../db/classify.ts'
import { describeError, isPawlError, PawlError } from '../errors.ts'
import { toJson } from '../kernel/payload.ts'
import type { Attempt } from './attempt.ts'
import { retryDelayMs } from './kinds.ts'

/** How long a job waits whose handler met a database of ours that cannot write or cannot be reached. */
const unwritableDelayMs = 5000
/** How often in a row it waits so. After that it is the job's own doing: a handler can make its transaction read-only, or end its session. */
const waitsMax = 10
/** How many jobs are remembered that wait so. */
const waitingJobsMax = 1000
/** How long a job waits whose payload only a newer release can read. */
const newerDelayMs = 5000
/** How long a job waits whose capability's row is locked by a transaction that may end it. */
const busyDelayMs = 1000

/** It is not put off: a handler that works on after a dropped snooze would repeat its effects without a limit of attempts. */
const snoozeDropped = 'job.snooze() was called, but the handler did not return its value. Write return job.snooze(...).'

/** A handler's doing: its session idled or took too long in its transaction. */
const handlersStates: readonly (string | undefined)[] = ['25P03', '25P04']

/** What a handler returns, or throws, to run again later without using up an attempt. Made by `job.snooze('5m')`. */
export class Snooze {
  readonly delayMs: number

  constructor(delayMs: number) {
    this.delayMs = delayMs
  }
}

export type FailedOutcome = 'failed' | 'timed out' | 'snoozed' | 'released' | 'invalid'

export interface Ending {
  readonly attempt: Attempt
  /** JSON string of the result of a job that is done. */
  readonly result: string | null
  readonly failed?: { readonly outcome: FailedOutcome; readonly delayMs: number | undefined; readonly error: string | null }
  /** In place of an end that PostgreSQL refused to store. */
  readonly isStandIn?: true
}

/**
 * 'settled', 'snoozed': the handler's own transaction stored it. 'late': the attempt had an end before, or its fence is not ours any more. 'stopped':
 * the same, and the handler wrote nothing.
 */
export type RunEnd = Ending | 'settled' | 'snoozed' | 'late' | 'stopped'

export function failed(
  attempt: Attempt,
  outcome: FailedOutcome,
  delayMs: number | undefined,
  error: string | null = null,
): Ending {
  return { attempt, result: null, failed: { outcome, delayMs, error } }
}

/** The end that a handler's answer means. */
export function endOf(attempt: Attempt, result: unknown): Ending {
  if (result instanceof Snooze) return failed(attempt, 'snoozed', Math.max(1, result.delayMs))
  if (attempt.call?.snoozeCalled) return failedEnd(attempt, new Error(snoozeDropped))
  if (result === undefined) return { attempt, result: null }
  try {
    return { attempt, result: resultJson(attempt, result) }
  } catch (error) {
    return failedEnd(attempt, error)
  }
}

/** Errors of results that cannot be stored. Running again would repeat the job's effects outside and end with the same result. */
const unstorable = new WeakSet<object>()

export function resultJson({ kind, runtime }: Attempt, result: unknown): string {
  try {
    return toJson(result, `The result of '${kind}': result`, runtime.limits)
  } catch (error) {
    unstorable.add(error as Error)
    throw error
  }
}

export function failedEnd(attempt: Attempt, error: unknown): Ending {
  if (error instanceof Snooze) return endOf(attempt, error)
  if (attempt.definition.settleWith !== undefined) {
    const said = detailOf(error) ?? detailOf((error as Error | null | undefined)?.cause)
    // A capability's row that has ended stays so: its settle refuses this end, and keeps the evidence.
    if (said === 'pawl: ended') return { attempt, result: null }
    if (said === 'pawl: busy') return failed(attempt, 'snoozed', busyDelayMs)
  }
  // It was told to stop, and did: whatever it throws from then on, a deploy uses up no attempt.
  if (attempt.abortReason?.code === 'PAWL_STOPPED') return releasedEnd(attempt)
  const { waits } = attempt.runtime
  const key = `${attempt.tenant} ${attempt.id}`
  const waited = waits.get(key) ?? 0
  waits.delete(key)
  // A full disk, a read-only server or one that is away is not the job's failure: it waits, without an attempt used up.
  if (!isUnwritable(error) || waited >= waitsMax) return failure(attempt, 'failed', error, describeError(error))
  if (waits.size >= waitingJobsMax) waits.delete(waits.keys().next().value!)
  waits.set(key, waited + 1)
  return failed(attempt, 'snoozed', unwritableDelayMs, describeError(error))
}

/** What complete and guard of a capability say with their error. */
function detailOf(error: unknown): unknown {
  return (error as { detail?: unknown } | null | undefined)?.detail
}

/** An error of the kind's own `retry.when` is kept beside the error: nothing else would report it. */
export function failure(attempt: Attempt, outcome: FailedOutcome, error: unknown, description: string): Ending {
  if (unstorable.has(error as object)) return failed(attempt, outcome, undefined, description)
  let said = description
  const delayMs = retryDelayMs(attempt.definition, attempt.row, error, (thrown) => {
    said += `\nretry.when failed too, so this error counts as retryable: ${describeError(thrown, 1000)}`
  })
  return failed(attempt, outcome, delayMs, said)
}

export function timedOutEnd(attempt: Attempt): Ending {
  const { timeoutMs } = attempt.definition
  const error = new PawlError('PAWL_TIMED_OUT', `The attempt ran longer than its timeout of ${timeoutMs} ms.`)
  return failure(attempt, 'timed out', error, error.message)
}

/** Nothing of it was applied: given back, without an attempt used up. */
export function releasedEnd(attempt: Attempt, delayMs = 0): Ending {
  return failed(attempt, 'released', delayMs)
}

/** A payload that is newer than this release is not wrong: it waits for a worker of the newer one, which is being deployed. */
export function invalidEnd(attempt: Attempt, error: unknown): Ending {
  const isNewer = attempt.row.payload_version > attempt.definition.payloadVersion
  return failed(attempt, isNewer ? 'snoozed' : 'invalid', isNewer ? newerDelayMs : undefined, describeError(error))
}

/** A handler that stops because its signal fired has written nothing: there is nothing to refuse. A statement on its ended transaction is a write. */
export function lateEnd(attempt: Attempt, error: unknown): 'late' | 'stopped' {
  return isReason(attempt, error) && !isOwn(error) ? 'stopped' : 'late'
}

/** Whether it is why the attempt was aborted, or what a library made of it: AbortError has the signal's reason as its cause. */
export function isReason({ abortReason }: Attempt, error: unknown): boolean {
  return abortReason !== undefined && (error === abortReason || (error instanceof Error && error.cause === abortReason))
}

/** Of a connection of ours: the database cannot write, cannot be reached, or was lost before a commit was answered. */
function isUnwritable(error: unknown): boolean {
  if (!isOwn(error)) return false
  const isUnanswered = isPawlError(error, 'PAWL_COMMIT_UNKNOWN') || isPawlError(error, 'PAWL_ROLLED_BACK')
  const kind = classify(isUnanswered ? error.cause : error)
  return kind === 'unwritable' || (kind === 'connection' && !handlersStates.includes(sqlState(error)))
}
