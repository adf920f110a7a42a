// Transactions and statements of ours: when they are run again, how durable they are, and how many rows travel in one.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Durability } from '../config.ts'
import type { AnyTx } from '../db/adapters.ts'
import { classify, isRetryable, markOwn, sqlState, unavailable } from '../db/classify.ts'
import { type Db, dbOf, type TxDb } from '../db/db.ts'
import type { Pool } from '../db/driver.ts'
import { type Statement, statement, type Values } from '../db/statement.ts'
import type { TransactionOptions } from '../db/transaction.ts'
import { isPawlError, PawlError } from '../errors.ts'

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

// ---- writes that must not be sent twice

// Writes of our own that are not idempotent: sent again only while it is certain that nothing was stored.

/** What failed before it was sent, or was refused as a whole, may be sent again; a lost answer may not: it would be there twice. */
export async function retryingDefinite<T>(work: () => Promise<T>): Promise<T> {
  return retryingCall(async () => {
    try {
      return await work()
    } catch (error) {
      if (classify(error) === 'connection' && !isBeforeSending(error)) throw answerLost(error)
      throw error
    }
  })
}

/** For what `retryingDefinite` gave up on. */
export function answerLost(error: unknown): unknown {
  if (isBeforeSending(error)) return unavailable(error)
  return markOwn(
    new PawlError(
      'PAWL_COMMIT_UNKNOWN',
      'The connection broke before the server answered, so it is not known whether the write was stored. Check before you repeat it, or write in your own transaction with a once key.',
      { cause: error },
    ),
  )
}

/** For the statements of a transaction of ours: a connection that breaks before the commit is sent has stored nothing. */
async function beforeCommit<T>(work: Promise<T>): Promise<T> {
  return work.catch((error: unknown) => {
    if (classify(error) !== 'connection' || isPawlError(error, 'PAWL_UNAVAILABLE')) throw error
    throw markOwn(
      new PawlError(
        'PAWL_ROLLED_BACK',
        'The connection broke before the commit was sent, so nothing was stored. Call it again.',
        {
          cause: error,
        },
      ),
    )
  })
}

function isBeforeSending(error: unknown): boolean {
  // The two codes: of a pooler that was given a statement and got no connection to the server.
  return isPawlError(error, 'PAWL_UNAVAILABLE') || ['53300', '57P03'].includes(sqlState(error) ?? '')
}

// ---- durability

const standbyStatement = statement(import.meta.url, 'standby-names', 'any')
const durabilityStatement = statement(import.meta.url, 'set-durability', 'any')

export async function assertStandby(db: Db, askers: readonly string[] = []): Promise<void> {
  const [row] = await db.run<{ names: string }>(standbyStatement)
  if (row?.names) return
  throw new PawlError(
    'PAWL_NO_STANDBY',
    `Durability 'replicated'${askers.length === 0 ? '' : ` (of ${askers.slice(0, 5).join(', ')})`} needs a synchronous standby, but synchronous_standby_names of the server is empty. Configure a standby, or use 'durable'.`,
  )
}

/** For the commit of this transaction. A caller's is raised and never lowered. */
export async function setDurability(tx: Db, level: Durability, mayLower = false): Promise<void> {
  if (level === 'replicated') await assertStandby(tx)
  await tx.run(durabilityStatement, { level, may_lower: mayLower })
}

// ---- bulk

// Many rows in one transaction of our own: chunks that are made as they are sent, a few of them ahead of their answers, so that the length
// costs no memory and no chunk runs out of its time while it waits for those before it.

/** The server has its next chunk while the answer to the last is on its way. */
const windowChunks = 4

export function sendChunks<Chunk, Row>(
  pool: Pool,
  { durability, queryTimeoutMs }: { readonly durability: Durability; readonly queryTimeoutMs: number },
  chunks: Iterable<Chunk> | AsyncIterable<Chunk>,
  send: (tx: Db, chunk: Chunk) => Promise<Row[]>,
): Promise<Row[]> {
  const sendAll = async (tx: Db) => {
    // A pool's transactions are durable already.
    if (durability !== 'durable') await setDurability(tx, durability, true)
    return inWindow(chunks, (chunk) => send(tx, chunk))
  }
  // The driver counts the time of a chunk from when it is sent, after those that the server still works on.
  return pool.transaction((tx) => beforeCommit(sendAll(tx)), { statementMs: queryTimeoutMs * (windowChunks + 1) })
}

async function inWindow<Chunk, Row>(
  chunks: Iterable<Chunk> | AsyncIterable<Chunk>,
  send: (chunk: Chunk) => Promise<Row[]>,
): Promise<Row[]> {
  const rows: Row[] = []
  const inFlight: Promise<Row[]>[] = []
  const take = async () => {
    for (const row of await inFlight.shift()!) rows.push(row)
  }
  for await (const chunk of chunks) {
    if (inFlight.length >= windowChunks) await take()
    const sent = send(chunk)
    sent.catch(() => undefined)
    inFlight.push(sent)
  }
  while (inFlight.length > 0) await take()
  return rows
}
