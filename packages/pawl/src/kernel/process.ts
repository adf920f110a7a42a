// The process as the database knows it, once for everything that runs in it: one incarnation with its lease, one keeper thread, one listener,
// the connections that its parts share. A part runs jobs, or cursors. The process starts and stops its parts.

import { randomBytes } from 'node:crypto'
import { atLeastDurable, type Config } from '../config.ts'
import { classify, isConflict, isRetryable } from '../db/classify.ts'
import { Connection, createPool, SharedPool } from '../db/driver.ts'
import { pendingMigrations } from '../db/migrate.ts'
import { describeError, PawlError } from '../errors.ts'
import { Failures, type LoopWatch } from './alerts.ts'
import { monotonicMs } from './clock.ts'
import type { Events } from './events.ts'
import { type Incarnated, Incarnation, type IncarnationOptions } from './incarnation.ts'
import { Board } from './keeper.ts'
import type { Holder } from './lease.ts'
import { installationId } from './retry.ts'

const tickMs = 50

export interface WorkerEvents {
  'worker.opened': { worker: number }
  'worker.lost': { worker: number }
  'worker.rescued': { worker: number; reason: string }
  'worker.blocked': { blockedMs: number }
  'worker.unwritable': { error: unknown }
}

/** What runs in a process. It is stopped in three steps: close, drain, end. */
export interface Part {
  /** What it listens to. */
  readonly channels: readonly string[]
  /** Rejects where something is missing that it needs. */
  prepare(): Promise<void>
  start(): void
  /** There is an incarnation, the first or another one. */
  opened(): void
  /** The lease is gone, and with it everything that this incarnation held: the signals of its handlers abort. */
  lost(holder: Holder): void
  notified(channel: string, payload: string): void
  /** Notifications may have been missed. */
  connected(): void
  /** Other incarnations were closed. */
  closed(): void
  /** What a sweep of the keeper has done. */
  swept(news: unknown): void
  tick(nowMs: number): void
  /** How long the oldest end waits to be stored; 0: none does. */
  oldestEndMs(nowMs: number): number
  /** Nothing begins after this call. */
  close(): void
  /** Waits until what runs has ended; when the grace is over, aborts what still runs, and gives back all else. */
  drain(graceOver: AbortSignal): Promise<void>
  /** Waits for what outlived the grace. Nothing of it writes after this. */
  end(): Promise<void>
  /** After the incarnation is closed. */
  disconnect(): Promise<void>
}

export interface ProcessOptions {
  readonly config: Config
  readonly worker: Incarnated
  readonly events: Pick<Events<WorkerEvents>, 'emit'>
  /** How many handlers may run at once, about: the keeper watches so many. */
  readonly handlersMax: number
  readonly handlerConnectionsMax: number
}

/** Errors of the engine's own statements and loops. */
export class ErrorCounts {
  /** 40001, 40P01 and 55P03 that our own statements met; refused writes are counted apart. */
  conflicts = 0
  retries = 0
  /** Those that no repetition mends. */
  errors = 0

  error(error: unknown): void {
    if (isConflict(error)) this.conflicts++
    if (isRetryable(error)) this.retries++
  }
}

export class Process {
  readonly config: Config
  readonly counts = new ErrorCounts()
  readonly failures: Failures
  /** What application_name ends with in the sessions of its handlers and claims. */
  readonly sessions = randomBytes(4).toString('hex')
  /** Short reads and writes, and reads of the log. */
  readonly engine: Connection
  /** What takes something: never less than durable, or a crash of the server leaves a holder that the database does not know. */
  readonly claims: Connection
  /** For the transactions of handlers. A statement of theirs may take any time, so its sender sets the limit. */
  readonly handlers: SharedPool
  readonly board: Board
  readonly #options: ProcessOptions
  readonly #incarnation: Incarnation
  readonly #parts: Part[] = []
  readonly #stop = new AbortController()
  #installation = ''
  #tick: NodeJS.Timeout | undefined

  constructor(options: ProcessOptions) {
    const { config } = options
    this.#options = options
    this.config = config
    this.failures = new Failures({
      logger: config.logger,
      onError: () => {
        this.counts.errors++
      },
      onRepeated: () => {
        this.counts.retries++
      },
    })
    const watch = this.failures
    this.engine = new Connection(config.database, 'engine', { durability: config.durability, watch })
    // Named as the handlers' sessions are: whoever takes over ends a claim, too, that a paused process does not read.
    this.claims = new Connection(config.database, `claim ${this.sessions}`, {
      durability: atLeastDurable(config.durability),
      watch,
    })
    this.handlers = new SharedPool(
      createPool({ ...config.database, queryTimeoutMs: 0 }, `handler ${this.sessions}`, options.handlerConnectionsMax),
      options.handlerConnectionsMax,
    )
    this.board = new Board(options.handlersMax)
    this.#incarnation = new Incarnation(this.#incarnationOptions())
  }

  add(part: Part): void {
    this.#parts.push(part)
  }

  /** The incarnation; undefined between the loss of one and the start of the next. */
  get holder(): Holder | undefined {
    return this.#incarnation.holder
  }

  get id(): number | undefined {
    return this.#incarnation.id
  }

  get installation(): string {
    return this.#installation
  }

  get isListening(): boolean {
    return this.#incarnation.isListening
  }

  /** Fires when it stops. */
  get signal(): AbortSignal {
    return this.#stop.signal
  }

  /** Where a loop says how its rounds end. */
  loop(name: string): LoopWatch {
    const { succeeded, failed } = this.failures.loop(name, this.engine)
    return {
      succeeded,
      failed: (error) => {
        this.trouble(error)
        failed(error)
      },
    }
  }

  /** An error of the database: counted, and logged if the database cannot write. The caller tries again by itself. */
  trouble(error: unknown): void {
    this.counts.error(error)
    if (classify(error) !== 'unwritable') return
    this.#options.events.emit('worker.unwritable', { error })
    this.config.logger.error({ error: describeError(error, 300) }, 'the database cannot write (disk full or read-only); retrying')
  }

  /** Rejects when the database cannot be reached or is not ready; called again, it tries again. */
  async start(): Promise<void> {
    try {
      await this.#incarnation.start(() => this.#check())
    } catch (error) {
      await Promise.all([this.#incarnation.disconnect(), this.claims.disconnect(), this.engine.disconnect()])
      throw error
    }
    this.board.turn()
    this.#tick = setInterval(() => this.#onTick(), tickMs)
    for (const part of this.#parts) part.start()
  }

  async #check(): Promise<void> {
    await assertMigrated(this.engine)
    this.#installation = await installationId(this.engine)
    for (const part of this.#parts) await part.prepare()
  }

  /** Its loops end. */
  abort(): void {
    this.#stop.abort()
  }

  /** And nothing begins after this call. */
  close(): void {
    this.abort()
    for (const part of this.#parts) part.close()
  }

  /** Closes the incarnation at once; others take over what it held. With the default reason no crash is counted. */
  abandon(reason?: string): Promise<void> {
    return this.#incarnation.abandon(reason)
  }

  /** Waits for what outlived the grace, which keeps its lease until then. */
  async end(): Promise<void> {
    await Promise.all(this.#parts.map((part) => part.end()))
    clearInterval(this.#tick)
    await this.#incarnation.close()
    await Promise.all(this.#parts.map((part) => part.disconnect()))
    await this.#incarnation.disconnect()
    await Promise.all([this.handlers.end().catch(() => undefined), this.claims.close(), this.engine.close()])
  }

  #onTick(): void {
    const nowMs = monotonicMs()
    this.board.turn(Math.max(...this.#parts.map((part) => part.oldestEndMs(nowMs))))
    for (const part of this.#parts) part.tick(nowMs)
  }

  #incarnationOptions(): IncarnationOptions {
    return {
      ...this.#options,
      sessions: this.sessions,
      channels: () => this.#parts.flatMap(({ channels }) => channels),
      board: this.board,
      engine: this.engine,
      signal: this.signal,
      onOpened: (worker) => {
        for (const part of this.#parts) part.opened()
        this.#options.events.emit('worker.opened', { worker })
      },
      onLost: (holder) => this.#onLost(holder),
      onKeeper: (message) => this.#onKeeper(message),
      onNotify: (channel, payload) => {
        for (const part of this.#parts) if (part.channels.includes(channel)) part.notified(channel, payload)
      },
      onConnect: () => {
        for (const part of this.#parts) part.connected()
      },
      loop: (name) => this.loop(name),
    }
  }

  #onLost(holder: Holder): void {
    const { id: worker } = holder
    this.#options.events.emit('worker.lost', { worker })
    this.config.logger.warn({ worker }, 'this worker lost its lease; restarting with a new one')
    for (const part of this.#parts) part.lost(holder)
  }

  #onKeeper(message: Parameters<IncarnationOptions['onKeeper']>[0]): void {
    const { events } = this.#options
    const { logger } = this.config
    switch (message.type) {
      case 'closed':
        for (const { id, reason } of message.workers) {
          events.emit('worker.rescued', { worker: id, reason })
          logger.warn({ event: 'worker.rescued', worker: id, reason }, 'a worker is gone; taking over its jobs')
        }
        for (const part of this.#parts) part.closed()
        return
      case 'swept':
        for (const part of this.#parts) part.swept(message.news)
        return
      case 'blocked':
        events.emit('worker.blocked', { blockedMs: message.blockedMs })
        return logger.warn(
          { blockedMs: message.blockedMs },
          'the event loop was blocked by a handler, or the process was paused; other handlers waited',
        )
      case 'trouble':
        return logger.warn(
          { error: message.message, code: message.code },
          'the keeper cannot reach the database; retrying (logged once a minute)',
        )
      case 'recovered':
        return logger.warn({ awayMs: message.awayMs }, 'the keeper reached the database again')
      case 'failed':
        this.counts.errors++
        return
      case 'logged':
        return logger.error(message.fields, message.message)
    }
  }
}

// ---- start checks

// What must be true before a worker starts: the schema is there.

export async function assertMigrated(engine: Connection): Promise<void> {
  const pending = await pendingMigrations(engine)
  if (pending === undefined || pending.length > 0) {
    const missing = pending === undefined ? 'is missing from this database' : `lacks ${pending.join(', ')}`
    throw new PawlError(
      'PAWL_SCHEMA_MISSING',
      `Pawl's schema ${missing}. Run 'pawl migrate', or call pawl.migrate() before you start a worker.`,
    )
  }
}

// ---- grace

// How long a stop waits for handlers. Every further call of stop() may shorten it, and none makes it longer.

export class Grace {
  readonly #over = new AbortController()
  #endsMs = Number.POSITIVE_INFINITY
  #timer: NodeJS.Timeout | undefined

  /** Fires when it is over. */
  get over(): AbortSignal {
    return this.#over.signal
  }

  /** Ends it after this time, or when the signal fires. */
  shorten(graceMs: number, signal: AbortSignal | undefined): void {
    const endsMs = monotonicMs() + graceMs
    if (signal?.aborted || graceMs === 0) return this.end()
    signal?.addEventListener('abort', () => this.end(), { once: true, signal: this.over })
    if (endsMs >= this.#endsMs || this.over.aborted) return
    this.#endsMs = endsMs
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.end(), graceMs)
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#over.abort()
  }
}
