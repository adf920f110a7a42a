// Loops and how they wait: a round at an interval or on a wake-up (Service), one waiter (Wakeup), sleep until a notification (Sleep).

import type { Connection } from '../db/driver.ts'
import { statement, textsLiteral } from '../db/statement.ts'
import type { LoopWatch } from './alerts.ts'
import { monotonicMs } from './clock.ts'
import { probe } from './probe.ts'
import { engineBackoffMs } from './retry.ts'

interface ServiceOptions {
  /** One round. Returns the milliseconds until the next one; 0: at once. */
  readonly round: () => Promise<number>
  readonly signal: AbortSignal
  readonly loop: LoopWatch
  /** Milliseconds after the n-th error in a row. */
  readonly backoffMs?: (error: unknown, failed: number) => number
}

export class Service {
  readonly #options: ServiceOptions
  readonly #wakeup = new Wakeup()
  #round: Promise<number> | undefined

  constructor(options: ServiceOptions) {
    this.#options = options
  }

  /** The next round begins now, or right after the one in progress. */
  wake(): void {
    this.#wakeup.fire()
  }

  /** One round, not beside another: what a test calls in place of waiting. Rejects with its error. */
  runOnce(): Promise<number> {
    const { round } = this.#options
    this.#round = this.#round === undefined ? round() : this.#round.then(round, round)
    return this.#round
  }

  async run(): Promise<void> {
    const { signal, loop, backoffMs = engineBackoffMs } = this.#options
    const wake = () => this.wake()
    signal.addEventListener('abort', wake, { once: true })
    for (let failed = 0; !signal.aborted; ) {
      let waitMs: number
      try {
        waitMs = await this.runOnce()
        failed = 0
        loop.succeeded()
      } catch (error) {
        loop.failed(error)
        waitMs = backoffMs(error, ++failed)
      }
      if (waitMs > 0 && !signal.aborted) await this.#wakeup.wait(waitMs)
    }
    signal.removeEventListener('abort', wake)
  }
}

/** One waiter, any number of reasons to wake it. A fire without a waiter is remembered, so no wake-up is lost. */
export class Wakeup {
  #isFired = false
  #resume: (() => void) | undefined

  fire(): void {
    this.#isFired = true
    this.#resume?.()
  }

  get isWaiting(): boolean {
    return this.#resume !== undefined
  }

  /** Waits until it is fired or the time is over; says whether it was fired. */
  async wait(timeoutMs?: number): Promise<boolean> {
    if (!this.#isFired) {
      let timer: NodeJS.Timeout | undefined
      await new Promise<void>((resolve) => {
        this.#resume = resolve
        if (timeoutMs !== undefined) timer = setTimeout(resolve, timeoutMs)
      })
      clearTimeout(timer)
      this.#resume = undefined
    }
    const wasFired = this.#isFired
    this.#isFired = false
    return wasFired
  }
}

// ---- sleep

// Enqueues notify only while a worker sleeps, so its flag is committed first. Quick polls cover transactions that may have read the flag too
// early; only when they have ended does the worker rely on notifications. Continuous work clears the flag: busy queues pay for none.

const awakeStatement = statement(import.meta.url, 'awake')
const sleepStatement = statement(import.meta.url, 'sleep')
const snapshotStatement = statement(import.meta.url, 'snapshot')
const stillOpenStatement = statement(import.meta.url, 'still-open')

/** About 500 jobs a second are continuous work: a notification for each would cost its enqueuer more than quick polls cost this worker. */
const busyJobs = 50
const busyMs = 100
const lastFoundMs = 20
/** Without notifications the polls come at least this often. */
const deafPollMs = 200

interface SleepOptions {
  readonly queues: readonly string[]
  readonly canListen: boolean
  /** Whether notifications arrive just now. */
  readonly isListening?: () => boolean
  readonly pollMs: number
}

export class Sleep {
  readonly #connection: Connection
  readonly #options: Required<SleepOptions>
  /** The incarnation whose flag is set. */
  #flagged: number | undefined
  #snapshot: string | undefined
  #flaggedMs = 0
  /** Jobs found, halved about every 70 ms. */
  #found = 0
  #foundMs = 0

  constructor(connection: Connection, options: SleepOptions) {
    this.#connection = connection
    this.#options = { isListening: () => true, ...options }
  }

  /** Another incarnation starts without a flag; the old one's went with its closing. */
  reset(): void {
    this.#flagged = undefined
    this.#snapshot = undefined
  }

  /** Whether a notification comes for every job from now on, so that a claim that found too little has found all. */
  isRelied(worker: number): boolean {
    return this.#flagged === worker && this.#snapshot === undefined && this.#options.isListening()
  }

  get isBusy(): boolean {
    const nowMs = monotonicMs()
    return nowMs - this.#foundMs < lastFoundMs && this.#foundBy(nowMs) >= busyJobs
  }

  /** Called after a claim that found something. Clears the flag once the work is continuous. */
  async worked(worker: number, count: number): Promise<void> {
    const nowMs = monotonicMs()
    this.#found = this.#foundBy(nowMs) + count
    this.#foundMs = nowMs
    if (this.#flagged !== worker || !this.isBusy) return
    this.#flagged = undefined
    this.#snapshot = undefined
    await this.#connection.run(awakeStatement, { worker, queues: textsLiteral(this.#options.queues) })
  }

  /** Called after a claim that found too little. Returns how long to wait before the next claim; 0 means claim again at once. */
  async idle(worker: number): Promise<number> {
    const { canListen, isListening, pollMs, queues } = this.#options
    if (!canListen) return Math.min(pollMs, deafPollMs)
    if (this.#flagged !== worker) {
      await this.#connection.run(sleepStatement, { worker, queues: textsLiteral(queues) })
      if (probe.on) await probe.hit('jobs.sleep.flagged', worker)
      const [row] = await this.#connection.run<{ snapshot: string }>(snapshotStatement)
      this.#snapshot = row?.snapshot
      this.#flaggedMs = monotonicMs()
      this.#flagged = worker
      return 0
    }
    if (this.#snapshot === undefined) return isListening() ? pollMs : Math.min(pollMs, deafPollMs)
    const [row] = await this.#connection.run<{ open: number }>(stillOpenStatement, { snapshot: this.#snapshot })
    if (row?.open === 0) {
      this.#snapshot = undefined
      return 0
    }
    // A stranger's transaction may stay open for hours; the polls thin out, and never below the ordinary one.
    const ageMs = monotonicMs() - this.#flaggedMs
    return Math.min(pollMs, ageMs < 5000 ? 20 : ageMs < 60_000 ? 100 : 500)
  }

  #foundBy(nowMs: number): number {
    return this.#found * Math.exp((this.#foundMs - nowMs) / busyMs)
  }
}
