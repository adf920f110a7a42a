// The watch over other incarnations, in every keeper thread: every k-th look at the own row looks at all others too, and a sweep does what
// that look found. About four a second whatever the number of workers; no holder is elected that could stop.

import { randomUUID } from 'node:crypto'
import type { Connection } from '../db/driver.ts'
import { numbersLiteral, type Parameter, type Statement, statement, textsLiteral } from '../db/statement.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Running } from '../kernel/keeper/board.ts'
import type { Closed } from '../kernel/keeper/keeper.ts'
import type { Watcher } from '../kernel/keeper/thread.ts'
import { answerWithinMs, type Holder, leaseStatements, lockClass, type Trouble } from '../kernel/lease.ts'
import { probe } from '../kernel/probe.ts'
import { ScanStart } from './scan-start.ts'

const watchStatement = statement(import.meta.url, 'watch')
const rescueStatement = statement(import.meta.url, 'rescue')
const timeOutStatement = statement(import.meta.url, 'time-out')
const promoteStatement = statement(import.meta.url, 'promote')

const batchMax = 1000
/** Times k, as for all intervals here, so that all workers together look for jobs past their time limit about once a second. */
const timeOutEveryMs = 2500
/** While the main thread runs nothing: what it holds then is a claim whose answer was lost. */
const idleTimeOutEveryMs = 60_000
/** A step of the database's clock ends no job for this long. */
const steadyMs = 3_600_000
const promoteEveryMsMin = 50
const fullScanEveryMs = 10_000

interface SilentWorker {
  readonly id: number
  /** Null: nobody asks. */
  readonly question: string | null
  readonly mayAsk: boolean
  readonly lookMs: number
  readonly reason: string
}

interface Question {
  readonly askedMs: number
  /** How often those that it asked look. */
  readonly lookMs: number
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
  readonly reached: string
}

interface Found extends WatchRow {
  /** The incarnation that looked. */
  readonly own: number
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
  readonly #trouble: Trouble
  readonly #scheduled = new ScanStart()
  /** What this process alone leaves behind in its part of job_held takes many pages and not much time. */
  readonly #held = new ScanStart(0)
  /** Questions of this watch that are not answered yet. */
  readonly #asked = new Map<string, Question>()
  #looksLeft = 0
  /** Every k-th look at the own row is a watch: half the number of open workers, at least 1. */
  #k = 1
  #found: Found | undefined
  #isSweeping = false
  #lastTimeOutMs = Number.NEGATIVE_INFINITY
  /** By how much the database's clock is ahead of this process's monotonic one: the least in the last hour. */
  #aheadMs = Number.POSITIVE_INFINITY
  #aheadUntilMs = Number.NEGATIVE_INFINITY
  #promoteAtMs = Number.POSITIVE_INFINITY
  #scheduledAfter = '-infinity'

  constructor(options: WatchOptions) {
    this.#options = options
    this.#trouble = options.trouble
  }

  /** Counts a look at the own row, and says whether this one is also a watch: every k-th, and when a question has waited long enough. */
  isTurn(): boolean {
    this.#looksLeft--
    if (this.#isSweeping) return false
    return this.#looksLeft <= 0 || [...this.#asked.keys()].some((question) => this.#isUnanswered(question))
  }

  /** Milliseconds until the next look: sooner than usual where a question will have waited long enough before. */
  lookInMs(everyMs: number): number {
    const ahead = [...this.#asked.values()].map((asked) => this.#answerLeftMs(asked)).filter((ms) => ms > 0)
    return Math.min(everyMs, ...ahead)
  }

  /** Says how the own incarnation is, and keeps for the sweep what else it saw. */
  async look(connection: Connection, worker: Holder): Promise<WatchRow['mine']> {
    let mine: WatchRow['mine'] = null
    const found = await this.#scheduled.scan(async (after) => {
      const [row] = await this.#trouble.run<WatchRow>(connection, watchStatement, {
        worker: worker.id,
        nonce: worker.nonce,
        lock_class: lockClass,
        after,
      })
      mine = row!.mine
      return row!.is_turn ? { ...row!, after, own: worker.id } : undefined
    }, this.#fullScanEveryMs)
    if (found !== undefined) {
      this.#found = found
      this.#scheduledAfter = found.after
      this.#k = Math.max(1, (found.open ?? []).length / 2)
    }
    this.#looksLeft = Math.max(1, Math.round(this.#k * (0.75 + Math.random() / 2)))
    return mine
  }

  /** All workers together scan in full about once in ten seconds. */
  get #fullScanEveryMs(): number {
    return fullScanEveryMs * 2 * this.#k
  }

  /** How long until a scheduled job is due, as far as the last look knows. */
  get sweepInMs(): number {
    return Math.max(0, this.#promoteAtMs - monotonicMs())
  }

  /**
   * Does what the last look found, or only promotes where there was none since. `running`: what the main thread runs, and times out by its own
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
      const steadyMs = this.#steadyMs(found.now_ms)
      if (running !== null) await this.#timeOutOwn(found.own, steadyMs, running)
      this.#dueIn(found.next_ms)
      if (found.next_ms !== null && found.next_ms <= 0) await this.promote()
    } finally {
      this.#isSweeping = false
    }
  }

  #run<Row>(sent: Statement, values: Readonly<Record<string, Parameter>>): Promise<Row[]> {
    return this.#trouble.run<Row>(this.#options.sweeps, sent, values)
  }

  /** Closes those that are silent still and whose question, one of ours, has waited long enough by our own clock. */
  async #close({ silent }: WatchRow): Promise<void> {
    this.#forgetAnswered(silent ?? [])
    const unanswered = (silent ?? []).filter(({ question }) => question !== null && this.#isUnanswered(question))
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

  #isUnanswered(question: string): boolean {
    const asked = this.#asked.get(question)
    return asked !== undefined && this.#answerLeftMs(asked) <= 0
  }

  #answerLeftMs({ askedMs, lookMs }: Question): number {
    return askedMs + answerWithinMs(lookMs, this.#trouble.isRecent) - monotonicMs()
  }

  #forgetAnswered(silent: readonly SilentWorker[]): void {
    const standing = new Set(silent.map(({ question }) => question))
    for (const question of this.#asked.keys()) if (!standing.has(question)) this.#asked.delete(question)
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
    this.#asked.set(question, { askedMs: monotonicMs(), lookMs: Math.max(...workers.map(({ lookMs }) => lookMs)) })
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

  /** Rows that are locked just now are found again by the next look. */
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

  /** The database's time as it would be had its clock not been set forward. */
  #steadyMs(nowMs: number): number {
    const aheadMs = nowMs - monotonicMs()
    if (aheadMs < this.#aheadMs || monotonicMs() >= this.#aheadUntilMs) {
      this.#aheadMs = aheadMs
      this.#aheadUntilMs = monotonicMs() + steadyMs
    }
    return monotonicMs() + this.#aheadMs
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

  async promote(): Promise<void> {
    let after = { run_at: this.#scheduledAfter, id: '0' }
    for (;;) {
      const [row] = await this.#run<PromotedRow>(promoteStatement, {
        lock_class: lockClass,
        limit: batchMax,
        after_run_at: after.run_at,
        after_id: after.id,
      })
      if (row!.promoted > 0) this.#options.onSwept({ type: 'promoted' })
      this.#dueIn(row!.next_ms)
      if (row!.promoted < batchMax) return
      after = { run_at: row!.last_run_at!, id: row!.last_id! }
    }
  }

  #dueIn(ms: number | null): void {
    this.#promoteAtMs = ms === null ? Number.POSITIVE_INFINITY : monotonicMs() + Math.max(ms + 1, promoteEveryMsMin * this.#k)
  }
}
