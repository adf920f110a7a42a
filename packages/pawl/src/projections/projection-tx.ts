// The transaction that a handler writes in. Statements leave in the order they were sent, without waiting for each other's answers where the
// handler does not; the commit waits for all of them. That of a projection, which may be rebuilt, is refused by append and enqueue.

import { checked, folding, refusal } from '../db/adapters.ts'
import { Calls, calls } from '../db/calls.ts'
import { classify, markOwn, sqlState } from '../db/classify.ts'
import { cork, isIdle, type PoolClient, type QueryResult } from '../db/driver.ts'
import { ownPathReturned, ownPathTaken } from '../db/own-path.ts'
import { runPacket, sendPacket } from '../db/packet.ts'
import { ownTypes } from '../db/result-types.ts'
import { bind, type Parameter, type Statement, type StatementNames } from '../db/statement.ts'
import { lastOf, notCommitted } from '../db/transaction.ts'
import { endOf, refusedEnd, txEnded } from '../db/tx-control.ts'
import { caught, PawlError } from '../errors.ts'
import type { Host } from './runner.ts'
import type { ProjectionTx } from './types.ts'

/** A session of a pool of ours is durable; one of a pooler is what its role or database says. */
export async function openTx({ pool, names, config }: Pick<Host, 'pool' | 'names' | 'config'>): Promise<HandlerTx> {
  const tx = new HandlerTx(await pool.connect(), names)
  const { durability, database } = config
  if (durability !== 'durable' || database.pooler !== 'none') tx.send('select pawl.set_durability($1::text, true)', [durability])
  return tx
}

export class HandlerTx implements ProjectionTx {
  readonly [checked] = true
  readonly [calls] = new Calls()
  readonly #client: PoolClient
  readonly #names: StatementNames | undefined
  #isOpen = true
  #isBroken = false
  #released: 'sound' | 'broken' | undefined
  #failure: { readonly error: unknown } | undefined
  /** Of a statement that somebody waited for: they may have caught it and gone on. */
  #caught: { readonly error: unknown } | undefined
  /** The handler has ended it, or tried to; or a projection's has called append or enqueue. */
  #refusal: PawlError | undefined
  #foldOf: string | undefined
  /** Sent behind the end of a transaction that a handler had in its hands: what it set must not reach the next. */
  #reset: string | undefined
  /** How long an answer may take, where a handler may take longer than the connection's own limit. */
  answerMs: number | undefined

  /** `names`: gives names to what is sent often; not behind a transaction pooler. */
  constructor(client: PoolClient, names: StatementNames | undefined) {
    this.#client = client
    this.#names = names
    // What is sent in the same turn leaves in the same packet.
    process.nextTick(cork(client))
    sendPacket(client, undefined, { begins: true, isNamed: names !== undefined }, (error) => this.#answered(error))
  }

  /** A handler gets it now; one of a projection only to write that one's tables. */
  lend(reset: string, foldOf: string | undefined): void {
    this.#reset = reset
    this.#foldOf = foldOf
  }

  query<Row = Record<string, unknown>>(
    text: string,
    values: readonly unknown[] = [],
  ): Promise<{ rows: Row[]; rowCount: number }> {
    return caught(this.#query<Row>(text, values))
  }

  async #query<Row>(text: string, values: readonly unknown[]): Promise<{ rows: Row[]; rowCount: number }> {
    this[calls].begin()
    try {
      // A handler may catch the error and go back to a savepoint of its own, so it is not the transaction's failure yet.
      const result = lastOf(await this.#ask(this.#prepared(text, values)))
      return { rows: result.rows as Row[], rowCount: result.rowCount ?? 0 }
    } finally {
      this[calls].end()
    }
  }

  // With a callback: a promise for each of thousands of statements would cost as much as the statements.
  send(text: string, values: readonly unknown[] = []): void {
    this.#client.query(this.#timed(this.#prepared(text, values)), (error: unknown) => this.#answered(error))
  }

  async run<Row>(statement: Statement, values: Readonly<Record<string, Parameter>>): Promise<Row[]> {
    const query = { text: statement.text, values: bind(statement, values) as unknown[], types: ownTypes }
    // The handler's statements need the user's search path and ours must not. All three are sent at once; if ours fails, so does the third.
    const named = (name: string) => (this.#names === undefined ? {} : { name: `pawl_path_${name}` })
    this.#client.query({ text: ownPathTaken, ...named('taken') }, (error: unknown) => this.#answered(error))
    const answer = this.#ask(this.#names === undefined ? query : { ...query, name: statement.preparedName })
    this.#client.query({ text: ownPathReturned, ...named('returned') }, () => undefined)
    return (await answer).rows as Row[]
  }

  get [refusal](): (() => PawlError) | undefined {
    const name = this.#foldOf
    return name === undefined ? undefined : () => this.#refuse(folding(name))
  }

  /** Whether it may still go back to a savepoint: no commit or rollback was sent. */
  get isOpen(): boolean {
    return this.#isOpen
  }

  /** Waits for everything that was sent. What failed is thrown while the savepoint is still there to go back to. */
  async releaseSavepoint(savepoint: string): Promise<void> {
    try {
      await this.#client.query(this.#timed({ text: `release savepoint ${savepoint}` }))
    } catch (error) {
      // The server only says that an earlier statement failed.
      throw markOwn(sqlState(error) === '25P02' ? (this.#failure ?? this.#caught ?? { error }).error : error)
    }
  }

  /** Sent behind everything else without waiting for it. Answers come in order: when this one is there, so are all the others. */
  async commit(): Promise<void> {
    this.#isOpen = false
    this[calls].over()
    if (this.#refusal !== undefined) throw this.#refusal
    try {
      // It may be behind statements that nobody waited for.
      const onUnclean = () => {
        this.#isBroken = true
      }
      const around = { commits: true, reset: this.#reset, isNamed: this.#names !== undefined, answerMs: this.answerMs, onUnclean }
      await runPacket(this.#client, undefined, around)
    } catch (error) {
      // If a statement failed, that is why the server refused the commit.
      const refused =
        classify(error) === 'connection'
          ? notCommitted(error)
          : (this.#failure?.error ?? notCommitted(error, { isBare: true, cause: this.#caught?.error }))
      throw markOwn(refused)
    }
  }

  /** Goes back to a savepoint after a failure: what was sent since counts for nothing. */
  async rollbackTo(savepoint: string): Promise<void> {
    await this.#client.query(`rollback to savepoint ${savepoint}`)
    this.#failure = undefined
  }

  /** A session's settings and advisory locks may outlive the rollback too. */
  async rollback(): Promise<void> {
    this.#isOpen = false
    this[calls].over()
    // In one text: behind a pooler what follows the end of a transaction may reach another session. One that could not be reset is put away.
    await this.#client.query(this.#reset === undefined ? 'rollback' : `rollback; ${this.#reset}`).catch(() => {
      this.#isBroken ||= this.#reset !== undefined
    })
  }

  /** Puts the client back, or away if its connection is no longer sound; says which. */
  release(isAbandoned = false): 'sound' | 'broken' {
    this.#released ??= this.#release(isAbandoned)
    return this.#released
  }

  #release(isAbandoned: boolean): 'sound' | 'broken' {
    this.#isOpen = false
    this[calls].over()
    const status = (this.#client as unknown as { getTransactionStatus?(): string | null }).getTransactionStatus?.()
    const isSound = !isAbandoned && (status === undefined || status === 'I')
    this.#client.release(!isSound || this.#isBroken)
    return isSound ? 'sound' : 'broken'
  }

  #prepared(text: string, values: readonly unknown[]): Query {
    if (!this.#isOpen) {
      if (this.#refusal === undefined) this[calls].late()
      throw new PawlError(
        'PAWL_TX_REQUIRED',
        'This transaction has ended. Await every query before the handler returns, or use tx.send.',
      )
    }
    const end = endOf(text)
    if (end !== undefined) throw this.#refuse(refusedEnd(end))
    if (values.length === 0) return { text }
    const name = this.#names?.of(text)
    return name === undefined ? { text, values: values as unknown[] } : { text, values: values as unknown[], name }
  }

  #refuse(refusal: PawlError): PawlError {
    this.#isOpen = false
    this.#refusal = refusal
    return refusal
  }

  #timed(query: Query): Query {
    return this.answerMs === undefined ? query : { ...query, query_timeout: this.answerMs }
  }

  async #ask(query: Query): Promise<QueryResult> {
    try {
      const result = await this.#client.query(this.#timed(query))
      if (this.#isOpen && isIdle(this.#client)) throw this.#refuse(txEnded('A statement of the handler ended its transaction'))
      return result
    } catch (error) {
      // In an aborted transaction every statement fails; the first says why.
      if (sqlState(error) !== '25P02') this.#caught = { error }
      this.#noteStale(error)
      throw markOwn(error)
    }
  }

  /** Of a statement that nobody waits for: its error is the transaction's. */
  #answered(error: unknown): void {
    if (!error) return
    this.#failure ??= { error: markOwn(error) }
    this.#noteStale(error)
  }

  /** This connection keeps a stale plan under its name; it is put away, and others prepare under new names. */
  #noteStale(error: unknown): void {
    if (classify(error) !== 'replan') return
    this.#isBroken = true
    this.#names?.forget()
  }
}

interface Query {
  readonly text: string
  readonly values?: unknown[]
  readonly name?: string
  readonly query_timeout?: number
  readonly types?: typeof ownTypes
}
