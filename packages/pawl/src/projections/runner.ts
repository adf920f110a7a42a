// The runner: holds the cursors of this process's projections and sinks while it lives, and stands by for those of others. This file starts
// and stops the pieces: Incarnation is the identity with its lease, Pump gives positions, Holds takes and gives back cursors, and each held
// cursor has a loop of its own.

import { randomBytes } from 'node:crypto'
import { atLeastDurable, type Config } from '../config.ts'
import { Connection, createPool, type Pool } from '../db/driver.ts'
import { PawlError } from '../errors.ts'
import { maintainEvents } from '../events/maintenance.ts'
import { Incarnation } from '../jobs/incarnation.ts'
import { Board } from '../jobs/keeper.ts'
import { assertMigrated } from '../jobs/start-checks.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Events } from '../kernel/events.ts'
import { Failures, isLasting, type LoopWatch } from '../kernel/failures.ts'
import { installationId } from '../kernel/installation.ts'
import { solitude } from '../kernel/solitude.ts'
import type { Defined } from './definition.ts'
import { kindOf } from './definition.ts'
import { Holds } from './holds.ts'
import { Pump } from './pump.ts'
import { Refreshers } from './refreshers.ts'
import { register, registerForgotten } from './register.ts'
import { type ResolvedRunnerOptions, resolveRunnerOptions } from './runner-options.ts'
import type { ProjectionEvents, RunnerOptions } from './types.ts'
import type { World } from './world.ts'

const turnMs = 50
const troubleEveryMs = 60_000

export interface RunnerCore {
  readonly config: Config
  readonly definitions: ReadonlyMap<string, Defined>
  /** Those that were made and not stopped. */
  readonly runners: Set<ProjectionRunner>
  readonly events: Events<ProjectionEvents>
  /** Called by what happens in this process, such as an append; gives what ends it. */
  readonly onLocal: (listener: () => void) => () => void
}

export class ProjectionRunner {
  readonly #core: RunnerCore
  readonly #options: ResolvedRunnerOptions
  readonly #definitions: readonly Defined[]
  readonly #stopAll = new AbortController()
  readonly #sessions = randomBytes(4).toString('hex')
  readonly #watch: Failures
  readonly #engine: Connection
  readonly #acquirer: Connection
  readonly #reader: Connection
  readonly #pool: Pool
  readonly #board: Board
  readonly #world: World
  readonly #pump: Pump
  readonly #holds: Holds
  readonly #refreshers: Refreshers
  readonly #incarnation: Incarnation
  /** Loops whose last turn failed. */
  readonly #failing = new Set<string>()
  #troubleLoggedMs = Number.NEGATIVE_INFINITY
  #installation = ''
  #loops: Promise<unknown>[] = []
  #turns: NodeJS.Timeout | undefined
  #offLocal: (() => void) | undefined
  #offOpened: (() => void) | undefined
  #starting: Promise<void> | undefined
  #stopped: Promise<void> | undefined

  constructor(core: RunnerCore, options: RunnerOptions = {}) {
    if (core.definitions.size === 0)
      throw new PawlError('PAWL_CONFIG', 'This runner has nothing to do: define a projection or a sink before you create it.')
    this.#core = core
    this.#options = resolveRunnerOptions(options)
    this.#definitions = [...core.definitions.values()]
    const { config } = core
    const { handlerConnectionsMax } = this.#options
    const watch = new Failures({ logger: config.logger })
    this.#watch = watch
    this.#engine = new Connection(config.database, 'projections', { watch })
    // A taking that a crash of the server forgets would leave a holder that does not know it, so it is never less than durable.
    this.#acquirer = new Connection(config.database, 'acquire', { durability: atLeastDurable(config.durability), watch })
    this.#reader = new Connection(config.database, 'log', { watch })
    this.#pool = createPool(config.database, `handler ${this.#sessions}`, handlerConnectionsMax)
    this.#board = new Board(1024)
    const world = this.#createWorld()
    this.#world = world
    this.#holds = new Holds({
      world,
      acquirer: this.#acquirer,
      definitions: this.#definitions,
      worker: () => this.#incarnation.holder,
      confirm: () => registerForgotten(this.#engine, config.database, this.#definitions),
    })
    this.#refreshers = new Refreshers(
      this.#definitions.filter((definition) => definition.kind === 'state'),
      world,
    )
    this.#pump = new Pump({
      config,
      watch,
      pollMs: this.#options.pollMs,
      worker: () => this.#incarnation.id,
      onTicking: (connection) => this.#holds.readAhead(connection),
      onHead: () => this.#holds.wake(),
      loop: world.loop('positions'),
    })
    this.#incarnation = this.#createIncarnation()
    core.runners.add(this)
  }

  /** The id of the current incarnation. */
  get id(): number | undefined {
    return this.#incarnation.id
  }

  /** What this process holds now. */
  held(): readonly { readonly name: string; readonly generation: number; readonly shard: number; readonly fence: string }[] {
    return this.#holds.list()
  }

  /** Rejects when the database cannot be reached or is not ready; called again, it tries again. */
  start(): Promise<void> {
    this.#starting ??= this.#start()
    return this.#starting
  }

  async #start(): Promise<void> {
    if (this.#stopAll.signal.aborted)
      throw new PawlError('PAWL_STOPPED', 'This runner was stopped and cannot start again. Create a new one.')
    try {
      await assertMigrated(this.#engine)
      await register(this.#engine, this.#core.config.database, this.#definitions)
      this.#installation = await installationId(this.#engine)
      await this.#incarnation.start()
    } catch (error) {
      const connections = [this.#engine, this.#acquirer, this.#reader]
      await Promise.all([this.#incarnation.disconnect(), ...connections.map((connection) => connection.disconnect())])
      this.#starting = undefined
      throw error
    }
    this.#board.turn()
    this.#turns = setInterval(() => this.#board.turn(), turnMs)
    this.#offLocal = this.#core.onLocal(() => this.#pump.wake())
    this.#offOpened = solitude.onOpened(() => {
      this.#holds.wake()
      this.#refreshers.wake()
    })
    const maintenance = maintainEvents({
      database: this.#core.config.direct,
      keepDays: this.#options.keepDays,
      signal: this.#stopAll.signal,
      watch: this.#watch,
      loop: this.#world.loop('event maintenance'),
    })
    this.#loops = [this.#pump.run(), this.#holds.run(this.#options.lookMs), this.#refreshers.run(), maintenance]
  }

  /** Lets handlers that run finish what they are at, gives the cursors back, and stops: another process goes on at once. */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  async #stop(): Promise<void> {
    this.#stopAll.abort()
    // A start in progress goes on to begin what is ended here.
    await this.#starting?.catch(() => undefined)
    this.#offLocal?.()
    this.#offOpened?.()
    this.#pump.stop()
    this.#refreshers.stop()
    await this.#holds.stop()
    await Promise.all(this.#loops)
    clearInterval(this.#turns)
    await this.#incarnation.close()
    await this.#close()
    this.#core.runners.delete(this)
  }

  async #close(): Promise<void> {
    this.#pump.stop()
    await this.#incarnation.disconnect()
    await Promise.all([this.#engine.close(), this.#acquirer.close(), this.#reader.close()])
    await this.#pool.end().catch(() => undefined)
  }

  #createWorld(): World {
    const { config, events } = this.#core
    return {
      config,
      engine: this.#engine,
      reader: this.#reader,
      pool: this.#pool,
      reset: `select pawl.reset_session(${config.database.pooler === 'none'})`,
      idleMs: (timeoutMs) => Math.max(this.#options.leaseMs, timeoutMs + 1000),
      watch: (timeoutMs) => {
        const watched = { id: '0', fence: '0', slot: -1, definition: { timeoutMs } }
        this.#board.enter(watched)
        return () => this.#board.leave(watched)
      },
      events,
      installation: () => this.#installation,
      onRefreshable: () => this.#refreshers.wake(),
      loop: (name) => this.#loop(name),
      onTrouble: (error) => this.#trouble(error),
    }
  }

  #loop(name: string): LoopWatch {
    const { succeeded, failed } = this.#watch.loop(name, this.#engine)
    return {
      succeeded: () => {
        succeeded()
        if (this.#failing.delete(name) && this.#failing.size === 0) this.#recovered()
      },
      failed: (error) => {
        failed(error)
        if (isLasting(error)) return
        this.#failing.add(name)
        this.#trouble(error)
      },
    }
  }

  /** Every loop meets a database that is away, several times a second. */
  #trouble(error: unknown): void {
    const nowMs = monotonicMs()
    if (this.#stopAll.signal.aborted || nowMs - this.#troubleLoggedMs < troubleEveryMs) return
    this.#troubleLoggedMs = nowMs
    this.#core.config.logger.warn({ error: String(error) }, 'runner error; retrying (logged once a minute)')
  }

  #recovered(): void {
    if (this.#troubleLoggedMs === Number.NEGATIVE_INFINITY) return
    this.#troubleLoggedMs = Number.NEGATIVE_INFINITY
    this.#core.config.logger.warn({}, 'the runner works again')
  }

  #createIncarnation(): Incarnation {
    const { config } = this.#core
    const { name, leaseMs, beatMs, keeperMs } = this.#options
    return new Incarnation({
      config,
      worker: {
        name,
        leaseMs,
        beatMs,
        keeperMs,
        queues: [],
        concurrency: this.#options.handlerConnectionsMax,
        exitWhenBlocked: false,
      },
      kinds: this.#definitions.map(kindOf),
      sessions: this.#sessions,
      channels: ['pawl_events'],
      board: this.#board,
      engine: this.#acquirer,
      signal: this.#stopAll.signal,
      onOpened: () => {
        this.#pump.reset()
        this.#holds.look()
      },
      onLost: ({ id: worker }) => {
        config.logger.warn({ worker }, 'this runner lost its lease; restarting with a new one')
        this.#holds.lose(worker)
      },
      onKeeper: (message) => {
        // Somebody died: what they held is free.
        if (message.type === 'closed') this.#holds.look()
        else if (message.type === 'blocked')
          config.logger.warn({ blockedMs: message.blockedMs }, 'a handler blocked the event loop')
        else if (message.type === 'trouble')
          config.logger.warn(
            { error: message.message, code: message.code },
            'the keeper cannot reach the database; retrying (logged once a minute)',
          )
        else if (message.type === 'recovered')
          config.logger.warn({ awayMs: message.awayMs }, 'the keeper reached the database again')
        else if (message.type === 'logged') config.logger.error(message.fields, message.message)
      },
      onNotify: () => this.#pump.wake(),
      onConnect: () => this.#pump.wake(),
      loop: this.#world.loop,
    })
  }
}
