// What of a process runs jobs: claims, runs and settles them until it is stopped. This file starts and stops the pieces and carries news between
// them: ClaimLoop decides what to claim, Slots what runs, Runner runs one attempt, Settler writes ends in batches, Ends tells of them.

import { setTimeout as sleep } from 'node:timers/promises'
import { createPool, type Pool } from '../db/driver.ts'
import { caught, PawlError } from '../errors.ts'
import type { Events } from '../kernel/events.ts'
import { assertStandby } from '../kernel/installation.ts'
import type { Holder } from '../kernel/lease.ts'
import type { Part, Process } from '../kernel/process.ts'
import { Wakeup } from '../kernel/signal.ts'
import { Sleep } from '../kernel/sleep.ts'
import { ClaimLoop } from './claim-loop.ts'
import { Counts } from './counts.ts'
import { Ends } from './ends.ts'
import { excuse, type JobKey } from './excuse.ts'
import { type Deciding, Fetcher } from './fetcher.ts'
import { HeldJob } from './held.ts'
import type { DefinedKind } from './kinds.ts'
import { LostJobs } from './lost.ts'
import { maintenance } from './maintenance.ts'
import { insideTx, type RunEnd, Runner, timedOutEnd } from './runner.ts'
import { Settler } from './settler.ts'
import { runShared } from './shared.ts'
import { Slots } from './slots.ts'
import type { JobEvents } from './types.ts'
import type { SweepNews } from './watch.ts'

/** A worker that stops does not wait for ever for a database that cannot write. */
const settlePatienceMs = 5000
/** How long a job waits that no process had room to run alone. */
const postponeMs = 5000
/** How long the last words of a process that ends by an error may take. */
const lastWordsMs = 2000
/** How many jobs are remembered that were found to be taken over, each by itself. */
const takenOverMax = 1000
/** How many jobs a log line names. */
const namedMax = 10
/** The part of lastWordsMs in which they wait for a claim in progress. */
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

interface JobsOptions {
  readonly queues: readonly string[]
  readonly concurrency: number
  readonly batchMax: number
  readonly beatMs: number
  readonly keeperMs: number
  readonly pollMs: number
  readonly bufferMs: number
  readonly touchMs: number
  readonly handlerConnectionsMax: number
  readonly keepDays: number
  readonly deciding: Deciding
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
  readonly #events: Events<JobEvents>
  readonly #options: JobsOptions
  readonly #counts = new Counts()
  readonly #changed = new Wakeup()
  readonly #pool: Pool
  readonly #fetcher: Fetcher
  readonly #settler: Settler
  readonly #runner: Runner
  readonly #ends: Ends
  readonly #slots: Slots
  readonly #sleep: Sleep
  readonly #claims: ClaimLoop
  readonly #lost: LostJobs
  /** Jobs of this incarnation that were taken over, found before the keeper says that the incarnation is closed. */
  readonly #takenOver: JobKey[] = []
  readonly #idleWaiters = new Set<(stopped?: PawlError) => void>()
  #claiming: Promise<void> | undefined
  #maintaining: Promise<void> | undefined
  #givingBack: Promise<number> | undefined
  /** What its stop has done so far. */
  #stopped = { before: 0, released: 0, still: [] as readonly HeldJob[] }

  constructor({ process, kinds, events, worker }: JobsPartOptions) {
    this.#process = process
    this.#kinds = kinds
    this.#events = events
    this.#options = worker
    const { config } = process
    // A handler's statement may take as long as its attempt.
    this.#pool = createPool(
      { ...config.database, queryTimeoutMs: 0 },
      `handler ${process.sessions}`,
      worker.handlerConnectionsMax,
    )
    this.#fetcher = new Fetcher(process.claims, worker.bufferMs)
    this.#sleep = new Sleep(process.claims, {
      queues: worker.queues,
      // A worker that seldom has anything to do would make every enqueue notify.
      canListen: config.hasSession && worker.deciding !== 'only',
      isListening: () => process.isListening,
      pollMs: worker.pollMs,
    })
    this.#runner = this.#createRunner()
    this.#ends = new Ends({
      process,
      kinds,
      events,
      counts: this.#counts,
      isSettled: (held) => this.#runner.isSettled(held),
    })
    this.#settler = this.#createSettler()
    this.#slots = this.#createSlots()
    this.#lost = new LostJobs({
      engine: process.engine,
      // With a session a cancel is notified.
      everyMs: config.hasSession ? worker.beatMs : worker.keeperMs,
      slots: this.#slots,
      onLost: (held, reason) => {
        if (reason !== 'cancelled') this.#noteTakenOver(held)
        events.emit('job.lost', { tenant: held.tenant, id: held.id, kind: held.kind, reason })
      },
      loop: process.loop('lost jobs'),
    })
    this.#claims = this.#createClaimLoop()
  }

  metrics(): Counts & { claims: number; running: number; buffered: number; unsettled: number } {
    const { running, buffered } = this.#slots
    return { ...this.#counts, claims: this.#fetcher.claims, running, buffered, unsettled: this.#settler.unsettled }
  }

  get running(): number {
    return this.#slots.running
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
  }

  /** The jobs whose handlers may have left an error that nobody caught: the one that this call comes out of, if that is known, else all that run. */
  suspects(): readonly { readonly id: string; readonly kind: string }[] {
    const inside = insideTx.getStore()
    const jobs = inside instanceof HeldJob ? [inside] : this.#slots.runningJobs()
    return jobs.map(({ id, kind }) => ({ id, kind }))
  }

  /** Resolves when nothing is claimable, running or unsettled here; rejects when it is stopped before. */
  whenIdle(): Promise<void> {
    const idle = new Promise<void>((resolve, reject) => {
      this.#idleWaiters.add((stopped) => (stopped === undefined ? resolve() : reject(stopped)))
      this.#changed.fire()
    })
    return caught(idle)
  }

  // ---- the pieces

  #createRunner(): Runner {
    const { config, engine } = this.#process
    return new Runner({
      pool: this.#pool,
      isNamed: config.database.pooler === 'none',
      engine,
      logger: config.logger,
      limits: { bytesMax: config.payloadBytesMax },
      durability: config.durability,
      touchMs: this.#options.touchMs,
      answerMs: config.database.queryTimeoutMs,
      onConflict: (error) => this.#process.trouble(error),
      onTouch: () => {
        this.#counts.touches++
      },
      onRefused: (held, what) => {
        this.#noteTakenOver(held)
        this.#ends.keepEvidence(held, what)
      },
    })
  }

  #createSettler(): Settler {
    return new Settler({
      ...this.#process.config,
      batchMax: this.#options.batchMax,
      watch: this.#process.failures,
      onSettled: (endings) => {
        this.#ends.settled(endings)
        if (endings.some(({ failed }) => failed?.outcome === 'released')) this.#claims.heard()
        this.#fireSettled()
      },
      onRefused: (endings) => {
        for (const { held } of endings) this.#noteTakenOver(held)
        this.#ends.refused(endings)
        this.#fireSettled()
      },
      loop: (name) => this.#process.loop(name),
    })
  }

  /** The settler counts a batch as unsettled until its callbacks have returned. */
  #fireSettled(): void {
    setImmediate(() => {
      this.#slots.resume()
      this.#changed.fire()
    })
  }

  #createSlots(): Slots {
    return new Slots({
      concurrency: this.#options.concurrency,
      txMax: this.#options.handlerConnectionsMax,
      bufferMs: this.#options.bufferMs,
      board: this.#process.board,
      mayStart: () => !this.#settler.isFull,
      run: (held) => this.#runner.run(held),
      runShared: (group) => runShared(this.#runner, group),
      onStart: (held) => this.#onStart(held),
      onEnd: (held, end) => this.#onEnd(held, end),
      onTimeout: (held) => (held.isConnecting ? this.#release(held) : this.#settler.add(timedOutEnd(held))),
      onRelease: (held) => this.#release(held),
      onChange: () => this.#changed.fire(),
    })
  }

  #createClaimLoop(): ClaimLoop {
    return new ClaimLoop({
      ...this.#options,
      kinds: this.#kinds,
      changed: this.#changed,
      counts: this.#counts,
      fetcher: this.#fetcher,
      settler: this.#settler,
      sleep: this.#sleep,
      slots: this.#slots,
      signal: this.#process.signal,
      worker: () => this.#process.holder,
      installation: () => this.#process.installation,
      idleWaiters: this.#idleWaiters,
      onIdle: (waiters) => this.#onIdle(waiters),
      onDecidingLeft: () => this.#events.emit('worker.deciding', {}),
      onPostponed: (held) => this.#release(held, postponeMs),
      loop: this.#process.loop('claim'),
    })
  }

  // ---- stopping

  close(): void {
    this.#stopped.before = this.#counts.done + this.#counts.failed
    for (const tell of this.#idleWaiters) tell(new PawlError('PAWL_STOPPED', 'This worker was stopped before it was idle.'))
    // Closed before the claim loop is waited for, so that nothing starts after the call; and again for what a claim in progress brought.
    this.#stopped.released += this.#slots.close()
    this.#changed.fire()
  }

  async drain(graceOver: AbortSignal, isAbandoned: () => boolean = () => false): Promise<void> {
    await this.#claiming
    this.#stopped.released += this.#slots.close()
    this.#givingBack = this.#claims.giveBackUnknown()
    await this.#runningEnded(graceOver)
    this.#stopped.still = this.#slots.runningJobs()
    if (this.#stopped.still.length > 0 && !isAbandoned()) this.#warnOfRunning()
    for (const held of this.#stopped.still)
      held.lose(new PawlError('PAWL_STOPPED', 'The worker is stopping and its grace period is over.'))
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
    await this.#settler.drained(AbortSignal.timeout(settlePatienceMs))
    this.#stopped.released += (await Promise.race([this.#givingBack, sleep(settlePatienceMs, undefined, { ref: false })])) ?? 0
  }

  /** After settled. */
  report(): JobsReport {
    const { before, released, still } = this.#stopped
    return {
      finished: this.#counts.done + this.#counts.failed - before,
      released,
      stillRunning: still.map((held) => held.id),
      // What still ran is listed already, whatever its handler has said since.
      unsettled: this.#settler
        .heldJobs()
        .filter((held) => !still.includes(held))
        .map((held) => held.id),
    }
  }

  async end(): Promise<void> {
    await this.#runningEnded()
    await this.#settler.drained(AbortSignal.timeout(settlePatienceMs))
    await this.#settler.stop()
    this.#claims.endSolitude()
  }

  /** When the incarnation is closed: a chore may wait for a lock, and what this process held must not wait for the chore. */
  async disconnect(): Promise<void> {
    await this.#maintaining
    await this.#pool.end().catch(() => undefined)
  }

  /** For the end of a process by an error that nobody caught: gives back what had not started. */
  async lastWords(): Promise<void> {
    this.close()
    // And again for what a claim in progress brought.
    await Promise.race([this.#claiming, sleep(lastClaimMs, undefined, { ref: false })])
    this.#slots.close()
    await this.#settler.drained(AbortSignal.timeout(lastWordsMs))
  }

  async #runningEnded(graceOver?: AbortSignal): Promise<void> {
    const wake = () => this.#changed.fire()
    graceOver?.addEventListener('abort', wake, { once: true })
    while (this.#slots.running > 0 && !graceOver?.aborted) await this.#changed.wait()
    graceOver?.removeEventListener('abort', wake)
  }

  // ---- jobs

  #onStart(held: HeldJob): void {
    this.#counts.started++
    const events = this.#events
    if (events.has('job.started'))
      events.emit('job.started', { tenant: held.tenant, id: held.id, kind: held.kind, attempt: held.attempt })
  }

  #onEnd(held: HeldJob, end: RunEnd): void {
    held.row.dropPayload()
    // Also late: a job that was lost while its runner still asked what became of its commit.
    if (end === 'stopped') return
    if (end === 'late' || (held.isEnded && end !== 'settled' && end !== 'snoozed')) {
      if (held.lost !== undefined) this.#ends.keepEvidence(held, 'settle')
    } else if (!held.isEnded) {
      held.isEnded = true
      if (end === 'settled') this.#ends.settled([{ held, result: null }])
      else if (end !== 'snoozed') this.#settler.add(end)
    }
  }

  #release(held: HeldJob, delayMs = 0): void {
    this.#counts.released++
    held.row.dropPayload()
    this.#settler.add({ held, result: null, failed: { outcome: 'released', delayMs, error: null } })
  }

  #onIdle(waiters: readonly (() => void)[]): void {
    for (const resolve of waiters) {
      this.#idleWaiters.delete(resolve)
      resolve()
    }
    this.#events.emit('worker.idle', {})
  }

  // ---- time

  tick(nowMs: number): void {
    this.#slots.tick(nowMs)
    this.#runner.tick(nowMs)
    this.#lost.tick(nowMs)
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
    } else if (payload === String(this.#process.id)) void this.#lost.look()
  }

  connected(): void {
    this.#claims.heard()
    void this.#lost.look()
  }

  /** Signals abort; whatever finishes may still settle under its fence. */
  lost(holder: Holder): void {
    const { id: worker } = holder
    const held = [...this.#slots.heldJobs(), ...this.#settler.heldJobs()].filter((job) => job.worker === worker)
    this.#slots.lose(worker)
    const jobs = [...held, ...this.#takenOver.splice(0)]
    const { engine: connection, signal } = this.#process
    const { queues } = this.#options
    void excuse(holder, jobs, { connection, queues, signal, onTrouble: (error) => this.#process.trouble(error) })
  }

  closed(): void {}

  swept(given: unknown): void {
    const news = given as SweepNews
    if (news.type === 'timed out') {
      this.#counts.timedOut += news.jobs.length
      return this.#ends.swept(news.jobs, 'The attempt ran longer than its timeout')
    }
    if (news.type === 'rescued') {
      this.#counts.rescued += news.jobs.length
      this.#ends.swept(news.jobs, 'Its worker died too often while it ran')
    }
    this.#claims.heard()
  }

  #noteTakenOver({ tenant, id, fence, worker }: HeldJob): void {
    if (worker !== this.#process.id) return
    this.#takenOver.push({ tenant, id, fence })
    if (this.#takenOver.length > takenOverMax) this.#takenOver.shift()
  }
}
