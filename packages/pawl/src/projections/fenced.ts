// One transaction under a cursor's fence: the compare-and-set first, then the work, then the commit. Whatever fails, nothing of it is
// there; and what failed is told apart: the lease, the place, the database, or the handler.

import { calls } from '../db/calls.ts'
import { classify, isConflict, isOwn } from '../db/classify.ts'
import { statement } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { isPawlError, PawlError, storable } from '../errors.ts'
import type { LogEvent } from '../events/types.ts'
import { runInsideTx } from '../jobs/runner.ts'
import { probe } from '../kernel/probe.ts'
import { HandlerContext, withTimeout } from './context.ts'
import { cursorStatements, type HeldCursor, type Place, type Standstill } from './cursor.ts'
import { openTx } from './projection-tx.ts'
import type { World } from './world.ts'

const appendedStatement = statement(import.meta.url, 'appended')

export type FencedEnd =
  | { readonly type: 'committed' }
  /** The row was not as we thought: look at it and decide anew. */
  | { readonly type: 'standstill'; readonly standstill: Standstill }
  /** The database's trouble, not the handler's: the same again. */
  | { readonly type: 'again'; readonly error: unknown }
  | { readonly type: 'failed'; readonly error: unknown }

export interface FencedWork {
  /** Undefined: the cursor stays where it is. */
  readonly to: Place | undefined
  /** What the handler is about to apply, for messages. */
  readonly what: string
  /** Whether what it adds for the outside is let out. */
  readonly isEffective: boolean
  readonly timeoutMs: number
  /** Sent with the compare-and-set, and answered after it. */
  readonly prepare?: (tx: Transaction) => Promise<unknown>
  readonly handle: (tx: Transaction, context: HandlerContext) => Promise<void>
  readonly onCommitted?: () => void
}

/** Rejects with PAWL_LEASE_LOST only. */
export async function runFenced(world: World, cursor: HeldCursor, work: FencedWork): Promise<FencedEnd> {
  let tx: Transaction
  try {
    tx = await openTx(world)
  } catch (error) {
    return { type: 'again', error }
  }
  let error: unknown
  let isAbandoned = false
  const leave = world.watch(cursor.definition.name, work.timeoutMs)
  try {
    if (probe.on) await probe.hit('projections.batch.before', cursor)
    if (!(await begin(world, cursor, work, tx))) {
      await tx.rollback()
      return await standstill(world, cursor)
    }
    const context = new HandlerContext(cursor.definition, cursor.isLive)
    const limits = { timeoutMs: work.timeoutMs, lost: cursor.signal, what: work.what }
    tx.lend(world.reset, world.config.database.queryTimeoutMs + work.timeoutMs)
    tx[calls].onLate = () => late(world, cursor)
    const handle = async (): Promise<void> => {
      await work.handle(tx, context)
      if (tx[calls].areOpen) await tx[calls].quiet()
    }
    await withTimeout(context, limits, () => runInsideTx(cursor.definition.name, handle))
    if (tx.effects === 'suppressed') await assertNothingAppended(tx)
    await tx.commit()
    if (work.to !== undefined) cursor.moved(work.to)
    work.onCommitted?.()
    return { type: 'committed' }
  } catch (caught) {
    error = caught
    // A handler that does not end may sit in a statement: without its connection the server rolls it back.
    isAbandoned = isPawlError(error, 'PAWL_TIMED_OUT') || cursor.signal.aborted
    if (isAbandoned) tx.abandon(isPawlError(error) ? error : (cursor.signal.reason as PawlError))
    else await tx.rollback()
  } finally {
    leave()
    if (!tx.release() && !isAbandoned) error = broken(error)
  }
  return tell(world, cursor, error)
}

/** Only our own statements: what goes wrong here is not the handler's failure. */
async function begin(world: World, cursor: HeldCursor, work: FencedWork, tx: Transaction): Promise<boolean> {
  const idleMs = world.idleMs(work.timeoutMs)
  const moving =
    work.to === undefined
      ? tx.run<{ effects_after: string | null }>(cursorStatements.stay, { ...cursor.fencedKey, idle_ms: String(idleMs) })
      : tx.run<{ effects_after: string | null }>(cursorStatements.move, cursor.moveTo(work.to, idleMs))
  const [moved, prepared] = await Promise.allSettled([moving, work.prepare?.(tx)])
  if (moved.status === 'rejected') throw broken(moved.reason)
  if (prepared.status === 'rejected') throw broken(prepared.reason)
  const [row] = moved.value
  if (row === undefined) return false
  // Generations were switched since we last looked: the names of the tables are other ones now.
  if ((row.effects_after === null ? undefined : Number(row.effects_after)) !== cursor.effectsAfter) return false
  tx.effects = cursor.isLive && work.isEffective ? 'allowed' : 'suppressed'
  return true
}

/** After a timeout or a lost lease the handler is still running, and is refused by what ended it. */
function late({ config }: World, { definition, signal }: HeldCursor): void {
  if (signal.aborted) return
  config.logger.error(
    { projection: definition.name },
    'a handler used its transaction after it had returned, and that call was refused; await every call before you return, or use tx.send',
  )
}

async function standstill(world: World, cursor: HeldCursor): Promise<FencedEnd> {
  try {
    return { type: 'standstill', standstill: await cursor.reload(world.engine) }
  } catch (error) {
    if (isPawlError(error, 'PAWL_LEASE_LOST')) throw error
    return { type: 'again', error }
  }
}

async function tell(world: World, cursor: HeldCursor, error: unknown): Promise<FencedEnd> {
  // Of this cursor, by its own row; another's that a handler lets through is its failure.
  if (isPawlError(error, 'PAWL_LEASE_LOST') && isOwn(error)) throw error
  if (cursor.signal.aborted) throw cursor.signal.reason
  if (error instanceof Broken) return { type: 'again', error: error.cause }
  // What a handler met elsewhere, another database that cannot write or a lease of somebody else's, is its failure.
  if (!isOwn(error)) return { type: 'failed', error }
  // Whether it happened is in the row, once the server has ended the transaction.
  if (isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) return standstill(world, cursor)
  const kind = classify(error)
  if (kind === 'unwritable' || kind === 'replan' || isConflict(error)) return { type: 'again', error }
  return { type: 'failed', error }
}

/** The transaction could not begin, or its connection broke: whatever the handler threw then, it is not its failure. */
class Broken extends Error {}

function broken(error: unknown): unknown {
  const isTold = error instanceof Broken || isPawlError(error, 'PAWL_COMMIT_UNKNOWN')
  return isTold ? error : new Broken('the transaction broke', { cause: error })
}

/** An event that was inserted by SQL in a replay cannot be taken back out of the log, so the transaction must not commit. */
async function assertNothingAppended(tx: Transaction): Promise<void> {
  const [row] = await tx.run<{ appended: number }>(appendedStatement, {})
  if (row?.appended === 0) return
  throw new PawlError(
    'PAWL_WRONG_STATE',
    'The handler inserted into pawl.event with SQL during a replay, which must have no effects. Use pawl.events.append(event, { tx }), which a replay suppresses.',
  )
}

/** What the handlers of events do one after the other; one that returns nothing is not waited for. */
export async function handleEach(
  events: readonly LogEvent[],
  handle: (event: LogEvent) => unknown,
  after?: (event: LogEvent) => Promise<void> | void,
): Promise<void> {
  for (const event of events) {
    const answer = handle(event)
    if (answer !== undefined) await (answer as Promise<unknown>)
    if (after !== undefined) await after(event)
  }
}

export function messageOf(error: unknown): string {
  return storable(error instanceof Error ? error.message : String(error)).slice(0, 500)
}
