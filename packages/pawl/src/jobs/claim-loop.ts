// The worker's main loop: claim, hand over, wait. One claim is in progress at a time, so after a lost answer it can give back whatever the
// database thinks it holds. Jobs that died with their process run beside others again; the run that would be the last one has nothing
// beside it.

import { setTimeout as delay } from 'node:timers/promises'
import type { LoopWatch } from '../kernel/alerts.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { type Ask, solitude } from '../kernel/handler.ts'
import type { Holder } from '../kernel/lease.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import type { Sleep, Wakeup } from '../kernel/service.ts'
import { Attempt, type ClaimedRow, leaseLost, type Runtime } from './attempt.ts'
import { type Deciding, drainMs, type Fetcher } from './fetcher.ts'
import type { DefinedKind } from './kinds.ts'
import type { Counts } from './outcomes.ts'
import { type Settler, waitingBytesMax } from './settle.ts'
import { prefetchMs, type Slots } from './slots.ts'

const reconcileEveryMs = 5000
/** A claim without an answer may still commit for this long: no statement lasts two minutes. */
const doubtLastsMs = 120_000
/** Under continuous work suspects are looked for this often, and unbuffered kinds too. */
const suspectsEveryMs = 250
/** Of each eight jobs that start at least one is a suspect, while both wait. */
const startsPerSuspect = 7
/** Under continuous work a claim that found too little is repeated after this time. */
const busyPollMs = 2
/** A poll sends one claim for each group. Where notifications come too, an idle worker sends one of them in this time. */
const idleClaimMs = 2500
const idleClaimsMsMax = 60_000
/** How often a deciding run that has ended asks whether its end still waits to be stored. */
const unstoredEveryMs = 250
/** A process that could not empty itself leaves jobs that must run alone to others for ten times as long. */
const drainPauseMs = 10 * drainMs
/** How long a job waits that no process had room to run alone. */
const postponeMs = 5000

export interface ClaimLoopOptions {
  readonly batchMax: number
  readonly concurrency: number
  readonly pollMs: number
  readonly queues: readonly string[]
  readonly deciding: Deciding
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly changed: Wakeup
  readonly fetcher: Fetcher
  readonly settler: Settler
  readonly sleep: Sleep
  readonly slots: Slots
  readonly signal: AbortSignal
  readonly worker: () => Holder | undefined
  readonly runtime: Runtime
  /** Who waits for this worker to be idle. */
  readonly idleWaiters: ReadonlySet<() => void>
  readonly onIdle: (waiters: readonly (() => void)[]) => void
  /** A job that must run alone waits, and this worker leaves it to another. */
  readonly onDecidingLeft: () => void
  readonly loop: LoopWatch
}

/** Kinds that are claimed together: all without a limit, or one with a limit. */
interface Group {
  readonly kinds: readonly DefinedKind[]
  readonly limited: DefinedKind | undefined
  /** false: nothing of it was left, and a notification comes for what is added. */
  mayWait: boolean
}

interface Found {
  readonly count: number
  /** More is there for the room that is left. */
  readonly isFull: boolean
  /** Something was asked for, no scan was put off, and nothing is left. */
  readonly isExhausted: boolean
}

export class ClaimLoop {
  readonly #options: ClaimLoopOptions
  readonly #queues: string[]
  readonly #kinds: readonly DefinedKind[]
  readonly #groups: Group[]
  /** Counts what was heard: a claim that was in progress then has not seen it. */
  #news = 0
  /** When it was last assumed that anything may wait. */
  #expectedMs = monotonicMs()
  #isDoubtful = false
  #lastReconcileMs = monotonicMs()
  #doubtUntilMs = Number.NEGATIVE_INFINITY
  /** Suspects may have become ready since the last look for them. */
  #areSuspectsNews = true
  #areSuspectsLeft = false
  /** The last look for suspects had free slots for them and found none that may run. */
  #wasInVain = false
  #suspectsMs = 0
  /** When kinds that never wait here were last asked for. */
  #unbufferedMs = 0
  /** Suspects go first again when so many others have started. */
  #suspectsFrom = 0
  #decidingMs = 0
  #ask: Ask | undefined
  /** The last deciding run kept cursors out. */
  #hasKeptOut = false

  constructor(options: ClaimLoopOptions) {
    this.#options = options
    this.#queues = [...options.queues]
    this.#kinds = [...options.kinds.values()]
    this.#groups = options.deciding === 'only' ? [] : groupsOf(this.#kinds, (kind) => options.slots.isLimited(kind))
  }

  /** Something may have become ready. */
  heard(): void {
    this.#news++
    this.#expect()
    this.#options.changed.fire()
  }

  async run(): Promise<void> {
    const { signal, loop } = this.#options
    for (let failed = 0; !signal.aborted; ) {
      try {
        await this.#turn()
        failed = 0
        loop.succeeded()
      } catch (error) {
        failed++
        // The claim may have happened without an answer: what we hold and do not know is given back before the next one.
        this.#isDoubtful = true
        this.#doubtUntilMs = monotonicMs() + doubtLastsMs
        this.#expect()
        loop.failed(error)
        await delay(engineBackoffMs(error, failed), undefined, { signal }).catch(() => undefined)
      }
    }
  }

  /** For a worker that stops, once the loop has ended: what a claim without an answer brought must not wait for handlers that still run. */
  async giveBackUnknown(): Promise<number> {
    const worker = this.#options.worker()
    if (worker === undefined || monotonicMs() >= this.#doubtUntilMs) return 0
    this.#isDoubtful = true
    try {
      return await this.#reconcile(worker)
    } catch (error) {
      this.#options.loop.failed(error)
      return 0
    }
  }

  async #turn(): Promise<void> {
    const { changed, fetcher, idleWaiters, pollMs, sleep, slots } = this.#options
    const worker = this.#options.worker()
    if (worker === undefined) {
      await changed.wait(pollMs)
      return
    }
    await this.#reconcile(worker)
    // What ended while the claim was in progress may have left follow-up jobs that it could not see: idle is only who was empty before.
    const wasEmpty = this.#held() === 0
    // Whoever begins to wait from here on may have enqueued what this claim cannot see: the next one answers.
    const waiters = [...idleWaiters]
    if (waiters.length > 0 && wasEmpty) this.#expect()
    this.#reserve()
    // Suspects go first only where some are known to wait: a lone job must not wait for that look.
    const areFirst = this.#areSuspectsLeft && slots.starts >= this.#suspectsFrom
    if (areFirst && (await this.#takeSuspects(worker))) return
    const found = await this.#claim(worker)
    if (found.count > 0) await sleep.worked(worker.id, found.count)
    if (!areFirst && (await this.#takeSuspects(worker))) return
    if (found.isFull && this.#hasRoom()) return
    const fullScanInMs = fetcher.nextFullScanInMs
    const isIdle =
      wasEmpty &&
      this.#held() === 0 &&
      found.count === 0 &&
      !this.#areSuspectsNews &&
      !this.#areSuspectsLeft &&
      fullScanInMs === undefined
    if (isIdle && (found.isExhausted || this.#groups.length === 0)) this.#options.onIdle(waiters)
    await this.#wait(worker)
  }

  async #wait(worker: Holder): Promise<void> {
    const { changed, fetcher, pollMs, signal, sleep } = this.#options
    const hasRoom = this.#hasRoom()
    if (sleep.isBusy && hasRoom) {
      // Not at each ending: that would be one claim for each job.
      await delay(busyPollMs, undefined, { signal }).catch(() => undefined)
      return this.#expect()
    }
    let waitMs = hasRoom ? await sleep.idle(worker.id) : pollMs
    const claimsMs = sleep.isRelied(worker.id) ? Math.min(idleClaimsMsMax, (this.#groups.length - 1) * idleClaimMs) : 0
    const everyMs = Math.max(pollMs, claimsMs)
    if (waitMs === pollMs) waitMs = everyMs
    if (this.#areSuspectsLeft || this.#areSuspectsNews || this.#hasUnbuffered()) waitMs = Math.min(waitMs, suspectsEveryMs)
    // Not everything is notified, and a job that ends is no notification: once in this time we look for ourselves.
    const expectAtMs = Math.min(this.#expectedMs + everyMs, monotonicMs() + Math.min(waitMs, fetcher.nextScanInMs))
    const leftMs = expectAtMs - monotonicMs()
    const isTold = leftMs > 0 && (await changed.wait(leftMs)) && monotonicMs() < expectAtMs
    // Where a notification cannot be relied on, anything may have been added while we waited.
    if (!isTold || !sleep.isRelied(worker.id)) this.#expect()
  }

  #expect(): void {
    this.#expectedMs = monotonicMs()
    for (const group of this.#groups) group.mayWait = true
    this.#areSuspectsNews = true
  }

  get #counts(): Counts {
    return this.#options.runtime.outcomes.counts
  }

  #held(): number {
    const { settler, slots } = this.#options
    return slots.running + slots.buffered + settler.unsettled
  }

  // ---- ready jobs

  #hasRoom(): boolean {
    return (
      this.#options.deciding === 'only' ||
      this.#groups.some((group) => group.mayWait && this.#roomOf(group) > 0) ||
      this.#room() > 0
    )
  }

  /**
   * Free slots, or what will start within half a second by the mean run time, less what waits here already. Up to two batches: under full
   * load the next one is claimed while the last one runs, and neither side waits for the other.
   */
  #room(): number {
    const { batchMax, concurrency, fetcher, settler, slots } = this.#options
    const ahead = Math.min(2 * batchMax, slots.startsWithin(prefetchMs), fetcher.rowsIn(waitingBytesMax / 2))
    const target = Math.max(slots.free, ahead)
    if (slots.buffered > target / 2 && slots.buffered >= slots.free) return 0
    // Ends that were set aside may wait for hours, and are counted by their own bytes.
    const byBytes = fetcher.rowsIn(waitingBytesMax - settler.bytes) - slots.buffered - settler.pending
    return Math.min(
      target - slots.buffered,
      batchMax,
      3 * Math.max(batchMax, concurrency) - this.#held(),
      Math.max(byBytes, this.#held() === 0 ? 1 : 0),
    )
  }

  #roomOf({ limited }: Group): number {
    if (limited === undefined) return this.#room()
    const ofKind = this.#options.slots.roomOf(limited)
    // What never waits here starts before what does: a full buffer leaves it its room.
    if (limited.crashes === 1) return this.#options.settler.isFull ? 0 : ofKind
    return Math.min(this.#room(), ofKind)
  }

  async #claim(worker: Holder): Promise<Found> {
    let count = 0
    let isFull = false
    let asked = 0
    let exhausted = 0
    for (const group of [...this.#groups]) {
      const room = this.#roomOf(group)
      if (!group.mayWait || room <= 0 || this.#options.signal.aborted) continue
      const found = await this.#claimGroup(worker, group, room)
      count += found.count
      isFull ||= found.isFull
      asked++
      if (found.isExhausted) exhausted++
    }
    // The next claim begins with any queue and any group, so that none starves behind a full one. Both by one each time would be in step:
    // with as many groups as queues a group that goes first would always meet the same queue.
    rotate(this.#queues)
    rotate(this.#groups)
    return { count, isFull, isExhausted: asked > 0 && exhausted === asked }
  }

  async #claimGroup(worker: Holder, group: Group, room: number): Promise<Found> {
    const { fetcher, sleep, slots } = this.#options
    const news = this.#news
    const isRelied = sleep.isRelied(worker.id)
    const { rows, isFull, isExhausted, areSuspectsReady } = await fetcher.claim(
      worker,
      this.#queues,
      group.kinds,
      room,
      group.limited !== undefined,
    )
    // Rows of an incarnation that was lost meanwhile belong to whoever takes over from it.
    if (this.#options.worker() !== worker) return { count: 0, isFull: false, isExhausted: false }
    this.#counts.claimed += rows.length
    const held = rows.map((row) => this.#hold(row, worker))
    if (group.limited?.crashes === 1) slots.addFirst(held)
    else slots.add(held)
    if (group.limited?.crashes === 1) this.#unbufferedMs = monotonicMs()
    if (news === this.#news && areSuspectsReady !== undefined) this.#areSuspectsNews = areSuspectsReady
    if (isExhausted && !isFull && isRelied && news === this.#news) group.mayWait = false
    return { count: rows.length, isFull, isExhausted }
  }

  #hold(row: ClaimedRow, worker: Holder): Attempt {
    return new Attempt(row, this.#options.kinds.get(row.kind)!, this.#options.runtime, worker.id)
  }

  async #reconcile(worker: Holder): Promise<number> {
    const { fetcher, settler, slots } = this.#options
    // A claim that was given up here may commit there long after the reconciliation that was to find it: repeated for two minutes.
    const isDue = monotonicMs() - this.#lastReconcileMs > reconcileEveryMs && monotonicMs() < this.#doubtUntilMs
    if (!this.#isDoubtful && !isDue) return 0
    const released = await fetcher.releaseUnknown(worker, [...slots.heldJobs(), ...settler.attempts()])
    this.#counts.released += released
    if (released > 0) this.#expect()
    this.#lastReconcileMs = monotonicMs()
    this.#isDoubtful = false
    return released
  }

  // ---- jobs that died with their process

  /** How many suspects more may be held here: at most half of the slots, at least one. */
  get #suspectsLeft(): number {
    const { concurrency, slots } = this.#options
    return Math.ceil(concurrency / 2) - slots.suspects
  }

  #suspectRoom(): number {
    const { settler, slots } = this.#options
    return settler.isFull ? 0 : Math.min(slots.free, this.#suspectsLeft)
  }

  #isSuspectLookDue(): boolean {
    if (this.#areSuspectsNews && this.#held() === 0) return true
    if (this.#areSuspectsLeft && !this.#wasInVain && this.#suspectRoom() > 0) return true
    return (this.#areSuspectsLeft || this.#areSuspectsNews) && monotonicMs() - this.#suspectsMs >= suspectsEveryMs
  }

  /** Claims suspects into free slots. Says whether it ran one that must be alone. */
  async #takeSuspects(worker: Holder): Promise<boolean> {
    if (!this.#isSuspectLookDue()) return false
    const { concurrency, fetcher, slots } = this.#options
    const news = this.#news
    const isOnly = this.#options.deciding === 'only'
    const limit = isOnly ? 0 : Math.max(0, this.#suspectRoom())
    const kinds = this.#kinds.map((kind) => ({ kind, room: slots.isLimited(kind) ? slots.roomOf(kind) : concurrency }))
    this.#suspectsMs = monotonicMs()
    const isPause = this.#suspectsMs < this.#decidingMs && (this.#held() > 0 || solitude.isBusy || this.#hasKeptOut)
    const deciding = isPause ? 'leave' : this.#options.deciding
    const found = await fetcher.claimSuspects(worker, this.#queues, kinds, { limit, deciding })
    if (this.#options.worker() !== worker) return false
    this.#areSuspectsNews = news !== this.#news
    this.#areSuspectsLeft = found.isSuspectLeft && !isOnly
    this.#wasInVain = limit > 0 && found.rows.length === 0
    this.#counts.claimed += found.rows.length
    if (found.rows.length > 0) this.#suspectsFrom = slots.starts + startsPerSuspect * found.rows.length
    slots.addFirst(found.rows.map((row) => this.#holdSuspect(row, worker)))
    this.#reserve()
    if (this.#options.deciding === 'leave' && found.isDecidingLeft) this.#options.onDecidingLeft()
    if (found.deciding === undefined) return false
    this.#counts.claimed++
    await this.#runAlone(worker, this.#holdSuspect(found.deciding, worker))
    return true
  }

  #holdSuspect(row: ClaimedRow, worker: Holder): Attempt {
    const attempt = this.#hold(row, worker)
    attempt.isSuspect = true
    return attempt
  }

  /** Slots that are freed next are kept from the buffer, if suspects wait and it is their turn, or for kinds that never wait in it. */
  #reserve(): void {
    const { concurrency, slots } = this.#options
    const isTheirTurn = this.#areSuspectsLeft && slots.starts >= this.#suspectsFrom
    const forSuspects = isTheirTurn ? Math.max(0, Math.min(this.#suspectsLeft, Math.ceil(concurrency / 8))) : 0
    // With a slot free already, only a kind that may start is waited for.
    const hasPlace = slots.free === 0 || this.#groups.some(({ limited }) => limited?.crashes === 1 && slots.roomOf(limited) > 0)
    const isUnbufferedDue = hasPlace && this.#hasUnbuffered() && monotonicMs() - this.#unbufferedMs >= suspectsEveryMs
    slots.reserve(Math.max(forSuspects, isUnbufferedDue ? 1 : 0))
  }

  #hasUnbuffered(): boolean {
    return this.#groups.some(({ limited, mayWait }) => mayWait && limited?.crashes === 1)
  }

  /**
   * The job is claimed, then this process empties itself and runs it: one process drains, not all that see it. Not empty in time, it goes
   * back without an attempt; others may have no long jobs.
   */
  async #runAlone(worker: Holder, held: Attempt): Promise<void> {
    const { changed, settler, signal, slots } = this.#options
    const startedMs = monotonicMs()
    const goesOn = () => !signal.aborted && this.#options.worker() === worker
    slots.empty(held)
    try {
      while (goesOn() && held.abortReason === undefined && !this.#isAlone()) {
        const leftMs = startedMs + drainMs - monotonicMs()
        if (leftMs <= 0) {
          this.#decidingMs = monotonicMs() + drainPauseMs
          this.#hasKeptOut = false
          if (slots.dropAlone()) held.release(postponeMs)
          return
        }
        await changed.wait(leftMs)
      }
      if (!goesOn() || held.abortReason !== undefined || !(await this.#mayStart(worker, held))) return
      slots.startAlone()
      // Its end is stored before anything else starts: otherwise the next crash would count against it.
      for (let endedMs: number | undefined; goesOn() && (slots.running > 0 || settler.pending > 0); ) {
        if (slots.running === 0) endedMs ??= monotonicMs()
        // A row that somebody has locked may stay so, and a database may be unwritable, for hours.
        if (endedMs !== undefined && monotonicMs() - endedMs >= drainMs) break
        await changed.wait(endedMs === undefined ? undefined : unstoredEveryMs)
      }
      // Others have had to wait for this one; now they get as long.
      this.#decidingMs = 2 * monotonicMs() - startedMs
      this.#hasKeptOut = this.#ask?.hasKeptOut ?? false
      this.#suspectsFrom = slots.starts + 1
      this.#expect()
    } finally {
      // In a worker that stops the run may outlive this loop.
      if (!signal.aborted) this.endSolitude()
    }
  }

  /** Jobs end first, so that cursors wait only for the run itself. */
  #isAlone(): boolean {
    if (this.#held() > 0) return false
    this.#ask ??= solitude.ask(() => this.#options.changed.fire())
    return solitude.isGranted(this.#ask)
  }

  /** Called when no deciding run of this worker is in progress. */
  endSolitude(): void {
    if (this.#ask !== undefined) solitude.end(this.#ask)
    this.#ask = undefined
  }

  /** Until then the job was only held: had this process died of another one, no crash would have been counted. */
  async #mayStart(worker: Holder, held: Attempt): Promise<boolean> {
    const { fetcher, slots } = this.#options
    try {
      const mayStart = await fetcher.startAlone(worker, held.row, held.definition)
      if (!mayStart) slots.loseOne(held, leaseLost(held.row))
      return mayStart
    } catch (error) {
      if (slots.dropAlone()) held.release(postponeMs)
      throw error
    }
  }
}

function groupsOf(kinds: readonly DefinedKind[], isLimited: (kind: DefinedKind) => boolean): Group[] {
  const unlimited = kinds.filter((kind) => !isLimited(kind))
  const limited = kinds.filter(isLimited).map((kind) => ({ kinds: [kind], limited: kind, mayWait: true }))
  return unlimited.length === 0 ? limited : [{ kinds: unlimited, limited: undefined, mayWait: true }, ...limited]
}

function rotate<Item>(items: Item[]): void {
  items.push(...items.splice(0, Math.floor(Math.random() * items.length)))
}
