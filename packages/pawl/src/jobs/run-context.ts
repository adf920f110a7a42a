// What a handler gets besides its job. Of its progress at most one write per interval is sent, and the last value is always stored. A touch
// rejects when the job is cancelled or lost, so that a long handler stops.

import { statement } from '../db/statement.ts'
import { caught } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { type Attempt, leaseLost } from './attempt.ts'
import type { JobContext } from './types.ts'

const touchStatement = statement(import.meta.url, 'touch')

export class RunContext implements JobContext {
  readonly #attempt: Attempt
  /** Nothing is written before the end. */
  readonly #isKept: boolean
  /** JSON string; null: a sign of life alone; undefined: nothing is to be written. */
  #pending: string | null | undefined
  /** The same, of what is being written. */
  #inFlight: string | null | undefined
  #lastWriteMs = Number.NEGATIVE_INFINITY
  #timer: NodeJS.Timeout | undefined
  #writing: Promise<void> | undefined

  constructor(attempt: Attempt, { isKept = false } = {}) {
    this.#attempt = attempt
    this.#isKept = isKept
    attempt.context = this
  }

  // Handlers take these apart, so each is returned bound; most use none.
  get touch(): JobContext['touch'] {
    return (progress) => caught(this.#touch(progress))
  }

  get log(): JobContext['log'] {
    const { id: job, kind, attempt, runtime } = this.#attempt
    return (message, fields = {}) => runtime.process.config.logger.info({ job, kind, attempt, ...fields }, message)
  }

  get signal(): AbortSignal {
    return this.#attempt.signal
  }

  /** The last value that is not stored, for a transaction that holds the job: nothing else can store it until that has ended. */
  get unstored(): string | null {
    return this.#pending ?? this.#inFlight ?? null
  }

  async #touch(progress?: unknown): Promise<void> {
    const { abortReason, isEnded, row, kind, limits, runtime } = this.#attempt
    if (abortReason !== undefined) throw abortReason
    if (isEnded) throw leaseLost(row)
    this.#pending =
      progress === undefined ? (this.#pending ?? null) : toJson(progress, `The progress of '${kind}': progress`, limits)
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
    await this.#writing?.catch(() => undefined)
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
    this.#writing ??= this.#store().finally(() => {
      this.#writing = this.#inFlight = undefined
    })
    return this.#writing
  }

  async #store(): Promise<void> {
    const progress = this.#pending
    if (progress === undefined) return
    this.#pending = undefined
    this.#inFlight = progress
    this.#lastWriteMs = monotonicMs()
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
    if (this.#attempt.completedIn === undefined) throw this.#attempt.refused('touch')
  }
}
