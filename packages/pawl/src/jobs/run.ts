// Runs one attempt: reads the payload, calls the handler, and gives the attempt its end. The two shapes of handler differ only in the commit: a
// `run` handler's job is settled with others afterwards, a `tx` handler's inside its own transaction.

import { setTimeout as sleep } from 'node:timers/promises'
import { calls } from '../db/calls.ts'
import { classify, type ErrorClass, isConflict, isOwn, isRetryable, sqlState } from '../db/classify.ts'
import type { PoolClient } from '../db/client.ts'
import { statement } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { describeError, isPawlError } from '../errors.ts'
import { insideTx, runAs } from '../kernel/handler.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { type Attempt, leaseLost } from './attempt.ts'
import { Call } from './call.ts'
import {
  type Ending,
  endOf,
  failedEnd,
  failure,
  invalidEnd,
  isReason,
  lateEnd,
  type RunEnd,
  releasedEnd,
  Snooze,
} from './endings.ts'
import { fateOf } from './reconcile.ts'
import { levelSql } from './tx/handler-transactions.ts'

const completeStatement = statement(import.meta.url, 'complete', 'any')
const snoozeStatement = statement(import.meta.url, 'snooze', 'any')
const completedStatement = statement(import.meta.url, 'assert-completed', 'any')

/** How often our own transaction is tried within an attempt. */
const triesMax = 4

// Not async, and few awaits below: a job of no work costs little more than its promises.
export function runAttempt(attempt: Attempt): Promise<void> {
  return run(attempt).then(
    (end) => attempt.finish(end),
    // Nothing should throw there; if it does, the attempt is failed rather than forgotten.
    (error: unknown) => attempt.finish(failure(attempt, 'failed', error, describeError(error))),
  )
}

function run(attempt: Attempt): Promise<RunEnd> {
  const start = attempt.definition.tx === undefined ? runFree : runTx
  try {
    const call = new Call(attempt)
    const reading = call.read()
    if (reading === undefined) return start(attempt, call)
    return reading.then(
      () => start(attempt, call),
      (error: unknown) => invalidEnd(attempt, error),
    )
  } catch (error) {
    return Promise.resolve(invalidEnd(attempt, error))
  }
}

async function runFree(attempt: Attempt, call: Call): Promise<RunEnd> {
  const { context } = call
  try {
    if (probe.on) await probe.hit('jobs.run.before', attempt)
    const result = await runAs(attempt.tenant, () => attempt.definition.run!(call as never, context))
    if (probe.on) await probe.hit('jobs.run.after', attempt)
    if (!context.isQuiet) await context.flush()
    if (attempt.isEnded) return 'late'
    return call.completedIn === undefined ? endOf(attempt, result) : await completedEnd(attempt, undefined, result)
  } catch (error) {
    if (kindOf(error) === 'unwritable') attempt.runtime.process.trouble(error)
    await context.flush()
    if (attempt.isEnded) return lateEnd(attempt, error)
    return call.completedIn === undefined ? failedEnd(attempt, error) : completedEnd(attempt, error)
  }
}

/** After job.complete(tx): only the history knows whether that transaction committed. If it did not, a handler may know and snooze. */
async function completedEnd(attempt: Attempt, error: unknown, result?: unknown): Promise<RunEnd> {
  if ((await fateOf(attempt)) === 'done') {
    // The job is done, so this is no failed attempt, and nothing else would report it.
    if (error !== undefined)
      attempt.runtime.process.config.logger.error(
        { ...attempt.named, error: describeError(error) },
        'the handler threw after job.complete(tx) had committed; the job is done',
      )
    return 'settled'
  }
  if (result instanceof Snooze) return endOf(attempt, result)
  return failedEnd(
    attempt,
    error ?? new Error('job.complete(tx) was called, but its transaction did not commit before the handler returned.'),
  )
}

/** Our own whole transaction may run again within the attempt when the database says so: nothing of it was applied. */
async function runTx(attempt: Attempt, first: Call): Promise<RunEnd> {
  const { transactions } = attempt.runtime
  let call = first
  // Above READ COMMITTED, a touch that is stored beside the transaction conflicts with the transaction's own completion.
  let isSerialized = false
  for (let tried = 1; ; tried++) {
    let client: PoolClient
    try {
      client = await transactions.connect([attempt])
    } catch (error) {
      if (attempt.isEnded) return 'stopped'
      return tried === 1 && isRetryable(error) ? releasedEnd(attempt) : failedEnd(attempt, error)
    }
    // The wait for a connection may have been long: an attempt that was ended or aborted by now does not start.
    if (attempt.isEnded || attempt.abortReason !== undefined) {
      client.release()
      if (attempt.isEnded) return 'stopped'
      return foundRefused(attempt) ? fencedEnd(attempt, attempt.abortReason) : releasedEnd(attempt)
    }
    try {
      return await tryTx(attempt, call, client)
    } catch (error) {
      const end = await triedEnd(attempt, error, tried)
      if (end !== undefined) return end
      isSerialized ||= sqlState(error) === '40001'
      await sleep(engineBackoffMs(error, tried))
      if (attempt.isEnded) return 'late'
      call = new Call(attempt, isSerialized)
      try {
        await call.read()
      } catch (invalid) {
        return invalidEnd(attempt, invalid)
      }
    }
  }
}

/** Undefined: the transaction may be tried again. */
async function triedEnd(attempt: Attempt, error: unknown, tried: number): Promise<RunEnd | undefined> {
  const kind = kindOf(error)
  if (kind === 'unwritable' || (kind === 'transient' && isConflict(error))) attempt.runtime.process.trouble(error)
  if (attempt.isEnded) return lateEnd(attempt, error)
  if (wasCut(attempt, error, kind)) return releasedEnd(attempt)
  if (kind === 'fenced') return fencedEnd(attempt, error)
  if (foundRefused(attempt)) return fencedEnd(attempt, kind === 'connection' ? attempt.abortReason : error)
  // Never run again blindly: unless history has it, it waits, which is written under the fence; a commit that comes later is refused by that.
  if (isOwn(error) && isPawlError(error, 'PAWL_COMMIT_UNKNOWN'))
    return (await fateOf(attempt)) === 'done' ? 'settled' : failedEnd(attempt, error)
  const mayRepeat = kind === 'transient' || kind === 'connection' || kind === 'replan'
  return tried < triesMax && mayRepeat ? undefined : failedEnd(attempt, error)
}

async function tryTx(attempt: Attempt, call: Call, client: PoolClient): Promise<RunEnd> {
  const { transactions } = attempt.runtime
  const { context } = call
  const tx = transactions.begin(client)
  attempt.tx = tx
  tx[calls].onLate = () => warnLate(attempt)
  try {
    if (probe.on) await probe.hit('jobs.tx.begun', attempt)
    const handle = () => attempt.definition.tx!(call as never, tx, context)
    const result = await insideTx.run(attempt, () => runAs(attempt.tenant, handle))
    if (tx[calls].areOpen) await tx[calls].quiet()
    if (probe.on) await probe.hit('jobs.tx.handled', attempt)
    if (attempt.isEnded) throw leaseLost(attempt.row)
    const end = endOf(attempt, result)
    if (end.failed !== undefined && (end.failed.outcome !== 'snoozed' || call.completedIn !== undefined)) {
      await tx.rollback()
      return end
    }
    await context.quiet()
    if (probe.on) await probe.hit('jobs.tx.before_commit', attempt)
    await commit(attempt, tx, end)
    if (probe.on) await probe.hit('jobs.tx.after_commit', attempt)
    return end.failed === undefined ? 'settled' : 'snoozed'
  } catch (error) {
    await tx.rollback()
    // The row is free again.
    await context.flush()
    throw error
  } finally {
    attempt.tx = undefined
    transactions.end(tx)
  }
}

/** The job's end travels with the commit. */
function commit(attempt: Attempt, tx: Transaction, { failed, result }: Ending): Promise<void> {
  const { tenant, id, fence, unstored: progress, isReplicated } = attempt
  const key = { tenant, id, fence }
  // At the commit, so that a handler may still choose the isolation. A pool's sessions are durable already; through a pooler each must ask.
  const level = isReplicated ? 'replicated' : attempt.runtime.transactions.isNamed ? undefined : 'durable'
  const settings = level === undefined ? undefined : levelSql(level)
  if (failed !== undefined) return tx.commitWith(snoozeStatement, { ...key, delay_ms: failed.delayMs!, progress }, settings)
  if (attempt.call?.completedIn !== undefined) return tx.commitWith(completedStatement, key, settings)
  const values = { ...key, result, ran_ms: attempt.ranMs(), progress }
  const { settleWith } = attempt.definition
  if (settleWith === undefined) return tx.commitWith(completeStatement, values, settings)
  return tx.commitWith(settleWith.complete, { ...values, ...settleWith.values([attempt]) }, settings)
}

/** A statement came after the commit. It is refused, and in most cases no caller waits for the error. */
export function warnLate({ named, attempt, runtime }: Attempt): void {
  runtime.process.config.logger.error(
    { ...named, attempt },
    'a tx handler used its transaction after it had returned, and that call was refused; await every call before you return',
  )
}

/**
 * A fence was refused. 'done': our own commit came before, and its answer was lost. 'held': the fence was another job's. Otherwise this job is lost.
 */
async function fencedEnd(attempt: Attempt, error: unknown): Promise<RunEnd> {
  const fate = await fateOf(attempt)
  if (fate === 'done') return 'settled'
  if (fate === 'held') return failedEnd(attempt, error)
  attempt.refused('complete', error)
  return 'late'
}

/** What an error means to the engine. The same code from any connection but ours is the handler's failure, whatever it says. */
function kindOf(error: unknown): ErrorClass {
  return isOwn(error) ? classify(error) : 'foreign'
}

/** A call of the handler itself found that its fence is refused, and may have caught that. Only then does the abort have a cause. */
function foundRefused({ abortReason }: Attempt): boolean {
  return abortReason?.cause !== undefined
}

/** The incarnation was lost and the handler's transaction cut with it. */
function wasCut(attempt: Attempt, error: unknown, kind: ErrorClass): boolean {
  const { abortReason } = attempt
  if (abortReason === undefined || abortReason.code === 'PAWL_STOPPED' || foundRefused(attempt)) return false
  return isReason(attempt, error) || kind === 'connection'
}
