// One attempt of one job in this process: claimed, then perhaps run, until it has an end. The handler gets it as its job.

import { type AnyTx, checked, type Tx } from '../db/adapters.ts'
import { classify, markOwn } from '../db/classify.ts'
import { dbOf } from '../db/db.ts'
import { numbersLiteral, type Statement, statement, textsLiteral, type Values } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { caught, PawlError } from '../errors.ts'
import { delayMsMax, monotonicMs } from '../kernel/clock.ts'
import { check, duration, required } from '../kernel/options.ts'
import { fromJson, type PayloadLimits, toJson } from '../kernel/payload.ts'
import type { Process } from '../kernel/process.ts'
import { setDurability } from '../kernel/retry.ts'
import { type Ending, type RunEnd, releasedEnd, Snooze, timedOutEnd } from './endings.ts'
import type { HandlerTransactions } from './handler-transactions.ts'
import { type DefinedKind, readPayload } from './kinds.ts'
import type { Outcomes } from './outcomes.ts'
import type { RunContext } from './run-context.ts'
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

/** What the attempts of a process share: where they run, and where their ends go. */
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

/** 'connecting': its handler waits for a connection, and nothing of it is applied. 'ended': it has its one end; whatever follows is late. */
export type AttemptState = 'waiting' | 'connecting' | 'running' | 'ended'

export class Attempt implements Job {
  readonly row: ClaimedRow
  readonly definition: DefinedKind
  readonly runtime: Runtime
  readonly worker: number
  readonly claimedMs = monotonicMs()
  payload: unknown
  startedMs = 0
  /** When its end was given to the settler. */
  endedMs = 0
  /** Its process died while it may have run, and it has not ended in order since. */
  isSuspect = false
  /** It shared a transaction that failed: it has run, so it is not given back for having waited. */
  hasShared = false
  /** Where the keeper thread finds it while it runs. */
  slot = -1
  /** The transaction that its handler is in. */
  tx: Transaction | undefined
  context: RunContext | undefined
  /** Where job.complete(tx) was called. */
  completedIn: AnyTx | undefined
  snoozeCalled = false
  /** Why the result given to complete() could not be stored. Running again would repeat its effects outside and end here again. */
  unstorable: unknown
  #state: AttemptState = 'waiting'
  #abortReason: PawlError | undefined
  #headers: Record<string, unknown> | undefined
  #controller: AbortController | undefined
  #whenEnded: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined

  constructor(row: ClaimedRow, definition: DefinedKind, runtime: Runtime, worker: number) {
    this.row = row
    this.definition = definition
    this.runtime = runtime
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
    return `${this.runtime.process.installation}-${this.row.id}`
  }
  get limits(): PayloadLimits {
    return this.runtime.limits
  }
  /** Its end must reach a standby, in any transaction that commits it. */
  get isReplicated(): boolean {
    return (this.definition.durability ?? this.runtime.process.config.durability) === 'replicated'
  }
  /** JSON string of the last progress, while it is not stored. */
  get unstored(): string | null {
    return this.context?.unstored ?? null
  }

  // ---- its state

  get state(): AttemptState {
    return this.#state
  }

  get isEnded(): boolean {
    return this.#state === 'ended'
  }

  become(state: 'waiting' | 'connecting' | 'running'): void {
    if (this.#state !== 'ended') this.#state = state
  }

  /** Gives the attempt its one end. Returns false if it has one. The reason is for an end that is not its handler's. */
  end(reason?: PawlError): boolean {
    if (this.#state === 'ended') return false
    this.#state = 'ended'
    if (reason !== undefined) this.abort(reason)
    this.#whenEnded?.resolve()
    return true
  }

  whenEnded(): Promise<void> {
    if (this.#whenEnded === undefined) {
      let resolve = (): void => undefined
      const promise = new Promise<void>((ended) => {
        resolve = ended
      })
      this.#whenEnded = { promise, resolve }
      if (this.isEnded) resolve()
    }
    return this.#whenEnded.promise
  }

  /** Made on first use: most handlers never read it. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      if (this.#abortReason !== undefined) this.#controller.abort(this.#abortReason)
    }
    return this.#controller.signal
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
    this.#controller?.abort(reason)
    if (reason.code !== 'PAWL_STOPPED') this.tx?.abandon(reason)
  }

  // ---- its end

  /** What its run came to. The first end is stored; a later one counts for nothing, and is recorded as refused. */
  finish(end: RunEnd): void {
    const { outcomes, settler } = this.runtime
    this.row.dropPayload()
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
    this.row.dropPayload()
    this.runtime.outcomes.counts.released++
    this.runtime.settler.add(releasedEnd(this, delayMs))
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

  // ---- what its handler does

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

  ranMs(): number {
    return Math.min(ranMsMax, Math.round(monotonicMs() - this.startedMs))
  }

  guard(tx: AnyTx): Promise<void> {
    return caught(this.#guard(tx))
  }

  async #guard(tx: AnyTx): Promise<void> {
    this.#assertOpenIn(tx)
    const { settleWith } = this.definition
    await this.#fenced(tx, 'guard', settleWith?.guard ?? guardStatement, settleWith?.values([this]))
  }

  complete(tx: AnyTx, result?: unknown): Promise<void> {
    return caught(this.#complete(tx, result))
  }

  async #complete(tx: AnyTx, result: unknown): Promise<void> {
    this.#assertOpenIn(tx)
    const json = result === undefined ? null : this.#resultJson(result)
    const { settleWith } = this.definition
    if (settleWith !== undefined && this.isReplicated) await setDurability(dbOf(tx), 'replicated')
    const complete = settleWith?.complete ?? (this.isReplicated ? completeReplicatedStatement : completeStatement)
    const values = { result: json, ran_ms: this.ranMs(), progress: this.unstored, ...settleWith?.values([this]) }
    await this.#fenced(tx, 'complete', complete, values)
    this.completedIn = tx
  }

  /** A handle of ours is one transaction; a client of the user's may have rolled back the one in which the job was completed. */
  #assertOpenIn(tx: AnyTx): void {
    if (tx === this.completedIn && (tx as Tx)[checked]) throw this.#completedBefore()
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
      return toJson(result, `The result of '${this.kind}': result`, this.limits)
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
    if (this.#abortReason !== undefined) throw this.#abortReason
    try {
      const { tenant, id, fence } = this.row
      await dbOf(tx).run(fenced, { tenant, id, fence, ...values })
    } catch (error) {
      // In any transaction: the statement is ours, on our database.
      if (classify(error) !== 'fenced') throw markOwn(error)
      // Most likely its own call, in this very transaction. If not, its end is refused, and the loss is found there.
      if (this.completedIn !== undefined) throw this.#completedBefore(error)
      throw this.refused(what, error)
    }
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
