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
import type { Defined } from './definition.ts'
import { register, registerForgotten } from './generations/register.ts'
import { Holds } from './holds.ts'
import { Refreshers } from './refreshers.ts'
import type { ProjectionEvents } from './types.ts'

/** A stop does not wait longer than this for the database to take its cursors back. */
const releasePatienceMs = 5000
const troubleEveryMs = 60_000
/** Without notifications it polls this often for free cursors and marks. */
const deafPollMs = 250
/** All idle cursors together ask once in four polls whether a person has put them elsewhere. */
const idleLookPolls = 4

/** What the loops of cursors share. */
export interface Host {
  readonly config: Config
  /** Reads of the log. */
  readonly reader: Connection
  /** Short writes and look-ups under a fence. */
  readonly engine: Connection
  /** Handlers' transactions. */
  readonly pool: Pool
  /** Resets a session after a handler's transaction. */
  readonly reset: string
  /** The server ends a handler's transaction that idles for so long: a stopped process must not keep its cursor's row. */
  readonly idleMs: (timeoutMs: number) => number
  /** Tells the keeper thread that a handler runs: one that blocks this thread past its time gives up the process's lease. Returns what ends it. */
  readonly watch: (name: string, timeoutMs: number) => () => void
  readonly events: Events<ProjectionEvents>
  readonly installation: () => string
  /** How often an idle cursor asks whether a person has put it elsewhere; a notification comes too. */
  readonly idleLookMs: () => number
  /** Entities of a state projection became dirty. */
  readonly onRefreshable: () => void
  /** A handler failed. A failure that is retried is logged once a minute per definition: an endpoint that is away fails every key. */
  readonly failed: (definition: Defined, failure: ProjectionEvents['projection.failed']) => void
  readonly parked: (parked: ProjectionEvents['projection.parked']) => void
  readonly loop: (name: string) => LoopWatch
  /** What ends by itself, or is a user's own: a conflict, a hook that threw. */
  readonly onTrouble: (error: unknown) => void
}

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
  readonly #pool: Pool
  readonly #host: Host
  readonly #pump: Pump
  readonly #holds: Holds
  readonly #refreshers: Refreshers
  readonly #stop = new AbortController()
  readonly #offs: (() => void)[] = []
  /** Loops whose last round failed. */
  readonly #failing = new Set<string>()
  /** Whose handlers run. */
  readonly #handling = new Set<{ readonly name: string }>()
  #loops: Promise<unknown>[] = []
  #maintaining: Promise<unknown> | undefined
  #aborted: readonly string[] = []
  #troubleLoggedMs = Number.NEGATIVE_INFINITY
  readonly #failureLoggedMs = new Map<Defined, number>()

  constructor(options: CursorsPartOptions) {
    const { process, definitions } = options
    this.#options = options
    this.#process = process
    const { config } = process
    this.#pool = process.handlers.part()
    const host = this.#createHost()
    this.#host = host
    this.#holds = new Holds({
      host,
      acquirer: process.claims,
      definitions,
      worker: () => process.holder,
      lookMs: () => this.#pollMs,
      confirm: () => registerForgotten(process.engine, config.database, definitions),
    })
    this.#refreshers = new Refreshers(
      definitions.filter((definition) => definition.kind === 'state'),
      host,
      () => this.#pollMs,
    )
    this.#pump = new Pump({
      config,
      watch: process.failures,
      pollMs: options.pollMs,
      isListening: () => process.isListening,
      worker: () => process.id,
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
    this.#aborted = [...new Set([...this.#handling].map(({ name }) => name))]
    this.#holds.abort(reason)
    this.#refreshers.abort(reason)
    await Promise.race([ended, sleep(releasePatienceMs, undefined, { ref: false })])
  }

  /** After drain: what was aborted at the end of the grace. */
  get aborted(): readonly string[] {
    return this.#aborted
  }

  async end(): Promise<void> {}

  async disconnect(): Promise<void> {
    await this.#maintaining
  }

  // ---- what its loops share

  get #pollMs(): number {
    const { pollMs } = this.#options
    return this.#process.isListening ? pollMs : Math.min(pollMs, deafPollMs)
  }

  #createHost(): Host {
    const { events, leaseMs } = this.#options
    const { board, config, engine } = this.#process
    return {
      config,
      engine,
      reader: engine,
      pool: this.#pool,
      reset: `select pawl.reset_session(${config.database.pooler === 'none'})`,
      idleMs: (timeoutMs) => Math.max(leaseMs, timeoutMs + 1000),
      watch: (name, timeoutMs) => {
        const watched = { id: '0', fence: '0', slot: -1, definition: { timeoutMs }, name }
        this.#handling.add(watched)
        board.enter(watched)
        return () => {
          this.#handling.delete(watched)
          board.leave(watched)
        }
      },
      events,
      installation: () => this.#process.installation,
      idleLookMs: () => Math.max(1, this.#holds.size) * idleLookPolls * this.#pollMs,
      onRefreshable: () => this.#refreshers.wake(),
      failed: (definition, failure) => this.#failed(definition, failure),
      parked: (parked) => {
        config.logger.warn({ ...parked }, 'a key was parked')
        events.emit('projection.parked', parked)
      },
      loop: (name) => this.#loop(name),
      onTrouble: (error) => this.#trouble(error),
    }
  }

  #loop(name: string): LoopWatch {
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
        this.#trouble(error)
      },
    }
  }

  #failed(definition: Defined, failure: ProjectionEvents['projection.failed']): void {
    this.#options.events.emit('projection.failed', failure)
    const nowMs = monotonicMs()
    const loggedMs = this.#failureLoggedMs.get(definition) ?? Number.NEGATIVE_INFINITY
    if (failure.retryInMs === undefined || nowMs - loggedMs < troubleEveryMs) return
    this.#failureLoggedMs.set(definition, nowMs)
    this.#process.config.logger.warn(
      { ...failure, event: 'projection.failed', error: describeError(failure.error, 1000) },
      `${definition.kind === 'sink' ? 'sink' : 'projection'} failed, will be retried (logged once a minute)`,
    )
  }

  /** Every loop meets a database that is away, several times a second. */
  #trouble(error: unknown): void {
    const nowMs = monotonicMs()
    if (this.#process.signal.aborted || nowMs - this.#troubleLoggedMs < troubleEveryMs) return
    this.#troubleLoggedMs = nowMs
    this.#process.config.logger.warn({ error: String(error) }, 'cursor error; retrying (logged once a minute)')
  }

  #recovered(): void {
    if (this.#troubleLoggedMs === Number.NEGATIVE_INFINITY) return
    this.#troubleLoggedMs = Number.NEGATIVE_INFINITY
    this.#process.config.logger.warn({}, 'the cursors work again')
  }
}
