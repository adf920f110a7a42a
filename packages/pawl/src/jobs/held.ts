// A job in this process: claimed, perhaps running, until its settle has answered.

import { type AnyTx, checked, type Tx } from '../db/adapters.ts'
import { classify, markOwn } from '../db/classify.ts'
import { dbOf } from '../db/db.ts'
import { type Statement, statement, type Values } from '../db/statement.ts'
import { caught, PawlError } from '../errors.ts'
import { delayMsMax, monotonicMs } from '../kernel/clock.ts'
import { check, duration, required } from '../kernel/options.ts'
import { fromJson, type PayloadLimits, toJson } from '../kernel/payload.ts'
import { type DefinedKind, readPayload } from './kinds.ts'
import { Snooze } from './snooze.ts'
import type { Job } from './types.ts'

/** What claim.sql and claim-suspect.sql return. */
export interface FetchedRow {
  readonly tenant: string
  readonly id: string
  readonly fence: string
  readonly queue: string
  readonly kind: string
  /** JSON text. */
  readonly payload: string
  readonly payload_version: number
  readonly attempt: number
  readonly max_attempts: number | null
  readonly crashes: number
  /** JSON text. */
  readonly headers: string | null
  /** Microseconds since 1970; null: not finite. */
  readonly due_us: string | null
}

export class ClaimedRow {
  readonly tenant: string
  readonly id: string
  readonly fence: string
  readonly queue: string
  readonly kind: string
  readonly payload_version: number
  readonly attempt: number
  readonly max_attempts: number | null
  readonly crashes: number
  readonly dueUs: number
  /** What it takes in memory while it waits, about. */
  readonly bytes: number
  /** JSON texts, read again before each call of the handler: no call sees what another made of its payload. */
  payload: string
  readonly headers: string | null

  constructor(row: FetchedRow) {
    this.tenant = row.tenant
    this.id = row.id
    this.fence = row.fence
    this.queue = row.queue
    this.kind = row.kind
    this.payload_version = row.payload_version
    this.attempt = row.attempt
    this.max_attempts = row.max_attempts
    this.crashes = row.crashes
    this.dueUs = row.due_us === null ? Number.NEGATIVE_INFINITY : Number(row.due_us)
    this.bytes = row.payload.length + (row.headers?.length ?? 0)
    this.payload = row.payload
    this.headers = row.headers
  }

  /** Its handler is not called again: what waits for its settle does not take the memory of the text too. */
  dropPayload(): void {
    this.payload = 'null'
  }
}

/** PostgreSQL's largest integer: a run of 24.8 days and more. */
const ranMsMax = 2_147_483_647

const snoozeDelay = required(duration({ from: 0, to: delayMsMax, doc: 'How long until the job runs again.' }))
const guardStatement = statement(import.meta.url, 'guard', 'any')
const completeStatement = statement(import.meta.url, 'complete', 'any')
const completeReplicatedStatement = statement(import.meta.url, 'complete-replicated', 'any')

export class HeldJob implements Job {
  readonly row: ClaimedRow
  readonly definition: DefinedKind
  readonly installation: string
  readonly worker: number
  readonly claimedMs = monotonicMs()
  payload: unknown
  startedMs = 0
  /** When its end came to be stored. */
  endedMs = 0
  /** Set once the attempt has an end; what the handler does afterwards is late and counts for nothing. */
  isEnded = false
  completeCalled = false
  snoozeCalled = false
  /** Hears of writes in the handler's own transaction that the database refused. */
  onRefused: ((held: HeldJob, what: string) => void) | undefined
  isRefusalKept = false
  limits: PayloadLimits | undefined
  /** Why the result given to complete() could not be stored. Running again would repeat its effects outside and end here again. */
  unstorable: unknown
  /** JSON text of the last progress, while it is not stored. */
  unstored: () => string | null = () => null
  /** Its end must be on a standby, whoever commits it. */
  isReplicated = false
  /** Where it is written for the keeper thread while it runs. */
  slot = -1
  slotsTaken = 0
  /** It waits for a connection, and nothing of it is applied: past its time limit it is given back, without an attempt. */
  isConnecting = false
  /** Its process died while it may have run, and it has not ended in order since. */
  isSuspect = false
  /** It runs in a transaction of its own. */
  isUnshared = false
  /** It shared a transaction that failed: it has run, so it is not given back for having waited. */
  hasShared = false
  /** Called when the attempt was ended by somebody else than its handler. */
  onGone: (() => void) | undefined
  /** Called when it is lost; cheaper than a listener on a signal that most handlers never use. */
  onLost: (() => void) | undefined
  #completedIn: AnyTx | undefined
  #headers: Record<string, unknown> | undefined
  #controller: AbortController | undefined
  #lost: PawlError | undefined

  constructor(row: ClaimedRow, definition: DefinedKind, installation: string, worker: number) {
    this.row = row
    this.definition = definition
    this.installation = installation
    this.worker = worker
  }

  get id(): string {
    return this.row.id
  }
  get tenant(): string {
    return this.row.tenant
  }
  get queue(): string {
    return this.row.queue
  }
  get kind(): string {
    return this.row.kind
  }
  get attempt(): number {
    return this.row.attempt
  }
  get crashes(): number {
    return this.row.crashes
  }
  get fence(): string {
    return this.row.fence
  }
  get headers(): Record<string, unknown> {
    this.#headers ??= JSON.parse(this.row.headers ?? '{}') as Record<string, unknown>
    return this.#headers
  }
  get idempotencyKey(): string {
    return `${this.installation}-${this.row.id}`
  }

  /** Before each call of the handler: the payload and the headers as they are stored. Throws or rejects when the payload is invalid. */
  read(): Promise<void> | undefined {
    this.#headers = undefined
    this.snoozeCalled = false
    const stored = fromJson(this.row.payload, `The payload of '${this.kind}': payload`)
    const payload = readPayload(this.definition, stored, this.row.payload_version)
    if (payload instanceof Promise)
      return payload.then((value: unknown) => {
        this.payload = value
      })
    this.payload = payload
    return undefined
  }

  /** Made on first use: most handlers never look at it. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      if (this.#lost !== undefined) this.#controller.abort(this.#lost)
    }
    return this.#controller.signal
  }

  /** Why it is no longer this holder's, if so. */
  get lost(): PawlError | undefined {
    return this.#lost
  }

  lose(reason: PawlError): void {
    if (this.#lost !== undefined) return
    this.#lost = reason
    this.#controller?.abort(reason)
    this.onLost?.()
  }

  ranMs(): number {
    return Math.min(ranMsMax, Math.round(monotonicMs() - this.startedMs))
  }

  guard(tx: AnyTx): Promise<void> {
    return caught(this.#guard(tx))
  }

  async #guard(tx: AnyTx): Promise<void> {
    this.#assertOpenIn(tx)
    await this.#fenced(tx, 'guard', guardStatement)
  }

  complete(tx: AnyTx, result?: unknown): Promise<void> {
    return caught(this.#complete(tx, result))
  }

  async #complete(tx: AnyTx, result: unknown): Promise<void> {
    this.#assertOpenIn(tx)
    const json = result === undefined ? null : this.#resultJson(result)
    const complete = this.isReplicated ? completeReplicatedStatement : completeStatement
    await this.#fenced(tx, 'complete', complete, { result: json, ran_ms: this.ranMs(), progress: this.unstored() })
    this.completeCalled = true
    this.#completedIn = tx
  }

  /** A handle of ours is one transaction; a client of the user's may have rolled back the one in which the job was completed. */
  #assertOpenIn(tx: AnyTx): void {
    if (tx === this.#completedIn && (tx as Tx)[checked]) throw this.#completedBefore()
  }

  #completedBefore(cause?: unknown): PawlError {
    return new PawlError(
      'PAWL_WRONG_STATE',
      `Job ${this.id} is already completed in this transaction. Call complete once, just before the commit.`,
      { cause, details: { id: this.id } },
    )
  }

  #resultJson(result: unknown): string {
    try {
      return toJson(result, `The result of '${this.kind}': result`, this.limits!)
    } catch (error) {
      this.unstorable = error
      throw error
    }
  }

  snooze(delay: number | string): Snooze {
    const snooze = new Snooze(check('snooze', 'delay', snoozeDelay, delay))
    this.snoozeCalled = true
    return snooze
  }

  async #fenced(tx: AnyTx, what: string, fenced: Statement, values: Values = {}): Promise<void> {
    if (this.#lost !== undefined) throw this.#lost
    try {
      const { tenant, id, fence } = this.row
      await dbOf(tx).run(fenced, { tenant, id, fence, ...values })
    } catch (error) {
      // Whosever transaction it is, the statement is ours, on our database.
      if (classify(error) !== 'fenced') throw markOwn(error)
      // Most likely by its own hand, in this very transaction. If not, its end is refused, and what is lost is found there.
      if (this.completeCalled) throw this.#completedBefore(error)
      const lost = leaseLost(this.row, error)
      this.lose(lost)
      this.onRefused?.(this, what)
      throw lost
    }
  }
}

export function leaseLost(row: { id: string; fence: string }, cause?: unknown): PawlError {
  return new PawlError(
    'PAWL_LEASE_LOST',
    `Job ${row.id} is no longer held under fence ${row.fence}: it was cancelled, timed out or taken over. Its result is refused; stop working on it.`,
    { cause, details: { id: row.id, fence: row.fence } },
  )
}
