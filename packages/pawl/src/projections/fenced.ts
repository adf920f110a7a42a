// One transaction under a cursor's fence: the compare-and-set first, then the work, then the commit. Whatever fails, nothing of it is
// there; and what failed is told apart: the lease, the place, the database, or the handler.

import { setTimeout as sleep } from 'node:timers/promises'
import { calls } from '../db/calls.ts'
import { classify, isConflict, isOwn } from '../db/classify.ts'
import { Transaction } from '../db/transaction.ts'
import { caught, isPawlError, PawlError, storable } from '../errors.ts'
import { runInsideTx } from '../kernel/handler.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { cursorStatements, type HeldCursor, type Place } from './cursor.ts'
import { type Defined, foldOf } from './definition.ts'
import { tableOf } from './generations/tables.ts'
import type { Host } from './part.ts'
import type { ProjectionContext } from './types.ts'

export type FencedEnd =
  | { readonly type: 'committed' }
  /** The row was not as we thought, or the commit had no answer: reload the cursor and decide again. */
  | { readonly type: 'refused' }
  /** The database's error, not the handler's: the same again. */
  | { readonly type: 'again'; readonly error: unknown }
  | { readonly type: 'failed'; readonly error: unknown }

export interface FencedWork {
  /** Undefined: the cursor stays where it is. */
  readonly to: Place | undefined
  /** What the handler is about to apply, for messages. */
  readonly what: string
  /** Travels with the compare-and-set, and the handler waits for its answer. Without it the handler runs while the compare-and-set is in flight. */
  readonly prepare?: ((tx: Transaction) => Promise<unknown>) | undefined
  readonly handle: (tx: Transaction, context: HandlerContext) => Promise<void>
}

/** A session of a pool of ours is durable; one of a pooler is what its role or database says. */
export async function openTx({ pool, config: { durability, database } }: Host): Promise<Transaction> {
  const isDurable = durability === 'durable' && database.pooler === 'none'
  const settings = isDurable ? undefined : `select pawl.set_durability('${durability}', true)`
  const { queryTimeoutMs: statementMs } = database
  return new Transaction(await pool.connect(), { names: pool.names, path: 'users', settings, statementMs, answerMs: statementMs })
}

/** Rejects with PAWL_LEASE_LOST only. */
export async function runFenced(host: Host, cursor: HeldCursor, work: FencedWork): Promise<FencedEnd> {
  let tx: Transaction
  try {
    tx = await openTx(host)
  } catch (error) {
    return { type: 'again', error }
  }
  let error: unknown
  let isAnswered = false
  let isAbandoned = false
  const leave = host.watch(cursor.definition.name, cursor.definition.timeout)
  try {
    if (probe.on) await probe.hit('projections.batch.before', cursor)
    const holding = caught(begin(host, cursor, work, tx))
    void holding.then(
      () => (isAnswered = true),
      () => (isAnswered = true),
    )
    if (work.prepare !== undefined || probe.on) await holding
    tx[calls].onLate = () => late(host, cursor)
    const handling = { what: work.what, isLive: cursor.isLive, lost: cursor.signal }
    await callHandler(host, cursor.definition, handling, tx, async (context) => {
      try {
        await work.handle(tx, context)
        if (tx[calls].areOpen) await tx[calls].quiet()
      } finally {
        // A handler may fail because this did, and nothing commits without it.
        await holding
      }
    })
    await tx.commit()
    if (work.to !== undefined) cursor.place = work.to
    return { type: 'committed' }
  } catch (reason) {
    error = reason
    // A handler that does not end may sit in a statement: without its connection the server rolls it back.
    isAbandoned = isPawlError(error, 'PAWL_TIMED_OUT') || cursor.signal.aborted
    if (isAbandoned) tx.abandon(isPawlError(error) ? error : (cursor.signal.reason as PawlError))
    else await tx.rollback()
    // The time went by with the wait for the cursor's row.
    if (isAbandoned && !isAnswered) error = broken(error)
  } finally {
    leave()
    if (!tx.release() && !isAbandoned) error = broken(error)
  }
  return endOf(host, cursor, error)
}

/** Rejects unless the compare-and-set met its row. Only our own statements: what goes wrong here is not the handler's failure. */
async function begin(host: Host, cursor: HeldCursor, work: FencedWork, tx: Transaction): Promise<void> {
  const settings = { idle_ms: String(host.idleMs(cursor.definition.timeout)), fold: foldOf(cursor.definition) }
  const moving =
    work.to === undefined
      ? tx.run<{ is_live: boolean }>(cursorStatements.stay, { ...cursor.fencedKey, ...settings })
      : tx.run<{ is_live: boolean }>(cursorStatements.move, { ...cursor.moveTo(work.to), ...settings })
  const [moved, prepared] = await Promise.allSettled([moving, work.prepare?.(tx)])
  if (moved.status === 'rejected') throw broken(moved.reason)
  if (prepared.status === 'rejected') throw broken(prepared.reason)
  // If generations were switched since the row was read, the tables have other names now.
  if (moved.value[0]?.is_live !== cursor.isLive) throw new NotHeld()
}

/** After a timeout or a lost lease the handler is still running, and is refused by what ended it. */
function late({ config }: Host, { definition, signal }: HeldCursor): void {
  if (signal.aborted) return
  config.logger.error(
    { projection: definition.name },
    'a handler used its transaction after it had returned, and that call was refused; await every call before you return, or use tx.send',
  )
}

/** Throws PAWL_LEASE_LOST if the cursor is another's now. Asked at once: the process may hear that its lease ended before its next turn. */
async function refused(host: Host, cursor: HeldCursor): Promise<FencedEnd> {
  await cursor.reload(host.engine).catch((error: unknown) => {
    if (isPawlError(error, 'PAWL_LEASE_LOST')) throw error
  })
  return { type: 'refused' }
}

async function endOf(host: Host, cursor: HeldCursor, error: unknown): Promise<FencedEnd> {
  // This cursor's lease. One of something else, which a handler did not catch, is the handler's failure.
  if (isPawlError(error, 'PAWL_LEASE_LOST') && isOwn(error)) throw error
  // A refused write is evidence, also if the process heard before the answer that its lease has ended.
  if (error instanceof NotHeld) return refused(host, cursor)
  if (cursor.signal.aborted) throw cursor.signal.reason
  if (error instanceof Broken) return { type: 'again', error: error.cause }
  // What a handler met elsewhere, another database that cannot write or another's lease, is its failure.
  if (!isOwn(error)) return { type: 'failed', error }
  // Whether it happened is in the row, once the server has ended the transaction.
  if (isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) return refused(host, cursor)
  const kind = classify(error)
  if (kind === 'unwritable' || kind === 'replan' || isConflict(error)) return { type: 'again', error }
  return { type: 'failed', error }
}

/** The transaction could not begin, or its connection broke: whatever the handler threw then, it is not its failure. */
class Broken extends Error {}

/** The compare-and-set met no row. */
class NotHeld extends Error {}

function broken(error: unknown): unknown {
  const isTold = error instanceof Broken || isPawlError(error, 'PAWL_COMMIT_UNKNOWN')
  return isTold ? error : new Broken('the transaction broke', { cause: error })
}

export function messageOf(error: unknown): string {
  return storable(error instanceof Error ? error.message : String(error)).slice(0, 500)
}

// ---- the handler's part

export interface Handling {
  readonly what: string
  readonly isLive: boolean
  readonly lost: AbortSignal
}

/** Lends the transaction to a handler, for at most the definition's timeout: counted again from each `context.timer.refresh()`. */
export async function callHandler(
  host: Host,
  definition: Defined,
  { what, isLive, lost }: Handling,
  tx: Transaction,
  handle: (context: HandlerContext) => Promise<void>,
): Promise<void> {
  const { name, timeout: timeoutMs, isPure } = definition
  tx.lend(host.reset, host.config.database.queryTimeoutMs + timeoutMs, isPure ? name : undefined)
  const context = new HandlerContext(definition, isLive)
  if (lost.aborted) throw lost.reason
  const onLost = () => context.abort(lost.reason)
  lost.addEventListener('abort', onLost, { once: true })
  try {
    await context.race(() => runInsideTx(name, () => handle(context)), what, timeoutMs)
  } finally {
    lost.removeEventListener('abort', onLost)
  }
}

/** One call of a handler: its signal, and the wait for its end, which a timeout or a lost lease cuts short. */
export class HandlerCall {
  #controller: AbortController | undefined
  #reason: unknown
  #reject: ((reason: unknown) => void) | undefined
  /** Set while a handler may run. */
  timer: NodeJS.Timeout | undefined

  /** Created on first use: most handlers do not use it. */
  get signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.#reason !== undefined) this.#controller.abort(this.#reason)
    return this.#controller.signal
  }

  abort(reason: unknown): void {
    this.#reason = reason
    this.#controller?.abort(reason)
    this.#reject?.(reason)
  }

  async race(handle: () => PromiseLike<unknown>, what: string, timeoutMs: number): Promise<void> {
    const over = new Promise<never>((_resolve, reject) => {
      this.#reject = reject
    })
    this.timer = setTimeout(
      () => this.abort(new PawlError('PAWL_TIMED_OUT', `The handler of ${what} took longer than ${timeoutMs} ms.`)),
      timeoutMs,
    )
    try {
      await Promise.race([handle(), over])
    } finally {
      clearTimeout(this.timer)
      // A handler that continues after its timeout must not set it again.
      this.timer = undefined
    }
  }
}

/** What a handler gets besides its events and its transaction. */
export class HandlerContext extends HandlerCall implements ProjectionContext {
  readonly generation: number
  readonly isLive: boolean
  readonly #definition: Defined

  constructor(definition: Defined, isLive: boolean) {
    super()
    this.#definition = definition
    this.generation = definition.generation
    this.isLive = isLive
  }

  // Handlers take it apart, so it is given out bound.
  get table(): ProjectionContext['table'] {
    return (name) => {
      if (!this.#definition.tables.some((table) => table.name === name))
        throw new PawlError(
          'PAWL_CONFIG',
          `'${name}' is not a declared table of '${this.#definition.name}'. Add it to tables, with its key and columns.`,
        )
      return tableOf(name, this.generation, this.isLive)
    }
  }
}

/**
 * A handler that ran too long has left an open transaction: without its connection the server rolls it back, but not before it has ended the
 * statement that it is at, and until then it keeps its rows. What is to be written to those waits here, on a connection of its own.
 */
export async function whenUnlocked<T>(host: Host, stop: AbortSignal, work: (tx: Transaction) => Promise<T>): Promise<T> {
  for (let tried = 1; ; tried++) {
    try {
      return await inOneTx(host, work)
    } catch (error) {
      if (!isConflict(error) || stop.aborted) throw error
      host.trouble(error)
      await sleep(engineBackoffMs(error, tried), undefined, { signal: stop }).catch(() => undefined)
    }
  }
}

async function inOneTx<T>(host: Host, work: (tx: Transaction) => Promise<T>): Promise<T> {
  return (await openTx(host)).perform(async (tx) => {
    // Less than the connection waits for an answer: a write that was given up must not happen later.
    tx.send(`set local lock_timeout = ${Math.floor(host.config.database.queryTimeoutMs / 2)}`)
    return work(tx)
  })
}

/** Throws unless the statement affected this number of rows. Inside a projection's handler the event's key is parked with this as its reason. */
export function expectRows<Result extends { readonly rows: readonly unknown[]; readonly rowCount?: number | null }>(
  result: Result,
  count: number,
): Result {
  const met = result.rowCount ?? result.rows.length
  if (met === count) return result
  throw new PawlError(
    'PAWL_ROWS_EXPECTED',
    `Expected ${count} row(s), got ${met}: a row that the event refers to does not exist or has changed.`,
    { details: { met, expected: count } },
  )
}
