// The worker's identity in the database: a row with a lease, which the keeper thread renews, and a lock that shows others that the process
// lives. When the lease is lost, the worker continues under a new number; the jobs of the old number belong to the worker that takes them over.

import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Config } from '../config.ts'
import type { Db } from '../db/db.ts'
import type { Connection } from '../db/driver.ts'
import { listen } from '../db/listen.ts'
import { textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import { release } from '../release.ts'
import type { LoopWatch } from './alerts.ts'
import type { Events } from './events.ts'
import type { Board } from './keeper/board.ts'
import { Keeper, type KeeperMessage, type KeeperOptions } from './keeper/keeper.ts'
import { type Holder, leaseStatements, lockClass } from './lease.ts'
import { probe } from './probe.ts'
import { engineBackoffMs, retrying } from './retry.ts'
import { Service } from './service.ts'

const heartbeatMs = 5000

export interface WorkerEvents {
  'worker.opened': { worker: number }
  'worker.lost': { worker: number }
  'worker.rescued': { worker: number; reason: string }
  'worker.blocked': { blockedMs: number }
  'worker.unwritable': { error: unknown }
}

/** The content of its row, and how the keeper renews it. */
export interface Incarnated extends Pick<KeeperOptions, 'exitWhenBlocked' | 'limits' | 'newThread'> {
  readonly name: string
  readonly queues: readonly string[]
  readonly kinds: readonly string[]
  readonly concurrency: number
  readonly leaseMs: number
  readonly beatMs: number
  readonly keeperMs: number
}

/** A part of the process, as far as it follows the incarnation. */
export interface Follower {
  /** The channels that it listens to. */
  readonly channels: readonly string[]
  /** There is an incarnation, the first or another one. */
  opened(): void
  /** The lease is gone, and with it everything that this incarnation held: the signals of its handlers abort. */
  lost(holder: Holder): void
  notified(channel: string, payload: string): void
  /** Notifications may have been missed. */
  connected(): void
  /** Other incarnations were closed. */
  closed(): void
  /** A sweep of the keeper has done something. */
  swept(news: unknown): void
}

interface IncarnationOptions {
  readonly config: Config
  readonly worker: Incarnated
  /** What application_name ends with in the sessions of its handlers and claims. */
  readonly sessions: string
  readonly parts: readonly Follower[]
  readonly board: Board
  readonly engine: Connection
  readonly signal: AbortSignal
  readonly events: Pick<Events<WorkerEvents>, 'emit'>
  readonly counts: { errors: number }
  readonly loop: (name: string) => LoopWatch
}

export class Incarnation {
  readonly #options: IncarnationOptions
  #holder: Holder | undefined
  #keeper: Keeper | undefined
  #reopening: Promise<void> | undefined
  #listener: { readonly stop: () => void; readonly ended: Promise<void> } | undefined
  /** The current LISTEN session. */
  #session: { readonly end: () => void; isListening: boolean } | undefined

  constructor(options: IncarnationOptions) {
    this.#options = options
  }

  /** The id, and the nonce that its own writes name beside it. Undefined between the loss of one incarnation and the start of the next. */
  get holder(): Holder | undefined {
    return this.#holder
  }

  get isListening(): boolean {
    return this.#session?.isListening ?? false
  }

  /** The thread starts while `check` runs: it takes longer than all checks. */
  async start(check: () => Promise<void>): Promise<void> {
    // The lease begins when the keeper can renew it: a thread may take longer to start than a short lease lasts.
    const starting = [this.#startKeeper(), check()]
    await Promise.allSettled(starting)
    await Promise.all(starting)
    await this.#open()
    if (this.#options.config.hasSession) this.#listener = this.#startListener()
  }

  /** Closes the row, so that others take what is left without a crash counted. */
  async close(): Promise<void> {
    // After the stop it tries no more, but its last try may still open one. It waits as long as one statement may take.
    await this.#reopening
    await this.#keeper?.stop()
    if (this.#holder !== undefined)
      await retrying(() => this.abandon(), { triesMax: 3 }).catch(this.#options.loop('closing').failed)
    if (probe.on) await probe.hit('worker.closed', this.#holder?.id)
  }

  async abandon(reason = 'stopped'): Promise<void> {
    const holder = this.#holder
    if (holder === undefined) return
    await this.#options.engine.run(leaseStatements.close, { worker: holder.id, nonce: holder.nonce, reason })
  }

  async disconnect(): Promise<void> {
    this.#listener?.stop()
    this.#session?.end()
    await Promise.all([this.#listener?.ended, this.#keeper?.stop()])
  }

  async #open(): Promise<void> {
    const { config, worker, sessions, engine, events, parts } = this.#options
    const [row] = await engine.run<Holder>(leaseStatements.open, {
      name: worker.name,
      host: hostname(),
      pid: process.pid,
      release,
      queues: textsLiteral(worker.queues),
      kinds: textsLiteral(worker.kinds),
      concurrency: worker.concurrency,
      sessions: config.database.pooler === 'none' ? sessions : '',
      look_ms: worker.keeperMs,
      lease_ms: worker.leaseMs,
    })
    const holder = { id: row!.id, nonce: row!.nonce }
    this.#holder = holder
    if (probe.on) await probe.hit('worker.opened', holder.id)
    for (const part of parts) part.opened()
    events.emit('worker.opened', { worker: holder.id })
    // The keeper of this moment renews it: the one of before may have died since.
    this.#keeper?.incarnation(holder)
  }

  #lost(worker: number): void {
    const { config, events, parts } = this.#options
    const holder = this.#holder
    if (holder?.id !== worker) return
    this.#holder = undefined
    events.emit('worker.lost', { worker })
    config.logger.warn({ worker }, 'this worker lost its lease; restarting with a new one')
    for (const part of parts) part.lost(holder)
    this.#reopening ??= this.#reopen().finally(() => {
      this.#reopening = undefined
    })
  }

  async #reopen(): Promise<void> {
    if (probe.on) await probe.hit('jobs.incarnation.lost')
    await this.#insist('reopening', async () => {
      await this.#open()
      // Another incarnation needs another liveness lock.
      this.#session?.end()
      for (const part of this.#options.parts) part.connected()
    })
  }

  /** Tries until it succeeds or the process stops. */
  async #insist(name: string, work: () => Promise<void>): Promise<void> {
    const { signal } = this.#options
    const { succeeded, failed } = this.#options.loop(name)
    for (let tried = 1; !signal.aborted; tried++) {
      try {
        await work()
        return succeeded()
      } catch (error) {
        failed(error)
        await sleep(engineBackoffMs(error, tried), undefined, { signal }).catch(() => undefined)
      }
    }
  }

  // ---- the keeper

  /** Also between two incarnations: the next one is told to the keeper of that moment. */
  async #startKeeper(): Promise<void> {
    const { config, board } = this.#options
    const { leaseMs, beatMs, keeperMs, exitWhenBlocked, limits, newThread } = this.#options.worker
    this.#keeper = new Keeper(
      {
        database: config.database,
        worker: this.#holder,
        leaseMs,
        beatMs,
        lookMs: keeperMs,
        exitWhenBlocked,
        limits,
        newThread,
      },
      board,
      (message) => this.#onKeeper(message),
      (error) => {
        config.logger.error({ error: describeError(error) }, 'the keeper thread died; restarting it')
        void this.#insist('keeper start', () => this.#startKeeper())
      },
    )
    await this.#keeper.start()
  }

  #onKeeper(message: KeeperMessage): void {
    const { events, parts, counts } = this.#options
    const { logger } = this.#options.config
    switch (message.type) {
      case 'lost':
        return this.#lost(message.worker)
      case 'closed':
        for (const { id, reason } of message.workers) {
          events.emit('worker.rescued', { worker: id, reason })
          logger.warn({ event: 'worker.rescued', worker: id, reason }, 'a worker is gone; taking over its jobs')
        }
        for (const part of parts) part.closed()
        return
      case 'swept':
        for (const part of parts) part.swept(message.news)
        return
      case 'blocked':
        events.emit('worker.blocked', { blockedMs: message.blockedMs })
        return logger.warn(
          { blockedMs: message.blockedMs },
          'the event loop was blocked by a handler, or the process was paused; other handlers waited',
        )
      case 'failed':
        counts.errors++
        return
      case 'logged':
        return logger[message.level](message.fields, message.message)
    }
  }

  // ---- the listener

  #startListener(): { stop: () => void; ended: Promise<void> } {
    const { config, parts } = this.#options
    const loop = this.#options.loop('listen')
    const channels = parts.flatMap((part) => part.channels)
    const round = async () => {
      const end = new AbortController()
      const session = { end: () => end.abort(), isListening: false }
      this.#session = session
      const onListening = () => {
        session.isListening = true
        for (const part of parts) part.connected()
      }
      const onNotify = (channel: string, payload: string) => {
        for (const part of parts) if (part.channels.includes(channel)) part.notified(channel, payload)
      }
      const onSession = async (db: Db) => {
        const isTaken = await this.#takeLock(db)
        loop.succeeded()
        return isTaken
      }
      await listen({
        database: config.direct,
        channels,
        heartbeatMs,
        signal: end.signal,
        onNotify,
        onListening,
        onSession,
      }).finally(() => {
        session.isListening = false
      })
      return 0
    }
    const stop = new AbortController()
    return { stop: () => stop.abort(), ended: new Service({ round, signal: stop.signal, loop }).run() }
  }

  /** Takes the lock that shows others that this process lives. */
  async #takeLock(session: Db): Promise<boolean> {
    const holder = this.#holder
    if (holder === undefined) return true
    const [row] = await session.run<{ taken: boolean }>(leaseStatements.takeLiveness, { class: lockClass, worker: holder.id })
    // Our last session has not ended on the server yet, or a watcher tries the lock at this moment.
    if (!row!.taken) {
      this.#options.config.logger.warn({ worker: holder.id }, "another session holds this worker's liveness lock; retrying")
      return false
    }
    // Only from now on does a free lock raise a question: one that starts slowly must not be asked before it has it.
    await session.run(leaseStatements.lock, { worker: holder.id, nonce: holder.nonce })
    return true
  }
}
