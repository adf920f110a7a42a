// The watch over other incarnations, in every keeper thread: every k-th read of the own row reads all others too, and a sweep does what
// that read found. About four a second whatever the number of workers; no holder is elected that could stop.

import { randomUUID } from 'node:crypto'
import type { Connection } from '../db/driver.ts'
import { numbersLiteral, type Parameter, type Statement, statement, textsLiteral } from '../db/statement.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Running } from '../kernel/keeper/board.ts'
import type { Closed } from '../kernel/keeper/keeper.ts'
import type { Watcher } from '../kernel/keeper/thread.ts'
import { answerWithinMs, type Holder, leaseStatements, lockClass, type Trouble } from '../kernel/lease.ts'
import { probe } from '../kernel/probe.ts'

const watchStatement = statement(import.meta.url, 'watch')
const rescueStatement = statement(import.meta.url, 'rescue')
const timeOutStatement = statement(import.meta.url, 'time-out')
const promoteStatement = statement(import.meta.url, 'promote')

const batchMax = 1000
/** Times k, as for all intervals here, so that all workers together scan for jobs past their time limit about once a second. */
const timeOutEveryMs = 2500
/** While the main thread runs nothing: what it holds then is a claim whose answer was lost. */
const idleTimeOutEveryMs = 60_000
/** A step of the database's clock ends no job for this long. */
const steadyMs = 3_600_000
const promoteEveryMsMin = 50
const fullScanEveryMs = 10_000
/** A scan from the beginning that takes longer is slow. */
const slowDefaultMs = 5
const beginning = '-infinity'

interface SilentWorker {
  readonly id: number
  /** Null: no worker asks. */
  readonly question: string | null
  readonly mayAsk: boolean
  readonly lookMs: number
  readonly reason: string
}

interface WatchRow {
  readonly is_turn: boolean
  readonly mine: 'open' | 'asked' | null
  readonly open: readonly number[] | null
  readonly silent: readonly SilentWorker[] | null
  readonly lost: readonly number[] | null
  readonly emptied: readonly number[] | null
  readonly next_ms: number | null
  readonly now_ms: number
  /** Null: nothing was scanned. */
  readonly reached: string | null
}

interface Found extends WatchRow {
  /** The incarnation that watched. */
  readonly own: number
  /** Where its scan of scheduled jobs started. */
  readonly after: string
}

interface PromotedRow {
  readonly promoted: number
  readonly last_run_at: string | null
  readonly last_id: string | null
  readonly next_ms: number | null
}

export interface SweptJob {
  readonly tenant: string
  readonly id: string
  readonly kind: string
  readonly state: string
  readonly holder: number
}

/** What a sweep has done to jobs. */
export type SweepNews =
  | { readonly type: 'rescued' | 'timed out'; readonly jobs: readonly SweptJob[] }
  | { readonly type: 'promoted' }

/** For jobs of a kind whose limits no process has written into the row. */
export interface SweepLimits {
  readonly maxAttempts: number
  readonly maxCrashes: number
}

export interface WatchOptions extends SweepLimits {
  readonly sweeps: Connection
  readonly trouble: Trouble
  readonly onClosed: (workers: readonly Closed[]) => void
  readonly onSwept: (news: SweepNews) => void
}

export class Watch implements Watcher {
  readonly #options: WatchOptions
  readonly #questions: Questions
  readonly #promotion: Promotion
  readonly #clock = new SteadyClock()
  /** The dead entries of this process alone in job_held take many pages and not much time. */
  readonly #held = new ScanStart(0)
  #checksLeft = 0
  /** Every k-th check of the own row is a watch: half the number of open workers, at least 1. */
  #k = 1
  #found: Found | undefined
  #isSweeping = false
  #lastTimeOutMs = Number.NEGATIVE_INFINITY

  constructor(options: WatchOptions) {
    this.#options = options
    this.#questions = new Questions(options.trouble)
    this.#promotion = new Promotion(options)
  }

  /** Counts a check of the own row, and returns whether this one is also a watch: every k-th, and when a question has waited long enough. */
  isTurn(): boolean {
    this.#checksLeft--
    return !this.#isSweeping && (this.#checksLeft <= 0 || this.#questions.isOneUnanswered)
  }

  /** Milliseconds until the next check: sooner than usual where a question will have waited long enough before. */
  lookInMs(everyMs: number): number {
    return Math.min(everyMs, this.#questions.nextInMs)
  }

  /** Returns the state of the own incarnation, and keeps what else it saw for the sweep. */
  async look(connection: Connection, worker: Holder): Promise<WatchRow['mine']> {
    const found = await this.#promotion.start.scan(async (after) => {
      const values = { worker: worker.id, nonce: worker.nonce, lock_class: lockClass, after }
      const [row] = await this.#options.trouble.run<WatchRow>(connection, watchStatement, values)
      return { ...row!, after, own: worker.id }
    }, this.#fullScanEveryMs)
    if (found.is_turn) {
      this.#found = found
      this.#promotion.after = found.after
      this.#k = Math.max(1, (found.open ?? []).length / 2)
    }
    this.#checksLeft = Math.max(1, Math.round(this.#k * (0.75 + Math.random() / 2)))
    return found.mine
  }

  /** All workers together scan in full about once in ten seconds. */
  get #fullScanEveryMs(): number {
    return fullScanEveryMs * 2 * this.#k
  }

  /** How long until a scheduled job is due, as far as the last watch knows. */
  get sweepInMs(): number {
    return this.#promotion.inMs
  }

  /**
   * Does what the last watch found, or only promotes where there was none since. `running`: what the main thread runs, and times out by its own
   * clock; null where it has not stored every end that it had two seconds before.
   */
  async sweep(running: readonly Running[] | null = []): Promise<void> {
    const found = this.#found
    this.#found = undefined
    this.#isSweeping = true
    try {
      if (found === undefined) {
        if (this.sweepInMs === 0) await this.promote()
        return
      }
      await this.#close(found)
      await this.#ask(found)
      if (found.lost !== null) await this.rescue(found.lost)
      if (found.emptied !== null) await this.#empty(found.emptied)
      const steadyMs = this.#clock.steadyMs(found.now_ms)
      if (running !== null) await this.#timeOutOwn(found.own, steadyMs, running)
      this.#promotion.dueIn(found.next_ms, this.#k)
      if (found.next_ms !== null && found.next_ms <= 0) await this.promote()
    } finally {
      this.#isSweeping = false
    }
  }

  promote(): Promise<void> {
    return this.#promotion.promote(this.#k)
  }

  #run<Row>(sent: Statement, values: Readonly<Record<string, Parameter>>): Promise<Row[]> {
    return this.#options.trouble.run<Row>(this.#options.sweeps, sent, values)
  }

  /** Closes those that are silent still and whose question, one of ours, has waited long enough by our own clock. */
  async #close({ silent }: WatchRow): Promise<void> {
    this.#questions.forgetAnswered(silent ?? [])
    const unanswered = (silent ?? []).filter(({ question }) => question !== null && this.#questions.isUnanswered(question))
    if (unanswered.length === 0) return
    const closed = await this.#run<Closed>(leaseStatements.closeDead, {
      workers: numbersLiteral(unanswered.map(({ id }) => id)),
      questions: textsLiteral(unanswered.map(({ question }) => question)),
      reasons: textsLiteral(unanswered.map(({ reason }) => reason)),
    })
    if (closed.length === 0) return
    if (probe.on) await probe.hit('keeper.rescue.closed', closed)
    this.#options.onClosed(closed.map(({ id, reason }) => ({ id, reason })))
    await this.rescue(closed.map(({ id }) => id))
  }

  /** A question whose sending was not confirmed is not ours to act on: it is asked again by anybody when it is old. */
  async #ask({ silent }: WatchRow): Promise<void> {
    const workers = (silent ?? []).filter(({ mayAsk }) => mayAsk)
    if (workers.length === 0) return
    const question = randomUUID()
    const asked = await this.#run<{ id: number }>(leaseStatements.ask, {
      workers: numbersLiteral(workers.map(({ id }) => id)),
      question,
    })
    if (asked.length === 0) return
    this.#questions.add(question, Math.max(...workers.map(({ lookMs }) => lookMs)))
    if (probe.on) await probe.hit('keeper.asked', asked)
  }

  /** The next watch repeats both for an incarnation that still holds jobs. A role that may not end sessions can still take jobs over. */
  async rescue(workers: readonly number[]): Promise<void> {
    try {
      await this.#endSessions(workers)
    } finally {
      await this.#takeJobs(workers)
    }
  }

  /** Ends sessions too: an incarnation that holds only cursors has no rescue to repeat after its watcher died. */
  async #empty(workers: readonly number[]): Promise<void> {
    try {
      await this.#endSessions(workers)
    } finally {
      await this.#run(leaseStatements.empty, { workers: numbersLiteral(workers) })
    }
  }

  async #endSessions(workers: readonly number[]): Promise<void> {
    await this.#run(leaseStatements.endSessions, { workers: numbersLiteral(workers) })
  }

  /** Rows that are locked just now are found again by the next watch. */
  async #takeJobs(workers: readonly number[]): Promise<void> {
    for (;;) {
      const jobs = await this.#run<SweptJob>(rescueStatement, {
        workers: numbersLiteral(workers),
        limit: batchMax,
        max_crashes: this.#options.maxCrashes,
      })
      if (probe.on && jobs.length > 0) await probe.hit('keeper.rescue.after', jobs)
      if (jobs.length > 0) this.#options.onSwept({ type: 'rescued', jobs })
      if (jobs.length < batchMax) return
    }
  }

  /**
   * Takes away what this process holds past its time limit and neither runs nor has ended itself. Another process could not tell it from a job that
   * was done in time and whose end waits for a database that cannot write. One that runs may be past the time in its row: it was claimed with
   * others that share a transaction, and runs again alone.
   */
  async #timeOutOwn(own: number, steadyMs: number, running: readonly Running[]): Promise<void> {
    if (monotonicMs() - this.#lastTimeOutMs < (running.length > 0 ? timeOutEveryMs : idleTimeOutEveryMs)) return
    this.#lastTimeOutMs = monotonicMs()
    const before = new Date(steadyMs - 2000).toISOString()
    await this.#held.scan(async (after) => {
      await this.timeOut({ worker: own, after, before, running })
      return { reached: before }
    }, this.#fullScanEveryMs)
  }

  /** Takes away what this worker holds, does not run, and whose time limit was between the two times, and the given jobs, which block its process. */
  async timeOut(what: {
    readonly worker: number
    readonly after?: string
    readonly before?: string
    readonly running?: readonly Running[]
    readonly jobs?: readonly Running[]
  }): Promise<void> {
    const { worker, after = '-infinity', before = '-infinity', running = [], jobs: given = [] } = what
    const jobs = await this.#run<SweptJob>(timeOutStatement, {
      worker,
      after,
      before,
      running_ids: numbersLiteral(running.map(({ id }) => id)),
      running_fences: numbersLiteral(running.map(({ fence }) => fence)),
      ids: numbersLiteral(given.map(({ id }) => id)),
      fences: numbersLiteral(given.map(({ fence }) => fence)),
      limit: batchMax,
      max_attempts: this.#options.maxAttempts,
    })
    if (jobs.length > 0) this.#options.onSwept({ type: 'timed out', jobs })
  }
}

interface Question {
  readonly askedMs: number
  /** How often the workers that it asked check their rows. */
  readonly lookMs: number
}

/** The questions of one watch that are not answered yet. */
class Questions {
  readonly #trouble: Trouble
  readonly #asked = new Map<string, Question>()

  constructor(trouble: Trouble) {
    this.#trouble = trouble
  }

  add(question: string, lookMs: number): void {
    this.#asked.set(question, { askedMs: monotonicMs(), lookMs })
  }

  forgetAnswered(silent: readonly SilentWorker[]): void {
    const standing = new Set(silent.map(({ question }) => question))
    for (const question of this.#asked.keys()) if (!standing.has(question)) this.#asked.delete(question)
  }

  /** Whether it is one of these and has waited long enough by our own clock. */
  isUnanswered(question: string): boolean {
    const asked = this.#asked.get(question)
    return asked !== undefined && this.#leftMs(asked) <= 0
  }

  get isOneUnanswered(): boolean {
    return [...this.#asked.values()].some((asked) => this.#leftMs(asked) <= 0)
  }

  /** Milliseconds until the next one has waited long enough. */
  get nextInMs(): number {
    return Math.min(...[...this.#asked.values()].map((asked) => this.#leftMs(asked)).filter((ms) => ms > 0))
  }

  #leftMs({ askedMs, lookMs }: Question): number {
    return askedMs + answerWithinMs(lookMs, this.#trouble.isRecent) - monotonicMs()
  }
}

/** The database's time as it would be had its clock not been set forward. */
class SteadyClock {
  /** By how much the database's clock is ahead of this process's monotonic one: the least in the last hour. */
  #aheadMs = Number.POSITIVE_INFINITY
  #aheadUntilMs = Number.NEGATIVE_INFINITY

  steadyMs(databaseMs: number): number {
    const aheadMs = databaseMs - monotonicMs()
    if (aheadMs < this.#aheadMs || monotonicMs() >= this.#aheadUntilMs) {
      this.#aheadMs = aheadMs
      this.#aheadUntilMs = monotonicMs() + steadyMs
    }
    return monotonicMs() + this.#aheadMs
  }
}

/** When scheduled jobs become ready. */
class Promotion {
  readonly start = new ScanStart()
  readonly #options: WatchOptions
  #atMs = Number.POSITIVE_INFINITY
  /** Where the scan for scheduled jobs starts. */
  after = beginning

  constructor(options: WatchOptions) {
    this.#options = options
  }

  get inMs(): number {
    return Math.max(0, this.#atMs - monotonicMs())
  }

  async promote(k: number): Promise<void> {
    const { sweeps, trouble, onSwept } = this.#options
    let after = { run_at: this.after, id: '0' }
    for (;;) {
      const [row] = await trouble.run<PromotedRow>(sweeps, promoteStatement, {
        lock_class: lockClass,
        limit: batchMax,
        after_run_at: after.run_at,
        after_id: after.id,
      })
      if (row!.promoted > 0) onSwept({ type: 'promoted' })
      this.dueIn(row!.next_ms, k)
      if (row!.promoted < batchMax) return
      after = { run_at: row!.last_run_at!, id: row!.last_id! }
    }
  }

  /** The next one is due in this time; null: none is scheduled. */
  dueIn(ms: number | null, k: number): void {
    this.#atMs = ms === null ? Number.POSITIVE_INFINITY : monotonicMs() + Math.max(ms + 1, promoteEveryMsMin * k)
  }
}

/**
 * Where a scan of an index starts. A stranger's old snapshot may keep thousands of dead entries at the front of an index. So when a scan from the
 * beginning was slow twice in a row, the next ones start where the last one ended, and only one in some seconds at the beginning.
 */
export class ScanStart {
  readonly #slowMs: number
  #reached = beginning
  #slowScans = 0
  #fullScanMs = 0

  constructor(slowMs = slowDefaultMs) {
    this.#slowMs = slowMs
  }

  /** `work` scans from the given time and returns the time at which the scan ended, both as strings of the database; null: there was none. */
  async scan<Answer extends { readonly reached: string | null }>(
    work: (after: string) => Promise<Answer>,
    fullScanEveryMs: number,
  ): Promise<Answer> {
    const startedMs = monotonicMs()
    const isFull = this.#slowScans < 2 || startedMs >= this.#fullScanMs
    const answer = await work(isFull ? beginning : this.#reached)
    if (answer.reached === null) return answer
    if (isFull) {
      this.#slowScans = monotonicMs() - startedMs > this.#slowMs ? this.#slowScans + 1 : 0
      this.#fullScanMs = startedMs + fullScanEveryMs
    }
    this.#reached = answer.reached
    return answer
  }
}
