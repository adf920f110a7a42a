// What this process holds: jobs that wait in the buffer and jobs that run. It starts what it can, in order, within the limits of the
// worker and of each kind, and frees a slot when a handler ends, times out, or loses its job.

import { describeError, PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Board } from '../kernel/keeper.ts'
import { type HeldJob, leaseLost } from './held.ts'
import { type DefinedKind, retryDelayMs } from './kinds.ts'
import type { RunEnd } from './runner.ts'
import type { SharedEnd } from './shared.ts'

/** A worker holds what it will start within this time, and no more: what it cannot start, another could. */
export const prefetchMs = 500
/** No job counts as shorter. */
const shortestMs = 0.05
/** A job is long when it has run for this time and for so many times the mean of its kind. A stall of the server or of this process is shorter. */
const longMs = 250
const longTimes = 4
/** What the last job counts in the mean. A worker of 20 slots that stalls for once ends 20 jobs at once. */
const newShare = 0.03

export interface SlotsOptions {
  readonly concurrency: number
  /** A tx handler needs a connection, so no more of them start than there are; waiting in the pool would run into its timeout. */
  readonly txMax: number
  readonly bufferMs: number
  readonly board: Board
  /** Whether what has ended and is not stored yet leaves room for more. */
  readonly mayStart: () => boolean
  readonly run: (held: HeldJob) => Promise<RunEnd>
  readonly runShared: (group: readonly HeldJob[]) => Promise<SharedEnd>
  readonly onStart: (held: HeldJob) => void
  /** Called once per job that has an end of its own: by its handler. */
  readonly onEnd: (held: HeldJob, end: RunEnd) => void
  readonly onTimeout: (held: HeldJob) => void
  readonly onRelease: (held: HeldJob) => void
  /** Something changed: a slot is free or the buffer is shorter. */
  readonly onChange: () => void
}

export class Slots {
  readonly #options: SlotsOptions
  readonly #buffer: HeldJob[] = []
  readonly #running = new Set<HeldJob>()
  readonly #byKind = new Map<DefinedKind, number>()
  /** A group that shares a transaction takes one slot. */
  #taken = 0
  #takenTx = 0
  #isClosed = false
  /** It runs with nothing beside it: held until this process is empty, then started. */
  #alone: HeldJob | undefined
  /** Slots that what waits in the buffer leaves free. */
  #reserved = 0
  /** How many started from the buffer, suspects aside. */
  #starts = 0
  /** Mean run time by kind, and of what ended last, in milliseconds. */
  readonly #meanMs = new Map<DefinedKind, number>()
  #meanOfAllMs = Number.POSITIVE_INFINITY
  /** What was expected to start at the last tick. */
  #expected = 0

  constructor(options: SlotsOptions) {
    this.#options = options
  }

  get buffered(): number {
    return this.#buffer.length
  }
  get running(): number {
    return this.#running.size
  }
  get free(): number {
    return Math.max(0, this.#options.concurrency - this.#taken)
  }

  runningJobs(): HeldJob[] {
    return [...this.#running]
  }

  heldJobs(): HeldJob[] {
    const held = [...this.#running, ...this.#buffer]
    return this.#alone === undefined || this.#running.has(this.#alone) ? held : [...held, this.#alone]
  }

  get starts(): number {
    return this.#starts
  }

  /** Suspects held here, which is as many as run, or will within one change. */
  get suspects(): number {
    return this.heldJobs().reduce((count, held) => count + (held.isSuspect ? 1 : 0), 0)
  }

  /**
   * How many jobs start within this time: each slot takes the next one after the mean run time of its kind (Little's law). A slot in a long
   * job takes none.
   */
  startsWithin(ms: number): number {
    const nowMs = monotonicMs()
    let perMs = this.free / Math.max(shortestMs, this.#meanOfAllMs)
    for (const held of this.#running) {
      const meanMs = this.#meanMs.get(held.definition) ?? Number.POSITIVE_INFINITY
      const isLong = nowMs - held.startedMs > Math.max(longMs, longTimes * meanMs)
      if (!isLong) perMs += held.slotsTaken / Math.max(shortestMs, meanMs)
    }
    return Math.floor(perMs * ms)
  }

  add(jobs: readonly HeldJob[]): void {
    for (const held of jobs) this.#buffer.push(held)
    this.#pump()
  }

  /** Before what waits already, and into reserved slots. */
  addFirst(jobs: readonly HeldJob[]): void {
    this.#reserved = 0
    this.#buffer.unshift(...jobs)
    this.#pump()
  }

  /** Keeps so many slots from what waits in the buffer. */
  reserve(slots: number): void {
    this.#reserved = slots
    this.#pump()
  }

  /** Ends were stored. */
  resume(): void {
    this.#pump()
  }

  /** Whether fewer of this kind may run than there are slots, or none of it may wait. */
  isLimited(kind: DefinedKind): boolean {
    const { concurrency, txMax } = this.#options
    return kind.concurrency < concurrency || (kind.tx !== undefined && txMax < concurrency) || kind.crashes === 1
  }

  /** How many of a limited kind may be claimed. Being held counts as started after a crash, so a kind with one crash allowed gets free slots only. */
  roomOf(kind: DefinedKind): number {
    const { concurrency, txMax } = this.#options
    const waiting = (isIt: (held: HeldJob) => boolean) => this.#buffer.reduce((count, held) => count + (isIt(held) ? 1 : 0), 0)
    const places = Math.max(0, kind.concurrency - (this.#byKind.get(kind) ?? 0)) * kind.share
    let room = places - waiting((held) => held.definition === kind)
    if (kind.tx !== undefined && txMax < concurrency)
      room = Math.min(room, (txMax - this.#takenTx) * kind.share - waiting((held) => held.definition.tx !== undefined))
    return kind.crashes === 1 ? Math.min(room, this.free) : room
  }

  /** Holds a job that must have nothing beside it: nothing else starts, and what waits is given back. */
  empty(held: HeldJob): void {
    this.#alone = held
    this.#giveBack(this.#buffer.splice(0))
  }

  /** Starts the job that was held until this process is empty. */
  startAlone(): void {
    if (this.#alone !== undefined) void this.#start(this.#alone)
  }

  /** The job that waits for this process to be empty is given up; false when it is not ours any more. */
  dropAlone(): boolean {
    const had = this.#alone !== undefined
    this.#alone = undefined
    this.#pump()
    return had
  }

  /** Nothing starts any more; what waits is released. Gives how many that were. */
  close(): number {
    this.#isClosed = true
    const waiting = this.#buffer.splice(0)
    if (this.#alone !== undefined && !this.#running.has(this.#alone)) {
      waiting.push(this.#alone)
      this.#alone = undefined
    }
    for (const held of waiting) this.#options.onRelease(held)
    return waiting.length
  }

  /** The incarnation is lost: what waits belongs to somebody else now, what runs is told. Whatever still finishes may settle under its fence. */
  lose(worker: number): void {
    this.#buffer.splice(0)
    this.#alone = undefined
    for (const held of this.#running) if (held.worker === worker) held.lose(leaseLost(held.row))
  }

  /** One job is no longer ours. One that waits is dropped; one that runs gets its signal, and its slot is free at once. */
  loseOne(row: { tenant: string; id: string; fence: string }, reason: (held: HeldJob) => PawlError): HeldJob | undefined {
    const isIt = (held: HeldJob) => held.id === row.id && held.fence === row.fence && held.tenant === row.tenant
    const waiting = this.#buffer.findIndex(isIt)
    if (waiting >= 0) this.#buffer.splice(waiting, 1)
    if (this.#alone !== undefined && isIt(this.#alone) && !this.#running.has(this.#alone)) {
      this.#alone.lose(reason(this.#alone))
      this.#alone = undefined
      this.#options.onChange()
    }
    const held = this.runningJobs().find(isIt)
    if (held === undefined || held.isEnded) return undefined
    held.isEnded = true
    held.lose(reason(held))
    this.#leave(held)
    held.onGone?.()
    this.#pump()
    this.#options.onChange()
    return held
  }

  /** Ends what ran too long, and gives back what has waited here too long or will not start soon. */
  tick(nowMs: number): void {
    for (const held of this.#running) if (nowMs - held.startedMs > held.definition.timeoutMs) this.#timeOut(held)
    // Twice as many as at this tick or the last: what is expected changes with every end, and a stall of all handlers at once is over soon.
    const expected = this.startsWithin(prefetchMs)
    const startMax = Math.max(this.free, 2 * expected, 2 * this.#expected)
    this.#expected = expected
    const isLate = (held: HeldJob, index: number) => {
      const waitedMs = nowMs - held.claimedMs
      const willNotStart = index >= startMax && (startMax === this.free || waitedMs > prefetchMs)
      return !held.hasShared && (willNotStart || waitedMs > this.#options.bufferMs / 2)
    }
    const late = this.#buffer.filter(isLate)
    if (late.length === 0) return
    this.#buffer.splice(0, this.#buffer.length, ...this.#buffer.filter((held, index) => !isLate(held, index)))
    this.#giveBack(late)
  }

  #giveBack(jobs: readonly HeldJob[]): void {
    if (jobs.length === 0) return
    for (const held of jobs) this.#options.onRelease(held)
    this.#options.onChange()
  }

  #timeOut(held: HeldJob): void {
    if (held.isEnded) return
    held.isEnded = true
    held.lose(new PawlError('PAWL_TIMED_OUT', `Job ${held.id} ran longer than its timeout of ${held.definition.timeoutMs} ms.`))
    this.#leave(held)
    this.#options.onTimeout(held)
    held.onGone?.()
    this.#pump()
    this.#options.onChange()
  }

  #pump(): void {
    const { concurrency, mayStart } = this.#options
    while (!this.#isClosed && this.#alone === undefined && mayStart() && this.#taken < concurrency - this.#reserved) {
      const held = this.#next()
      if (held === undefined) return
      if (!held.isSuspect) this.#starts++
      if (held.definition.share > 1 && !held.isUnshared) void this.#startShared(this.#groupOf(held))
      else void this.#start(held)
    }
  }

  #next(): HeldJob | undefined {
    const first = this.#buffer[0]
    if (first === undefined || this.#hasSlot(first.definition)) return this.#buffer.shift()
    const index = this.#buffer.findIndex((held) => this.#hasSlot(held.definition))
    return index < 0 ? undefined : this.#buffer.splice(index, 1)[0]
  }

  #hasSlot(kind: DefinedKind): boolean {
    if (kind.tx !== undefined && this.#takenTx >= this.#options.txMax) return false
    return kind.concurrency >= this.#options.concurrency || (this.#byKind.get(kind) ?? 0) < kind.concurrency
  }

  async #start(held: HeldJob): Promise<void> {
    this.#enter(held, 1)
    let end: RunEnd
    try {
      end = await this.#options.run(held)
    } catch (error) {
      // Nothing should throw there; if it does, the attempt is failed rather than forgotten, and one of as many as there are.
      const delayMs = retryDelayMs(held.definition, held.row, error)
      end = { held, result: null, failed: { outcome: 'failed', delayMs, error: describeError(error) } }
    }
    this.#leave(held)
    this.#options.onEnd(held, end)
    this.#pump()
    this.#options.onChange()
  }

  #groupOf(first: HeldJob): HeldJob[] {
    const group = [first]
    for (let index = 0; index < this.#buffer.length && group.length < first.definition.share; ) {
      const next = this.#buffer[index]!
      if (next.definition === first.definition && next.tenant === first.tenant && !next.isUnshared)
        group.push(...this.#buffer.splice(index, 1))
      else index++
    }
    return group
  }

  async #startShared(group: readonly HeldJob[]): Promise<void> {
    for (const [index, held] of group.entries()) this.#enter(held, index === 0 ? 1 : 0)
    const { settled, again, unstarted } = await this.#options.runShared(group)
    for (const held of group) this.#leave(held)
    for (const held of settled) this.#options.onEnd(held, 'settled')
    // In their old order and in front: they were claimed before what waits now.
    this.#buffer.unshift(...unstarted.filter((held) => !held.isEnded))
    // Each alone now, within the same limits as all others.
    this.#buffer.unshift(...again.filter((held) => !held.isEnded))
    for (const held of again) {
      held.isUnshared = true
      held.hasShared = true
      held.startedMs = 0
    }
    if (this.#isClosed) this.close()
    else if (this.#alone !== undefined) this.#giveBack(this.#buffer.splice(0))
    this.#pump()
    this.#options.onChange()
  }

  #enter(held: HeldJob, slots: 0 | 1): void {
    held.startedMs = monotonicMs()
    held.slotsTaken = slots
    this.#taken += slots
    if (held.definition.tx !== undefined) this.#takenTx += slots
    this.#running.add(held)
    this.#byKind.set(held.definition, (this.#byKind.get(held.definition) ?? 0) + 1)
    this.#options.board.enter(held)
    this.#options.onStart(held)
  }

  #leave(held: HeldJob): void {
    if (!this.#running.delete(held)) return
    this.#measure(held)
    if (this.#alone === held) this.#alone = undefined
    this.#taken -= held.slotsTaken
    if (held.definition.tx !== undefined) this.#takenTx -= held.slotsTaken
    this.#byKind.set(held.definition, (this.#byKind.get(held.definition) ?? 1) - 1)
    this.#options.board.leave(held)
  }

  #measure({ definition, startedMs }: HeldJob): void {
    const ranMs = monotonicMs() - startedMs
    if (!(ranMs >= 0)) return
    const blend = (meanMs: number) => (Number.isFinite(meanMs) ? meanMs + (ranMs - meanMs) * newShare : ranMs)
    this.#meanMs.set(definition, blend(this.#meanMs.get(definition) ?? Number.POSITIVE_INFINITY))
    this.#meanOfAllMs = blend(this.#meanOfAllMs)
  }
}
