// What this process holds: jobs that wait in the buffer and jobs that run. It starts what it can, in order, within the limits of the
// worker and of each kind, and frees a slot when a handler ends, times out, or loses its job.

import type { PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Board, Watched } from '../kernel/keeper/board.ts'
import type { Wakeup } from '../kernel/service.ts'
import { type Attempt, leaseLost } from './attempt.ts'
import type { DefinedKind } from './kinds.ts'
import { Pace, prefetchMs } from './pace.ts'
import type { Settler } from './settle.ts'
import type { SharedEnd } from './tx/shared.ts'

export interface SlotsOptions {
  readonly concurrency: number
  /** A tx handler needs a connection, so no more of them start than there are; waiting in the pool would run into its timeout. */
  readonly txMax: number
  readonly bufferMs: number
  readonly board: Board
  /** While it is full, nothing starts. */
  readonly settler: Pick<Settler, 'isFull'>
  /** Fires when a slot is free or the buffer is shorter. */
  readonly changed: Wakeup
  /** Resolves when the attempt has ended, and has given its end to the settler. */
  readonly run: (attempt: Attempt) => Promise<void>
  readonly runShared: (group: readonly Attempt[]) => Promise<SharedEnd>
}

/** What a running attempt takes: a cell on the board, and a slot, of which a group that shares a transaction takes one in all. */
interface Place extends Watched {
  readonly takes: 0 | 1
}

/** The attempts that run, and the slots that they take. */
class Running {
  readonly places = new Map<Attempt, Place>()
  readonly #board: Board
  readonly #byKind = new Map<DefinedKind, number>()
  taken = 0
  takenTx = 0

  constructor(board: Board) {
    this.#board = board
  }

  ofKind(kind: DefinedKind): number {
    return this.#byKind.get(kind) ?? 0
  }

  /** Those that take a slot. */
  *holders(): Generator<Attempt> {
    for (const [attempt, { takes }] of this.places) if (takes === 1) yield attempt
  }

  enter(attempt: Attempt, takes: 0 | 1): void {
    const { id, fence, definition } = attempt
    const place = { id, fence, definition, slot: -1, takes }
    this.places.set(attempt, place)
    this.#count(definition, takes, 1)
    this.#board.enter(place)
  }

  /** Returns whether it was here. */
  leave(attempt: Attempt): boolean {
    const place = this.places.get(attempt)
    if (place === undefined) return false
    this.places.delete(attempt)
    this.#count(attempt.definition, -place.takes, -1)
    this.#board.leave(place)
    return true
  }

  #count(kind: DefinedKind, slots: number, attempts: number): void {
    this.taken += slots
    if (kind.tx !== undefined) this.takenTx += slots
    this.#byKind.set(kind, this.ofKind(kind) + attempts)
  }
}

export class Slots {
  readonly #options: SlotsOptions
  readonly #buffer: Attempt[] = []
  readonly #running: Running
  readonly #pace = new Pace()
  #isClosed = false
  /** It runs with nothing beside it: held until this process is empty, then started. */
  #alone: Attempt | undefined
  /** Slots that what waits in the buffer leaves free. */
  #reserved = 0
  /** How many started from the buffer, suspects aside. */
  starts = 0

  constructor(options: SlotsOptions) {
    this.#options = options
    this.#running = new Running(options.board)
  }

  get buffered(): number {
    return this.#buffer.length
  }
  get running(): number {
    return this.#running.places.size
  }
  get free(): number {
    return Math.max(0, this.#options.concurrency - this.#running.taken)
  }

  runningJobs(): Attempt[] {
    return [...this.#running.places.keys()]
  }

  heldJobs(): Attempt[] {
    const held = [...this.#running.places.keys(), ...this.#buffer]
    return this.#alone === undefined || this.#running.places.has(this.#alone) ? held : [...held, this.#alone]
  }

  /** Suspects held here, which is as many as run, or will within one change. */
  get suspects(): number {
    return this.heldJobs().filter((held) => held.isSuspect).length
  }

  /** How many jobs will start soon. */
  startsSoon(): number {
    return this.#pace.startsSoon({ free: this.free, holders: this.#running.holders() })
  }

  add(jobs: readonly Attempt[]): void {
    this.#buffer.push(...jobs)
    this.pump()
  }

  /** Before what waits already, and into reserved slots. */
  addFirst(jobs: readonly Attempt[]): void {
    this.#reserved = 0
    this.#buffer.unshift(...jobs)
    this.pump()
  }

  /** Keeps this number of slots from the jobs in the buffer. */
  reserve(slots: number): void {
    this.#reserved = slots
    this.pump()
  }

  /** Whether fewer of this kind may run than there are slots, or none of it may wait. */
  isLimited(kind: DefinedKind): boolean {
    const { concurrency, txMax } = this.#options
    return kind.concurrency < concurrency || (kind.tx !== undefined && txMax < concurrency) || kind.crashes === 1
  }

  /** How many of a limited kind may be claimed. Being held counts as started after a crash, so a kind with one crash allowed gets free slots only. */
  roomOf(kind: DefinedKind): number {
    const { concurrency, txMax } = this.#options
    const waiting = (isIt: (attempt: Attempt) => boolean) => this.#buffer.filter(isIt).length
    const places = Math.max(0, kind.concurrency - this.#running.ofKind(kind)) * kind.share
    let room = places - waiting((held) => held.definition === kind)
    if (kind.tx !== undefined && txMax < concurrency)
      room = Math.min(room, (txMax - this.#running.takenTx) * kind.share - waiting((held) => held.definition.tx !== undefined))
    return kind.crashes === 1 ? Math.min(room, this.free) : room
  }

  /** Holds a job that must have nothing beside it: nothing else starts, and what waits is given back. */
  empty(attempt: Attempt): void {
    this.#alone = attempt
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
    this.pump()
    return had
  }

  /** Nothing starts any more; what waits is released. Returns how many that were. */
  close(): number {
    this.#isClosed = true
    const waiting = this.#buffer.splice(0)
    if (this.#alone !== undefined && !this.#running.places.has(this.#alone)) {
      waiting.push(this.#alone)
      this.#alone = undefined
    }
    for (const attempt of waiting) attempt.release()
    return waiting.length
  }

  /** The incarnation is lost: what waits belongs to others now, what runs is aborted. A handler that still finishes may settle under its fence. */
  lose(worker: number): void {
    this.#buffer.splice(0)
    this.#alone = undefined
    for (const attempt of this.#running.places.keys()) if (attempt.worker === worker) attempt.abort(leaseLost(attempt.row))
  }

  /** A job is no longer ours. One that waits is dropped; one that runs is aborted, and its slot is free at once. Returns whether it ran. */
  loseOne(attempt: Attempt, reason: PawlError): boolean {
    const waiting = this.#buffer.indexOf(attempt)
    if (waiting >= 0) this.#buffer.splice(waiting, 1)
    const hasRun = this.#running.places.has(attempt)
    if (this.#alone === attempt && !hasRun) {
      attempt.abort(reason)
      this.#alone = undefined
      this.#options.changed.fire()
    }
    if (!hasRun || !attempt.end(reason)) return false
    this.#free(attempt)
    return true
  }

  /** Ends what ran too long, and gives back what has waited here too long or will not start soon. */
  tick(nowMs: number): void {
    for (const attempt of this.#running.places.keys()) {
      const isOver = attempt.state !== 'waiting' && nowMs - attempt.startedMs > attempt.definition.timeoutMs
      if (isOver && attempt.timeOut()) this.#free(attempt)
    }
    const startMax = Math.max(this.free, this.#pace.startsMax(this.startsSoon()))
    const isLate = (attempt: Attempt, index: number) => {
      const waitedMs = nowMs - attempt.claimedMs
      const willNotStart = index >= startMax && (startMax === this.free || waitedMs > prefetchMs)
      return attempt.state !== 'alone' && (willNotStart || waitedMs > this.#options.bufferMs / 2)
    }
    const late = this.#buffer.filter(isLate)
    if (late.length === 0) return
    this.#buffer.splice(0, this.#buffer.length, ...this.#buffer.filter((held, index) => !isLate(held, index)))
    this.#giveBack(late)
  }

  #giveBack(jobs: readonly Attempt[]): void {
    if (jobs.length === 0) return
    for (const attempt of jobs) attempt.release()
    this.#options.changed.fire()
  }

  /** It has an end, and its handler may still run. */
  #free(attempt: Attempt): void {
    this.#leave(attempt)
    this.pump()
    this.#options.changed.fire()
  }

  /** Starts what may start: called by itself after each change, and from outside when ends were stored. */
  pump(): void {
    while (!this.#isClosed && this.#alone === undefined && this.#running.taken < this.#options.concurrency - this.#reserved) {
      if (this.#options.settler.isFull) return
      const attempt = this.#next()
      if (attempt === undefined) return
      if (!attempt.isSuspect) this.starts++
      if (mayShare(attempt)) void this.#startShared(this.#groupOf(attempt))
      else void this.#start(attempt)
    }
  }

  #next(): Attempt | undefined {
    const first = this.#buffer[0]
    if (first === undefined || this.#hasSlot(first.definition)) return this.#buffer.shift()
    const index = this.#buffer.findIndex((held) => this.#hasSlot(held.definition))
    return index < 0 ? undefined : this.#buffer.splice(index, 1)[0]
  }

  #hasSlot(kind: DefinedKind): boolean {
    if (kind.tx !== undefined && this.#running.takenTx >= this.#options.txMax) return false
    return kind.concurrency >= this.#options.concurrency || this.#running.ofKind(kind) < kind.concurrency
  }

  async #start(attempt: Attempt): Promise<void> {
    this.#enter(attempt, 1)
    await this.#options.run(attempt)
    this.#free(attempt)
  }

  #groupOf(first: Attempt): Attempt[] {
    const group = [first]
    for (let index = 0; index < this.#buffer.length && group.length < first.definition.share; ) {
      const next = this.#buffer[index]!
      if (next.definition === first.definition && next.tenant === first.tenant && mayShare(next))
        group.push(...this.#buffer.splice(index, 1))
      else index++
    }
    return group
  }

  async #startShared(group: readonly Attempt[]): Promise<void> {
    for (const [index, attempt] of group.entries()) this.#enter(attempt, index === 0 ? 1 : 0)
    const { again, unstarted } = await this.#options.runShared(group)
    for (const attempt of group) this.#leave(attempt)
    // Each alone now, within the same limits as all others.
    for (const attempt of again) attempt.become('alone')
    for (const attempt of unstarted) attempt.become('waiting')
    // In their old order and in front: they were claimed before what waits now.
    const back = [...again, ...unstarted].filter((attempt) => !attempt.isEnded)
    for (const attempt of back) attempt.startedMs = 0
    this.#buffer.unshift(...back)
    if (this.#isClosed) this.close()
    else if (this.#alone !== undefined) this.#giveBack(this.#buffer.splice(0))
    this.pump()
    this.#options.changed.fire()
  }

  #enter(attempt: Attempt, takes: 0 | 1): void {
    attempt.startedMs = monotonicMs()
    attempt.become('running')
    this.#running.enter(attempt, takes)
    attempt.runtime.outcomes.started(attempt)
  }

  #leave(attempt: Attempt): void {
    if (!this.#running.leave(attempt)) return
    if (attempt.isEnded) this.#pace.ended(attempt)
    if (this.#alone === attempt) this.#alone = undefined
  }
}

/** A suspect would put the others of its group in doubt; a job whose group failed must not fail another. */
function mayShare({ definition, isSuspect, state }: Attempt): boolean {
  return definition.share > 1 && !isSuspect && state !== 'alone'
}
