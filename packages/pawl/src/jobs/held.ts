// A job in this process: claimed, perhaps running, until its settle has answered.

import { type AnyTx, toTx } from '../db/adapters.ts'
import { classify, markOwn } from '../db/classify.ts'
import { PawlError } from '../errors.ts'
import { delayMsMax, monotonicMs } from '../kernel/clock.ts'
import { check, duration, required } from '../kernel/options.ts'
import type { DefinedKind } from './kinds.ts'
import { type PayloadLimits, toJson } from './payload.ts'
import { Snooze } from './snooze.ts'
import type { Job } from './types.ts'

/** What claim.sql and claim-suspect.sql return. */
export interface FetchedRow {
  readonly tenant: string
  readonly id: string
  readonly fence: string
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
  #text: string | undefined
  #payload: unknown
  #headersText: string | undefined
  #headers: Record<string, unknown> = {}

  constructor(row: FetchedRow, queue: string) {
    this.tenant = row.tenant
    this.id = row.id
    this.fence = row.fence
    this.queue = queue
    this.kind = row.kind
    this.payload_version = row.payload_version
    this.attempt = row.attempt
    this.max_attempts = row.max_attempts
    this.crashes = row.crashes
    this.dueUs = row.due_us === null ? Number.NEGATIVE_INFINITY : Number(row.due_us)
    this.bytes = row.payload.length + (row.headers?.length ?? 0)
    this.#text = row.payload
    this.#headersText = row.headers ?? undefined
  }

  /** Parsed when the job starts: a batch of large payloads that wait takes no more than their text. */
  get payload(): unknown {
    if (this.#text !== undefined) {
      this.#payload = JSON.parse(this.#text)
      this.#text = undefined
    }
    return this.#payload
  }

  /** Parsed when a handler asks for them. */
  get headers(): Record<string, unknown> {
    if (this.#headersText !== undefined) {
      this.#headers = JSON.parse(this.#headersText) as Record<string, unknown>
      this.#headersText = undefined
    }
    return this.#headers
  }
}

/** PostgreSQL's largest integer: a run of 24.8 days and more. */
const ranMsMax = 2_147_483_647

const snoozeDelay = required(duration({ from: 0, to: delayMsMax, doc: 'How long until it runs again.' }))
const completeSql = 'select pawl.complete_job($1::text, $2::bigint, $3::bigint, $4::jsonb, $5::integer)::text as done'

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
  /** Hears of writes in the handler's own transaction that the database refused. */
  onRefused: ((held: HeldJob, what: string) => void) | undefined
  isRefusalKept = false
  limits: PayloadLimits | undefined
  /** Why the result given to complete() could not be stored. Running again would repeat its effects outside and end here again. */
  unstorable: unknown
  /** Its end must be on a standby, whoever commits it. */
  isReplicated = false
  /** Where it is written for the keeper thread while it runs. */
  slot = -1
  slotsTaken = 0
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
    return this.row.headers
  }
  get idempotencyKey(): string {
    return `${this.installation}-${this.row.id}`
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

  async guard(tx: AnyTx): Promise<void> {
    await this.#fenced(tx, 'guard', 'select pawl.guard_job($1::text, $2::bigint, $3::bigint)::text as held', [])
  }

  async complete(tx: AnyTx, result?: unknown): Promise<void> {
    const json = result === undefined ? null : this.#resultJson(result)
    await this.#fenced(
      tx,
      'complete',
      this.isReplicated ? `${completeSql}, pawl.set_durability('replicated')::text as level` : completeSql,
      [json, this.ranMs()],
    )
    this.completeCalled = true
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
    return new Snooze(check('snooze', 'delay', snoozeDelay, delay))
  }

  async #fenced(tx: AnyTx, what: string, text: string, values: readonly unknown[]): Promise<void> {
    if (this.#lost !== undefined) throw this.#lost
    try {
      await toTx(tx).query(text, [this.row.tenant, this.row.id, this.row.fence, ...values])
    } catch (error) {
      // Whosever transaction it is, the statement is ours, on our database.
      if (classify(error) !== 'fenced') throw markOwn(error)
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
