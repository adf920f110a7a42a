// The worker: claims, runs and settles jobs until it is stopped. This file starts and stops the pieces and carries news between them:
// ClaimLoop decides what to claim, Slots what runs, Runner runs one attempt, Settler writes ends in batches, Ends tells of them, Keeper
// holds the lease and takes over from the dead, Sleep waits without missing a wake-up.

import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Config, Durability } from '../config.ts'
import { Connection, createPool, type Pool } from '../db/driver.ts'
import { Listener } from '../db/listen.ts'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { describeError, PawlError } from '../errors.ts'
import { durationMs, monotonicMs } from '../kernel/clock.ts'
import type { Events } from '../kernel/events.ts'
import { leaseStatements, livenessLockClass } from '../kernel/lease.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs, retrying } from '../kernel/retry.ts'
import { Wakeup } from '../kernel/signal.ts'
import { release } from '../release.ts'
import { ClaimLoop } from './claim-loop.ts'
import { Counts } from './counts.ts'
import { Ends } from './ends.ts'
import { Fetcher } from './fetcher.ts'
import { type HeldJob, leaseLost } from './held.ts'
import { Board, Keeper, type KeeperMessage } from './keeper.ts'
import { type DefinedKind, kindDefaults } from './kinds.ts'
import { maintain } from './maintenance.ts'
import { type RunEnd, Runner, timedOutEnd } from './runner.ts'
import { Settler } from './settler.ts'
import { runShared } from './shared.ts'
import { Sleep } from './sleep.ts'
import { Slots } from './slots.ts'
import { assertReady } from './start-checks.ts'
import type { JobEvents, Metrics, StopOptions, StopReport, WorkerOptions } from './types.ts'
import { type ResolvedWorkerOptions, resolveWorkerOptions, workerDefaults } from './worker-options.ts'

const promoteStatement = statement(import.meta.url, 'promote')
const lostStatement = statement(import.meta.url, 'lost')

const tickMs = 50
const promoteEveryMs = 500

export interface WorkerCore {
  readonly config: Config
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly events: Events<JobEvents>
}

interface LostRow {
  tenant: string
  id: string
  fence: string
  outcome: string | null
  reason: string | null
}

export class Worker {
  readonly #core: WorkerCore
  readonly #options: ResolvedWorkerOptions
  readonly #counts = new Counts()
  readonly #changed = new Wakeup()
  readonly #stopAll = new AbortController()
  readonly #settleConnections = new Map<Durability, Connection>()
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
  readonly #idleWaiters = new Set<() => void>()
  #keeper: Keeper | undefined
  #listener: Listener | undefined
  #installation = ''
  #incarnation: number | undefined
  #isReopening = false
  #loops: Promise<unknown>[] = []
  #tick: NodeJS.Timeout | undefined
  #lastTickMs = 0
  #lastLostLookMs = 0
  #isStarted = false
  #stopped: Promise<StopReport> | undefined

  constructor(core: WorkerCore, options: WorkerOptions = {}) {
    if (core.kinds.size === 0)
      throw new PawlError('PAWL_CONFIG', 'This worker has nothing to do: define at least one kind before you create it.')
    // The kinds of this moment: one that is defined later waits for the next worker.
    this.#core = { ...core, kinds: new Map(core.kinds) }
    this.#options = resolveWorkerOptions(options, core.kinds)
    const { config } = core
    this.#claimConnection = new Connection(config.database, 'claim', { durability: atLeastDurable(config.durability) })
    this.#engine = new Connection(config.database, 'engine', { durability: config.durability })
    this.#pool = createPool(config.database, 'handler', this.#options.handlerConnectionsMax)
    this.#board = new Board(this.#options.concurrency + 128)
    this.#fetcher = new Fetcher(this.#claimConnection, this.#options.bufferMs)
    this.#sleep = new Sleep(this.#claimConnection, {
      queues: this.#options.queues,
      canListen: config.hasSession,
      pollMs: this.#options.pollMs,
    })
    this.#runner = this.#createRunner()
    this.#ends = new Ends({
      ...this.#core,
      counts: this.#counts,
      engine: this.#engine,
      logger: config.logger,
      isSettled: (held) => this.#runner.isSettled(held),
    })
    this.#settler = this.#createSettler()
    this.#slots = this.#createSlots()
    this.#claims = this.#createClaimLoop()
  }

  /** The id of the current incarnation. */
  get id(): number | undefined {
    return this.#incarnation
  }

  metrics(): Metrics & { running: number; buffered: number; unsettled: number } {
    const { running, buffered } = this.#slots
    return { ...this.#counts, claims: this.#fetcher.claims, running, buffered, unsettled: this.#settler.unsettled }
  }

  async start(): Promise<void> {
    if (this.#isStarted) return
    this.#isStarted = true
    try {
      this.#installation = await assertReady(this.#engine, this.#core)
      // The lease begins when somebody is there to renew it: a thread may take longer to start than a short lease lasts.
      await this.#startKeeper(undefined)
      this.#keeper!.incarnation(await this.#openIncarnation())
    } catch (error) {
      await this.#closeConnections()
      throw error
    }
    this.#startListener()
    this.#settler.start()
    this.#lastTickMs = monotonicMs()
    this.#board.turn()
    this.#tick = setInterval(() => this.#onTick(), tickMs)
    const { signal } = this.#stopAll
    const maintenance = maintain({
      database: this.#core.config.direct,
      queues: this.#options.queues,
      keepDays: this.#options.keepDays,
      signal,
      onTrouble: (error) => this.#ends.trouble(error),
    })
    this.#loops = [this.#claims.run(), this.#promoteLoop(), maintenance]
  }

  /** Lets running jobs finish, gives back what has not started, and stops. A handler that outlives the grace keeps its lease until it answers. */
  stop(options: StopOptions = {}): Promise<StopReport> {
    this.#stopped ??= this.#stop(options)
    return this.#stopped
  }

  /** For the end of a process whose handlers do not answer: gives the incarnation up, so that others take its jobs at once, without a crash counted. */
  async abandon(): Promise<void> {
    if (this.#incarnation !== undefined)
      await this.#engine.run(leaseStatements.close, { worker: this.#incarnation, reason: 'stopped' })
  }

  /** Resolves when nothing is claimable, running or unsettled here. For tests and one-off workers. */
  async whenIdle(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#idleWaiters.add(resolve)
      this.#changed.fire()
    })
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
      touchMs: this.#options.touchMs,
      onConflict: (error) => this.#ends.trouble(error),
      onTouch: () => {
        this.#counts.touches++
      },
      onRefused: (held, what) => this.#ends.keepEvidence(held, what),
    })
  }

  #createSettler(): Settler {
    return new Settler({
      connectionFor: (durability) => this.#settleConnection(durability ?? this.#core.config.durability),
      batchMax: this.#options.batchMax,
      logger: this.#core.config.logger,
      onSettled: (endings) => {
        this.#ends.settled(endings)
        this.#changed.fire()
      },
      onRefused: (endings) => {
        this.#ends.refused(endings)
        this.#changed.fire()
      },
      onTrouble: (error) => this.#ends.trouble(error),
    })
  }

  #createSlots(): Slots {
    return new Slots({
      concurrency: this.#options.concurrency,
      txMax: this.#options.handlerConnectionsMax,
      bufferMs: this.#options.bufferMs,
      board: this.#board,
      run: (held) => this.#runner.run(held),
      runShared: (group) => runShared(this.#runner, group),
      onStart: (held) => this.#onStart(held),
      onEnd: (held, end) => this.#onEnd(held, end),
      onTimeout: (held) => this.#settler.add(timedOutEnd(held)),
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
      logger: this.#core.config.logger,
      settler: this.#settler,
      sleep: this.#sleep,
      slots: this.#slots,
      signal: this.#stopAll.signal,
      worker: () => this.#incarnation,
      installation: () => this.#installation,
      onIdle: () => this.#onIdle(),
      onTrouble: (error) => this.#ends.trouble(error),
    })
  }

  #settleConnection(level: Durability): Connection {
    let connection = this.#settleConnections.get(level)
    if (connection === undefined) {
      connection = new Connection(this.#core.config.database, 'settle', { durability: level })
      this.#settleConnections.set(level, connection)
    }
    return connection
  }

  // ---- incarnations

  async #openIncarnation(): Promise<number> {
    const [row] = await this.#engine.run<{ id: number }>(leaseStatements.open, {
      name: this.#options.name,
      host: hostname(),
      pid: process.pid,
      release,
      queues: textsLiteral(this.#options.queues),
      kinds: textsLiteral([...this.#core.kinds.keys()]),
      concurrency: this.#options.concurrency,
      locks: false,
      lease_ms: this.#options.leaseMs,
    })
    this.#incarnation = row!.id
    this.#sleep.reset()
    if (probe.on) await probe.hit('worker.opened', row!.id)
    this.#core.events.emit('worker.opened', { worker: row!.id })
    return row!.id
  }

  /** The lease ended or somebody closed us. Signals abort; whatever finishes may still settle under its fence. Then we start anew. */
  #lostIncarnation(worker: number): void {
    if (this.#incarnation !== worker) return
    this.#incarnation = undefined
    this.#core.events.emit('worker.lost', { worker })
    this.#core.config.logger.warn({ worker }, 'this worker lost its lease; it starts anew under another')
    this.#slots.lose(worker)
    if (!this.#isReopening) void this.#reopen()
  }

  async #reopen(): Promise<void> {
    const { signal } = this.#stopAll
    this.#isReopening = true
    if (probe.on) await probe.hit('jobs.incarnation.lost')
    for (let tried = 1; !signal.aborted && this.#incarnation === undefined; tried++) {
      try {
        this.#keeper?.incarnation(await this.#openIncarnation())
        this.#listener?.renew()
        this.#changed.fire()
      } catch (error) {
        this.#ends.trouble(error)
        await sleep(engineBackoffMs(error, tried), undefined, { signal }).catch(() => undefined)
      }
    }
    this.#isReopening = false
  }

  async #startKeeper(worker: number | undefined): Promise<void> {
    const { leaseMs, beatMs, exitWhenBlocked } = this.#options
    this.#keeper = new Keeper(
      {
        database: this.#core.config.database,
        worker,
        leaseMs,
        beatMs,
        exitWhenBlocked,
        maxAttempts: kindDefaults.attempts,
        maxCrashes: kindDefaults.crashes,
      },
      this.#board,
      (message) => this.#onKeeper(message),
      (error) => this.#onKeeperDeath(error),
    )
    await this.#keeper.start()
  }

  #onKeeperDeath(error: Error): void {
    this.#core.config.logger.error({ error: describeError(error) }, 'the keeper thread died; it is started again')
    const worker = this.#incarnation
    if (worker !== undefined && !this.#stopAll.signal.aborted)
      void this.#startKeeper(worker).catch((again: unknown) => this.#ends.trouble(again))
  }

  #startListener(): void {
    if (!this.#core.config.hasSession) return
    this.#listener = new Listener({
      database: this.#core.config.direct,
      channels: ['pawl_wake', 'pawl_lost'],
      heartbeatMs: 5000,
      backoffMs: engineBackoffMs,
      onNotify: (channel, payload) => this.#onNotify(channel, payload),
      onConnect: () => this.#changed.fire(),
      // The lock tells others that this process lives. Tried, not waited for: an incarnation's number is nobody else's.
      onSession: async (query) => {
        if (this.#incarnation === undefined) return
        await query('select pg_try_advisory_lock($1::integer, $2::integer)', [livenessLockClass, this.#incarnation])
        // Only from now on does a free lock mean a dead process: one that starts slowly must not be taken for dead before it has it.
        await query("update pawl.worker set locks = true where tenant = '' and id = $1::integer", [this.#incarnation])
      },
      onError: (error) => this.#ends.trouble(error),
    })
    this.#listener.start()
  }

  // ---- stopping

  async #stop(options: StopOptions): Promise<StopReport> {
    const before = this.#counts.done + this.#counts.failed
    this.#stopAll.abort()
    this.#changed.fire()
    // Closed before the loops are waited for, so that nothing starts after the call; and again for what a claim under way brought.
    const waiting = this.#slots.close()
    await Promise.all(this.#loops)
    const released = waiting + this.#slots.close()
    await this.#runningEnded(durationMs(options.grace ?? workerDefaults.graceMs), options.signal)
    const still = this.#slots.runningJobs()
    for (const held of still) held.lose(new PawlError('PAWL_STOPPED', 'The worker stops and its grace is over.'))
    await this.#settler.drained()
    if (still.length === 0) await this.#shutDown()
    else void this.#runningEnded(undefined, undefined).then(() => this.#shutDown())
    return { finished: this.#counts.done + this.#counts.failed - before, released, stillRunning: still.map((held) => held.id) }
  }

  async #runningEnded(graceMs: number | undefined, signal: AbortSignal | undefined): Promise<void> {
    const deadlineMs = graceMs === undefined ? undefined : monotonicMs() + graceMs
    const wake = () => this.#changed.fire()
    signal?.addEventListener('abort', wake, { once: true })
    while (this.#slots.running > 0 && !signal?.aborted && (deadlineMs === undefined || monotonicMs() < deadlineMs)) {
      await this.#changed.wait(deadlineMs === undefined ? undefined : Math.max(1, deadlineMs - monotonicMs()))
    }
    signal?.removeEventListener('abort', wake)
  }

  async #shutDown(): Promise<void> {
    await this.#settler.stop()
    clearInterval(this.#tick)
    await this.#keeper?.stop()
    const worker = this.#incarnation
    if (worker !== undefined) {
      const close = () => this.#engine.run(leaseStatements.close, { worker, reason: 'stopped' })
      await retrying(close, { triesMax: 3 }).catch((error: unknown) => this.#ends.trouble(error))
    }
    if (probe.on) await probe.hit('worker.closed', worker)
    await this.#closeConnections()
  }

  async #closeConnections(): Promise<void> {
    await Promise.all([this.#listener?.stop(), this.#keeper?.stop()])
    const connections = [this.#claimConnection, this.#engine, ...this.#settleConnections.values()]
    await Promise.all(connections.map((connection) => connection.close()))
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
    // Also late: a job that was lost while its runner still asked what became of its commit.
    if (end === 'late' || (held.isEnded && end !== 'settled')) {
      if (held.lost !== undefined) this.#ends.keepEvidence(held, 'settle')
    } else if (!held.isEnded) {
      held.isEnded = true
      if (end === 'settled') this.#ends.settled([{ held, result: null }])
      else this.#settler.add(end)
    }
  }

  #release(held: HeldJob): void {
    this.#counts.released++
    this.#settler.add({ held, result: null, failed: { outcome: 'released', delayMs: 0, error: null } })
  }

  #onIdle(): void {
    for (const resolve of this.#idleWaiters) resolve()
    this.#idleWaiters.clear()
    this.#core.events.emit('worker.idle', {})
  }

  // ---- time

  #onTick(): void {
    const nowMs = monotonicMs()
    this.#board.turn()
    this.#claims.measured(this.#slots.takeFinished(), nowMs - this.#lastTickMs)
    this.#lastTickMs = nowMs
    this.#slots.tick(nowMs)
    if (nowMs - this.#lastLostLookMs > this.#options.beatMs) void this.#lookForLost()
  }

  /** Which of our jobs were cancelled, timed out by a sweep, or taken over. */
  async #lookForLost(): Promise<void> {
    this.#lastLostLookMs = monotonicMs()
    const mine = this.#slots.heldJobs()
    if (mine.length === 0) return
    try {
      const rows = await this.#engine.run<LostRow>(lostStatement, {
        tenants: textsLiteral(mine.map((held) => held.tenant)),
        ids: numbersLiteral(mine.map((held) => held.id)),
        fences: numbersLiteral(mine.map((held) => held.fence)),
      })
      for (const row of rows) this.#lost(row)
    } catch (error) {
      this.#ends.trouble(error)
    }
  }

  #lost(row: LostRow): void {
    // A job that its own transaction settled is gone too, and its handler may still be about to return.
    if (row.outcome === 'done') return
    const held = this.#slots.loseOne(row, (lost) =>
      row.outcome === 'cancelled'
        ? new PawlError('PAWL_CANCELLED', `Job ${lost.id} was cancelled${row.reason ? `: ${row.reason}` : ''}.`)
        : leaseLost(lost.row),
    )
    if (held !== undefined)
      this.#core.events.emit('job.lost', {
        tenant: held.tenant,
        id: held.id,
        kind: held.kind,
        reason: row.outcome ?? 'taken over',
      })
  }

  async #promoteLoop(): Promise<void> {
    const { signal } = this.#stopAll
    while (!signal.aborted) {
      let waitMs = promoteEveryMs
      try {
        const [row] = await this.#engine.run<{ promoted: number; next_ms: string | null }>(promoteStatement, { limit: 1000 })
        if ((row?.promoted ?? 0) > 0) this.#changed.fire()
        if (row?.promoted === 1000) waitMs = 0
        else if (row?.next_ms != null) waitMs = Math.min(promoteEveryMs, Number(row.next_ms) + 1)
      } catch (error) {
        this.#ends.trouble(error)
      }
      await sleep(waitMs, undefined, { signal }).catch(() => undefined)
    }
  }

  // ---- news

  #onNotify(channel: string, payload: string): void {
    if (channel === 'pawl_wake') {
      if (this.#options.queues.includes(payload)) this.#changed.fire()
    } else if (payload === String(this.#incarnation)) void this.#lookForLost()
  }

  #onKeeper(message: KeeperMessage): void {
    const { events, config } = this.#core
    switch (message.type) {
      case 'lost':
        return this.#lostIncarnation(message.worker)
      case 'closed':
        for (const { id, reason } of message.workers) {
          events.emit('worker.rescued', { worker: id, reason })
          config.logger.warn({ worker: id, reason }, 'a worker is gone; its jobs are taken over')
        }
        return
      case 'rescued':
        this.#ends.swept(message.jobs, 'Its worker died once too often while it ran')
        return this.#claims.lookForSuspects()
      case 'timed out':
        this.#counts.timedOut += message.jobs.length
        return this.#ends.swept(message.jobs, 'It ran past its time limit')
      case 'blocked':
        events.emit('worker.blocked', { blockedMs: message.blockedMs })
        return config.logger.warn(
          { blockedMs: message.blockedMs },
          'a handler blocked the event loop; its lease is kept, other handlers wait',
        )
      case 'trouble':
        return config.logger.warn(
          { error: message.message, code: message.code },
          'the keeper could not reach the database; it tries again',
        )
    }
  }
}

/** A claim that a server crash forgets would give its fence number out again, so claims are never less than durable. */
function atLeastDurable(durability: Durability): Durability {
  return durability === 'relaxed' ? 'durable' : durability
}
