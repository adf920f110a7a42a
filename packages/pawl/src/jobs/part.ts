// The part of a process that runs jobs, until it is stopped. Its pieces are a line: ClaimLoop claims, Slots starts, an Attempt runs, Settler writes
// ends in batches, Outcomes reports them. One wake-up goes back. This file only makes, starts and stops them.

import { setTimeout as sleep } from 'node:timers/promises'
import { PawlError } from '../errors.ts'
import type { Events } from '../kernel/events.ts'
import { insideTx } from '../kernel/handler.ts'
import type { Holder } from '../kernel/lease.ts'
import type { Part, Process } from '../kernel/process.ts'
import { assertStandby } from '../kernel/retry.ts'
import { type Service, Sleep, Wakeup } from '../kernel/service.ts'
import { Attempt, type Runtime } from './attempt.ts'
import { ClaimLoop, type ClaimLoopOptions } from './claim/claim-loop.ts'
import { Fetcher } from './claim/fetcher.ts'
import type { Ending } from './endings.ts'
import type { DefinedKind } from './kinds.ts'
import { maintenance } from './maintenance.ts'
import { type Counts, Outcomes } from './outcomes.ts'
import { excuse, reconciler } from './reconcile.ts'
import { runAttempt } from './run.ts'
import { Settler } from './settle.ts'
import { Slots } from './slots.ts'
import { HandlerTransactions } from './tx/handler-transactions.ts'
import { runShared } from './tx/shared.ts'
import type { JobEvents } from './types.ts'
import type { SweepNews } from './watch.ts'

/** A worker that stops does not wait forever for a database that cannot write. */
const settlePatienceMs = 5000
/** How long the last words of a process that ends by an error may take. */
const lastWordsMs = 2000
/** How many jobs a log line names. */
const namedMax = 10
/** How much of lastWordsMs is spent waiting for a claim in progress. */
const lastClaimMs = 1000

/** What a stop has done to jobs. */
export interface JobsReport {
  readonly finished: number
  readonly released: number
  /** Handlers that still run. They keep their lease until they answer or the process ends. */
  readonly stillRunning: readonly string[]
  /** Jobs that ended here and whose end the database would not store in time. They run again elsewhere. */
  readonly unsettled: readonly string[]
}

interface JobsOptions extends Pick<ClaimLoopOptions, 'queues' | 'concurrency' | 'batchMax' | 'pollMs' | 'deciding'> {
  readonly beatMs: number
  readonly keeperMs: number
  readonly bufferMs: number
  readonly touchMs: number
  /** How many connections the handlers of jobs may have at once. */
  readonly txMax: number
  readonly keepDays: number
}

export interface JobsPartOptions {
  readonly process: Process
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly events: Events<JobEvents>
  readonly worker: JobsOptions
}

export class JobsPart implements Part {
  readonly channels = ['pawl_wake', 'pawl_lost']
  readonly #process: Process
  readonly #kinds: ReadonlyMap<string, DefinedKind>
  readonly #options: JobsOptions
  readonly #changed = new Wakeup()
  readonly #runtime: Runtime
  readonly #outcomes: Outcomes
  readonly #settler: Settler
  readonly #slots: Slots
  readonly #fetcher: Fetcher
  readonly #sleep: Sleep
  readonly #claims: ClaimLoop
  readonly #reconciler: Service
  /** Handlers that outlived the grace have ended. */
  readonly #ended = new AbortController()
  #claiming: Promise<void> | undefined
  #maintaining: Promise<void> | undefined
  #givingBack: Promise<number> | undefined
  /** What its stop has done so far. */
  #stopped = { before: 0, released: 0, still: [] as readonly Attempt[] }

  constructor({ process, kinds, events, worker }: JobsPartOptions) {
    this.#process = process
    this.#kinds = kinds
    this.#options = worker
    const { config } = process
    this.#outcomes = new Outcomes({ process, kinds, events, changed: this.#changed })
    this.#settler = new Settler({
      process,
      batchMax: worker.batchMax,
      outcomes: this.#outcomes,
      onStored: (endings) => this.#onStored(endings),
    })
    this.#runtime = {
      process,
      outcomes: this.#outcomes,
      settler: this.#settler,
      transactions: new HandlerTransactions(process),
      limits: { bytesMax: config.payloadBytesMax },
      touchMs: worker.touchMs,
      waits: new Map(),
    }
    this.#slots = new Slots({
      concurrency: worker.concurrency,
      txMax: worker.txMax,
      bufferMs: worker.bufferMs,
      board: process.board,
      settler: this.#settler,
      changed: this.#changed,
      run: runAttempt,
      runShared,
    })
    this.#reconciler = reconciler({
      process,
      // With a session a cancel is notified.
      everyMs: config.hasSession ? worker.beatMs : worker.keeperMs,
      slots: this.#slots,
      outcomes: this.#outcomes,
      signal: this.#ended.signal,
      loop: process.loop('lost jobs'),
    })
    this.#fetcher = new Fetcher(process.claims, worker.bufferMs)
    this.#sleep = new Sleep(process.claims, {
      queues: worker.queues,
      // A worker that seldom has anything to do would make every enqueue notify.
      canListen: config.hasSession && worker.deciding !== 'only',
      isListening: () => process.isListening,
      pollMs: worker.pollMs,
    })
    this.#claims = new ClaimLoop({
      ...worker,
      process,
      kinds,
      events,
      changed: this.#changed,
      runtime: this.#runtime,
      fetcher: this.#fetcher,
      settler: this.#settler,
      sleep: this.#sleep,
      slots: this.#slots,
      loop: process.loop('claim'),
    })
  }

  metrics(): Counts & { claims: number; running: number; buffered: number; unsettled: number } {
    const { running, buffered } = this.#slots
    return { ...this.#outcomes.counts, claims: this.#fetcher.claims, running, buffered, unsettled: this.#settler.unsettled }
  }

  get running(): number {
    return this.#slots.running
  }

  get #finished(): number {
    return this.#outcomes.counts.done + this.#outcomes.counts.failed
  }

  async prepare(): Promise<void> {
    const { config, engine } = this.#process
    const wantsReplica = [...this.#kinds.values()]
      .filter((kind) => kind.durability === 'replicated')
      .map(({ name }) => `'${name}'`)
    if (config.durability === 'replicated') wantsReplica.push('createPawl')
    if (wantsReplica.length > 0) await assertStandby(engine, wantsReplica)
  }

  start(): void {
    const { config, failures: watch, signal } = this.#process
    const { keepDays } = this.#options
    const loop = (name: string) => this.#process.loop(name)
    this.#settler.start()
    this.#maintaining = maintenance({ database: config.direct, keepDays, signal, watch, loop }).run()
    this.#claiming = this.#claims.run()
    void this.#reconciler.run()
  }

  /** The jobs whose handlers may have left an uncaught error: the one that this call comes out of, if that is known, else all that run. */
  suspects(): readonly { readonly id: string; readonly kind: string }[] {
    const inside = insideTx.getStore()
    const jobs = inside instanceof Attempt ? [inside] : this.#slots.runningJobs()
    return jobs.map(({ id, kind }) => ({ id, kind }))
  }

  whenIdle(): Promise<void> {
    return this.#claims.whenIdle()
  }

  // ---- the pieces

  /** The settler counts a batch as unsettled until this has returned. */
  #onStored(endings: readonly Ending[]): void {
    if (endings.some(({ failed }) => failed?.outcome === 'released')) this.#claims.heard()
    setImmediate(() => {
      this.#slots.pump()
      this.#changed.fire()
    })
  }

  // ---- stopping

  close(): void {
    this.#stopped.before = this.#finished
    // Closed before the claim loop is waited for, so that nothing starts after the call; and again for what a claim in progress brought.
    this.#stopped.released += this.#slots.close()
    this.#claims.close()
  }

  async drain(graceOver: AbortSignal, isAbandoned: () => boolean = () => false): Promise<void> {
    await this.#claiming
    this.#stopped.released += this.#slots.close()
    this.#givingBack = this.#claims.giveBackUnknown()
    await this.#runningEnded(graceOver)
    this.#stopped.still = this.#slots.runningJobs()
    if (this.#stopped.still.length > 0 && !isAbandoned()) this.#warnOfRunning()
    for (const held of this.#stopped.still)
      held.abort(new PawlError('PAWL_STOPPED', 'The worker is stopping and its grace period is over.'))
  }

  #warnOfRunning(): void {
    const { still } = this.#stopped
    this.#process.config.logger.warn(
      { jobs: still.slice(0, namedMax).map(({ id, kind }) => `${id} (${kind})`), running: still.length },
      'the grace of stop() is over and handlers still run. A handler that awaits stop() or close() waits for itself: do not await it there',
    )
  }

  /** After drain: waits until what ended is stored, for a while. */
  async settled(): Promise<void> {
    await this.#settler.drained(settlePatienceMs)
    this.#stopped.released += (await Promise.race([this.#givingBack, sleep(settlePatienceMs, undefined, { ref: false })])) ?? 0
  }

  /** After settled. */
  report(): JobsReport {
    const { before, released, still } = this.#stopped
    return {
      finished: this.#finished - before,
      released,
      stillRunning: still.map((held) => held.id),
      // What still ran is listed already, whatever its handler has said since.
      unsettled: this.#settler
        .attempts()
        .filter((held) => !still.includes(held))
        .map((held) => held.id),
    }
  }

  async end(): Promise<void> {
    await this.#runningEnded()
    await this.#settler.drained(settlePatienceMs)
    await this.#settler.stop()
    this.#claims.endSolitude()
    this.#ended.abort()
  }

  /** When the incarnation is closed: a chore may wait for a lock, and what this process held must not wait for the chore. */
  async disconnect(): Promise<void> {
    await this.#maintaining
  }

  /** For the end of a process by an uncaught error: gives back what had not started. */
  async lastWords(): Promise<void> {
    this.close()
    // And again for what a claim in progress brought.
    await Promise.race([this.#claiming, sleep(lastClaimMs, undefined, { ref: false })])
    this.#slots.close()
    await this.#settler.drained(lastWordsMs)
  }

  async #runningEnded(graceOver?: AbortSignal): Promise<void> {
    const wake = () => this.#changed.fire()
    graceOver?.addEventListener('abort', wake, { once: true })
    while (this.#slots.running > 0 && !graceOver?.aborted) await this.#changed.wait()
    graceOver?.removeEventListener('abort', wake)
  }

  // ---- time

  tick(nowMs: number): void {
    this.#slots.tick(nowMs)
    this.#runtime.transactions.tick(nowMs)
  }

  oldestEndMs(nowMs: number): number {
    return this.#settler.oldestMs(nowMs)
  }

  // ---- news

  opened(): void {
    this.#sleep.reset()
  }

  notified(channel: string, payload: string): void {
    if (channel === 'pawl_wake') {
      if (this.#options.queues.includes(payload)) this.#claims.heard()
    } else if (payload === String(this.#process.id)) this.#reconciler.wake()
  }

  connected(): void {
    this.#claims.heard()
    this.#reconciler.wake()
  }

  /** Signals abort; whatever finishes may still settle under its fence. */
  lost(holder: Holder): void {
    const { id: worker } = holder
    const held = [...this.#slots.heldJobs(), ...this.#settler.attempts()].filter((job) => job.worker === worker)
    this.#slots.lose(worker)
    void excuse(this.#process, holder, this.#options.queues, [...held, ...this.#outcomes.forgetTakenOver()])
  }

  closed(): void {}

  swept(given: unknown): void {
    const news = given as SweepNews
    if (news.type === 'timed out') {
      this.#outcomes.counts.timedOut += news.jobs.length
      return this.#outcomes.swept(news.jobs, 'The attempt ran longer than its timeout')
    }
    if (news.type === 'rescued') {
      this.#outcomes.counts.rescued += news.jobs.length
      this.#outcomes.swept(news.jobs, 'Its worker died too often while it ran')
    }
    this.#claims.heard()
  }
}
