// What of a process works through the log: it holds the cursors of its projections, reactions and sinks while it lives, and stands by for those of others. This
// file starts and stops the pieces: Pump gives positions, Holds takes and gives back cursors, each of which has a loop of its own.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Config } from '../config.ts'
import type { Connection, Pool } from '../db/driver.ts'
import { describeError, PawlError } from '../errors.ts'
import { eventMaintenance } from '../events/maintenance.ts'
import { Pump } from '../events/pump.ts'
import { isLasting, type LoopWatch } from '../kernel/alerts.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Events } from '../kernel/events.ts'
import { solitude } from '../kernel/handler.ts'
import type { Holder } from '../kernel/lease.ts'
import type { Part, Process } from '../kernel/process.ts'
import type { Service } from '../kernel/service.ts'
import { type Defined, retryDelayMs } from './definition.ts'
import { register } from './generations/register.ts'
import { Holds } from './holds.ts'
import { Refreshers } from './refreshers.ts'
import type { ProjectionEvents } from './types.ts'

/** A stop does not wait longer than this for the database to take its cursors back. */
const releasePatienceMs = 5000
const troubleEveryMs = 60_000
/** Without notifications it polls this often for free cursors and marks. */
const deafPollMs = 250
/** All idle cursors together ask once in four polls whether an operator has moved them. */
const idleCursorPolls = 4

export interface CursorsPartOptions {
  readonly process: Process
  readonly definitions: readonly Defined[]
  readonly events: Events<ProjectionEvents>
  /** Called by what happens in this process, such as an append; returns what ends it. */
  readonly onLocal: (listener: () => void) => () => void
  readonly leaseMs: number
  readonly pollMs: number
  readonly keepDays: number
  /** Removes what the kernel keeps for a while, in a process where no other part does. */
  readonly pruning: Service | undefined
}

export class CursorsPart implements Part {
  readonly channels = ['pawl_events', 'pawl_cursors', 'pawl_workers']
  readonly #options: CursorsPartOptions
  readonly #process: Process
  readonly #host: Host
  readonly #pump: Pump
  readonly #holds: Holds
  readonly #refreshers: Refreshers
  readonly #stop = new AbortController()
  readonly #offs: (() => void)[] = []
  #loops: Promise<unknown>[] = []
  #maintaining: Promise<unknown> | undefined
  /** After drain: what was aborted at the end of the grace. */
  aborted: readonly string[] = []

  constructor(options: CursorsPartOptions) {
    const { process, definitions } = options
    this.#options = options
    this.#process = process
    const host = new Host(options, () => this.#refreshers.wake())
    this.#host = host
    this.#holds = new Holds(definitions, host)
    this.#refreshers = new Refreshers(definitions, host)
    this.#pump = new Pump({
      process,
      pollMs: options.pollMs,
      onHead: (fresh) => {
        this.#holds.wake(fresh)
        this.#refreshers.grown()
      },
      signal: this.#stop.signal,
      loop: host.loop('positions'),
    })
  }

  /** What this process holds now. */
  held(): ReturnType<Holds['list']> {
    return this.#holds.list()
  }

  async prepare(): Promise<void> {
    await register(this.#process.engine, this.#process.config.database, this.#options.definitions)
  }

  start(): void {
    const { config, failures: watch, signal } = this.#process
    const { keepDays, onLocal, pruning } = this.#options
    this.#offs.push(onLocal(() => this.#pump.wake()))
    this.#offs.push(
      solitude.onOpened(() => {
        this.#holds.wake()
        this.#refreshers.wake()
      }),
    )
    const loop = this.#host.loop('event maintenance')
    const events = eventMaintenance({ database: config.direct, keepDays, signal, watch, loop })
    this.#maintaining = Promise.all([events.run(), pruning?.run()])
    this.#loops = [this.#pump.run(), this.#holds.run(), this.#refreshers.run()]
  }

  // ---- news

  opened(): void {
    this.#pump.reset()
    this.#holds.look()
  }

  lost({ id }: Holder): void {
    this.#holds.lose(id)
  }

  notified(channel: string): void {
    if (channel === 'pawl_events') this.#pump.wake()
    else if (channel === 'pawl_workers') this.#holds.look()
    else this.#holds.changed()
  }

  connected(): void {
    this.#pump.wake()
    this.#holds.changed()
  }

  /** What they held is free. */
  closed(): void {
    this.#holds.look()
  }

  swept(): void {}

  tick(): void {}

  oldestEndMs(): number {
    return 0
  }

  // ---- stopping

  close(): void {
    for (const off of this.#offs) off()
    this.#stop.abort()
    this.#refreshers.stop()
    this.#holds.close()
  }

  async drain(graceOver: AbortSignal): Promise<void> {
    // A start that was in progress may have begun to listen since.
    this.close()
    const ended = Promise.all([this.#holds.ended(), ...this.#loops])
    const over = new Promise<void>((resolve) => graceOver.addEventListener('abort', () => resolve(), { once: true }))
    if (!graceOver.aborted) await Promise.race([ended, over])
    const reason = new PawlError('PAWL_STOPPED', 'The worker is stopping and its grace period is over.')
    this.aborted = this.#host.handling
    this.#holds.abort(reason)
    this.#refreshers.abort(reason)
    await Promise.race([ended, sleep(releasePatienceMs, undefined, { ref: false })])
  }

  async end(): Promise<void> {}

  async disconnect(): Promise<void> {
    await this.#maintaining
  }
}

/** What the loops of cursors share. */
export class Host {
  readonly config: Config
  /** Short writes, reads under a fence, and reads of the log. */
  readonly engine: Connection
  /** Takes and gives back cursors. */
  readonly claims: Connection
  /** Handlers' transactions. */
  readonly pool: Pool
  /** Resets a session after a handler's transaction. */
  readonly reset: string
  readonly events: Events<ProjectionEvents>
  /** Entities of a state projection became dirty. */
  readonly onRefreshable: () => void
  /** How many cursors this process holds. */
  cursors = 0
  readonly #process: Process
  readonly #leaseMs: number
  readonly #pollMs: number
  /** Running handlers. */
  readonly #handling = new Set<{ readonly name: string }>()
  /** Loops whose last round failed. */
  readonly #failing = new Set<string>()
  readonly #failureLoggedMs = new Map<Defined, number>()
  #troubleLoggedMs = Number.NEGATIVE_INFINITY

  constructor({ process, events, leaseMs, pollMs }: CursorsPartOptions, onRefreshable: () => void) {
    this.config = process.config
    this.engine = process.engine
    this.claims = process.claims
    this.pool = process.handlers.part()
    this.reset = `select pawl.reset_session(${process.config.database.pooler === 'none'})`
    this.events = events
    this.onRefreshable = onRefreshable
    this.#process = process
    this.#leaseMs = leaseMs
    this.#pollMs = pollMs
  }

  get holder(): Holder | undefined {
    return this.#process.holder
  }

  get pollMs(): number {
    return this.#process.isListening ? this.#pollMs : Math.min(this.#pollMs, deafPollMs)
  }

  /** How often an idle cursor asks whether an operator has moved it, in case the notification was lost. */
  get idlePollMs(): number {
    return Math.max(1, this.cursors) * idleCursorPolls * this.pollMs
  }

  get installation(): string {
    return this.#process.installation
  }

  /** The names of those whose handlers run. */
  get handling(): readonly string[] {
    return [...new Set([...this.#handling].map(({ name }) => name))]
  }

  /** The server ends a handler's transaction that idles longer than this: a stopped process must not keep its cursor's row. */
  idleMs(timeoutMs: number): number {
    return Math.max(this.#leaseMs, timeoutMs + 1000)
  }

  /** Tells the keeper thread that a handler runs: one that blocks this thread past its time gives up the process's lease. Returns what ends it. */
  watch(name: string, timeoutMs: number): () => void {
    const watched = { id: '0', fence: '0', slot: -1, definition: { timeoutMs }, name }
    this.#handling.add(watched)
    this.#process.board.enter(watched)
    return () => {
      this.#handling.delete(watched)
      this.#process.board.leave(watched)
    }
  }

  loop(name: string): LoopWatch {
    const { succeeded, failed } = this.#process.loop(name)
    return {
      succeeded: () => {
        succeeded()
        if (this.#failing.delete(name) && this.#failing.size === 0) this.#recovered()
      },
      failed: (error) => {
        failed(error)
        if (isLasting(error)) return
        this.#failing.add(name)
        this.trouble(error)
      },
    }
  }

  parked(parked: ProjectionEvents['projection.parked']): void {
    this.config.logger.warn({ ...parked }, 'a key was parked')
    this.events.emit('projection.parked', parked)
  }

  /**
   * Returns the milliseconds until the retry; undefined: there is none. A failure that will be retried is logged once a minute per definition: an
   * endpoint that is away fails every key.
   */
  failed(
    definition: Defined,
    failure: Pick<ProjectionEvents['projection.failed'], 'key' | 'position' | 'attempt' | 'error'>,
  ): number | undefined {
    const retryInMs = retryDelayMs(definition, failure.attempt, failure.error, (thrown) => this.trouble(thrown))
    const event = { name: definition.name, ...failure, retryInMs }
    this.events.emit('projection.failed', event)
    const nowMs = monotonicMs()
    const loggedMs = this.#failureLoggedMs.get(definition) ?? Number.NEGATIVE_INFINITY
    if (retryInMs === undefined || nowMs - loggedMs < troubleEveryMs) return retryInMs
    this.#failureLoggedMs.set(definition, nowMs)
    this.config.logger.warn(
      { ...event, event: 'projection.failed', error: describeError(failure.error, 1000) },
      `${definition.kind === 'sink' ? 'sink' : 'projection'} failed, will be retried (logged once a minute)`,
    )
    return retryInMs
  }

  /** What ends by itself, or is a user's own: a conflict, a hook that threw. Every loop meets a database that is away, several times a second. */
  trouble(error: unknown): void {
    const nowMs = monotonicMs()
    if (this.#process.signal.aborted || nowMs - this.#troubleLoggedMs < troubleEveryMs) return
    this.#troubleLoggedMs = nowMs
    this.config.logger.warn({ error: String(error) }, 'cursor error; retrying (logged once a minute)')
  }

  #recovered(): void {
    if (this.#troubleLoggedMs === Number.NEGATIVE_INFINITY) return
    this.#troubleLoggedMs = Number.NEGATIVE_INFINITY
    this.config.logger.warn({}, 'the cursors work again')
  }
}
