// The worker: claims, runs and settles jobs until it is stopped. This file starts and stops the pieces and carries news between them:
// ClaimLoop decides what to claim, Slots what runs, Runner runs one attempt, Settler writes ends in batches, Ends tells of them, Keeper
// holds the lease and takes over from the dead, Sleep waits without missing a wake-up.

import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { atLeastDurable, type Config } from '../config.ts'
import { Connection, createPool, type Pool } from '../db/driver.ts'
import { caught, PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Events } from '../kernel/events.ts'
import { Failures, type LoopWatch } from '../kernel/failures.ts'
import type { Holder } from '../kernel/lease.ts'
import { resolve } from '../kernel/options.ts'
import { Wakeup } from '../kernel/signal.ts'
import { ClaimLoop } from './claim-loop.ts'
import { Counts } from './counts.ts'
import { Ends } from './ends.ts'
import { excuse, type JobKey } from './excuse.ts'
import { Fetcher } from './fetcher.ts'
import { HeldJob } from './held.ts'
import { Incarnation, type IncarnationOptions } from './incarnation.ts'
import { Board } from './keeper.ts'
import { type DefinedKind, hasHandler } from './kinds.ts'
import { LostJobs } from './lost.ts'
import { maintain } from './maintenance.ts'
import { stopTable } from './options.ts'
import { insideTx, type RunEnd, Runner, timedOutEnd } from './runner.ts'
import { Settler } from './settler.ts'
import { runShared } from './shared.ts'
import { Sleep } from './sleep.ts'
import { Slots } from './slots.ts'
import { assertReady } from './start-checks.ts'
import type { JobEvents, Metrics, StopOptions, StopReport, WorkerOptions } from './types.ts'
import { type ResolvedWorkerOptions, resolveWorkerOptions } from './worker-options.ts'

const tickMs = 50
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

export interface WorkerCore {
  readonly config: Config
  readonly kinds: ReadonlyMap<string, DefinedKind>
  /** Those that were made and not stopped. */
  readonly workers: Set<Worker>
  readonly events: Events<JobEvents>
}

export class Worker {
  readonly #core: WorkerCore
  readonly #options: ResolvedWorkerOptions
  readonly #counts = new Counts()
  readonly #failures: Failures
  readonly #changed = new Wakeup()
  readonly #stopAll = new AbortController()
  readonly #sessions = randomBytes(4).toString('hex')
  readonly #claimConnection: Connection
  readonly #engine: Connection
  readonly #pool: Pool
  readonly #fetcher: Fetcher
  readonly #settler: Settler
  readonly #runner: Runner
  readonly #ends: Ends
  readonly #slots: Slots
  readonly #sleep: Sleep
  readonly #claims: ClaimLoop
  readonly #board: Board
  readonly #incarnation: Incarnation
  readonly #lost: LostJobs
  /** Jobs of this incarnation that were taken over, found before the keeper says that the incarnation is closed. */
  readonly #takenOver: JobKey[] = []
  readonly #idleWaiters = new Set<(stopped?: PawlError) => void>()
  #installation = ''
  #claiming: Promise<void> | undefined
  #maintaining: Promise<void> | undefined
  #tick: NodeJS.Timeout | undefined
  #starting: Promise<void> | undefined
  #stopped: Promise<StopReport> | undefined
  #graceEndsMs = Number.POSITIVE_INFINITY
  readonly #graceOver = new AbortController()
  #abandons = false
  /** Gives why it failed. */
  #abandoned: Promise<unknown> | undefined

  constructor(core: WorkerCore, options: WorkerOptions = {}) {
    // The kinds of this moment: one that is defined later waits for the next worker.
    const kinds = new Map([...core.kinds].filter(([, kind]) => hasHandler(kind)))
    if (kinds.size === 0) throw nothingToDo([...core.kinds.keys()])
    this.#core = { ...core, kinds }
    this.#options = resolveWorkerOptions(options, kinds)
    const { config } = core
    this.#failures = new Failures({
      logger: config.logger,
      onError: () => {
        this.#counts.errors++
      },
      onRepeated: () => {
        this.#counts.retries++
      },
    })
    const watch = this.#failures
    // Named as the handlers' sessions are: whoever takes over ends a claim, too, that a paused process does not read.
    this.#claimConnection = new Connection(config.database, `claim ${this.#sessions}`, {
      durability: atLeastDurable(config.durability),
      watch,
    })
    this.#engine = new Connection(config.database, 'engine', { durability: config.durability, watch })
    // A handler's statement may take as long as its attempt.
    this.#pool = createPool(
      { ...config.database, queryTimeoutMs: 0 },
      `handler ${this.#sessions}`,
      this.#options.handlerConnectionsMax,
    )
    this.#board = new Board(this.#options.concurrency + 128)
    this.#fetcher = new Fetcher(this.#claimConnection, this.#options.bufferMs)
    this.#sleep = new Sleep(this.#claimConnection, {
      queues: this.#options.queues,
      // A worker that seldom has anything to do would make every enqueue notify.
      canListen: config.hasSession && this.#options.deciding !== 'only',
      isListening: () => this.#incarnation.isListening,
      pollMs: this.#options.pollMs,
    })
    this.#runner = this.#createRunner()
    this.#ends = new Ends({
      ...this.#core,
      counts: this.#counts,
      engine: this.#engine,
      failures: this.#failures,
      logger: config.logger,
      isSettled: (held) => this.#runner.isSettled(held),
    })
    this.#settler = this.#createSettler()
    this.#slots = this.#createSlots()
    this.#lost = new LostJobs({
      engine: this.#engine,
      // With a session a cancel is notified.
      everyMs: config.hasSession ? this.#options.beatMs : this.#options.keeperMs,
      slots: this.#slots,
      onLost: (held, reason) => {
        if (reason !== 'cancelled') this.#noteTakenOver(held)
        core.events.emit('job.lost', { tenant: held.tenant, id: held.id, kind: held.kind, reason })
      },
      loop: this.#ends.loop('lost jobs'),
    })
    this.#claims = this.#createClaimLoop()
    this.#incarnation = this.#createIncarnation()
    core.workers.add(this)
  }

  /** The kinds that it runs. */
  get kinds(): string[] {
    return [...this.#core.kinds.keys()]
  }

  /** The id of the current incarnation. */
  get id(): number | undefined {
    return this.#incarnation.id
  }

  metrics(): Metrics & { running: number; buffered: number; unsettled: number } {
    const { running, buffered } = this.#slots
    return { ...this.#counts, claims: this.#fetcher.claims, running, buffered, unsettled: this.#settler.unsettled }
  }

  /** Rejects when the database cannot be reached or is not ready; called again, it tries again. */
  async start(): Promise<void> {
    if (this.#stopped !== undefined)
      throw new PawlError(
        'PAWL_STOPPED',
        'This worker was stopped and cannot start again. Create a new one with pawl.jobs.worker().',
      )
    this.#starting ??= this.#start()
    return this.#starting
  }

  async #start(): Promise<void> {
    if (this.#stopAll.signal.aborted)
      throw new PawlError(
        'PAWL_STOPPED',
        'This worker was stopped and cannot start again. Create a new one with pawl.jobs.worker().',
      )
    try {
      this.#installation = await assertReady(this.#engine, this.#core)
      await this.#incarnation.start()
    } catch (error) {
      await Promise.all([this.#incarnation.disconnect(), this.#claimConnection.disconnect(), this.#engine.disconnect()])
      this.#starting = undefined
      throw error
    }
    this.#settler.start()
    this.#board.turn()
    this.#tick = setInterval(() => this.#onTick(), tickMs)
    const { signal } = this.#stopAll
    const { keepDays } = this.#options
    const loop = (name: string): LoopWatch => this.#ends.loop(name)
    const watch = this.#failures
    this.#maintaining = maintain({ database: this.#core.config.direct, keepDays, signal, watch, loop })
    this.#claiming = this.#claims.run()
  }

  /**
   * Lets running jobs finish, gives back what has not started, and stops. A handler that outlives the grace keeps its lease until it answers.
   * Called again, it may shorten the grace and abandon what still runs.
   */
  async stop(options: StopOptions = {}): Promise<StopReport> {
    const { grace, signal, abandon } = resolve('stop', stopTable, options)
    this.#shortenGrace(grace, signal)
    this.#abandons ||= abandon
    this.#stopped ??= this.#stop()
    if (this.#graceOver.signal.aborted) this.#abandonRunning()
    const report = await this.#stopped
    const abandonError = await this.#abandoned
    return abandonError === undefined ? report : { ...report, abandonError }
  }

  /** For the end of a process whose handlers do not answer: gives the incarnation up, so that others take its jobs at once, without a crash counted. */
  abandon(): Promise<void> {
    return this.#incarnation.abandon()
  }

  /**
   * For the end of a process by an error that nobody caught: gives back what had not started, and closes the incarnation as dead, so that
   * others take what ran at once, with a crash counted.
   */
  async lastWords(reason: string): Promise<void> {
    this.#stopAll.abort()
    this.#changed.fire()
    this.#slots.close()
    // And again for what a claim in progress brought.
    await Promise.race([this.#claiming, sleep(lastClaimMs, undefined, { ref: false })])
    this.#slots.close()
    await this.#settler.drained(AbortSignal.timeout(lastWordsMs))
    await Promise.race([this.#incarnation.abandon(reason), sleep(lastWordsMs, undefined, { ref: false })])
  }

  /** The jobs whose handlers may have left an error that nobody caught: the one that this call comes out of, if that is known, else all that run. */
  suspects(): readonly { readonly id: string; readonly kind: string }[] {
    const inside = insideTx.getStore()
    const jobs = inside instanceof HeldJob ? [inside] : this.#slots.runningJobs()
    return jobs.map(({ id, kind }) => ({ id, kind }))
  }

  /** Resolves when nothing is claimable, running or unsettled here; rejects when the worker is stopped before. For tests and one-off workers. */
  whenIdle(): Promise<void> {
    if (this.#starting === undefined || this.#stopped !== undefined)
      return Promise.reject(new PawlError('PAWL_STOPPED', 'This worker is not running: call start() before whenIdle().'))
    const idle = new Promise<void>((resolve, reject) => {
      this.#idleWaiters.add((stopped) => (stopped === undefined ? resolve() : reject(stopped)))
      this.#changed.fire()
    })
    return caught(idle)
  }

  // ---- the pieces

  #createRunner(): Runner {
    const { config } = this.#core
    return new Runner({
      pool: this.#pool,
      isNamed: config.database.pooler === 'none',
      engine: this.#engine,
      logger: config.logger,
      limits: { bytesMax: config.payloadBytesMax, depthMax: config.payloadDepthMax },
      durability: config.durability,
      touchMs: this.#options.touchMs,
      answerMs: config.database.queryTimeoutMs,
      onConflict: (error) => this.#ends.trouble(error),
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
      database: this.#core.config.database,
      durability: this.#core.config.durability,
      batchMax: this.#options.batchMax,
      logger: this.#core.config.logger,
      watch: this.#failures,
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
      loop: (name) => this.#ends.loop(name),
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
      board: this.#board,
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
      kinds: this.#core.kinds,
      changed: this.#changed,
      counts: this.#counts,
      fetcher: this.#fetcher,
      settler: this.#settler,
      sleep: this.#sleep,
      slots: this.#slots,
      signal: this.#stopAll.signal,
      worker: () => this.#incarnation.holder,
      installation: () => this.#installation,
      idleWaiters: this.#idleWaiters,
      onIdle: (waiters) => this.#onIdle(waiters),
      onDecidingLeft: () => this.#core.events.emit('worker.deciding', {}),
      onPostponed: (held) => this.#release(held, postponeMs),
      loop: this.#ends.loop('claim'),
    })
  }

  #createIncarnation(): Incarnation {
    const { config, events, kinds } = this.#core
    return new Incarnation({
      config,
      worker: this.#options,
      kinds: [...kinds.keys()],
      sessions: this.#sessions,
      channels: ['pawl_wake', 'pawl_lost'],
      board: this.#board,
      engine: this.#engine,
      signal: this.#stopAll.signal,
      onOpened: (worker) => {
        this.#sleep.reset()
        events.emit('worker.opened', { worker })
      },
      onLost: (holder) => this.#onLost(holder),
      onKeeper: (message) => this.#onKeeper(message),
      onNotify: (channel, payload) => this.#onNotify(channel, payload),
      onConnect: () => this.#onConnect(),
      loop: (name) => this.#ends.loop(name),
    })
  }

  // ---- stopping

  async #stop(): Promise<StopReport> {
    const before = this.#counts.done + this.#counts.failed
    for (const tell of this.#idleWaiters) tell(new PawlError('PAWL_STOPPED', 'This worker was stopped before it was idle.'))
    this.#stopAll.abort()
    this.#changed.fire()
    // Closed before the claim loop is waited for, so that nothing starts after the call; and again for what a claim under way brought.
    const waiting = this.#slots.close()
    // A start under way goes on to begin what is ended here.
    await this.#starting?.catch(() => undefined)
    await this.#claiming
    const released = waiting + this.#slots.close()
    const givingBack = this.#claims.giveBackUnknown()
    await this.#runningEnded(() => this.#graceEndsMs)
    this.#graceOver.abort()
    const still = this.#slots.runningJobs()
    if (still.length > 0 && !this.#abandons)
      this.#core.config.logger.warn(
        { jobs: still.slice(0, namedMax).map(({ id, kind }) => `${id} (${kind})`), running: still.length },
        'the grace of stop() is over and handlers still run. A handler that awaits stop() or close() waits for itself: do not await it there',
      )
    for (const held of still) held.lose(new PawlError('PAWL_STOPPED', 'The worker is stopping and its grace period is over.'))
    // Before the waits below: whoever asked for it may have seconds before it is killed, and a kill counts a crash for all that runs.
    this.#abandonRunning()
    await this.#abandoned
    await this.#settler.drained(AbortSignal.timeout(settlePatienceMs))
    const givenBack = (await Promise.race([givingBack, sleep(settlePatienceMs, undefined, { ref: false })])) ?? 0
    const report = {
      finished: this.#counts.done + this.#counts.failed - before,
      released: released + givenBack,
      stillRunning: still.map((held) => held.id),
      // What still ran is listed already, whatever its handler has said since.
      unsettled: this.#settler
        .heldJobs()
        .filter((held) => !still.includes(held))
        .map((held) => held.id),
    }
    this.#core.workers.delete(this)
    if (still.length === 0) await this.#shutDown()
    else void this.#runningEnded(() => Number.POSITIVE_INFINITY).then(() => this.#shutDown())
    return report
  }

  #shortenGrace(graceMs: number, signal: AbortSignal | undefined): void {
    const endBy = (endsMs: number) => {
      this.#graceEndsMs = Math.min(this.#graceEndsMs, endsMs)
      this.#changed.fire()
    }
    endBy(signal?.aborted ? 0 : monotonicMs() + graceMs)
    signal?.addEventListener('abort', () => endBy(0), { once: true, signal: this.#graceOver.signal })
  }

  #abandonRunning(): void {
    if (!this.#abandons || this.#slots.running === 0) return
    this.#abandoned ??= this.abandon().then(
      () => undefined,
      (error: unknown) => error,
    )
  }

  async #runningEnded(untilMs: () => number): Promise<void> {
    while (this.#slots.running > 0) {
      const leftMs = untilMs() - monotonicMs()
      if (leftMs <= 0) return
      await this.#changed.wait(Number.isFinite(leftMs) ? Math.max(1, leftMs) : undefined)
    }
  }

  async #shutDown(): Promise<void> {
    await this.#settler.drained(AbortSignal.timeout(settlePatienceMs))
    await this.#settler.stop()
    this.#claims.endSolitude()
    clearInterval(this.#tick)
    await this.#incarnation.close()
    // Last: a chore may wait for a lock, and what this worker held must not wait for the chore.
    await this.#maintaining
    await this.#closeConnections()
  }

  async #closeConnections(): Promise<void> {
    await this.#incarnation.disconnect()
    await Promise.all([this.#claimConnection.close(), this.#engine.close()])
    await this.#pool.end().catch(() => undefined)
  }

  // ---- jobs

  #onStart(held: HeldJob): void {
    this.#counts.started++
    const { events } = this.#core
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
    this.#core.events.emit('worker.idle', {})
  }

  // ---- time

  #onTick(): void {
    const nowMs = monotonicMs()
    this.#board.turn(this.#settler.oldestMs(nowMs))
    this.#slots.tick(nowMs)
    this.#runner.tick(nowMs)
    this.#lost.tick(nowMs)
  }

  // ---- news

  #onNotify(channel: string, payload: string): void {
    if (channel === 'pawl_wake') {
      if (this.#options.queues.includes(payload)) this.#claims.heard()
    } else if (payload === String(this.#incarnation.id)) void this.#lost.look()
  }

  /** What was notified meanwhile, of new jobs and of lost ones, is looked for. */
  #onConnect(): void {
    this.#claims.heard()
    void this.#lost.look()
  }

  /** Signals abort; whatever finishes may still settle under its fence. */
  #onLost(holder: Holder): void {
    const { id: worker } = holder
    this.#core.events.emit('worker.lost', { worker })
    this.#core.config.logger.warn({ worker }, 'this worker lost its lease; restarting with a new one')
    const held = [...this.#slots.heldJobs(), ...this.#settler.heldJobs()].filter((job) => job.worker === worker)
    this.#slots.lose(worker)
    const onTrouble = (error: unknown): void => this.#ends.trouble(error)
    const jobs = [...held, ...this.#takenOver.splice(0)]
    const { queues } = this.#options
    void excuse(holder, jobs, { connection: this.#engine, queues, signal: this.#stopAll.signal, onTrouble })
  }

  #noteTakenOver({ tenant, id, fence, worker }: HeldJob): void {
    if (worker !== this.#incarnation.id) return
    this.#takenOver.push({ tenant, id, fence })
    if (this.#takenOver.length > takenOverMax) this.#takenOver.shift()
  }

  #onKeeper(message: Parameters<IncarnationOptions['onKeeper']>[0]): void {
    const { events, config } = this.#core
    switch (message.type) {
      case 'closed':
        for (const { id, reason } of message.workers) {
          events.emit('worker.rescued', { worker: id, reason })
          config.logger.warn({ event: 'worker.rescued', worker: id, reason }, 'a worker is gone; taking over its jobs')
        }
        return
      case 'promoted':
        return this.#claims.heard()
      case 'rescued':
        this.#counts.rescued += message.jobs.length
        this.#ends.swept(message.jobs, 'Its worker died too often while it ran')
        return this.#claims.heard()
      case 'timed out':
        this.#counts.timedOut += message.jobs.length
        return this.#ends.swept(message.jobs, 'The attempt ran longer than its timeout')
      case 'blocked':
        events.emit('worker.blocked', { blockedMs: message.blockedMs })
        return config.logger.warn(
          { blockedMs: message.blockedMs },
          'the event loop was blocked by a handler, or the process was paused; other handlers waited',
        )
      case 'trouble':
        return config.logger.warn(
          { error: message.message, code: message.code },
          'the keeper cannot reach the database; retrying (logged once a minute)',
        )
      case 'recovered':
        return config.logger.warn({ awayMs: message.awayMs }, 'the keeper reached the database again')
      case 'failed':
        this.#counts.errors++
        return
      case 'logged':
        return config.logger.error(message.fields, message.message)
    }
  }
}

function nothingToDo(declared: readonly string[]): PawlError {
  const why =
    declared.length === 0
      ? 'define at least one kind before you create it'
      : `no kind has a handler in this process: ${declared.slice(0, 10).join(', ')}. Import the module with their handlers (define with run or tx, or handle)`
  return new PawlError('PAWL_CONFIG', `This worker has nothing to do: ${why}.`)
}
