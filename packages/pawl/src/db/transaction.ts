// A transaction of ours on a pooled client. It begins with its first statement, in the same packet and with one answer, and its commit
// travels with the last in the same way: a handler that sends one statement costs two round trips in all.

import { setImmediate as turn } from 'node:timers/promises'
import { caught, PawlError } from '../errors.ts'
import { checked, type Tx } from './adapters.ts'
import { Calls, calls } from './calls.ts'
import { classify, markOwn, sqlState } from './classify.ts'
import {
  copyIn,
  cork,
  discard,
  isIdle,
  type PoolClient,
  type QueryConfig,
  type QueryResult,
  sessionIdOf,
  withReason,
} from './driver.ts'
import { type Around, commitPortal, runPacket } from './packet.ts'
import { ownTypes } from './result-types.ts'
import type { Parameter, StatementNames } from './statement.ts'
import { endOf, refusedEnd, txEnded } from './tx-control.ts'

export interface OwnTransactionOptions {
  /** Gives names to what is sent often; not behind a transaction pooler. */
  readonly names?: StatementNames | undefined
  /** SQL that travels behind `begin`: settings of the transaction. */
  readonly settings?: string | undefined
  /** How long a statement with parameters may take, where that is not what the connection allows. */
  readonly statementMs?: number | undefined
  /** How long the answer to a begin, commit or rollback may take, where the connection allows a handler's statements any time. */
  readonly answerMs?: number | undefined
  /** Sent after the end of a transaction that a handler had in its hands, in the same round trip. */
  readonly reset?: string | undefined
}

export interface Answer<Row> {
  readonly rows: Row[]
  readonly rowCount: number
}

/** The completion runs as the session's own user, whatever role a handler took. */
const ownUser = 'reset session authorization'

export interface CompletionOptions {
  readonly name?: string | undefined
  /** SQL for the settings of the commit. */
  readonly settings?: string | undefined
}

export class OwnTransaction implements Tx {
  readonly [checked] = true
  readonly [calls] = new Calls()
  readonly #client: PoolClient
  readonly #names: StatementNames | undefined
  readonly #statementMs: number | undefined
  readonly #answerMs: number | undefined
  readonly #reset: string | undefined
  #begun: Promise<unknown> | undefined
  #isOpen = true
  /** Why it was abandoned, or how its handler ended it. */
  #reason: PawlError | undefined
  #isBroken = false
  #isReleased = false
  /** The error that aborted it. A statement that succeeds, after a rollback to a savepoint, ends that state. */
  #abortedBy: unknown
  /** Statements without an answer, and since when there was none. */
  #pending = 0
  #silentSinceMs = 0

  constructor(client: PoolClient, { names, settings, statementMs, answerMs, reset }: OwnTransactionOptions = {}) {
    this.#client = client
    this.#names = names
    this.#statementMs = statementMs
    this.#answerMs = answerMs
    this.#reset = reset
    if (settings !== undefined) void this.#begin(settings)
  }

  query<Row = Record<string, unknown>>(text: string, values: readonly unknown[] = []): Promise<Answer<Row>> {
    if (!this.#isOpen) return this.#late()
    const end = endOf(text)
    if (end !== undefined) return caught(Promise.reject(this.#refuse(refusedEnd(end))))
    return caught(this.#run<Row>(text, this.#prepared(text, values, values.length > 0 ? this.#names?.of(text) : undefined)))
  }

  /** What a loss or a handler's own commit ended says so itself; what merely comes too late nobody would hear of. */
  #late(): Promise<never> {
    if (this.#reason === undefined) this[calls].late()
    return caught(Promise.reject(ended(this.#reason)))
  }

  /** How long its statements have had no answer. */
  silentMs(nowMs: number): number {
    return this.#pending === 0 ? 0 : nowMs - this.#silentSinceMs
  }

  /** The number of its session at the server, or at a pooler. */
  get sessionId(): number | null {
    return sessionIdOf(this.#client)
  }

  /** A statement of ours with parameters, prepared under a name if one is given. */
  run<Row>(text: string, values: readonly unknown[], name?: string): Promise<Answer<Row>> {
    return this.#run<Row>(text, { ...this.#prepared(text, values, name), types: ownTypes })
  }

  async #run<Row>(text: string, query: QueryConfig): Promise<Answer<Row>> {
    this[calls].begin()
    if (this.#pending++ === 0) this.#silentSinceMs = performance.now()
    try {
      const result = await (query.values!.length > 0 ? this.#runPrepared(query) : this.#runText(text))
      if (this.#isOpen && isIdle(this.#client)) throw this.#refuse(txEnded('A statement of the handler ended its transaction'))
      this.#abortedBy = undefined
      const { rows, rowCount } = lastOf(result)
      return { rows: rows as Row[], rowCount: rowCount ?? 0 }
    } catch (error) {
      if (classify(error) === 'replan') this.#forgetPlans()
      if (!isAborted(error) && sqlState(error) !== undefined) this.#abortedBy ??= error
      throw markOwn(this.#explained(withReason(this.#client, error)))
    } finally {
      this.#pending--
      this.#silentSinceMs = performance.now()
      this[calls].end()
    }
  }

  /** Sends without waiting: if it fails, so does everything behind it. */
  send(text: string): void {
    this.#client.query(text, () => undefined)
  }

  /** Holds back what is sent until the given function is called. */
  cork(): () => void {
    return cork(this.#client)
  }

  /** `copy ... from stdin` with these bytes. Gives how many rows it took. */
  async copy(text: string, data: Buffer): Promise<number> {
    if (!this.#isOpen) throw ended(this.#reason)
    await (this.#begun ?? this.#begin())
    return copyIn(this.#client, text, data)
  }

  /**
   * Sends the last statement, prepared under a name if it has one, and the commit together, as the session's own user. Rejects unless the
   * commit happened.
   */
  async commitWith(text: string, values: readonly Parameter[], { name, settings }: CompletionOptions = {}): Promise<void> {
    this.#close()
    if (this.#reason !== undefined) throw ended(this.#reason)
    try {
      const query = { ...this.#prepared(text, values, name), query_timeout: this.#answerMs ?? this.#statementMs }
      // A handler that sent nothing has left nothing.
      const isUsed = this.#begun !== undefined
      await runPacket(this.#client, query, {
        ...this.#around(),
        begins: !isUsed,
        before: [...(isUsed ? [ownUser] : []), ...(settings === undefined ? [] : [settings])],
        commits: true,
        reset: isUsed ? this.#reset : undefined,
        onUnclean: () => {
          this.#isBroken = true
        },
      })
    } catch (error) {
      if (classify(error) === 'replan') this.#forgetPlans()
      // The earlier error is here too, and the driver passes it on through more promises than this one.
      if (isAborted(error)) await turn()
      throw markOwn(notCommitted(withReason(this.#client, this.#explained(error))))
    }
  }

  async commit(): Promise<void> {
    this.#close()
    if (this.#begun === undefined) return
    if (this.#reason !== undefined) throw ended(this.#reason)
    try {
      await runPacket(this.#client, undefined, { ...this.#around(), commits: true })
    } catch (error) {
      throw markOwn(notCommitted(withReason(this.#client, error), { isBare: true, cause: this.#abortedBy }))
    }
  }

  /** A session's advisory locks outlive the rollback, so the session is reset here too. */
  async rollback(): Promise<void> {
    this.#close()
    if (this.#begun === undefined || this.#isReleased) return
    const { error } = await this.#answer(this.#reset === undefined ? 'rollback' : `rollback; ${this.#reset}`)
    if (error !== undefined) this.#isBroken = true
  }

  /** Ends it without its handler, which may never answer: the connection is cut, so the server rolls back, and its place in the pool is free. */
  abandon(reason: PawlError): void {
    this.#close()
    if (this.#isReleased) return
    this.#reason = reason
    this.#isReleased = true
    discard(this.#client)
  }

  /** Puts the client back, or away if its connection is no longer sound. */
  release(): void {
    if (this.#isReleased) return
    this.#isReleased = true
    const status = (this.#client as unknown as { getTransactionStatus?(): string | null }).getTransactionStatus?.()
    this.#client.release(this.#isBroken || (status !== undefined && status !== null && status !== 'I'))
  }

  #close(): void {
    this.#isOpen = false
    this[calls].over()
  }

  #prepared(text: string, values: readonly unknown[], name: string | undefined): QueryConfig {
    return { text, values: [...values], ...(name !== undefined && { name }), query_timeout: this.#statementMs }
  }

  #runPrepared(query: QueryConfig): Promise<QueryResult> {
    if (this.#begun !== undefined) return this.#client.query(query)
    // What the handler sends at once leaves in the same packet.
    process.nextTick(cork(this.#client))
    const answer = runPacket(this.#client, query, { ...this.#around(), begins: true })
    this.#begun = answer
    return answer
  }

  /** Without values it may be several statements, which only the simple protocol takes. */
  #runText(text: string): Promise<QueryResult> {
    if (this.#begun === undefined) void this.#begin()
    return this.#client.query(text)
  }

  #begin(settings?: string): Promise<unknown> {
    process.nextTick(cork(this.#client))
    const broken = () => {
      this.#isBroken = true
    }
    this.#begun = runPacket(this.#client, undefined, { ...this.#around(), begins: true }).catch(broken)
    if (settings !== undefined) this.#client.query(settings, (error: unknown) => error && broken())
    return this.#begun
  }

  #around(): Around {
    return { isNamed: this.#names !== undefined, answerMs: this.#answerMs }
  }

  /** Of an aborted transaction the server says only that it is: its first error is why. */
  #explained(error: unknown): unknown {
    if (isAborted(error)) error.cause ??= this.#abortedBy
    return error
  }

  #refuse(reason: PawlError): PawlError {
    this.#close()
    this.#reason = reason
    return reason
  }

  /** With a callback: the driver would make three promises, and each is expensive while a process uses AsyncLocalStorage. */
  #answer(text: string): Promise<{ error?: unknown; result?: QueryResult }> {
    return new Promise((resolve) => {
      const query: QueryConfig = { text, query_timeout: this.#answerMs }
      this.#client.query(query, (error: unknown, result: QueryResult) => resolve(error ? { error } : { result }))
    })
  }

  /** This connection keeps the stale plan under its name; it is put away, and others prepare under new names. */
  #forgetPlans(): void {
    this.#isBroken = true
    this.#names?.forget()
  }
}

/** The driver answers a text of several statements with a result for each. */
export function lastOf(result: QueryResult | readonly QueryResult[]): QueryResult {
  return Array.isArray(result) ? (result as readonly QueryResult[]).at(-1)! : (result as QueryResult)
}

function isAborted(error: unknown): error is Error {
  return error instanceof Error && (error as { code?: unknown }).code === '25P02'
}

function ended(reason: PawlError | undefined): unknown {
  if (reason !== undefined) return markOwn(new PawlError(reason.code, reason.message, { cause: reason }))
  return new PawlError('PAWL_TX_REQUIRED', 'This transaction has ended. Await every query before the tx handler returns.')
}

/** What the error of a commit that was sent means. `isBare`: no statement travelled before it. `cause`: the statement that failed earlier, if known. */
export function notCommitted(reason: unknown, { isBare = false, cause }: { isBare?: boolean; cause?: unknown } = {}): unknown {
  const state = sqlState(reason)
  if (state === '34000' && String((reason as Error).message).includes(commitPortal))
    return txEnded('A handler sent commit, rollback, prepare transaction or close all through its transaction', reason)
  if (isAborted(reason) && isBare)
    return new PawlError(
      'PAWL_ROLLED_BACK',
      `The commit failed because an earlier statement of the transaction had failed${cause instanceof Error ? `: ${cause.message}` : ''}.`,
      { cause: cause ?? reason },
    )
  if (classify(reason) !== 'connection' || wasNeverSent(reason)) return reason
  return new PawlError(
    'PAWL_COMMIT_UNKNOWN',
    'The connection broke during the commit, so it is not known yet whether the transaction committed.',
    { cause: reason },
  )
}

/** The driver says this of a connection that was dead before: then the commit never left, and the transaction is surely not there. */
function wasNeverSent(reason: unknown): boolean {
  return reason instanceof Error && /not queryable/.test(reason.message)
}
