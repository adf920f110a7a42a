// The worker's main loop: claim, hand over, wait. One claim is in progress at a time, so after a lost answer it can give back whatever the
// database thinks it holds. Jobs that died with their process run beside others again; the run that would be the last one has nothing
// beside it.

import { setTimeout as delay } from 'node:timers/promises'
import { caught, PawlError } from '../../errors.ts'
import type { LoopWatch } from '../../kernel/alerts.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import type { Events } from '../../kernel/events.ts'
import type { Holder } from '../../kernel/lease.ts'
import type { Process } from '../../kernel/process.ts'
import { Service, type Sleep, type Wakeup } from '../../kernel/service.ts'
import { Attempt, type Runtime } from '../attempt.ts'
import type { DefinedKind } from '../kinds.ts'
import { type Settler, waitingBytesMax } from '../settle.ts'
import type { Slots } from '../slots.ts'
import type { JobEvents } from '../types.ts'
import type { Deciding, Fetcher } from './fetcher.ts'
import { heldBy, Suspects, suspectsEveryMs } from './suspects.ts'

const reconcileEveryMs = 5000
/** A claim without an answer may still commit for this long: no statement lasts two minutes. */
const doubtLastsMs = 120_000
/** Under continuous work a claim that found too little is repeated after this time. */
const busyPollMs = 2
/** A poll sends one claim for each group. Where notifications come too, an idle worker sends one of them in this time. */
const idleClaimMs = 2500
const idleClaimsMsMax = 60_000

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
  readonly process: Pick<Process, 'holder' | 'signal'>
  readonly runtime: Runtime
  readonly events: Pick<Events<JobEvents>, 'emit'>
  readonly loop: LoopWatch
}

interface IdleWaiter {
  readonly resolve: () => void
  readonly reject: (stopped: PawlError) => void
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
  readonly #groups: Group[]
  readonly #suspects: Suspects
  readonly #idleWaiters = new Set<IdleWaiter>()
  /** Counts what was heard: a claim that was in progress then has not seen it. */
  #news = 0
  /** When it was last assumed that anything may wait. */
  #expectedMs = monotonicMs()
  /** A claim was not answered and may still commit: when the next comparison with the database is due, and the last. */
  #doubt: { readonly nextMs: number; readonly untilMs: number } | undefined
  /** When kinds that never wait here were last asked for. */
  #unbufferedMs = 0

  constructor(options: ClaimLoopOptions) {
    this.#options = options
    this.#queues = [...options.queues]
    this.#suspects = new Suspects(options)
    this.#groups =
      options.deciding === 'only' ? [] : groupsOf([...options.kinds.values()], (kind) => options.slots.isLimited(kind))
  }

  /** Something may have become ready. */
  heard(): void {
    this.#news++
    this.#expect()
    this.#options.changed.fire()
  }

  /** Resolves when nothing is claimable, running or unsettled here; rejects when it is stopped before. */
  whenIdle(): Promise<void> {
    const idle = new Promise<void>((resolve, reject) => {
      this.#idleWaiters.add({ resolve, reject })
      this.#options.changed.fire()
    })
    return caught(idle)
  }

  /** This worker stops: its signal has fired. */
  close(): void {
    for (const { reject } of this.#idleWaiters)
      reject(new PawlError('PAWL_STOPPED', 'This worker was stopped before it was idle.'))
    this.#options.changed.fire()
  }

  run(): Promise<void> {
    const { loop, process } = this.#options
    const round = async (): Promise<number> => {
      try {
        await this.#turn()
        return 0
      } catch (error) {
        // The claim may have happened without an answer: what we hold and do not know is given back before the next one.
        this.#doubt = { nextMs: monotonicMs(), untilMs: monotonicMs() + doubtLastsMs }
        this.#expect()
        throw error
      }
    }
    return new Service({ round, signal: process.signal, loop }).run()
  }

  /** For a worker that stops, once the loop has ended: what a claim without an answer brought must not wait for handlers that still run. */
  async giveBackUnknown(): Promise<number> {
    const worker = this.#options.process.holder
    if (worker === undefined || this.#doubt === undefined) return 0
    this.#doubt = { ...this.#doubt, nextMs: monotonicMs() }
    try {
      return await this.#reconcile(worker)
    } catch (error) {
      this.#options.loop.failed(error)
      return 0
    }
  }

  async #turn(): Promise<void> {
    const { changed, fetcher, pollMs, sleep } = this.#options
    const beganMs = monotonicMs()
    const worker = this.#options.process.holder
    if (worker === undefined) {
      await changed.wait(pollMs)
      return
    }
    await this.#reconcile(worker)
    // Asked before the claim: a job that ends during it may leave follow-up jobs that the claim cannot see, so only a worker that was empty before is idle.
    const wasEmpty = heldBy(this.#options) === 0 && !this.#options.runtime.outcomes.hasFollowing
    // A caller that begins to wait from here on may have enqueued a job that this claim cannot see: the next claim answers it.
    const waiters = [...this.#idleWaiters]
    if (waiters.length > 0 && wasEmpty) this.#expect()
    this.#reserve()
    const { areFirst } = this.#suspects
    if (areFirst && (await this.#takeSuspects(worker))) return
    const found = await this.#claim(worker)
    if (found.count > 0) await sleep.worked(worker.id, found.count)
    if (!areFirst && (await this.#takeSuspects(worker))) return
    if (found.isFull && this.#hasRoom()) return
    const fullScanInMs = fetcher.nextFullScanInMs
    const isIdle =
      wasEmpty && heldBy(this.#options) === 0 && found.count === 0 && !this.#suspects.mayWait && fullScanInMs === undefined
    if (isIdle && (found.isExhausted || this.#groups.length === 0)) this.#idle(waiters)
    await this.#wait(worker, beganMs)
  }

  #idle(waiters: readonly IdleWaiter[]): void {
    for (const waiter of waiters) {
      this.#idleWaiters.delete(waiter)
      waiter.resolve()
    }
    this.#options.events.emit('worker.idle', {})
  }

  async #wait(worker: Holder, beganMs: number): Promise<void> {
    const { changed, fetcher, pollMs, process, sleep } = this.#options
    const hasRoom = this.#hasRoom()
    if (sleep.isBusy && hasRoom) {
      // Not at each ending: that would be one claim for each job.
      await delay(busyPollMs, undefined, { signal: process.signal }).catch(() => undefined)
      return this.#expect()
    }
    let waitMs = hasRoom ? await sleep.idle(worker.id) : pollMs
    const claimsMs = sleep.isRelied(worker.id) ? Math.min(idleClaimsMsMax, (this.#groups.length - 1) * idleClaimMs) : 0
    const everyMs = Math.max(pollMs, claimsMs)
    if (waitMs === pollMs) waitMs = everyMs
    if (this.#suspects.mayWait || this.#hasUnbuffered()) waitMs = Math.min(waitMs, suspectsEveryMs)
    // Not everything is notified, and a job that ends is no notification: once in this time the loop polls.
    const expectAtMs = Math.min(this.#expectedMs + everyMs, monotonicMs() + Math.min(waitMs, fetcher.nextScanInMs(beganMs)))
    const leftMs = expectAtMs - monotonicMs()
    const isTold = leftMs > 0 && (await changed.wait(leftMs)) && monotonicMs() < expectAtMs
    // Where a notification cannot be relied on, anything may have been added while we waited.
    if (!isTold || !sleep.isRelied(worker.id)) this.#expect()
  }

  /** Returns whether it held one that must run alone: then anything may have become ready since. */
  async #takeSuspects(worker: Holder): Promise<boolean> {
    const wasAlone = await this.#suspects.take(worker, this.#queues)
    this.#reserve()
    if (wasAlone) this.#expect()
    return wasAlone
  }

  #expect(): void {
    this.#expectedMs = monotonicMs()
    for (const group of this.#groups) group.mayWait = true
    this.#suspects.expect(true)
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
    const ahead = Math.min(2 * batchMax, slots.startsSoon(), fetcher.rowsIn(waitingBytesMax / 2))
    const target = Math.max(slots.free, ahead)
    if (slots.buffered > target / 2 && slots.buffered >= slots.free) return 0
    // Ends that were set aside may wait for hours, and are counted by their own bytes.
    const byBytes = fetcher.rowsIn(waitingBytesMax - settler.bytes) - slots.buffered - settler.pending
    return Math.min(
      target - slots.buffered,
      batchMax,
      3 * Math.max(batchMax, concurrency) - heldBy(this.#options),
      Math.max(byBytes, heldBy(this.#options) === 0 ? 1 : 0),
    )
  }

  #roomOf({ limited }: Group): number {
    if (limited === undefined) return this.#room()
    const ofKind = this.#options.slots.roomOf(limited)
    // Jobs of a kind that allows one crash get free slots only, and never wait in the buffer: a full buffer takes no room from them.
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
      if (!group.mayWait || room <= 0 || this.#options.process.signal.aborted) continue
      const found = await this.#claimGroup(worker, group, room)
      count += found.count
      isFull ||= found.isFull
      asked++
      if (found.isExhausted) exhausted++
    }
    // The next claim begins with any queue and any group, so that none starves after a full one. Both by one each time would be in step:
    // with as many groups as queues a group that goes first would always meet the same queue.
    rotate(this.#queues)
    rotate(this.#groups)
    return { count, isFull, isExhausted: asked > 0 && exhausted === asked }
  }

  async #claimGroup(worker: Holder, group: Group, room: number): Promise<Found> {
    const { fetcher, kinds, runtime, sleep, slots } = this.#options
    const news = this.#news
    const isRelied = sleep.isRelied(worker.id)
    const { rows, isFull, isExhausted, areSuspectsReady } = await fetcher.claim(
      worker,
      this.#queues,
      group.kinds,
      room,
      group.limited !== undefined,
    )
    // Rows of an incarnation that was lost since then belong to the worker that takes over from it.
    if (this.#options.process.holder !== worker) return { count: 0, isFull: false, isExhausted: false }
    runtime.outcomes.counts.claimed += rows.length
    const held = rows.map((row) => new Attempt(row, kinds.get(row.kind)!, runtime, worker.id))
    if (group.limited?.crashes === 1) {
      this.#unbufferedMs = monotonicMs()
      slots.addFirst(held)
    } else slots.add(held)
    if (news === this.#news && areSuspectsReady !== undefined) this.#suspects.expect(areSuspectsReady)
    if (isExhausted && !isFull && isRelied && news === this.#news) group.mayWait = false
    return { count: rows.length, isFull, isExhausted }
  }

  async #reconcile(worker: Holder): Promise<number> {
    const { fetcher, runtime, settler, slots } = this.#options
    const nowMs = monotonicMs()
    if (this.#doubt === undefined || nowMs < this.#doubt.nextMs) return 0
    const { untilMs } = this.#doubt
    if (nowMs >= untilMs) {
      this.#doubt = undefined
      return 0
    }
    const released = await fetcher.releaseUnknown(worker, [...slots.heldJobs(), ...settler.attempts()])
    runtime.outcomes.counts.released += released
    if (released > 0) this.#expect()
    // A claim that was given up here may commit there long after the comparison that was to find it.
    this.#doubt = { nextMs: monotonicMs() + reconcileEveryMs, untilMs }
    return released
  }

  /** Slots that are freed next are kept from the buffer for suspects, or for kinds that never wait in it. */
  #reserve(): void {
    const { slots } = this.#options
    // With a slot free already, only a kind that may start is waited for.
    const hasPlace = slots.free === 0 || this.#groups.some(({ limited }) => limited?.crashes === 1 && slots.roomOf(limited) > 0)
    const isUnbufferedDue = hasPlace && this.#hasUnbuffered() && monotonicMs() - this.#unbufferedMs >= suspectsEveryMs
    slots.reserve(Math.max(this.#suspects.slotsKept, isUnbufferedDue ? 1 : 0))
  }

  #hasUnbuffered(): boolean {
    return this.#groups.some(({ limited, mayWait }) => mayWait && limited?.crashes === 1)
  }

  /** Called when no deciding run of this worker is in progress. */
  endSolitude(): void {
    this.#suspects.endSolitude()
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
