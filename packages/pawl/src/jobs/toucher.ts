// Progress of one running job. At most one write per interval, the last value is always stored, and a lease is never pretended: touch
// only reports. It rejects when the job is cancelled or lost, so that a long handler stops.

import type { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { type PayloadLimits, toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { type HeldJob, leaseLost } from './held.ts'

const touchStatement = statement(import.meta.url, 'touch')

export interface ToucherOptions {
  readonly engine: Connection
  readonly limits: PayloadLimits
  readonly touchMs: number
  readonly onConflict: (error: unknown) => void
  readonly onTouch: () => void
  readonly onRefused: (held: HeldJob, what: string) => void
}

export class Toucher {
  readonly #held: HeldJob
  readonly #options: ToucherOptions
  /** Nothing is written before the end. */
  readonly #isKept: boolean
  /** JSON text; null: a sign of life alone; undefined: nothing is to be written. */
  #pending: string | null | undefined
  /** The same, of what is being written. */
  #inFlight: string | null | undefined
  #lastWriteMs = Number.NEGATIVE_INFINITY
  #timer: NodeJS.Timeout | undefined
  #writing: Promise<void> | undefined

  constructor(held: HeldJob, options: ToucherOptions, isKept = false) {
    this.#held = held
    this.#options = options
    this.#isKept = isKept
  }

  async touch(progress: unknown): Promise<void> {
    if (this.#held.lost !== undefined) throw this.#held.lost
    if (this.#held.isEnded) throw leaseLost(this.#held.row)
    this.#pending =
      progress === undefined
        ? (this.#pending ?? null)
        : toJson(progress, `The progress of '${this.#held.kind}': progress`, this.#options.limits)
    if (this.#isKept || this.#writing !== undefined || this.#timer !== undefined) return
    const waitMs = this.#lastWriteMs + this.#options.touchMs - monotonicMs()
    if (waitMs <= 0) return this.#write()
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#write().catch(() => undefined)
    }, waitMs)
  }

  /** The last value, for a transaction that holds the job: nobody else can store it until that has ended. */
  get unstored(): string | null {
    return this.#pending ?? this.#inFlight ?? null
  }

  async quiet(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    await this.#writing?.catch(() => undefined)
  }

  /** The handler has ended: what is still pending is stored now. Trouble here is the settle's to find. */
  async flush(): Promise<void> {
    await this.quiet()
    if (this.#pending !== undefined && this.#held.lost === undefined) await this.#write().catch(() => undefined)
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
    if (probe.on) await probe.hit('jobs.touch.before', this.#held)
    try {
      const [row] = await this.#options.engine.run<{ answer: 'stored' | 'busy' | 'lost' }>(touchStatement, {
        tenant: this.#held.tenant,
        id: this.#held.id,
        fence: this.#held.fence,
        progress,
      })
      this.#options.onTouch()
      if (row?.answer === 'busy') this.#pending ??= progress
      if (row?.answer !== 'lost') return
    } catch (error) {
      // A failed write of progress is no reason to fail the job; the next touch or the end stores it.
      this.#options.onConflict(error)
      this.#pending ??= progress
      return
    }
    // job.complete(tx) has ended it, or that transaction was rolled back and then the job was lost: the history tells, after the handler.
    if (this.#held.completeCalled) return
    const lost = leaseLost(this.#held.row)
    this.#held.lose(lost)
    this.#options.onRefused(this.#held, 'touch')
    throw this.#held.lost ?? lost
  }
}
