// The process as the database knows it, once for everything that runs in it: one incarnation with its lease, one keeper thread, one listener,
// the connections that its parts share. A part runs jobs, or cursors. The process starts and stops its parts.

import { randomBytes } from 'node:crypto'
import { atLeastDurable, type Config } from '../config.ts'
import { classify, isConflict, isRetryable } from '../db/classify.ts'
import { Connection, createPool, SharedPool } from '../db/driver.ts'
import { pendingMigrations } from '../db/migrate.ts'
import { statement } from '../db/statement.ts'
import { describeError, PawlError } from '../errors.ts'
import { Failures, type LoopWatch } from './alerts.ts'
import { monotonicMs } from './clock.ts'
import type { Events } from './events.ts'
import { type Follower, type Incarnated, Incarnation, type WorkerEvents } from './incarnation.ts'
import { Board } from './keeper/board.ts'
import type { Holder } from './lease.ts'

const installationStatement = statement(import.meta.url, 'installation')

const tickMs = 50

/** Runs in a process. It is stopped in three steps: close, drain, end. */
export interface Part extends Follower {
  /** Rejects where something is missing that it needs. */
  prepare(): Promise<void>
  start(): void
  tick(nowMs: number): void
  /** How long the oldest end waits to be stored; 0: none does. */
  oldestEndMs(nowMs: number): number
  /** Nothing begins after this call. */
  close(): void
  /** Waits until all that runs has ended; when the grace is over, aborts what still runs, and gives back all else. */
  drain(graceOver: AbortSignal): Promise<void>
  /** Waits for handlers that outlived the grace. None of them writes after this. */
  end(): Promise<void>
  /** After the incarnation is closed. */
  disconnect(): Promise<void>
}

export interface ProcessOptions {
  readonly config: Config
  readonly worker: Incarnated
  readonly events: Pick<Events<WorkerEvents>, 'emit'>
  /** The keeper watches at most this many running handlers. */
  readonly handlersMax: number
  readonly handlerConnectionsMax: number
}

export class Process {
  readonly config: Config
  /** Errors of the engine's own statements and loops. `conflicts`: 40001, 40P01 and 55P03; `errors`: those that no repetition mends. */
  readonly counts = { conflicts: 0, retries: 0, errors: 0 }
  readonly failures: Failures
  /** What application_name ends with in the sessions of its handlers and claims. */
  readonly sessions = randomBytes(4).toString('hex')
  /** Short reads and writes, and reads of the log. */
  readonly engine: Connection
  /** For claims: never less than durable, or a crash of the server leaves a holder that the database does not know. */
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
    const { config, worker, events, handlerConnectionsMax } = options
    const { counts, sessions } = this
    this.#options = options
    this.config = config
    const watch = new Failures({
      logger: config.logger,
      onError: () => counts.errors++,
      onRepeated: () => counts.retries++,
    })
    this.failures = watch
    this.engine = new Connection(config.database, 'engine', { durability: config.durability, watch })
    // Named as the handlers' sessions are: a take-over also ends a claim that a paused process does not read.
    this.claims = new Connection(config.database, `claim ${sessions}`, { durability: atLeastDurable(config.durability), watch })
    this.handlers = new SharedPool(
      createPool({ ...config.database, queryTimeoutMs: 0 }, `handler ${sessions}`, handlerConnectionsMax),
      handlerConnectionsMax,
    )
    this.board = new Board(options.handlersMax)
    this.#incarnation = new Incarnation({
      config,
      worker,
      sessions,
      parts: this.#parts,
      board: this.board,
      engine: this.engine,
      signal: this.signal,
      events,
      counts,
      loop: (name) => this.loop(name),
    })
  }

  add(part: Part): void {
    this.#parts.push(part)
  }

  /** The incarnation; undefined between the loss of one and the start of the next. */
  get holder(): Holder | undefined {
    return this.#incarnation.holder
  }

  get id(): number | undefined {
    return this.holder?.id
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

  /** Where a loop reports how its rounds end. */
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
    if (isConflict(error)) this.counts.conflicts++
    if (isRetryable(error)) this.counts.retries++
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
    const [row] = await this.engine.run<{ id: string }>(installationStatement)
    this.#installation = row!.id
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

  /** Waits for handlers that outlived the grace; they keep their lease until then. */
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
}

async function assertMigrated(engine: Connection): Promise<void> {
  const pending = await pendingMigrations(engine)
  if (pending?.length === 0) return
  const missing = pending === undefined ? 'is missing from this database' : `lacks ${pending.join(', ')}`
  throw new PawlError(
    'PAWL_SCHEMA_MISSING',
    `Pawl's schema ${missing}. Run 'pawl migrate', or call pawl.migrate() before you start a worker.`,
  )
}

/** How long a stop waits for handlers. Every further call of stop() may shorten it, and none makes it longer. */
export class Grace {
  readonly #over = new AbortController()

  /** Fires when it is over. */
  get over(): AbortSignal {
    return this.#over.signal
  }

  /** Ends it after this time. */
  shorten(graceMs: number): void {
    if (graceMs === 0) this.end()
    // The worker's connections keep the process alive for as long as it waits.
    else setTimeout(() => this.end(), graceMs).unref()
  }

  end(): void {
    this.#over.abort()
  }
}
