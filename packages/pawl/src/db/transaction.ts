// A transaction of ours on one client. It begins with its first statement, in the same packet and with one answer, and its commit travels
// with the last in the same way: a handler that sends one statement costs two round trips in all. Statements leave in the order they were
// sent, without waiting for each other's answers where the sender does not.

import { setImmediate as turn } from 'node:timers/promises'
import { caught, PawlError } from '../errors.ts'
import { checked, folding, refusal, type Tx } from './adapters.ts'
import { Calls, calls, endOf, refusedEnd, txEnded } from './calls.ts'
import { classify, markOwn, sqlState } from './classify.ts'
import {
  copyIn,
  cork,
  cut,
  isBusy,
  isIdle,
  type PoolClient,
  type QueryConfig,
  type QueryResult,
  sessionIdOf,
  transactionStatus,
  withReason,
} from './client.ts'
import type { Db } from './db.ts'
import { ownPathReturned, ownPathTaken, ownTypes } from './own-session.ts'
import { type Around, commitPortal, runPacket } from './packet.ts'
import { bind, type Statement, type StatementNames, type Values } from './statement.ts'

export interface TransactionOptions {
  /** Undefined: nothing may be prepared under a name, as in a session behind a transaction pooler. */
  readonly names?: StatementNames | undefined
  /** 'users': a handler's statements need the user's search path, so each of ours changes the path and sets it back. */
  readonly path?: 'own' | 'users'
  /** SQL that is sent right after `begin`: settings of the transaction. */
  readonly settings?: string | undefined
  /** How long a statement may take, where that is not what the connection allows. */
  readonly statementMs?: number | undefined
  /** How long the answer to a begin, commit or rollback may take, where the connection allows a handler's statements any time. */
  readonly answerMs?: number | undefined
  /** Sent after the end of a transaction that a handler had, in the same round trip: what the handler set must not reach the next. */
  readonly reset?: string | undefined
  /** The projection whose handler has it: append and enqueue refuse it. */
  readonly foldOf?: string | undefined
}

export interface Answer<Row> {
  readonly rows: Row[]
  readonly rowCount: number
}

/** The completion runs as the session's own user, whatever role a handler took. */
const ownUser = 'reset session authorization'

/** Closed: its end was sent, or `reason` says why it takes no statement. Released: its client was put back. */
interface State {
  readonly phase: 'open' | 'closed' | 'released'
  readonly reason?: PawlError | undefined
  /** Its session may still have what it left there, so nothing else uses that. */
  readonly isUnsound?: true
}

export class Transaction implements Db, Tx {
  readonly [checked] = true
  readonly [calls] = new Calls()
  readonly #client: PoolClient
  #options: TransactionOptions
  #begun: Promise<unknown> | undefined
  #state: State = { phase: 'open' }
  /** The error that aborted it, until a statement succeeds after a rollback to a savepoint. `isSent`: no caller waits for its answer. */
  #abortedBy: { readonly error: unknown; readonly isSent: boolean } | undefined
  /** When the server last answered, or got a statement after a pause. */
  #heardMs = 0

  constructor(client: PoolClient, options: TransactionOptions = {}) {
    this.#client = client
    this.#options = options
    if (options.settings !== undefined) void this.#begin(options.settings)
  }

  /** A statement of a handler. */
  query<Row = Record<string, unknown>>(text: string, values: readonly unknown[] = []): Promise<Answer<Row>> {
    const refused = this.#refused(text)
    if (refused !== undefined) return caught(Promise.reject(refused))
    return caught(this.#run<Row>(this.#handlers(text, values)))
  }

  /** The same without an answer: its error is the commit's. With a callback, because a promise would cost as much as the statement. */
  send(text: string, values: readonly unknown[] = []): void {
    const refused = this.#refused(text)
    if (refused !== undefined) throw refused
    if (this.#begun === undefined) void this.#begin()
    this.#send(this.#handlers(text, values))
  }

  /** A statement of ours. */
  async run<Row>(statement: Statement, values: Values = {}): Promise<Row[]> {
    const query = this.#ours(statement, values)
    if (this.#options.path !== 'users' || statement.path === 'any') return (await this.#run<Row>(query)).rows
    // All three are sent at once, as one packet if it is the first; if ours fails, so does the third.
    if (this.#begun === undefined) return (await this.#run<Row>(query, { before: [ownPathTaken], reset: ownPathReturned })).rows
    this.#send(this.#named('pawl_path_taken', ownPathTaken))
    const answer = this.#run<Row>(query)
    this.#client.query(this.#named('pawl_path_returned', ownPathReturned), () => undefined)
    return (await answer).rows
  }

  /** Commits what the work has written, or rolls it back, and puts the client back. */
  async perform<Result>(work: (tx: this) => Promise<Result>): Promise<Result> {
    try {
      const result = await work(this)
      await this.commit()
      return result
    } catch (error) {
      await this.rollback()
      throw error
    } finally {
      this.release()
    }
  }

  /** A handler gets it now. Its statements may take this long, and its settings go with the end. One of a projection may only write its tables. */
  lend(reset: string, statementMs: number, foldOf?: string): void {
    this.#options = { ...this.#options, reset, statementMs, answerMs: statementMs, foldOf }
  }

  get [refusal](): (() => PawlError) | undefined {
    const name = this.#options.foldOf
    return name === undefined ? undefined : () => this.#refuse(folding(name))
  }

  /** Whether no commit or rollback was sent. */
  get isOpen(): boolean {
    return this.#state.phase === 'open'
  }

  /** How long its statements have had no answer. */
  silentMs(nowMs: number): number {
    return this.isOpen && isBusy(this.#client) ? nowMs - this.#heardMs : 0
  }

  /** The number of its session at the server, or at a pooler. */
  get sessionId(): number | null {
    return sessionIdOf(this.#client)
  }

  /** Settings of ours in between, without waiting: if they fail, so does everything after them. */
  set(text: string): void {
    this.#client.query(text, () => undefined)
  }

  /** Holds back what is sent until the given function is called. */
  cork(): () => void {
    return cork(this.#client)
  }

  /** `copy ... from stdin` with these bytes. Returns how many rows it took. */
  async copy(text: string, data: Buffer): Promise<number> {
    if (!this.isOpen) throw ended(this.#state.reason)
    await (this.#begun ?? this.#begin())
    return copyIn(this.#client, text, data)
  }

  /** Waits for everything that was sent. Throws what failed while the savepoint is still there to go back to. */
  async releaseSavepoint(name: string): Promise<void> {
    await this.#run({ text: `release savepoint ${name}`, query_timeout: this.#options.statementMs })
  }

  /**
   * Sends the last statement and the commit together, as the session's own user, in the search path that a handler left. Rejects unless the
   * commit happened.
   */
  async commitWith(statement: Statement, values: Values, settings?: string): Promise<void> {
    this.#close()
    if (this.#state.reason !== undefined) throw ended(this.#state.reason)
    try {
      const { answerMs, statementMs, reset } = this.#options
      // A handler that sent nothing has left nothing.
      const isUsed = this.#begun !== undefined
      await runPacket(this.#client, Object.assign(this.#ours(statement, values), { query_timeout: answerMs ?? statementMs }), {
        ...this.#around(),
        begins: !isUsed,
        before: [...(isUsed ? [ownUser] : []), ...(settings === undefined ? [] : [settings])],
        commits: true,
        reset: isUsed ? reset : undefined,
      })
    } catch (error) {
      this.#noteStale(error)
      // The earlier error is here too, and the driver passes it on through more promises than this one.
      if (isAborted(error)) await turn()
      throw markOwn(notCommitted(withReason(this.#client, this.#explained(error))))
    }
  }

  /** Sent after everything else without waiting for it. Answers come in order: when this one is there, so are all the others. */
  async commit(): Promise<void> {
    this.#close()
    if (this.#begun === undefined) return
    if (this.#state.reason !== undefined) throw ended(this.#state.reason)
    try {
      await runPacket(this.#client, undefined, { ...this.#around(), commits: true, reset: this.#options.reset })
    } catch (error) {
      // If a statement that was sent failed, that is why the server refused the commit.
      const failed = this.#abortedBy?.isSent && classify(error) !== 'connection' ? this.#abortedBy.error : undefined
      throw markOwn(failed ?? notCommitted(withReason(this.#client, error), { isBare: true, cause: this.#abortedBy?.error }))
    }
  }

  /**
   * A session's advisory locks outlive the rollback, so the session is reset too. In one string: behind a pooler what follows the end of a
   * transaction may reach another session.
   */
  async rollback(): Promise<void> {
    this.#close()
    if (this.#begun === undefined || this.#state.phase === 'released') return
    const { reset, answerMs } = this.#options
    const query: QueryConfig = { text: reset === undefined ? 'rollback' : `rollback; ${reset}`, query_timeout: answerMs }
    // With a callback: the driver would make three promises, and each is expensive while a process uses AsyncLocalStorage.
    await new Promise<void>((resolve) => {
      this.#client.query(query, (error: unknown) => {
        if (error) this.#break()
        resolve()
      })
    })
  }

  /** Ends it without its handler, which may never answer: the connection is cut, so the server rolls back, and its place in the pool is free. */
  abandon(reason: PawlError): void {
    this.#close()
    if (this.#state.phase === 'released') return
    this.#state = { ...this.#state, phase: 'released', reason }
    cut(this.#client)
    this.#client.release(true)
  }

  /** Puts the client back, or away if its connection is no longer sound; says whether it was sound. */
  release(): boolean {
    this.#close()
    const status = transactionStatus(this.#client)
    const isSound = status === undefined || status === 'I'
    if (this.#state.phase !== 'released') this.#client.release(this.#state.isUnsound === true || !isSound)
    this.#state = { ...this.#state, phase: 'released' }
    return isSound
  }

  readonly #break = (): void => {
    this.#state = { ...this.#state, isUnsound: true }
  }

  #close(): void {
    if (this.isOpen) this.#state = { ...this.#state, phase: 'closed' }
    this[calls].over()
  }

  /** Why this statement of a handler is not sent. */
  #refused(text: string): unknown {
    if (this.isOpen) {
      const end = endOf(text)
      return end === undefined ? undefined : this.#refuse(refusedEnd(end))
    }
    // What a loss or a handler's own commit ended says so itself; what merely comes too late is logged.
    if (this.#state.reason === undefined) this[calls].late()
    return ended(this.#state.reason)
  }

  #refuse(reason: PawlError): PawlError {
    this.#close()
    this.#state = { ...this.#state, reason }
    return reason
  }

  #handlers(text: string, values: readonly unknown[]): QueryConfig {
    const { names, statementMs: query_timeout } = this.#options
    // Without values it may be several statements, which only the simple protocol takes.
    if (values.length === 0) return { text, query_timeout }
    const name = names?.of(text)
    return { text, values: [...values], ...(name !== undefined && { name }), query_timeout }
  }

  #ours(statement: Statement, values: Values): QueryConfig {
    const { names, statementMs } = this.#options
    const { text } = statement
    const name = names?.prepared(statement)
    return { text, values: bind(statement, values), types: ownTypes, query_timeout: statementMs, name } as QueryConfig
  }

  #named(name: string, text: string): QueryConfig {
    return this.#options.names === undefined ? { text } : { text, name }
  }

  async #run<Row>(query: QueryConfig, around?: Around): Promise<Answer<Row>> {
    this[calls].begin()
    this.#noteSending()
    try {
      const result = await this.#ask(query, around)
      if (this.isOpen && isIdle(this.#client)) throw this.#refuse(txEnded('A statement of the handler ended its transaction'))
      this.#abortedBy = undefined
      const { rows, rowCount } = lastOf(result)
      return { rows: rows as Row[], rowCount: rowCount ?? 0 }
    } catch (error) {
      this.#noteFailed(error, false)
      throw markOwn(this.#explained(withReason(this.#client, error)))
    } finally {
      this.#heardMs = performance.now()
      this[calls].end()
    }
  }

  #ask(query: QueryConfig, around?: Around): Promise<QueryResult> {
    if (this.#begun !== undefined) return this.#client.query(query)
    if (query.name === undefined && query.values === undefined) {
      void this.#begin()
      return this.#client.query(query)
    }
    // What is sent at once leaves in the same packet.
    process.nextTick(cork(this.#client))
    const answer = runPacket(this.#client, query, { ...this.#around(), ...around, begins: true })
    this.#begun = answer
    return answer
  }

  #noteSending(): void {
    if (!isBusy(this.#client)) this.#heardMs = performance.now()
  }

  #send(query: QueryConfig): void {
    this.#noteSending()
    this.#client.query(query, (error: unknown) => error && this.#noteFailed(error, true))
  }

  #begin(settings?: string): Promise<unknown> {
    this.#noteSending()
    process.nextTick(cork(this.#client))
    this.#begun = runPacket(this.#client, undefined, { ...this.#around(), begins: true }).catch(this.#break)
    if (settings !== undefined) this.#client.query(settings, (error: unknown) => error && this.#break())
    return this.#begun
  }

  #around(): Around {
    return { isNamed: this.#options.names !== undefined, answerMs: this.#options.answerMs, onUnclean: this.#break }
  }

  #noteFailed(error: unknown, isSent: boolean): void {
    this.#noteStale(error)
    if (!isAborted(error) && sqlState(error) !== undefined) this.#abortedBy ??= { error, isSent }
  }

  /** Of an aborted transaction the server says only that it is: its first error is why, and a handler may not have awaited that. */
  #explained(error: unknown): unknown {
    return isAborted(error) ? (this.#abortedBy?.error ?? error) : error
  }

  /** This session keeps the stale plan under its name, so its client is put away, and others prepare under new names. */
  #noteStale(error: unknown): void {
    if (classify(error) !== 'replan') return
    this.#break()
    this.#options.names?.forget()
  }
}

/** The driver answers a string of several statements with a result for each. */
function lastOf(result: QueryResult | readonly QueryResult[]): QueryResult {
  return Array.isArray(result) ? (result as readonly QueryResult[]).at(-1)! : (result as QueryResult)
}

function isAborted(error: unknown): error is Error {
  return error instanceof Error && (error as { code?: unknown }).code === '25P02'
}

function ended(reason: PawlError | undefined): unknown {
  if (reason !== undefined) return markOwn(new PawlError(reason.code, reason.message, { cause: reason }))
  return new PawlError('PAWL_TX_REQUIRED', 'This transaction has ended. Await every query before the handler returns.')
}

/** What the error of a commit that was sent means. `isBare`: no statement travelled before it. `cause`: the statement that failed earlier, if known. */
function notCommitted(reason: unknown, { isBare = false, cause }: { isBare?: boolean; cause?: unknown } = {}): unknown {
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
