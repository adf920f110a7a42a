// Backoff with full jitter, and the loop that runs our own whole transaction again when the database says it may.

import { setTimeout as sleep } from 'node:timers/promises'
import type { AnyTx } from '../db/adapters.ts'
import { classify, isRetryable, markOwn, unavailable } from '../db/classify.ts'
import { type Db, dbOf, type TxDb } from '../db/db.ts'
import type { Pool } from '../db/driver.ts'
import type { Statement, Values } from '../db/statement.ts'
import type { TransactionOptions } from '../db/transaction.ts'
import { PawlError } from '../errors.ts'

export interface Backoff {
  /** Delay before the first retry. */
  readonly initialMs: number
  readonly factor: number
  readonly maxMs: number
  /** true: anything from 0 to the computed delay (full jitter). false: exactly the computed delay. */
  readonly jitter: boolean
}

/** The delay before retry number `retry` (1 is the first). */
export function backoffMs(backoff: Backoff, retry: number, random: () => number = Math.random): number {
  const grown = Math.min(Number.MAX_VALUE, backoff.factor ** Math.min(retry - 1, 1000))
  const full = Math.min(backoff.maxMs, backoff.initialMs * grown)
  return Math.round(backoff.jitter ? full * random() : full)
}

const ours: Backoff = { initialMs: 20, factor: 2, maxMs: 2000, jitter: true }
/** A server that cannot write is given more time: hammering it does not free its disk. */
const unwritable: Backoff = { initialMs: 500, factor: 2, maxMs: 10_000, jitter: false }

export function engineBackoffMs(error: unknown, retry: number): number {
  return backoffMs(classify(error) === 'unwritable' ? unwritable : ours, retry)
}

/** Runs our own whole transaction until it succeeds, fails for good, or has been tried `triesMax` times. Never the caller's. */
export async function retrying<T>(
  work: () => Promise<T>,
  options: { triesMax?: number; signal?: AbortSignal; onRetry?: (error: unknown) => void } = {},
): Promise<T> {
  const { triesMax = 5, signal, onRetry } = options
  for (let tried = 1; ; tried++) {
    try {
      return await work()
    } catch (error) {
      if (tried >= triesMax || !isRetryable(error) || signal?.aborted) throw markOwn(error)
      onRetry?.(error)
      await sleep(engineBackoffMs(error, tried), undefined, signal ? { signal } : {})
    }
  }
}

/** The same for a call of the application. An error of a database that cannot be reached, or has no schema of ours, says so in one sentence. */
export async function retryingCall<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await retrying(work)
  } catch (error) {
    throw unavailable(error)
  }
}

/** A statement that may be repeated, for a call of the application. */
export function read<Row>(db: Db, statement: Statement, values?: Values): Promise<Row[]> {
  return retryingCall(() => db.run<Row>(statement, values))
}

/** In the caller's transaction, or in one of our own that is tried again when the database says that nothing was applied. */
export async function transactIn<Answer>(
  pool: Pool,
  tx: AnyTx | undefined,
  work: (tx: TxDb) => Promise<Answer>,
  options?: TransactionOptions,
): Promise<Answer> {
  return tx === undefined ? retryingCall(() => pool.transaction(work, options)) : work(dbOf(tx))
}

/** A hook that throws, or promises an answer, has said nothing about the error: it is retried like any other, within the attempts. */
export function mayRetry(
  { when }: { readonly when: ((error: unknown) => boolean) | undefined },
  error: unknown,
  onHookError: ((thrown: unknown) => void) | undefined,
): boolean {
  try {
    const answer: unknown = when?.(error)
    if (typeof (answer as { then?: unknown } | undefined | null)?.then !== 'function') return answer !== false
    Promise.resolve(answer).catch(() => undefined)
    throw new PawlError(
      'PAWL_CONFIG',
      'retry.when must return true or false synchronously, got a promise. Decide in the handler instead, and throw NonRetryable there.',
    )
  } catch (thrown) {
    onHookError?.(thrown)
    return true
  }
}
