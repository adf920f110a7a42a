// The worker's identity in the database: a row with a lease, which the keeper thread renews, and a lock that tells others that the process
// lives. When the lease is lost, the worker goes on under a new number; the old number's jobs belong to whoever takes them over.

import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Config } from '../config.ts'
import type { Db } from '../db/db.ts'
import type { Connection } from '../db/driver.ts'
import { Listener } from '../db/listen.ts'
import { textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import { release } from '../release.ts'
import type { LoopWatch } from './alerts.ts'
import { type Board, Keeper, type KeeperMessage, type KeeperOptions } from './keeper.ts'
import { type Holder, leaseStatements, lockClass, lookEveryMs } from './lease.ts'
import { probe } from './probe.ts'
import { engineBackoffMs, retrying } from './retry.ts'

/** What its row says, and how it is kept. */
export interface Incarnated extends Pick<KeeperOptions, 'exitWhenBlocked' | 'limits' | 'newThread'> {
  readonly name: string
  readonly queues: readonly string[]
  readonly kinds: readonly string[]
  readonly concurrency: number
  readonly leaseMs: number
  readonly beatMs: number
  readonly keeperMs: number
}

export interface IncarnationOptions {
  readonly config: Config
  readonly worker: Incarnated
  /** What application_name ends with in the sessions of its handlers and claims. */
  readonly sessions: string
  /** What it listens to. */
  readonly channels: () => readonly string[]
  readonly board: Board
  readonly engine: Connection
  readonly signal: AbortSignal
  readonly onOpened: (id: number) => void
  readonly onLost: (holder: Holder) => void
  readonly onKeeper: (message: Exclude<KeeperMessage, { type: 'ready' | 'lost' | 'password' }>) => void
  readonly onNotify: (channel: string, payload: string) => void
  /** Notifications may have been missed. */
  readonly onConnect: () => void
  readonly loop: (name: string) => LoopWatch
}

export class Incarnation {
  readonly #options: IncarnationOptions
  #holder: Holder | undefined
  #keeper: Keeper | undefined
  #listener: Listener | undefined
  #reopening: Promise<void> | undefined

  constructor(options: IncarnationOptions) {
    this.#options = options
  }

  /** Undefined between the loss of one incarnation and the start of the next. */
  get id(): number | undefined {
    return this.#holder?.id
  }

  /** The id, and the nonce that its own writes name beside it. */
  get holder(): Holder | undefined {
    return this.#holder
  }

  get isListening(): boolean {
    return this.#listener?.isListening ?? false
  }

  /** Its thread starts while `check` runs: that takes longer than all checks. */
  async start(check: () => Promise<void>): Promise<void> {
    // The lease begins when somebody is there to renew it: a thread may take longer to start than a short lease lasts.
    await bothOf(this.#startKeeper(undefined), check())
    await this.#openKept()
    this.#startListener()
  }

  /** Gives the row up in order, so that others take what is left without a crash counted. */
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
    await Promise.all([this.#listener?.stop(), this.#keeper?.stop()])
  }

  /** Whichever keeper there is by then renews it: the one of before may have died meanwhile. */
  async #openKept(): Promise<void> {
    const holder = await this.#open()
    this.#keeper?.incarnation(holder)
  }

  async #open(): Promise<Holder> {
    const { config, worker, sessions, engine, onOpened } = this.#options
    const [row] = await engine.run<Holder>(leaseStatements.open, {
      name: worker.name,
      host: hostname(),
      pid: process.pid,
      release,
      queues: textsLiteral(worker.queues),
      kinds: textsLiteral(worker.kinds),
      concurrency: worker.concurrency,
      sessions: config.database.pooler === 'none' ? sessions : '',
      look_ms: this.#lookMs(),
      lease_ms: worker.leaseMs,
    })
    const holder = { id: row!.id, nonce: row!.nonce }
    this.#holder = holder
    if (probe.on) await probe.hit('worker.opened', holder.id)
    onOpened(holder.id)
    return holder
  }

  #lost(id: number): void {
    const holder = this.#holder
    if (holder?.id !== id) return
    this.#holder = undefined
    this.#options.onLost(holder)
    this.#reopening ??= this.#reopen().finally(() => {
      this.#reopening = undefined
    })
  }

  async #reopen(): Promise<void> {
    const { signal, onConnect } = this.#options
    const loop = this.#options.loop('reopening')
    if (probe.on) await probe.hit('jobs.incarnation.lost')
    for (let tried = 1; !signal.aborted && this.#holder === undefined; tried++) {
      try {
        await this.#openKept()
        this.#listener?.renew()
        onConnect()
        loop.succeeded()
      } catch (error) {
        loop.failed(error)
        await sleep(engineBackoffMs(error, tried), undefined, { signal }).catch(() => undefined)
      }
    }
  }

  #lookMs(): number {
    const { keeperMs, leaseMs } = this.#options.worker
    return Math.min(keeperMs, lookEveryMs(leaseMs))
  }

  async #startKeeper(worker: Holder | undefined): Promise<void> {
    const { config, board, onKeeper } = this.#options
    const { leaseMs, beatMs, keeperMs, exitWhenBlocked, limits, newThread } = this.#options.worker
    this.#keeper = new Keeper(
      {
        database: config.database,
        worker,
        leaseMs,
        beatMs,
        lookMs: this.#lookMs(),
        watchMainMs: keeperMs,
        exitWhenBlocked,
        limits,
        newThread,
      },
      board,
      (message) => {
        if (message.type === 'lost') this.#lost(message.worker)
        else if (message.type !== 'ready' && message.type !== 'password') onKeeper(message)
      },
      (error) => this.#onKeeperDeath(error),
    )
    await this.#keeper.start()
  }

  #onKeeperDeath(error: Error): void {
    this.#options.config.logger.error({ error: describeError(error) }, 'the keeper thread died; restarting it')
    void this.#restartKeeper()
  }

  /** Also between two incarnations: the next one is told to whichever keeper there is then. */
  async #restartKeeper(): Promise<void> {
    const { signal } = this.#options
    const loop = this.#options.loop('keeper start')
    for (let tried = 1; !signal.aborted; tried++) {
      try {
        await this.#startKeeper(this.#holder)
        return loop.succeeded()
      } catch (error) {
        loop.failed(error)
        await sleep(engineBackoffMs(error, tried), undefined, { signal }).catch(() => undefined)
      }
    }
  }

  #startListener(): void {
    const { config, channels, onNotify, onConnect } = this.#options
    if (!config.hasSession) return
    const { succeeded, failed } = this.#options.loop('listen')
    this.#listener = new Listener({
      database: config.direct,
      channels: channels(),
      heartbeatMs: 5000,
      backoffMs: engineBackoffMs,
      onNotify,
      onConnect,
      onSession: async (session) => {
        const isTaken = await this.#takeLock(session)
        succeeded()
        return isTaken
      },
      onError: failed,
    })
    this.#listener.start()
  }

  /** The lock tells others that this process lives. */
  async #takeLock(session: Db): Promise<boolean> {
    const holder = this.#holder
    if (holder === undefined) return true
    const [row] = await session.run<{ taken: boolean }>(leaseStatements.takeLiveness, { class: lockClass, worker: holder.id })
    // Our last session has not ended on the server yet, or a watcher tries the lock just now.
    if (!row!.taken) {
      this.#options.config.logger.warn({ worker: holder.id }, "another session holds this worker's liveness lock; retrying")
      return false
    }
    // Only from now on does a free lock raise a question: one that starts slowly must not be asked before it has it.
    await session.run(leaseStatements.lock, { worker: holder.id, nonce: holder.nonce })
    return true
  }
}

/** Rejects with the first error, when both have ended. */
async function bothOf(...work: readonly Promise<void>[]): Promise<void> {
  await Promise.allSettled(work)
  await Promise.all(work)
}
