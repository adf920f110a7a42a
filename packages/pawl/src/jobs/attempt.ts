// One attempt of one job in this process: claimed, then perhaps run, until it has an end.

import { numbersLiteral, textsLiteral } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { PayloadLimits } from '../kernel/payload.ts'
import type { Process } from '../kernel/process.ts'
import { Wakeup } from '../kernel/service.ts'
import type { Call } from './call.ts'
import { type Ending, type RunEnd, releasedEnd, timedOutEnd } from './endings.ts'
import type { DefinedKind } from './kinds.ts'
import type { Outcomes } from './outcomes.ts'
import type { HandlerTransactions } from './tx/handler-transactions.ts'

/** A row of `claim` and `claim-suspect`. */
export interface ClaimedRow {
  readonly tenant: string
  readonly id: string
  readonly fence: string
  readonly queue: string
  readonly kind: string
  /** JSON strings, read again before each call of the handler: no call sees what another made of its payload. */
  payload: string
  readonly headers: string | null
  readonly payload_version: number
  readonly attempt: number
  readonly max_attempts: number | null
  readonly crashes: number
  /** Microseconds since 1970; null: not finite. As a bigint, because extra_float_digits may round a double precision to ten of them. */
  readonly due_us: string | null
}

/** PostgreSQL's largest integer: a run of 24.8 days and more. */
const ranMsMax = 2_147_483_647

/** Shared by the attempts of a process: where they run, and where their ends go. */
export interface Runtime {
  readonly process: Pick<Process, 'config' | 'engine' | 'installation' | 'trouble'>
  readonly transactions: HandlerTransactions
  readonly settler: { readonly isFull: boolean; add(ending: Ending): void }
  readonly outcomes: Outcomes
  readonly limits: PayloadLimits
  readonly touchMs: number
  /** How often in a row a job has waited for a database that could not write. */
  readonly waits: Map<string, number>
}

/**
 * 'alone': it waits to run alone, after the transaction that it shared failed. 'connecting': its handler waits for a connection, and nothing of it is
 * applied. 'ended': it has its one end; everything that follows is late.
 */
export type AttemptState = 'waiting' | 'alone' | 'connecting' | 'running' | 'ended'

export class Attempt {
  readonly row: ClaimedRow
  readonly tenant: string
  readonly id: string
  readonly fence: string
  readonly kind: string
  readonly attempt: number
  readonly definition: DefinedKind
  readonly runtime: Runtime
  readonly worker: number
  readonly claimedMs = monotonicMs()
  /** Its process died while it may have run, and it has not ended in order since. */
  readonly isSuspect: boolean
  readonly #ended = new Wakeup()
  startedMs = 0
  /** The transaction that its handler is in. */
  tx: Transaction | undefined
  /** The last call of its handler. */
  call: Call | undefined
  #state: AttemptState = 'waiting'
  #abortReason: PawlError | undefined

  constructor(row: ClaimedRow, definition: DefinedKind, runtime: Runtime, worker: number, isSuspect = false) {
    this.row = row
    this.tenant = row.tenant
    this.id = row.id
    this.fence = row.fence
    this.kind = row.kind
    this.attempt = row.attempt
    this.definition = definition
    this.runtime = runtime
    this.worker = worker
    this.isSuspect = isSuspect
  }

  /** As its handler got it. Of an attempt whose handler was not called: as it is stored, for the capability that settles it. */
  get payload(): unknown {
    return this.call?.payload ?? (this.definition.settleWith === undefined ? undefined : JSON.parse(this.row.payload))
  }
  /** In log lines. */
  get named(): Readonly<Record<string, unknown>> {
    return { job: this.id, kind: this.kind, ...this.definition.settleWith?.about(this.payload) }
  }
  /** Its end must reach a standby, in any transaction that commits it. */
  get isReplicated(): boolean {
    return (this.definition.durability ?? this.runtime.process.config.durability) === 'replicated'
  }
  /** JSON string of the last progress, while it is not stored. */
  get unstored(): string | null {
    return this.call?.context.unstored ?? null
  }

  // ---- its state

  get state(): AttemptState {
    return this.#state
  }
  get isEnded(): boolean {
    return this.#state === 'ended'
  }

  become(state: Exclude<AttemptState, 'ended'>): void {
    if (this.#state !== 'ended') this.#state = state
  }

  /** Gives the attempt its one end. Returns false if it has one. The reason is for an end that is not its handler's. */
  end(reason?: PawlError): boolean {
    if (this.#state === 'ended') return false
    this.#state = 'ended'
    if (reason !== undefined) this.abort(reason)
    this.#ended.fire()
    return true
  }

  /** Has one waiter at a time. */
  async whenEnded(): Promise<void> {
    await this.#ended.wait()
  }

  /** Why its handler should stop. Not yet an end: what the handler returns may still settle under its fence. */
  get abortReason(): PawlError | undefined {
    return this.#abortReason
  }

  /**
   * A tx handler that is aborted may never return, and hold locks and a connection: it loses both at once. At the end of a stop's grace the
   * job is still ours, and an answer counts.
   */
  abort(reason: PawlError): void {
    if (this.#abortReason !== undefined) return
    this.#abortReason = reason
    this.call?.context.abort(reason)
    if (reason.code !== 'PAWL_STOPPED') this.tx?.abandon(reason)
  }

  // ---- its end

  /** Stores the first end; a later one is ignored and recorded as refused. */
  finish(end: RunEnd): void {
    const { outcomes, settler } = this.runtime
    this.#dropPayload()
    if (end === 'stopped') return
    const isStored = end === 'settled' || end === 'snoozed'
    if (end !== 'late' && this.end()) {
      if (end === 'settled') outcomes.settled([{ attempt: this, result: null }])
      else if (end !== 'snoozed') settler.add(end)
    } else if (!isStored && this.#abortReason !== undefined) outcomes.refused(this, 'settle')
  }

  /** Gives the job back, without an attempt used up. */
  release(delayMs = 0): void {
    if (this.end()) this.#release(delayMs)
  }

  #release(delayMs: number): void {
    this.#dropPayload()
    this.runtime.outcomes.counts.released++
    this.runtime.settler.add(releasedEnd(this, delayMs))
  }

  /** Its handler is not called again: what waits for its settle does not take the memory of the payload too, unless a capability settles by it. */
  #dropPayload(): void {
    if (this.definition.settleWith === undefined || this.call?.payload !== undefined) this.row.payload = 'null'
  }

  /** Returns false if it has an end. While it waits for a connection it has not started, and is given back. */
  timeOut(): boolean {
    const hasStarted = this.#state !== 'connecting'
    const { timeoutMs } = this.definition
    if (!this.end(new PawlError('PAWL_TIMED_OUT', `Job ${this.id} ran longer than its timeout of ${timeoutMs} ms.`))) return false
    if (hasStarted) this.runtime.settler.add(timedOutEnd(this))
    else this.#release(0)
    return true
  }

  ranMs(): number {
    return Math.min(ranMsMax, Math.round(monotonicMs() - this.startedMs))
  }

  /** A write of its handler found that the fence is not ours. Returns why it is aborted. */
  refused(what: string, cause?: unknown): PawlError {
    this.abort(leaseLost(this.row, cause))
    this.runtime.outcomes.refused(this, what)
    return this.#abortReason!
  }
}

export type JobKey = Pick<Attempt, 'tenant' | 'id' | 'fence'>

/** The parameters of a statement about these jobs, each under its fence. */
export function keysOf(jobs: readonly JobKey[]): Record<'tenants' | 'ids' | 'fences', string> {
  return {
    tenants: textsLiteral(jobs.map(({ tenant }) => tenant)),
    ids: numbersLiteral(jobs.map(({ id }) => id)),
    fences: numbersLiteral(jobs.map(({ fence }) => fence)),
  }
}

export function leaseLost(row: { id: string; fence: string }, cause?: unknown): PawlError {
  return new PawlError(
    'PAWL_LEASE_LOST',
    `Job ${row.id} is no longer held under fence ${row.fence}: it was cancelled, timed out or taken over. Its result is refused; stop working on it.`,
    { cause, details: { id: row.id, fence: row.fence } },
  )
}
