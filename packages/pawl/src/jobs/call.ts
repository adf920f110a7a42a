// One call of a handler: the job as the handler sees it, and what it gets besides. A handler whose transaction is tried again gets another call,
// with payload and headers as they are stored. Of its progress at most one write per interval is sent, and the last value is always stored. A
// touch rejects when the job is cancelled or lost, so that a long handler stops.

import { type AnyTx, checked, type Tx } from '../db/adapters.ts'
import { classify, markOwn } from '../db/classify.ts'
import { dbOf } from '../db/db.ts'
import { type Statement, statement, type Values } from '../db/statement.ts'
import { caught, PawlError } from '../errors.ts'
import { delayMsMax, monotonicMs } from '../kernel/clock.ts'
import { check, duration, required } from '../kernel/options.ts'
import { fromJson, toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { setDurability } from '../kernel/retry.ts'
import { type Attempt, leaseLost } from './attempt.ts'
import { resultJson, Snooze } from './endings.ts'
import { readPayload } from './kinds.ts'
import type { Job, JobContext } from './types.ts'

const guardStatement = statement(import.meta.url, 'guard', 'any')
const completeStatement = statement(import.meta.url, 'complete', 'any')
const completeReplicatedStatement = statement(import.meta.url, 'complete-replicated', 'any')
const touchStatement = statement(import.meta.url, 'touch')
const snoozeDelay = required(duration({ from: 0, to: delayMsMax, doc: 'How long until the job runs again.' }))

export class Call implements Job {
  readonly id: string
  readonly tenant: string
  readonly queue: string
  readonly kind: string
  readonly attempt: number
  readonly crashes: number
  readonly fence: string
  readonly context: RunContext
  readonly #attempt: Attempt
  payload: unknown
  /** Where job.complete(tx) was called. */
  completedIn: AnyTx | undefined
  snoozeCalled = false
  #headers: Record<string, unknown> | undefined

  /** `isKept`: its progress is stored with its end only. */
  constructor(attempt: Attempt, isKept = false) {
    const { row } = attempt
    this.id = row.id
    this.tenant = row.tenant
    this.queue = row.queue
    this.kind = row.kind
    this.attempt = row.attempt
    this.crashes = row.crashes
    this.fence = row.fence
    this.#attempt = attempt
    this.context = new RunContext(attempt, isKept)
    attempt.call = this
  }

  get idempotencyKey(): string {
    return `${this.#attempt.runtime.process.installation}-${this.id}`
  }
  get headers(): Record<string, unknown> {
    this.#headers ??= JSON.parse(this.#attempt.row.headers ?? '{}') as Record<string, unknown>
    return this.#headers
  }

  /** Before the handler. Throws or rejects when the payload is invalid. */
  read(): Promise<void> | undefined {
    const { definition, row } = this.#attempt
    const stored = fromJson(row.payload, `The payload of '${this.kind}': payload`)
    const payload = readPayload(definition, stored, row.payload_version)
    if (payload instanceof Promise)
      return payload.then((value: unknown) => {
        this.payload = value
      })
    this.payload = payload
    return undefined
  }

  guard(tx: AnyTx): Promise<void> {
    return caught(this.#guard(tx))
  }

  async #guard(tx: AnyTx): Promise<void> {
    this.#assertOpenIn(tx)
    const { settleWith } = this.#attempt.definition
    await this.#fenced(tx, 'guard', settleWith?.guard ?? guardStatement, settleWith?.values([this.#attempt]))
  }

  complete(tx: AnyTx, result?: unknown): Promise<void> {
    return caught(this.#complete(tx, result))
  }

  async #complete(tx: AnyTx, result: unknown): Promise<void> {
    this.#assertOpenIn(tx)
    const attempt = this.#attempt
    const { settleWith } = attempt.definition
    const json = result === undefined ? null : resultJson(attempt, result)
    if (settleWith !== undefined && attempt.isReplicated) await setDurability(dbOf(tx), 'replicated')
    const complete = settleWith?.complete ?? (attempt.isReplicated ? completeReplicatedStatement : completeStatement)
    const values = { result: json, ran_ms: attempt.ranMs(), progress: attempt.unstored, ...settleWith?.values([attempt]) }
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

  snooze(delay: number | string): Snooze {
    const snooze = new Snooze(check('snooze', 'delay', snoozeDelay, delay))
    this.snoozeCalled = true
    return snooze
  }

  async #fenced(tx: AnyTx, what: string, fenced: Statement, values: Values = {}): Promise<void> {
    if (this.#attempt.abortReason !== undefined) throw this.#attempt.abortReason
    try {
      const { tenant, id, fence } = this
      await dbOf(tx).run(fenced, { tenant, id, fence, ...values })
    } catch (error) {
      // In any transaction: the statement is ours, on our database.
      if (classify(error) !== 'fenced') throw markOwn(error)
      // Most likely its own call, in this very transaction. If not, its end is refused, and the loss is found there.
      if (this.completedIn !== undefined) throw this.#completedBefore(error)
      throw this.#attempt.refused(what, error)
    }
  }
}

export class RunContext implements JobContext {
  readonly #attempt: Attempt
  /** Nothing is written before the end. */
  readonly #isKept: boolean
  /** JSON string; null: a sign of life alone; undefined: nothing is to be written. */
  #pending: string | null | undefined
  #writing: { readonly progress: string | null; readonly written: Promise<void> } | undefined
  #lastWriteMs = Number.NEGATIVE_INFINITY
  #timer: NodeJS.Timeout | undefined
  /** Made on first use: most handlers never read the signal. */
  #controller: AbortController | undefined

  constructor(attempt: Attempt, isKept: boolean) {
    this.#attempt = attempt
    this.#isKept = isKept
  }

  // Handlers destructure their context, so each of these works without `this`. Made when asked for: most handlers use none.
  get touch(): JobContext['touch'] {
    return (progress) => caught(this.#touch(progress))
  }

  get log(): JobContext['log'] {
    const { named, attempt, runtime } = this.#attempt
    return (message, fields = {}) => runtime.process.config.logger.info({ ...named, attempt, ...fields }, message)
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      const { abortReason } = this.#attempt
      if (abortReason !== undefined) this.#controller.abort(abortReason)
    }
    return this.#controller.signal
  }

  /** Without making a signal, which takes 17 µs. */
  get isAborted(): boolean {
    return this.#attempt.abortReason !== undefined
  }

  abort(reason: PawlError): void {
    this.#controller?.abort(reason)
  }

  /** The last value that is not stored, for a transaction that holds the job: nothing else can store it until that has ended. */
  get unstored(): string | null {
    return this.#pending ?? this.#writing?.progress ?? null
  }

  async #touch(progress?: unknown): Promise<void> {
    const { abortReason, isEnded, row, kind, runtime } = this.#attempt
    if (abortReason !== undefined) throw abortReason
    if (isEnded) throw leaseLost(row)
    const what = `The progress of '${kind}': progress`
    this.#pending = progress === undefined ? (this.#pending ?? null) : toJson(progress, what, runtime.limits)
    if (this.#isKept || this.#writing !== undefined || this.#timer !== undefined) return
    const waitMs = this.#lastWriteMs + runtime.touchMs - monotonicMs()
    if (waitMs <= 0) return this.#write()
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#write().catch(() => undefined)
    }, waitMs)
  }

  /** Nothing is in flight any more. */
  async quiet(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    await this.#writing?.written.catch(() => undefined)
  }

  get isQuiet(): boolean {
    return this.#pending === undefined && this.#writing === undefined && this.#timer === undefined
  }

  /** The handler has ended: what is still pending is stored now. An error here is the settle's to find. */
  async flush(): Promise<void> {
    await this.quiet()
    if (this.#pending !== undefined && this.#attempt.abortReason === undefined) await this.#write().catch(() => undefined)
  }

  #write(): Promise<void> {
    if (this.#writing !== undefined) return this.#writing.written
    const progress = this.#pending
    if (progress === undefined) return Promise.resolve()
    this.#pending = undefined
    this.#lastWriteMs = monotonicMs()
    const written = this.#store(progress).finally(() => {
      this.#writing = undefined
    })
    this.#writing = { progress, written }
    return written
  }

  async #store(progress: string | null): Promise<void> {
    const { tenant, id, fence, runtime } = this.#attempt
    if (probe.on) await probe.hit('jobs.touch.before', this.#attempt)
    try {
      const values = { tenant, id, fence, progress }
      const [row] = await runtime.process.engine.run<{ answer: 'stored' | 'busy' | 'lost' }>(touchStatement, values)
      runtime.outcomes.counts.touches++
      if (row?.answer === 'busy') this.#pending ??= progress
      if (row?.answer !== 'lost') return
    } catch (error) {
      // A failed write of progress is no reason to fail the job; the next touch or the end stores it.
      runtime.process.trouble(error)
      this.#pending ??= progress
      return
    }
    // job.complete(tx) has ended it, or that transaction was rolled back and then the job was lost: the history tells, after the handler.
    if (this.#attempt.call?.completedIn === undefined) throw this.#attempt.refused('touch')
  }
}
