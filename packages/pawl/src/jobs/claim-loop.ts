// The worker's main loop: claim, hand over, wait. One claim is under way at a time, so after a lost answer it can give back whatever the
// database thinks it holds. Suspects run alone: the process empties itself first.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from '../config.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Holder } from '../kernel/lease.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import type { Wakeup } from '../kernel/signal.ts'
import type { Counts } from './counts.ts'
import type { Fetcher } from './fetcher.ts'
import { type ClaimedRow, HeldJob } from './held.ts'
import type { DefinedKind } from './kinds.ts'
import type { Settler } from './settler.ts'
import type { Sleep } from './sleep.ts'
import type { Slots } from './slots.ts'

/** Enough is fetched ahead for about so long at the present rate. */
const prefetchMs = 500
const reconcileEveryMs = 5000
const doubtLastsMs = 120_000
const suspectLookEveryMs = 1000
/** While ready work waits, suspects get at least an eighth of the time: a slice like this after each look. */
const suspectSliceMs = 250
const drainPatienceMinMs = 2000
const drainPatienceMaxMs = 15 * 60_000

export interface ClaimLoopOptions {
  readonly batchMax: number
  readonly concurrency: number
  readonly pollMs: number
  readonly queues: readonly string[]
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly changed: Wakeup
  readonly counts: Counts
  readonly fetcher: Fetcher
  readonly logger: Logger
  readonly settler: Settler
  readonly sleep: Sleep
  readonly slots: Slots
  readonly signal: AbortSignal
  readonly worker: () => Holder | undefined
  readonly installation: () => string
  /** Who waits for this worker to be idle. */
  readonly idleWaiters: ReadonlySet<() => void>
  readonly onIdle: (waiters: readonly (() => void)[]) => void
  readonly onTrouble: (error: unknown) => void
}

export class ClaimLoop {
  readonly #options: ClaimLoopOptions
  readonly #queues: string[]
  readonly #kinds: readonly DefinedKind[]
  #isDoubtful = false
  #lastReconcileMs = monotonicMs()
  #doubtUntilMs = 0
  #nextSuspectLookMs = 0
  #drainPatienceMs = drainPatienceMinMs
  #ratePerMs = 0
  /** The last claim that got all it asked for: more waits there. */
  #lastFull: { readonly count: number; readonly atMs: number } | undefined
  readonly #aborted: Promise<void>

  constructor(options: ClaimLoopOptions) {
    this.#options = options
    this.#aborted = new Promise((resolve) => options.signal.addEventListener('abort', () => resolve(), { once: true }))
    this.#queues = [...options.queues]
    this.#kinds = [...options.kinds.values()]
  }

  /** Told at every tick how many jobs ended in how long. */
  measured(ended: number, tookMs: number): void {
    const rate = ended / Math.max(1, tookMs)
    this.#ratePerMs = Math.max(rate, this.#ratePerMs * 0.7 + rate * 0.3)
  }

  lookForSuspects(): void {
    this.#nextSuspectLookMs = 0
    this.#options.changed.fire()
  }

  async run(): Promise<void> {
    const { signal, onTrouble } = this.#options
    for (let failed = 0; !signal.aborted; ) {
      try {
        await this.#turn()
        failed = 0
      } catch (error) {
        failed++
        // The claim may have happened without an answer: what we hold and do not know is given back before the next one.
        this.#isDoubtful = true
        this.#doubtUntilMs = monotonicMs() + doubtLastsMs
        onTrouble(error)
        await sleep(engineBackoffMs(error, failed), undefined, { signal }).catch(() => undefined)
      }
    }
  }

  async #turn(): Promise<void> {
    const { changed, pollMs, sleep } = this.#options
    const worker = this.#options.worker()
    if (worker === undefined) {
      await changed.wait(pollMs)
      return
    }
    await this.#reconcile(worker)
    if (this.#held() > 0 && (await this.#suspectTurn(worker))) return
    const room = this.#room()
    if (room <= 0) {
      await changed.wait(pollMs)
      return
    }
    // What ended while the claim was under way may have left follow-up jobs that it could not see: idle is only who was empty before.
    const wasEmpty = this.#held() === 0
    // Whoever begins to wait from here on may have enqueued what this claim cannot see: the next one answers.
    const waiters = [...this.#options.idleWaiters]
    const found = await this.#claim(worker, room)
    if (found > 0) return sleep.worked(worker.id, found)
    if (this.#held() === 0 && (await this.#runSuspects(worker))) return
    const fullScanInMs = this.#options.fetcher.nextFullScanInMs
    if (wasEmpty && this.#held() === 0 && fullScanInMs === undefined) this.#options.onIdle(waiters)
    const waitMs = Math.min(await sleep.idle(worker.id), fullScanInMs ?? Number.POSITIVE_INFINITY)
    if (waitMs > 0) await changed.wait(waitMs)
  }

  #held(): number {
    const { settler, slots } = this.#options
    return slots.running + slots.buffered + settler.unsettled
  }

  /**
   * Free slots, or what runs in about half a second at the present rate, less what waits here already. Up to two batches: under full load
   * the next one is claimed while the last one runs, and neither side waits for the other.
   */
  #room(): number {
    const { batchMax, concurrency, slots } = this.#options
    // The whole last batch is through before the first tick could measure it: its own rate counts, so a burst is at full size at once.
    if (this.#lastFull !== undefined && slots.buffered === 0 && slots.free > concurrency / 2) {
      this.#ratePerMs = Math.max(this.#ratePerMs, this.#lastFull.count / Math.max(1, monotonicMs() - this.#lastFull.atMs))
    }
    const target = Math.max(slots.free, Math.min(2 * batchMax, Math.ceil(this.#ratePerMs * prefetchMs)))
    if (slots.buffered > target / 2 && slots.buffered >= slots.free) return 0
    return Math.min(target - slots.buffered, batchMax, 3 * Math.max(batchMax, concurrency) - this.#held())
  }

  async #claim(worker: Holder, room: number): Promise<number> {
    const { counts, fetcher, signal, slots } = this.#options
    const kinds = this.#kinds.filter((kind) => slots.hasRoom(kind))
    if (kinds.length === 0) return 0
    let found = 0
    for (const queue of this.#queues) {
      if (found >= room || signal.aborted) break
      const rows = await fetcher.claim(worker, queue, kinds, room - found)
      found += rows.length
      counts.claimed += rows.length
      if (found >= room) this.#lastFull = { count: found, atMs: monotonicMs() }
      else this.#lastFull = undefined
      slots.add(rows.map((row) => this.#hold(row, worker)))
    }
    // The next claim begins with another queue, so that none starves behind a full one.
    this.#queues.push(this.#queues.shift()!)
    return found
  }

  #hold(row: ClaimedRow, worker: Holder): HeldJob {
    return new HeldJob(row, this.#options.kinds.get(row.kind)!, this.#options.installation(), worker.id)
  }

  async #reconcile(worker: Holder): Promise<void> {
    const { counts, fetcher, settler, slots } = this.#options
    // A claim that was given up here may commit there long after the reconciliation that was to find it: repeated for two minutes.
    const isDue = monotonicMs() - this.#lastReconcileMs > reconcileEveryMs && monotonicMs() < this.#doubtUntilMs
    if (!this.#isDoubtful && !isDue) return
    counts.released += await fetcher.releaseUnknown(worker, [...slots.ids(), ...settler.ids()])
    this.#lastReconcileMs = monotonicMs()
    this.#isDoubtful = false
  }

  // ---- suspects

  /** While other work goes on: if a suspect waits, the process empties itself and runs suspects for a while. */
  async #suspectTurn(worker: Holder): Promise<boolean> {
    if (monotonicMs() < this.#nextSuspectLookMs) return false
    this.#nextSuspectLookMs = monotonicMs() + suspectLookEveryMs
    if (!(await this.#options.fetcher.areSuspectsWaiting(this.#queues, this.#kinds))) return false
    if (!(await this.#drained(worker))) {
      // A long job runs here. Others may be free sooner; this process is more patient each time, so a suspect is never stuck for good.
      this.#drainPatienceMs = Math.min(drainPatienceMaxMs, this.#drainPatienceMs * 2)
      this.#nextSuspectLookMs = monotonicMs() + this.#drainPatienceMs * (0.5 + Math.random())
      return false
    }
    this.#drainPatienceMs = drainPatienceMinMs
    await this.#runSuspects(worker)
    this.#nextSuspectLookMs = monotonicMs() + suspectLookEveryMs
    return true
  }

  async #drained(worker: Holder): Promise<boolean> {
    const { changed, signal } = this.#options
    const deadlineMs = monotonicMs() + this.#drainPatienceMs
    while (this.#held() > 0 && monotonicMs() < deadlineMs) {
      if (signal.aborted || this.#options.worker() !== worker) return false
      await changed.wait(Math.max(1, deadlineMs - monotonicMs()))
    }
    return this.#held() === 0
  }

  /** One after another, alone, for a slice of time. Says whether there was one. */
  async #runSuspects(worker: Holder): Promise<boolean> {
    const { counts, settler, signal, slots } = this.#options
    const untilMs = monotonicMs() + suspectSliceMs
    let hasRun = false
    while (!signal.aborted && monotonicMs() < untilMs) {
      const row = await this.#claimSuspect(worker)
      if (row === undefined) break
      hasRun = true
      counts.claimed++
      await Promise.race([slots.runAlone(this.#hold(row, worker)), this.#aborted])
      // Its end must be stored before the next one starts: otherwise that one's crash would count against this one.
      await settler.drained(signal)
    }
    return hasRun
  }

  async #claimSuspect(worker: Holder): Promise<ClaimedRow | undefined> {
    for (const queue of this.#queues) {
      const row = await this.#options.fetcher.claimSuspect(worker, queue, this.#kinds)
      if (row !== undefined) return row
    }
    return undefined
  }
}
