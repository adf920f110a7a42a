// A transaction of ours on a pooled client. It begins with its first statement, in the same packet and with one answer, and its commit
// travels with the last in the same way: a handler that sends one statement costs two round trips in all.

import { PawlError } from '../errors.ts'
import { checked, type Tx } from './adapters.ts'
import { classify, markOwn } from './classify.ts'
import { copyIn, cork, discard, type PoolClient, type QueryConfig, type QueryResult, type Reset, runJoined } from './driver.ts'
import { ownTypes } from './result-types.ts'
import type { StatementNames } from './statement.ts'

export interface OwnTransactionOptions {
  /** Gives names to what is sent often; not behind a transaction pooler. */
  readonly names?: StatementNames | undefined
  /** SQL that travels with `begin`: settings of the transaction. */
  readonly settings?: string | undefined
  /** How long a statement with parameters may take, where that is not what the connection allows. */
  readonly statementMs?: number | undefined
  /** Sent after the end of a transaction that a handler had in its hands, in the same round trip. */
  readonly reset?: Reset | undefined
}

const begin = 'begin isolation level read committed'

export class OwnTransaction implements Tx {
  readonly [checked] = true
  readonly #client: PoolClient
  readonly #names: StatementNames | undefined
  readonly #statementMs: number | undefined
  readonly #reset: Reset | undefined
  #begun: Promise<unknown> | undefined
  #isOpen = true
  /** Why it was abandoned. */
  #reason: PawlError | undefined
  #isBroken = false
  #isReleased = false

  constructor(client: PoolClient, { names, settings, statementMs, reset }: OwnTransactionOptions = {}) {
    this.#client = client
    this.#names = names
    this.#statementMs = statementMs
    this.#reset = reset
    if (settings !== undefined) void this.#begin(`${begin}; ${settings}`)
  }

  async query<Row = Record<string, unknown>>(text: string, values: readonly unknown[] = []): Promise<{ rows: Row[] }> {
    if (!this.#isOpen) throw ended(this.#reason)
    return this.#run<Row>(text, this.#prepared(text, values, values.length > 0 ? this.#names?.of(text) : undefined))
  }

  /** A statement of ours with parameters, prepared under a name if one is given. */
  run<Row>(text: string, values: readonly unknown[], name?: string): Promise<{ rows: Row[] }> {
    return this.#run<Row>(text, { ...this.#prepared(text, values, name), types: ownTypes })
  }

  async #run<Row>(text: string, query: QueryConfig): Promise<{ rows: Row[] }> {
    try {
      const { rows } = await (query.values!.length > 0 ? this.#runPrepared(query) : this.#runText(text))
      return { rows: rows as Row[] }
    } catch (error) {
      if (classify(error) === 'replan') this.#forgetPlans()
      throw markOwn(error)
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
    await (this.#begun ?? this.#begin(begin))
    return copyIn(this.#client, text, data)
  }

  /** Sends the last statement, prepared under a name if it has one, and the commit together. Rejects unless the commit happened. */
  async commitWith(text: string, values: readonly unknown[], name?: string): Promise<void> {
    this.#isOpen = false
    try {
      await runJoined(this.#client, this.#prepared(text, values, name), {
        begin: this.#begun ? undefined : begin,
        commits: true,
        reset: this.#reset,
        onUnclean: () => {
          this.#isBroken = true
        },
      })
    } catch (error) {
      if (classify(error) === 'replan') this.#forgetPlans()
      throw markOwn(commitUnknown(error))
    }
  }

  async commit(): Promise<void> {
    this.#isOpen = false
    if (this.#begun === undefined) return
    const { error, result } = await this.#answer('commit')
    if (error !== undefined) throw markOwn(commitUnknown(error))
    assertCommitted(result!)
  }

  /** A session's advisory locks outlive the rollback, so the session is reset here too. */
  async rollback(): Promise<void> {
    this.#isOpen = false
    if (this.#begun === undefined || this.#isReleased) return
    const { error } = await this.#answer(this.#reset === undefined ? 'rollback' : `rollback; ${this.#reset.text}`)
    if (error !== undefined) this.#isBroken = true
  }

  /** Ends it without its handler, which may never answer: the connection is cut, so the server rolls back, and its place in the pool is free. */
  abandon(reason: PawlError): void {
    this.#isOpen = false
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

  #prepared(text: string, values: readonly unknown[], name: string | undefined): QueryConfig {
    return { text, values: [...values], ...(name !== undefined && { name }), query_timeout: this.#statementMs }
  }

  #runPrepared(query: QueryConfig): Promise<QueryResult> {
    if (this.#begun !== undefined) return this.#client.query(query)
    // What the handler sends at once leaves in the same packet.
    process.nextTick(cork(this.#client))
    const answer = runJoined(this.#client, query, { begin })
    this.#begun = answer
    return answer
  }

  /** Without values it may be several statements, which only the simple protocol takes. */
  #runText(text: string): Promise<QueryResult> {
    if (this.#begun === undefined) void this.#begin(begin)
    return this.#client.query(text)
  }

  #begin(text: string): Promise<unknown> {
    process.nextTick(cork(this.#client))
    this.#begun = this.#answer(text).then(({ error }) => {
      if (error !== undefined) this.#isBroken = true
    })
    return this.#begun
  }

  /** With a callback: the driver's own promise is three, and every one is dear while a process uses AsyncLocalStorage. */
  #answer(text: string): Promise<{ error?: unknown; result?: QueryResult }> {
    return new Promise((resolve) => {
      this.#client.query(text, (error: unknown, result: QueryResult) => resolve(error ? { error } : { result }))
    })
  }

  /** This connection keeps the stale plan under its name; it is put away, and others prepare under new names. */
  #forgetPlans(): void {
    this.#isBroken = true
    this.#names?.forget()
  }
}

function ended(reason: PawlError | undefined): unknown {
  if (reason !== undefined) return markOwn(new PawlError(reason.code, reason.message, { cause: reason }))
  return new PawlError('PAWL_TX_REQUIRED', 'This transaction has ended. Await every query of a tx handler before it returns.')
}

export function assertCommitted(result: { command: string }): void {
  if (result.command === 'COMMIT') return
  throw new PawlError(
    'PAWL_ROLLED_BACK',
    'The commit was answered with ROLLBACK: an earlier statement of the transaction had failed.',
  )
}

export function commitUnknown(reason: unknown): unknown {
  if (classify(reason) !== 'connection' || wasNeverSent(reason)) return reason
  return new PawlError(
    'PAWL_COMMIT_UNKNOWN',
    'The connection broke during the commit, so whether it happened is not known yet.',
    { cause: reason },
  )
}

/** The driver says this of a connection that was dead before: then the commit never left, and the transaction is surely not there. */
function wasNeverSent(reason: unknown): boolean {
  return reason instanceof Error && /not queryable/.test(reason.message)
}
