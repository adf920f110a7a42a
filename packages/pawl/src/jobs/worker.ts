// The worker: claims, runs and settles jobs until it is stopped. This file decides; the pieces do: Fetcher claims, Runner runs one
// attempt, Settler writes ends in batches, Keeper holds the lease and takes over from the dead, Sleep waits without missing a wake-up.

import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { assertKnown, type Config, type Durability, whole } from '../config.ts'
import { classify, isConflict, isRetryable } from '../db/classify.ts'
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
import { Fetcher } from './fetcher.ts'
import { type ClaimedRow, HeldJob, leaseLost } from './held.ts'
import { Board, Keeper, type KeeperMessage, type SweptJob } from './keeper.ts'
import { type DefinedKind, kindDefaults } from './kinds.ts'
import { dropOldPartitions, extendPartitions, lookForUnknownKinds, prune } from './maintenance.ts'
import { Runner, type RunEnd, timedOutEnd } from './runner.ts'
import { type Ending, Settler } from './settler.ts'
import { runShared } from './shared.ts'
import { Sleep } from './sleep.ts'
import { assertReady } from './start-checks.ts'
import type { JobEvents, Metrics, StopOptions, StopReport, WorkerOptions } from './types.ts'

const promoteStatement = statement(import.meta.url, 'promote')
const lostStatement = statement(import.meta.url, 'lost')

export const workerDefaults = {
  concurrency: 20,
  batchMax: 1000,
  leaseMs: 30_000,
  beatMs: 500,
  pollMs: 2000,
  bufferMs: 10_000,
  touchMs: 5000,
  keepDays: 14,
  graceMs: 30_000,
} as const

const tickMs = 50
const promoteEveryMs = 500
const reconcileEveryMs = 5000
const suspectLookEveryMs = 1000
/** While ready work waits, suspects get at least one eighth of the time. */
const suspectSliceMs = 250
const prefetchMs = 500
const unknownKindAgeMs = 10_000

const knownOptions = new Set([
  'name',
  'queues',
  'concurrency',
  'batchMax',
  'lease',
  'beatMs',
  'pollMs',
  'bufferMs',
  'touchMs',
  'handlerConnectionsMax',
  'exitWhenBlocked',
  'keepDays',
])

export interface WorkerCore {
  readonly config: Config
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly events: Events<JobEvents>
}

interface ResolvedOptions {
  readonly name: string
  readonly queues: readonly string[]
  readonly concurrency: number
  readonly batchMax: number
  readonly leaseMs: number
  readonly beatMs: number
  readonly pollMs: number
  readonly bufferMs: number
  readonly touchMs: number
  readonly handlerConnectionsMax: number
  readonly exitWhenBlocked: boolean
  readonly keepDays: number
}

function resolveOptions(options: WorkerOptions, kinds: ReadonlyMap<string, DefinedKind>): ResolvedOptions {
  assertKnown('worker()', options, knownOptions)
  const concurrency = whole('concurrency', options.concurrency ?? workerDefaults.concurrency, 1, 10_000)
  const leaseMs = whole('lease', durationMs(options.lease ?? workerDefaults.leaseMs), 100, 3_600_000)
  const beatMs = whole('beatMs', options.beatMs ?? Math.min(workerDefaults.beatMs, Math.floor(leaseMs / 4)), 10, 600_000)
  if (beatMs * 3 > leaseMs) throw new PawlError('PAWL_CONFIG', `beatMs (${beatMs}) must be at most a third of the lease (${leaseMs} ms).`)
  return {
    name: options.name ?? `${hostname()}-${process.pid}`,
    queues: options.queues ?? [...new Set([...kinds.values()].map((kind) => kind.queue))],
    concurrency,
    batchMax: whole('batchMax', options.batchMax ?? workerDefaults.batchMax, 1, 5000),
    leaseMs,
    beatMs,
    pollMs: whole('pollMs', options.pollMs ?? workerDefaults.pollMs, 10, 3_600_000),
    bufferMs: whole('bufferMs', options.bufferMs ?? workerDefaults.bufferMs, 10, 3_600_000),
    // Longer than the lease it would say nothing in time; the interval shrinks with it.
    touchMs: Math.min(whole('touchMs', options.touchMs ?? workerDefaults.touchMs, 1, 3_600_000), Math.floor(leaseMs / 3)),
    handlerConnectionsMax: whole('handlerConnectionsMax', options.handlerConnectionsMax ?? concurrency, 1, 10_000),
    exitWhenBlocked: options.exitWhenBlocked ?? false,
    keepDays: whole('keepDays', options.keepDays ?? workerDefaults.keepDays, 1, 36_500),
  }
}

export class Worker {
  readonly #core: WorkerCore
  readonly #options: ResolvedOptions
  readonly #kinds: readonly DefinedKind[]
  readonly #counts = {
    claimed: 0,
    started: 0,
    done: 0,
    failed: 0,
    dead: 0,
    timedOut: 0,
    rescued: 0,
    released: 0,
    refused: 0,
    touches: 0,
    conflicts: 0,
    retries: 0,
    settles: 0,
  }
  readonly #buffer: HeldJob[] = []
  readonly #running = new Set<HeldJob>()
  readonly #runningByKind = new Map<string, number>()
  readonly #settleConnections = new Map<Durability | undefined, Connection>()
  readonly #changed = new Wakeup()
  readonly #claimConnection: Connection
  readonly #engine: Connection
  readonly #pool: Pool
  readonly #fetcher: Fetcher
  readonly #settler: Settler
  readonly #runner: Runner
  readonly #sleep: Sleep
  readonly #board: Board
  #keeper: Keeper | undefined
  #listener: Listener | undefined
  #installation = ''
  #incarnation: number | undefined
  #opening: Promise<void> | undefined
  #loops: Promise<unknown>[] = []
  #tick: NodeJS.Timeout | undefined
  #isStarted = false
  #isStopping = false
  #stopAll = new AbortController()
  #isClaimDoubtful = false
  #lastReconcileMs = 0
  #lastSuspectLookMs = 0
  #lastLostLookMs = 0
  #isAlone = false
  #finishedSinceTick = 0
  #ratePerMs = 0
  #lastTickMs = 0
  #stopped: Promise<StopReport> | undefined
  #idleWaiters = new Set<() => void>()

  constructor(core: WorkerCore, options: WorkerOptions = {}) {
    this.#core = core
    this.#kinds = [...core.kinds.values()]
    if (this.#kinds.length === 0) throw new PawlError('PAWL_CONFIG', 'This worker has nothing to do: define at least one kind before you create it.')
    this.#options = resolveOptions(options, core.kinds)
    const { config } = core
    this.#claimConnection = new Connection(config.database, 'claim', { durability: atLeastDurable(config.durability) })
    this.#engine = new Connection(config.database, 'engine', { durability: config.durability })
    this.#pool = createPool(config.database, 'handler', this.#options.handlerConnectionsMax)
    this.#fetcher = new Fetcher(this.#claimConnection, this.#options.bufferMs)
    this.#sleep = new Sleep(this.#claimConnection, { queues: this.#options.queues, canListen: config.hasSession, pollMs: this.#options.pollMs })
    this.#board = new Board(this.#options.concurrency + 8)
    this.#settler = new Settler({
      connectionFor: (durability) => this.#settleConnection(durability),
      batchMax: this.#options.batchMax,
      logger: config.logger,
      onSettled: (endings) => this.#settled(endings),
      onRefused: (endings) => this.#refused(endings),
      onTrouble: (error) => this.#trouble(error),
    })
    this.#runner = new Runner({
      pool: this.#pool,
      engine: this.#engine,
      logger: config.logger,
      limits: { bytesMax: config.payloadBytesMax, depthMax: config.payloadDepthMax },
      touchMs: this.#options.touchMs,
      onConflict: (error) => this.#trouble(error),
      onTouch: () => {
        this.#counts.touches++
      },
      onRefused: (held, what) => this.#keepEvidence([held], what),
    })
  }

  /** The id of the current incarnation. */
  get id(): number | undefined {
    return this.#incarnation
  }

  metrics(): Metrics & { running: number; buffered: number; unsettled: number } {
    return {
      ...this.#counts,
      claims: this.#fetcher.claims,
      running: this.#running.size,
      buffered: this.#buffer.length,
      unsettled: this.#settler.unsettled,
    }
  }

  async start(): Promise<void> {
    if (this.#isStarted) return
    this.#isStarted = true
    try {
      this.#installation = await assertReady(this.#engine, this.#core)
      const opened = await this.#openIncarnation()
      await this.#startKeeper(opened)
    } catch (error) {
      this.#isStarted = false
      await this.#closeConnections()
      throw error
    }
    this.#startListener()
    this.#settler.start()
    this.#lastTickMs = monotonicMs()
    this.#board.turn()
    this.#tick = setInterval(() => this.#onTick(), tickMs)
    this.#loops = [this.#fetchLoop(), this.#promoteLoop(), this.#maintenanceLoop()]
  }

  /** Lets running jobs finish, gives back what has not started, and stops. A handler that outlives the grace keeps its lease until it answers. */
  stop(options: StopOptions = {}): Promise<StopReport> {
    this.#stopped ??= this.#stop(options)
    return this.#stopped
  }

  /** For the end of a process whose handlers do not answer: gives the incarnation up, so that others take its jobs at once, without a crash counted. */
  async abandon(): Promise<void> {
    if (this.#incarnation !== undefined) await this.#engine.run(leaseStatements.close, { worker: this.#incarnation, reason: 'stopped' })
  }

  /** Resolves when nothing is claimable, running or unsettled here. For tests and one-off workers. */
  async whenIdle(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#idleWaiters.add(resolve)
      this.#changed.fire()
    })
  }

  // ---- starting and stopping

  async #openIncarnation(): Promise<number> {
    const [row] = await this.#engine.run<{ id: number }>(leaseStatements.open, {
      name: this.#options.name,
      host: hostname(),
      pid: process.pid,
      release,
      queues: textsLiteral(this.#options.queues),
      kinds: textsLiteral(this.#kinds.map((kind) => kind.name)),
      concurrency: this.#options.concurrency,
      locks: this.#core.config.hasSession,
      lease_ms: this.#options.leaseMs,
    })
    this.#incarnation = row!.id
    this.#sleep.reset()
    if (probe.on) await probe.hit('worker.opened', row!.id)
    this.#core.events.emit('worker.opened', { worker: row!.id })
    return row!.id
  }

  async #startKeeper(worker: number): Promise<void> {
    const keeper = new Keeper(
      {
        database: this.#core.config.database,
        worker,
        leaseMs: this.#options.leaseMs,
        beatMs: this.#options.beatMs,
        maxAttempts: kindDefaults.attempts,
        maxCrashes: kindDefaults.crashes,
        exitWhenBlocked: this.#options.exitWhenBlocked,
      },
      this.#board,
      (message) => this.#onKeeper(message),
      (error) => this.#onKeeperDeath(error),
    )
    this.#keeper = keeper
    await keeper.start()
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
      // The lock tells others that this process lives. Tried, not waited for: a free number is always ours.
      onSession: async (query) => {
        if (this.#incarnation !== undefined) await query('select pg_try_advisory_lock($1::integer, $2::integer)', [livenessLockClass, this.#incarnation])
      },
      onError: (error) => this.#trouble(error),
    })
    this.#listener.start()
  }

  async #stop(options: StopOptions): Promise<StopReport> {
    const before = this.#counts.done + this.#counts.failed
    this.#isStopping = true
    this.#stopAll.abort()
    this.#changed.fire()
    await Promise.all(this.#loops)
    const released = this.#releaseBuffer()
    await this.#runningEnded(durationMs(options.grace ?? workerDefaults.graceMs), options.signal)
    const stillRunning = [...this.#running].map((held) => held.id)
    for (const held of this.#running) held.lose(new PawlError('PAWL_STOPPED', 'The worker stops and its grace is over.'))
    await this.#settler.drained()
    if (stillRunning.length === 0) await this.#shutDown()
    else void this.#runningEnded(undefined, undefined).then(() => this.#shutDown())
    return { finished: this.#counts.done + this.#counts.failed - before, released, stillRunning }
  }

  #releaseBuffer(): number {
    const released = this.#buffer.splice(0)
    for (const held of released) this.#release(held)
    return released.length
  }

  #release(held: HeldJob): void {
    this.#counts.released++
    this.#settler.add({ held, result: null, failed: { outcome: 'released', delayMs: 0, error: null } })
  }

  async #runningEnded(graceMs: number | undefined, signal: AbortSignal | undefined): Promise<void> {
    const deadline = graceMs === undefined ? Number.POSITIVE_INFINITY : monotonicMs() + graceMs
    while (this.#running.size > 0 && monotonicMs() < deadline && !signal?.aborted) {
      const leftMs = deadline - monotonicMs()
      const woken = this.#changed.wait(Number.isFinite(leftMs) ? Math.max(1, leftMs) : undefined)
      const aborted = () => this.#changed.fire()
      signal?.addEventListener('abort', aborted, { once: true })
      await woken
      signal?.removeEventListener('abort', aborted)
    }
  }

  async #shutDown(): Promise<void> {
    await this.#settler.stop()
    clearInterval(this.#tick)
    await this.#keeper?.stop()
    if (this.#incarnation !== undefined) {
      const worker = this.#incarnation
      await retrying(() => this.#engine.run(leaseStatements.close, { worker, reason: 'stopped' }), { triesMax: 3 }).catch((error: unknown) => this.#trouble(error))
    }
    if (probe.on) await probe.hit('worker.closed', this.#incarnation)
    await this.#closeConnections()
  }

  async #closeConnections(): Promise<void> {
    await this.#listener?.stop()
    await this.#keeper?.stop()
    await Promise.all([this.#claimConnection.close(), this.#engine.close(), ...[...this.#settleConnections.values()].map((connection) => connection.close())])
    await this.#pool.end().catch(() => undefined)
  }

  #settleConnection(durability: Durability | undefined): Connection {
    const level = durability ?? this.#core.config.durability
    let connection = this.#settleConnections.get(level)
    if (connection === undefined) {
      connection = new Connection(this.#core.config.database, 'settle', { durability: level })
      this.#settleConnections.set(level, connection)
    }
    return connection
  }

  // ---- claiming

  async #fetchLoop(): Promise<void> {
    for (let failed = 0; !this.#isStopping; ) {
      try {
        await this.#turn()
        failed = 0
      } catch (error) {
        failed++
        // The claim may have happened without an answer: what we hold and do not know is given back before the next one.
        this.#isClaimDoubtful = true
        this.#trouble(error)
        if (!isRetryable(error)) this.#core.config.logger.error({ error: describeError(error) }, 'claiming failed')
        await sleep(engineBackoffMs(error, failed), undefined, { signal: this.#stopAll.signal }).catch(() => undefined)
      }
    }
  }

  async #turn(): Promise<void> {
    const worker = this.#incarnation
    if (worker === undefined) {
      await this.#changed.wait(this.#options.beatMs)
      return
    }
    await this.#reconcile(worker)
    if (await this.#suspectTurn(worker)) return
    const room = this.#room()
    if (room <= 0) {
      await this.#changed.wait(this.#options.pollMs)
      return
    }
    const found = await this.#claim(worker, room)
    if (found > 0) return this.#sleep.worked(worker, found)
    if (this.#heldCount() === 0 && (await this.#runSuspects(worker, Number.POSITIVE_INFINITY)) > 0) return
    await this.#idle(worker)
  }

  async #claim(worker: number, room: number): Promise<number> {
    const kinds = this.#claimableKinds()
    if (kinds.length === 0) return 0
    let found = 0
    for (const queue of this.#options.queues) {
      if (found >= room || this.#isStopping) break
      const rows = await this.#fetcher.claim(worker, queue, kinds, room - found)
      found += rows.length
      this.#take(rows, worker)
    }
    // The next claim begins with another queue, so that none starves behind a full one.
    if (this.#options.queues.length > 1) this.#rotateQueues()
    return found
  }

  #rotateQueues(): void {
    const queues = this.#options.queues as string[]
    queues.push(queues.shift()!)
  }

  #take(rows: readonly ClaimedRow[], worker: number): void {
    this.#counts.claimed += rows.length
    for (const row of rows) this.#buffer.push(new HeldJob(row, this.#core.kinds.get(row.kind)!, this.#installation, worker))
    this.#pump()
  }

  /** Free slots, plus about half a second's worth of jobs at the present rate, less what waits here already. */
  #room(): number {
    const prefetch = Math.min(this.#options.batchMax, Math.ceil(this.#ratePerMs * prefetchMs))
    const free = this.#options.concurrency - this.#running.size
    const target = Math.max(free, prefetch)
    if (this.#buffer.length > target / 2 && free <= this.#buffer.length) return 0
    const heldMax = Math.max(2 * this.#options.batchMax, 2 * this.#options.concurrency)
    return Math.min(target - this.#buffer.length, this.#options.batchMax, heldMax - this.#heldCount())
  }

  #heldCount(): number {
    return this.#running.size + this.#buffer.length + this.#settler.unsettled
  }

  #claimableKinds(): readonly DefinedKind[] {
    if (this.#kinds.every((kind) => kind.concurrency >= this.#options.concurrency)) return this.#kinds
    return this.#kinds.filter((kind) => {
      const waiting = this.#buffer.reduce((count, held) => count + (held.definition === kind ? 1 : 0), 0)
      return (this.#runningByKind.get(kind.name) ?? 0) + waiting < kind.concurrency
    })
  }

  async #reconcile(worker: number): Promise<void> {
    const nowMs = monotonicMs()
    if (!this.#isClaimDoubtful && nowMs - this.#lastReconcileMs < reconcileEveryMs) return
    const known = [...this.#running, ...this.#buffer].map((held) => held.id).concat(this.#settler.ids())
    const count = await this.#fetcher.releaseUnknown(worker, known)
    this.#counts.released += count
    this.#lastReconcileMs = nowMs
    this.#isClaimDoubtful = false
  }

  async #idle(worker: number): Promise<void> {
    if (this.#heldCount() === 0) {
      for (const resolve of this.#idleWaiters) resolve()
      this.#idleWaiters.clear()
      this.#core.events.emit('worker.idle', {})
    }
    const waitMs = await this.#sleep.idle(worker)
    if (waitMs > 0) await this.#changed.wait(waitMs)
  }

  // ---- suspects: alone in this process

  /** While other work goes on, suspects get their share: the process empties itself, then runs them one by one for a while. */
  async #suspectTurn(worker: number): Promise<boolean> {
    const nowMs = monotonicMs()
    if (nowMs - this.#lastSuspectLookMs < suspectLookEveryMs) return false
    if (!(await this.#fetcher.areSuspectsWaiting(this.#options.queues, this.#kinds))) {
      this.#lastSuspectLookMs = nowMs
      return false
    }
    while (this.#heldCount() > 0 && !this.#isStopping && this.#incarnation === worker) await this.#changed.wait(this.#options.pollMs)
    if (!this.#isStopping && this.#incarnation === worker) await this.#runSuspects(worker, suspectSliceMs)
    this.#lastSuspectLookMs = monotonicMs()
    return true
  }

  async #runSuspects(worker: number, sliceMs: number): Promise<number> {
    const startedMs = monotonicMs()
    let ran = 0
    this.#isAlone = true
    try {
      while (!this.#isStopping && monotonicMs() - startedMs < sliceMs) {
        const row = await this.#nextSuspect(worker)
        if (row === undefined) break
        ran++
        this.#counts.claimed++
        const held = new HeldJob(row, this.#core.kinds.get(row.kind)!, this.#installation, worker)
        await this.#start(held)
        // Its end must be stored before the next one starts: otherwise that one's crash would count against this one.
        await this.#settler.drained()
      }
    } finally {
      this.#isAlone = false
    }
    return ran
  }

  async #nextSuspect(worker: number): Promise<ClaimedRow | undefined> {
    for (const queue of this.#options.queues) {
      const row = await this.#fetcher.claimSuspect(worker, queue, this.#kinds)
      if (row !== undefined) return row
    }
    return undefined
  }

  // ---- running

  #pump(): void {
    if (this.#isStopping || this.#isAlone) return
    while (this.#running.size < this.#options.concurrency) {
      const held = this.#nextRunnable()
      if (held === undefined) return
      if (held.definition.share > 1) this.#startShared(held)
      else void this.#start(held)
    }
  }

  #nextRunnable(): HeldJob | undefined {
    const first = this.#buffer[0]
    if (first === undefined || this.#hasSlot(first.definition)) return this.#buffer.shift()
    const index = this.#buffer.findIndex((held) => this.#hasSlot(held.definition))
    return index < 0 ? undefined : this.#buffer.splice(index, 1)[0]
  }

  #hasSlot(kind: DefinedKind): boolean {
    return kind.concurrency >= this.#options.concurrency || (this.#runningByKind.get(kind.name) ?? 0) < kind.concurrency
  }

  async #start(held: HeldJob): Promise<void> {
    this.#enter(held)
    let end: RunEnd
    try {
      end = await this.#runner.run(held)
    } catch (error) {
      // Nothing here should throw; if it does the attempt is failed rather than forgotten.
      end = { held, result: null, failed: { outcome: 'failed', delayMs: 1000, error: describeError(error) } }
    }
    this.#ended(held, end)
  }

  #enter(held: HeldJob): void {
    held.startedMs = monotonicMs()
    this.#running.add(held)
    this.#runningByKind.set(held.kind, (this.#runningByKind.get(held.kind) ?? 0) + 1)
    this.#board.enter(held)
    this.#counts.started++
    if (this.#core.events.has('job.started')) {
      this.#core.events.emit('job.started', { tenant: held.tenant, id: held.id, kind: held.kind, attempt: held.attempt })
    }
  }

  #ended(held: HeldJob, end: RunEnd): void {
    this.#leave(held)
    if (end === 'late') {
      if (held.lost !== undefined && !held.isRefusalKept) this.#keepEvidence([held], 'settle')
    } else if (!held.isEnded) {
      held.isEnded = true
      if (end === 'settled') this.#settled([{ held, result: null }])
      else this.#settler.add(end)
    }
    this.#pump()
    this.#changed.fire()
  }

  #leave(held: HeldJob): void {
    if (!this.#running.delete(held)) return
    this.#finishedSinceTick++
    this.#runningByKind.set(held.kind, (this.#runningByKind.get(held.kind) ?? 1) - 1)
    this.#board.leave(held)
  }

  #startShared(first: HeldJob): void {
    const group = [first]
    for (let index = 0; index < this.#buffer.length && group.length < first.definition.share; ) {
      const next = this.#buffer[index]!
      if (next.definition === first.definition && next.tenant === first.tenant) group.push(...this.#buffer.splice(index, 1))
      else index++
    }
    for (const held of group) this.#enter(held)
    void runShared(this.#runner, group).then(
      ({ settled, again, unstarted }) => {
        for (const held of settled) this.#ended(held, 'settled')
        for (const held of unstarted) {
          this.#leave(held)
          this.#buffer.unshift(held)
        }
        for (const held of again) {
          this.#leave(held)
          void this.#start(held)
        }
        this.#pump()
      },
      (error: unknown) => {
        for (const held of group) this.#ended(held, { held, result: null, failed: { outcome: 'failed', delayMs: 1000, error: describeError(error) } })
      },
    )
  }

  // ---- ends

  #settled(endings: readonly Ending[]): void {
    this.#counts.settles++
    const { events } = this.#core
    for (const { held, failed } of endings) {
      if (failed === undefined) {
        this.#counts.done++
        if (events.has('job.done')) events.emit('job.done', { tenant: held.tenant, id: held.id, kind: held.kind, attempt: held.attempt, ranMs: held.ranMs() })
      } else if (failed.outcome !== 'released' && failed.outcome !== 'snoozed') this.#failedSettled(held, failed)
    }
    this.#changed.fire()
  }

  #failedSettled(held: HeldJob, failed: NonNullable<Ending['failed']>): void {
    this.#counts.failed++
    if (failed.outcome === 'timed out') this.#counts.timedOut++
    this.#core.events.emit('job.failed', {
      tenant: held.tenant,
      id: held.id,
      kind: held.kind,
      attempt: held.attempt,
      error: failed.error,
      retryInMs: failed.delayMs,
    })
    this.#core.config.logger.warn(
      { job: held.id, kind: held.kind, attempt: held.attempt, outcome: failed.outcome, retryInMs: failed.delayMs ?? null, error: failed.error },
      failed.delayMs === undefined ? 'job is dead' : 'job failed, will be retried',
    )
    if (failed.delayMs === undefined) this.#died({ tenant: held.tenant, id: held.id, kind: held.kind, reason: failed.error ?? '' })
  }

  #died(job: { tenant: string; id: string; kind: string; reason: string }): void {
    this.#counts.dead++
    this.#core.events.emit('job.dead', job)
    const onDead = this.#core.kinds.get(job.kind)?.onDead
    if (onDead === undefined) return
    Promise.resolve()
      .then(() => onDead(job))
      .catch((error: unknown) => this.#core.config.logger.error({ job: job.id, error: describeError(error) }, 'onDead failed'))
  }

  #refused(endings: readonly Ending[]): void {
    for (const ending of endings) {
      if (ending.failed?.outcome === 'released') continue
      void this.#refusedOne(ending)
    }
    this.#changed.fire()
  }

  /** A refused failure may follow a commit of ours whose answer was lost: then the job is done. */
  async #refusedOne({ held, failed }: Ending): Promise<void> {
    if (failed !== undefined && (await this.#runner.isSettled(held).catch(() => false))) return this.#settled([{ held, result: null }])
    held.lose(leaseLost(held.row))
    this.#keepEvidence([held], 'settle')
  }

  #keepEvidence(refused: readonly HeldJob[], what: string): void {
    for (const held of refused) held.isRefusalKept = true
    this.#counts.refused += refused.length
    for (const held of refused) this.#core.events.emit('job.refused', { tenant: held.tenant, id: held.id, fence: held.fence, what })
    this.#core.config.logger.warn({ what, jobs: refused.map((held) => held.id) }, 'a write was refused: its fence is no longer current')
    this.#engine
      .run(leaseStatements.refuse, {
        what: `job ${what}`,
        tenants: textsLiteral(refused.map((held) => held.tenant)),
        subjects: textsLiteral(refused.map((held) => held.id)),
        fences: numbersLiteral(refused.map((held) => held.fence)),
        holder: refused[0]!.worker,
        detail: refused[0]!.lost?.message ?? null,
      })
      .catch((error: unknown) => this.#trouble(error))
  }

  // ---- time

  #onTick(): void {
    const nowMs = monotonicMs()
    this.#board.turn()
    const rate = this.#finishedSinceTick / Math.max(1, nowMs - this.#lastTickMs)
    this.#ratePerMs = Math.max(rate, this.#ratePerMs * 0.7 + rate * 0.3)
    this.#finishedSinceTick = 0
    this.#lastTickMs = nowMs
    for (const held of this.#running) if (nowMs - held.startedMs > held.definition.timeoutMs) this.#timeOut(held)
    while (this.#buffer.length > 0 && nowMs - this.#buffer[0]!.claimedMs > this.#options.bufferMs / 2) this.#release(this.#buffer.shift()!)
    if (nowMs - this.#lastLostLookMs > this.#options.beatMs) this.#lookForLost()
  }

  #timeOut(held: HeldJob): void {
    if (held.isEnded) return
    held.isEnded = true
    held.lose(new PawlError('PAWL_TIMED_OUT', `Job ${held.id} ran longer than its timeout of ${held.definition.timeoutMs} ms.`))
    this.#leave(held)
    this.#settler.add(timedOutEnd(held))
    this.#pump()
    this.#changed.fire()
  }

  /** Which of our jobs were cancelled, timed out by a sweep, or taken over. */
  #lookForLost(): void {
    this.#lastLostLookMs = monotonicMs()
    const mine = [...this.#running, ...this.#buffer]
    if (mine.length === 0) return
    this.#engine
      .run<{ tenant: string; id: string; fence: string; outcome: string | null; reason: string | null }>(lostStatement, {
        tenants: textsLiteral(mine.map((held) => held.tenant)),
        ids: numbersLiteral(mine.map((held) => held.id)),
        fences: numbersLiteral(mine.map((held) => held.fence)),
      })
      .then((rows) => {
        for (const row of rows) this.#lost(row)
      })
      .catch((error: unknown) => this.#trouble(error))
  }

  #lost(row: { tenant: string; id: string; fence: string; outcome: string | null; reason: string | null }): void {
    const isIt = (held: HeldJob) => held.id === row.id && held.fence === row.fence && held.tenant === row.tenant
    const waiting = this.#buffer.findIndex(isIt)
    if (waiting >= 0) this.#buffer.splice(waiting, 1)
    const held = [...this.#running].find(isIt)
    // A job that its own transaction settled is gone too, and its handler may still be about to return.
    if (held === undefined || held.isEnded || row.outcome === 'done') return
    held.isEnded = true
    held.lose(
      row.outcome === 'cancelled'
        ? new PawlError('PAWL_CANCELLED', `Job ${held.id} was cancelled${row.reason ? `: ${row.reason}` : ''}.`)
        : leaseLost(held.row),
    )
    this.#core.events.emit('job.lost', { tenant: held.tenant, id: held.id, kind: held.kind, reason: row.outcome ?? 'taken over' })
    this.#leave(held)
    this.#pump()
    this.#changed.fire()
  }

  async #promoteLoop(): Promise<void> {
    while (!this.#isStopping) {
      let waitMs = promoteEveryMs
      try {
        const [row] = await this.#engine.run<{ promoted: number; next_ms: string | null }>(promoteStatement, { limit: 1000 })
        if ((row?.promoted ?? 0) > 0) this.#changed.fire()
        if (row?.promoted === 1000) waitMs = 0
        else if (row?.next_ms != null) waitMs = Math.min(promoteEveryMs, Number(row.next_ms) + 1)
      } catch (error) {
        this.#trouble(error)
      }
      await sleep(waitMs, undefined, { signal: this.#stopAll.signal }).catch(() => undefined)
    }
  }

  async #maintenanceLoop(): Promise<void> {
    const connection = new Connection(this.#core.config.direct, 'maintenance')
    for (let round = 0; !this.#isStopping; round++) {
      try {
        await lookForUnknownKinds(connection, this.#options.queues, unknownKindAgeMs)
        // Every quarter of an hour or so the heavier chores.
        if (round % 90 === 1) {
          await prune(connection)
          await extendPartitions(connection)
          await dropOldPartitions(connection, this.#options.keepDays)
        }
      } catch (error) {
        this.#trouble(error)
      }
      await sleep(unknownKindAgeMs, undefined, { signal: this.#stopAll.signal }).catch(() => undefined)
    }
    await connection.close()
  }

  // ---- news

  #onNotify(channel: string, payload: string): void {
    if (channel === 'pawl_lost') {
      if (payload === String(this.#incarnation)) this.#lookForLost()
    } else if (this.#options.queues.includes(payload)) this.#changed.fire()
  }

  #onKeeper(message: KeeperMessage): void {
    if (message.type === 'lost') this.#lostIncarnation(message.worker)
    else if (message.type === 'closed') {
      for (const { id, reason } of message.workers) {
        this.#core.events.emit('worker.rescued', { worker: id, reason })
        this.#core.config.logger.warn({ worker: id, reason }, 'a worker is gone; its jobs are taken over')
      }
    } else if (message.type === 'rescued') this.#onSwept(message.jobs, 'Its worker died once too often while it ran')
    else if (message.type === 'timed out') {
      this.#counts.timedOut += message.jobs.length
      this.#onSwept(message.jobs, 'It ran past its time limit')
    } else if (message.type === 'blocked') {
      this.#core.events.emit('worker.blocked', { blockedMs: message.blockedMs })
      this.#core.config.logger.warn({ blockedMs: message.blockedMs }, 'a handler blocked the event loop; its lease is kept, other handlers wait')
    } else if (message.type === 'trouble') {
      this.#core.config.logger.warn({ error: message.message, code: message.code }, 'the keeper could not reach the database; it tries again')
    }
  }

  #onSwept(jobs: readonly SweptJob[], reason: string): void {
    this.#counts.rescued += jobs.length
    this.#lastSuspectLookMs = 0
    for (const { tenant, id, kind, state } of jobs) if (state === 'dead') this.#died({ tenant, id, kind, reason })
    this.#changed.fire()
  }

  /** The lease ended or somebody closed us. Signals abort; whatever finishes may still settle under its fence. Then we start anew. */
  #lostIncarnation(worker: number): void {
    if (this.#incarnation !== worker) return
    this.#incarnation = undefined
    this.#core.events.emit('worker.lost', { worker })
    this.#core.config.logger.warn({ worker }, 'this worker lost its lease; it starts anew under another')
    this.#buffer.splice(0)
    for (const held of this.#running) if (held.worker === worker) held.lose(leaseLost(held.row))
    this.#opening ??= this.#reopen().finally(() => {
      this.#opening = undefined
    })
  }

  async #reopen(): Promise<void> {
    if (probe.on) await probe.hit('jobs.incarnation.lost')
    for (let tried = 1; !this.#isStopping && this.#incarnation === undefined; tried++) {
      try {
        const opened = await this.#openIncarnation()
        this.#keeper?.incarnation(opened)
        await this.#listener?.renew()
        this.#changed.fire()
      } catch (error) {
        this.#trouble(error)
        await sleep(engineBackoffMs(error, tried), undefined, { signal: this.#stopAll.signal }).catch(() => undefined)
      }
    }
  }

  #onKeeperDeath(error: Error): void {
    this.#core.config.logger.error({ error: describeError(error) }, 'the keeper thread died; it is started again')
    const worker = this.#incarnation
    if (worker !== undefined && !this.#isStopping) void this.#startKeeper(worker).catch((again: unknown) => this.#trouble(again))
  }

  #trouble(error: unknown): void {
    if (isConflict(error)) this.#counts.conflicts++
    if (isRetryable(error)) this.#counts.retries++
    if (classify(error) !== 'unwritable') return
    this.#core.events.emit('worker.unwritable', { error })
    this.#core.config.logger.error({ error: describeError(error, 300) }, 'the database cannot write now (disk full or read-only); waiting')
  }
}

/** A claim that a server crash forgets would give its fence number out again, so claims are never less than durable. */
function atLeastDurable(durability: Durability): Durability {
  return durability === 'relaxed' ? 'durable' : durability
}
