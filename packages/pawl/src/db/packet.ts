// Statements that leave in one packet, with one Sync for all: one answer, and one wake-up on either side, where four statements would cost
// four. If one fails, the server skips the rest, so a commit never follows a statement that failed.
//
// A transaction's commit is bound to it when it begins, as a portal. Portals end with their transaction: what a handler ended, and perhaps
// began again, has no such portal, so the server refuses the commit, and with it the completion that travels before it.

import pg from 'pg'
import type { ClientBase, QueryConfig, QueryResult } from './client.ts'
import type { Parameter } from './statement.ts'

/** Whatever level a role or a database may have set. */
export const begin = 'begin isolation level read committed'
const commit = 'commit'
export const commitPortal = 'pawl_commit'

/** What surrounds a statement, if there is one. */
export interface Around {
  readonly begins?: boolean
  /** Sent after the begin and before the statement. */
  readonly before?: readonly string[]
  readonly commits?: boolean
  /** Sent after the commit: takes away what the transaction may have left in its session. */
  readonly reset?: string | undefined
  /** Whether what surrounds the statement may be prepared under a name: not behind a transaction pooler. */
  readonly isNamed?: boolean
  /** How long the answer may take, where there is no statement. */
  readonly answerMs?: number | undefined
  /** The commit happened and the reset did not: the session may still have what the transaction set in it. */
  readonly onUnclean?: () => void
}

type Answered = (error: unknown, result: QueryResult) => void

export function runPacket(client: ClientBase, statement: QueryConfig | undefined, around: Around): Promise<QueryResult> {
  return new Promise((resolve, reject) => {
    const answered: Answered = (error, result) => (error ? reject(error) : resolve(result))
    client.query(new Packet(statement, around, answered) as unknown as pg.Query)
  })
}

interface Wire {
  readonly stream: { cork?(): void; uncork?(): void }
  readonly submittedNamedStatements: Record<string, string>
  parse(message: { text: string; name?: string }): void
  bind(message: object): void
  execute(message: object): void
  sync(): void
}

/** What pg's own Query does when it is sent and answered; its types leave it out. */
const Query = pg.Query as unknown as new (
  text: string,
  values: unknown[] | undefined,
  answered: Answered,
) => {
  readonly text: string
  readonly values: readonly Parameter[] | undefined
  name: string | undefined
  queryMode: 'extended'
  /** How it reads the rows; the driver fills in its client's way where there is none. */
  readonly _result: { _types: unknown }
  hasBeenParsed(wire: Wire): boolean
  prepare(wire: Wire): void
  submit(wire: Wire): Error | null
  handleCommandComplete(message: { text: string }, wire: Wire): void
  handleDataRow(message: object): void
  handleError(error: Error, wire: Wire): void
  handleReadyForQuery(wire: Wire): void
}

/** What a session has prepared under its own text, of the statements around ours. Parsing one costs as much as running it. */
const preparedIn = new WeakMap<Wire, Set<string>>()

interface Step {
  readonly what: 'before' | 'statement' | 'commit' | 'reset'
  readonly text: string
}

class Packet extends Query {
  readonly #around: Around
  readonly #hasStatement: boolean
  readonly #name: string | undefined
  /** What the server has still to answer, in order. */
  readonly #steps: Step[] = []
  /** Read by the driver, as of any query. */
  readonly query_timeout: number | undefined

  constructor(statement: QueryConfig | undefined, around: Around, answered: Answered) {
    super(statement?.text ?? '', statement?.values, answered)
    this.queryMode = 'extended'
    this.#around = around
    this.#hasStatement = statement !== undefined
    this.#name = this.name = statement?.name
    this.query_timeout = statement === undefined ? around.answerMs : statement.query_timeout
    if (statement?.types !== undefined) this._result._types = statement.types
    if (around.begins) this.#steps.push({ what: 'before', text: begin })
    for (const text of around.before ?? []) this.#steps.push({ what: 'before', text })
    if (statement !== undefined) this.#steps.push({ what: 'statement', text: statement.text })
    if (around.commits) this.#steps.push({ what: 'commit', text: commit })
    if (around.reset !== undefined) this.#steps.push({ what: 'reset', text: around.reset })
  }

  override submit(wire: Wire): Error | null {
    wire.stream.cork?.()
    if (this.#around.begins) this.#bind(wire, commit, commitPortal)
    for (const { what, text } of this.#steps) if (what === 'before') this.#send(wire, text)
    const error = this.#hasStatement ? super.submit(wire) : this.#sendEnd(wire)
    wire.stream.uncork?.()
    // The driver would take the first answer to a parse for that of the named statement.
    if (this.#steps[0]?.what === 'before') this.name = undefined
    return error
  }

  /** The rows of a last statement are not read, so unlike pg's own this does not ask for their description. */
  override prepare(wire: Wire): void {
    if (!this.#around.commits) return super.prepare(wire)
    const { text, values = [], name = '' } = this
    if (!this.hasBeenParsed(wire)) {
      wire.parse({ text, name })
      if (name !== '') wire.submittedNamedStatements[name] = text
    }
    wire.bind({ statement: name, values: values.map((value) => (value === null ? null : String(value))) })
    this._getRows(wire)
  }

  // Called by pg's Query when everything before the execution of its statement is written.
  _getRows(wire: Wire): void {
    wire.execute({ portal: '' })
    this.#sendEnd(wire)
  }

  #sendEnd(wire: Wire): null {
    if (this.#around.commits) wire.execute({ portal: commitPortal })
    if (this.#around.reset !== undefined) this.#send(wire, this.#around.reset)
    wire.sync()
    return null
  }

  #send(wire: Wire, text: string): void {
    this.#bind(wire, text, '')
    wire.execute({ portal: '' })
  }

  #bind(wire: Wire, text: string, portal: string): void {
    // The server keeps 63 characters of a name.
    const statement = this.#around.isNamed ? `pawl ${text}`.slice(0, 63) : ''
    if (statement === '' || !preparedIn.get(wire)?.has(text)) wire.parse({ text, name: statement })
    wire.bind({ portal, statement })
  }

  #remember(wire: Wire, text: string): void {
    if (!this.#around.isNamed) return
    const prepared = preparedIn.get(wire)
    if (prepared === undefined) preparedIn.set(wire, new Set([text]))
    else prepared.add(text)
  }

  override handleCommandComplete(message: { text: string }, wire: Wire): void {
    const { what, text } = this.#steps.shift()!
    if (what === 'before' || what === 'reset') this.#remember(wire, text)
    if (text === begin) this.#remember(wire, commit)
    if (this.#steps[0]?.what === 'statement') this.name = this.#name
    if (what === 'statement' || (what === 'commit' && !this.#hasStatement)) super.handleCommandComplete(message, wire)
  }

  override handleDataRow(message: object): void {
    if (this.#steps[0]?.what === 'statement' && !this.#around.commits) super.handleDataRow(message)
  }

  /** What fails after the commit does not undo it; the session is not used again. What fails before the statement keeps it from being prepared. */
  override handleError(error: Error, wire: Wire): void {
    if (this.#steps[0]?.what === 'before' && this.#name !== undefined) delete wire.submittedNamedStatements[this.#name]
    if (this.#steps[0]?.what !== 'reset') return super.handleError(error, wire)
    this.#around.onUnclean?.()
    this.handleReadyForQuery(wire)
  }
}
