// Jobs that died with their process. They run beside others again, in free slots and at most in half of them. The run that would be the last one,
// the deciding run, has nothing beside it: neither a job of this worker nor a cursor of its process.

import { monotonicMs } from '../../kernel/clock.ts'
import { type Ask, solitude } from '../../kernel/handler.ts'
import type { Holder } from '../../kernel/lease.ts'
import { Attempt, type ClaimedRow, leaseLost } from '../attempt.ts'
import type { ClaimLoopOptions } from './claim-loop.ts'
import { drainMs } from './fetcher.ts'

/** Under continuous work suspects are claimed this often, and unbuffered kinds too. */
export const suspectsEveryMs = 250
/** Of each eight jobs that start at least one is a suspect, while both wait. */
const startsPerSuspect = 7
/** How often a deciding run that has ended asks whether its end still waits to be stored. */
const unstoredEveryMs = 250
/** A process that could not empty itself leaves deciding runs to others for ten times as long. */
const drainPauseMs = 10 * drainMs
/** How long a job waits that no process had room to run alone. */
const postponeMs = 5000

/** Jobs that this process holds in any way. */
export function heldBy({ settler, slots }: Pick<ClaimLoopOptions, 'settler' | 'slots'>): number {
  return slots.running + slots.buffered + settler.unsettled
}

export class Suspects {
  readonly #options: ClaimLoopOptions
  readonly #alone: DecidingRuns
  /** Whether suspects may have become ready since they were last claimed. */
  #areNews = true
  /** What the last claim left waiting. 'unfit': slots were free, and none of them may run there. */
  #left: 'none' | 'some' | 'unfit' = 'none'
  #claimedMs = 0
  /** They go first again when this many others have started. */
  #firstFrom = 0

  constructor(options: ClaimLoopOptions) {
    this.#options = options
    this.#alone = new DecidingRuns(options)
  }

  /** Whether some are ready, as another statement saw it. */
  expect(areReady: boolean): void {
    this.#areNews = areReady
  }

  /** Whether some wait, or may wait. */
  get mayWait(): boolean {
    return this.#areNews || this.#left !== 'none'
  }

  /** Only where some are known to wait: a lone job must not wait for a claim of suspects. */
  get areFirst(): boolean {
    return this.#left !== 'none' && this.#options.slots.starts >= this.#firstFrom
  }

  /** The slots to keep free for them. */
  get slotsKept(): number {
    return this.areFirst ? Math.max(0, Math.min(this.#heldMax, Math.ceil(this.#options.concurrency / 8))) : 0
  }

  /** How many more may be held here: at most half of the slots, at least one. */
  get #heldMax(): number {
    const { concurrency, slots } = this.#options
    return Math.ceil(concurrency / 2) - slots.suspects
  }

  get #room(): number {
    const { settler, slots } = this.#options
    return settler.isFull ? 0 : Math.max(0, Math.min(slots.free, this.#heldMax))
  }

  get #isDue(): boolean {
    if (this.#areNews && heldBy(this.#options) === 0) return true
    if (this.#left === 'some' && this.#room > 0) return true
    return this.mayWait && monotonicMs() - this.#claimedMs >= suspectsEveryMs
  }

  /** Claims suspects into free slots, if it is time. Returns whether it held one that must run alone. */
  async take(worker: Holder, queues: readonly string[]): Promise<boolean> {
    if (!this.#isDue) return false
    const { concurrency, deciding, events, fetcher, kinds, runtime, slots } = this.#options
    const limit = deciding === 'only' ? 0 : this.#room
    const rooms = [...kinds.values()].map((kind) => ({ kind, room: slots.isLimited(kind) ? slots.roomOf(kind) : concurrency }))
    this.#claimedMs = monotonicMs()
    // What is heard of while the claim is in progress stays news.
    this.#areNews = false
    const found = await fetcher.claimSuspects(worker, queues, rooms, {
      limit,
      deciding: this.#alone.isPause ? 'leave' : deciding,
    })
    if (this.#options.process.holder !== worker) return false
    this.#left = !found.isSuspectLeft || deciding === 'only' ? 'none' : limit > 0 && found.rows.length === 0 ? 'unfit' : 'some'
    runtime.outcomes.counts.claimed += found.rows.length
    if (found.rows.length > 0) this.#firstFrom = slots.starts + startsPerSuspect * found.rows.length
    slots.addFirst(found.rows.map((row) => this.#hold(row, worker)))
    if (deciding === 'leave' && found.isDecidingLeft) events.emit('worker.deciding', {})
    if (found.deciding === undefined) return false
    runtime.outcomes.counts.claimed++
    if (await this.#alone.run(worker, this.#hold(found.deciding, worker))) this.#firstFrom = slots.starts + 1
    return true
  }

  #hold(row: ClaimedRow, worker: Holder): Attempt {
    const { kinds, runtime } = this.#options
    return new Attempt(row, kinds.get(row.kind)!, runtime, worker.id, true)
  }

  /** Called when no deciding run of this worker is in progress. */
  endSolitude(): void {
    this.#alone.end()
  }
}

class DecidingRuns {
  readonly #options: ClaimLoopOptions
  /** Until then others go first. */
  #pauseUntilMs = 0
  #ask: Ask | undefined
  /** The last run kept cursors out. */
  #hasKeptOut = false

  constructor(options: ClaimLoopOptions) {
    this.#options = options
  }

  /** Whether deciding runs are left to others for now. */
  get isPause(): boolean {
    return monotonicMs() < this.#pauseUntilMs && (heldBy(this.#options) > 0 || solitude.isBusy || this.#hasKeptOut)
  }

  /**
   * The job is claimed, then this process empties itself and runs it: one process drains, not all that see it. Not empty in time, it goes
   * back without an attempt; others may have no long jobs. Returns whether it ran.
   */
  async run(worker: Holder, attempt: Attempt): Promise<boolean> {
    const { changed, process, slots } = this.#options
    const { signal } = process
    const startedMs = monotonicMs()
    const goesOn = () => !signal.aborted && this.#options.process.holder === worker
    slots.empty(attempt)
    try {
      while (goesOn() && attempt.abortReason === undefined && !this.#isAlone()) {
        const leftMs = startedMs + drainMs - monotonicMs()
        if (leftMs <= 0) {
          this.#pauseUntilMs = monotonicMs() + drainPauseMs
          this.#hasKeptOut = false
          if (slots.dropAlone()) attempt.release(postponeMs)
          return false
        }
        await changed.wait(leftMs)
      }
      if (!goesOn() || attempt.abortReason !== undefined || !(await this.#mayStart(worker, attempt))) return false
      slots.startAlone()
      await this.#stored(goesOn)
      // Others have had to wait for this one; now they get as long.
      this.#pauseUntilMs = 2 * monotonicMs() - startedMs
      this.#hasKeptOut = this.#ask?.hasKeptOut ?? false
      return true
    } finally {
      // In a worker that stops the run may outlive this loop.
      if (!signal.aborted) this.end()
    }
  }

  /** Its end is stored before anything else starts: otherwise the next crash would count against it. */
  async #stored(goesOn: () => boolean): Promise<void> {
    const { changed, settler, slots } = this.#options
    for (let endedMs: number | undefined; goesOn() && (slots.running > 0 || settler.pending > 0); ) {
      if (slots.running === 0) endedMs ??= monotonicMs()
      // A row may stay locked, and a database may be unwritable, for hours.
      if (endedMs !== undefined && monotonicMs() - endedMs >= drainMs) return
      await changed.wait(endedMs === undefined ? undefined : unstoredEveryMs)
    }
  }

  /** Asks cursors to stop only when no job is left here, so that they wait for nothing but the deciding run. */
  #isAlone(): boolean {
    if (heldBy(this.#options) > 0) return false
    this.#ask ??= solitude.ask(() => this.#options.changed.fire())
    return solitude.isGranted(this.#ask)
  }

  end(): void {
    if (this.#ask !== undefined) solitude.end(this.#ask)
    this.#ask = undefined
  }

  /** Until then the job was only held: had this process died of another one, no crash would have been counted. */
  async #mayStart(worker: Holder, attempt: Attempt): Promise<boolean> {
    const { fetcher, slots } = this.#options
    try {
      const mayStart = await fetcher.startAlone(worker, attempt.row, attempt.definition)
      if (!mayStart) slots.loseOne(attempt, leaseLost(attempt.row))
      return mayStart
    } catch (error) {
      if (slots.dropAlone()) attempt.release(postponeMs)
      throw error
    }
  }
}
