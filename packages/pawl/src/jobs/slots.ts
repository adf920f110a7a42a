// What this process holds: jobs that wait in the buffer and jobs that run. It starts what it can, in order, within the limits of the
// worker and of each kind, and frees a slot when a handler ends, times out, or loses its job.

import { describeError, PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { type HeldJob, leaseLost } from './held.ts'
import type { Board } from './keeper.ts'
import { type DefinedKind, retryDelayMs } from './kinds.ts'
import type { RunEnd } from './runner.ts'
import type { SharedEnd } from './shared.ts'

export interface SlotsOptions {
  readonly concurrency: number
  /** A tx handler needs a connection, so no more of them start than there are; waiting in the pool would run into its timeout. */
  readonly txMax: number
  readonly bufferMs: number
  readonly board: Board
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
  #isAlone = false
  #finished = 0

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
    return [...this.#running, ...this.#buffer]
  }

  ids(): string[] {
    return this.heldJobs().map((held) => held.id)
  }

  /** How many ended since the last call. */
  takeFinished(): number {
    const finished = this.#finished
    this.#finished = 0
    return finished
  }

  add(jobs: readonly HeldJob[]): void {
    for (const held of jobs) this.#buffer.push(held)
    this.#pump()
  }

  /** Whether one more of this kind may be claimed. */
  hasRoom(kind: DefinedKind): boolean {
    if (kind.concurrency >= this.#options.concurrency) return true
    const waiting = this.#buffer.reduce((count, held) => count + (held.definition === kind ? 1 : 0), 0)
    return (this.#byKind.get(kind) ?? 0) + waiting < kind.concurrency
  }

  /** Runs one job with nothing beside it. */
  async runAlone(held: HeldJob): Promise<void> {
    this.#isAlone = true
    // A handler that timed out or lost its job may never answer; its turn is over all the same.
    const gone = new Promise<void>((resolve) => {
      held.onGone = resolve
    })
    try {
      await Promise.race([this.#start(held), gone])
    } finally {
      this.#isAlone = false
    }
  }

  /** Nothing starts any more; what waits is released. Gives how many that were. */
  close(): number {
    this.#isClosed = true
    const waiting = this.#buffer.splice(0)
    for (const held of waiting) this.#options.onRelease(held)
    return waiting.length
  }

  /** The incarnation is lost: what waits belongs to somebody else now, what runs is told. Whatever still finishes may settle under its fence. */
  lose(worker: number): void {
    this.#buffer.splice(0)
    for (const held of this.#running) if (held.worker === worker) held.lose(leaseLost(held.row))
  }

  /** One job is no longer ours. One that waits is dropped; one that runs gets its signal, and its slot is free at once. */
  loseOne(row: { tenant: string; id: string; fence: string }, reason: (held: HeldJob) => PawlError): HeldJob | undefined {
    const isIt = (held: HeldJob) => held.id === row.id && held.fence === row.fence && held.tenant === row.tenant
    const waiting = this.#buffer.findIndex(isIt)
    if (waiting >= 0) this.#buffer.splice(waiting, 1)
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

  /** Ends what ran too long, and gives back what has waited here too long. */
  tick(nowMs: number): void {
    for (const held of this.#running) if (nowMs - held.startedMs > held.definition.timeoutMs) this.#timeOut(held)
    while (this.#buffer.length > 0 && nowMs - this.#buffer[0]!.claimedMs > this.#options.bufferMs / 2)
      this.#options.onRelease(this.#buffer.shift()!)
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
    while (!this.#isClosed && !this.#isAlone && this.#taken < this.#options.concurrency) {
      const held = this.#next()
      if (held === undefined) return
      if (held.definition.share > 1) void this.#startShared(this.#groupOf(held))
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
      if (next.definition === first.definition && next.tenant === first.tenant) group.push(...this.#buffer.splice(index, 1))
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
    for (const held of again) if (!held.isEnded) void this.#start(held)
    if (this.#isClosed) this.close()
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
    this.#finished++
    this.#taken -= held.slotsTaken
    if (held.definition.tx !== undefined) this.#takenTx -= held.slotsTaken
    this.#byKind.set(held.definition, (this.#byKind.get(held.definition) ?? 1) - 1)
    this.#options.board.leave(held)
  }
}
