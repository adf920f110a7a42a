// Refreshes the entities of state projections, in any number of processes. The one that has an entity's lock first deletes the marks that it
// sees, then reads the current state, so what it writes is at least as new as the events of those marks; a mark that comes later is
// refreshed again. Two refreshes of one entity never overlap. `refreshMany` has one lock for all entities of a generation instead of one each.

import { classify, isConflict, isOwn } from '../db/classify.ts'
import { type Parameter, statement } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { describeError, isPawlError, type PawlError, shown } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { solitude } from '../kernel/handler.ts'
import { refused, resolve } from '../kernel/options.ts'
import { probe } from '../kernel/probe.ts'
import { Service } from '../kernel/service.ts'
import { markDirty, tripBreaker } from './applier.ts'
import { type Defined, type DefinedState, foldOf, idOf, type OwnRefresh } from './definition.ts'
import { callHandler, messageOf, openTx, whenUnlocked } from './fenced.ts'
import { markDelay } from './options.ts'
import type { Host } from './part.ts'
import type { RefreshContext } from './types.ts'

const nextDueStatement = statement(import.meta.url, 'next-due')
const takeStatement = statement(import.meta.url, 'take-dirty')
const takeAllStatement = statement(import.meta.url, 'take-all-dirty')
const clearStatement = statement(import.meta.url, 'clear-dirty')
const clearDueStatement = statement(import.meta.url, 'clear-due')
const failStatement = statement(import.meta.url, 'fail-dirty')
const delayStatement = statement(import.meta.url, 'delay-dirty')

/** For a while after the log has grown: another process may mark what it read. */
const quickPollMs = 250
const quickForMs = 5000
/** Of the idle refreshers of a definition the first polls, and wakes the others. */
const othersPollMs = 10_000
/** An entity that is refreshed for long gathers marks. When all that were looked at are of such, more are looked at, up to a limit. */
const marksMin = 64
const marksMax = 16_384

type Outcome = 'refreshed' | 'nothing' | 'failed'

/** Without an entity: all that are due, up to a limit. */
interface Taken {
  readonly entity: string | undefined
  readonly is_live: boolean
  readonly refresh?: OwnRefresh
}

interface Looked {
  readonly entity: string | null
  readonly is_live: boolean
  readonly marks: number
}

export class Refreshers {
  readonly #host: Host
  readonly #services: readonly Service[]
  readonly #stop = new AbortController()
  readonly #graceOver = new AbortController()
  #grownMs = Number.NEGATIVE_INFINITY

  constructor(definitions: readonly Defined[], host: Host) {
    this.#host = host
    this.#services = definitions.flatMap((definition) => {
      if (definition.kind !== 'state') return []
      const idle = new Set<Service>()
      return Array.from({ length: definition.concurrency }, () => this.#refresher(definition, idle))
    })
  }

  /** The log has grown. */
  grown(): void {
    this.#grownMs = monotonicMs()
    this.wake()
  }

  wake(): void {
    for (const service of this.#services) service.wake()
  }

  stop(): void {
    this.#stop.abort()
  }

  /** Aborts the refreshes that still run. Their transactions roll back, and another process refreshes these entities. */
  abort(reason: PawlError): void {
    this.#graceOver.abort(reason)
  }

  async run(): Promise<void> {
    await Promise.all(this.#services.map((service) => service.run()))
  }

  /** `idle`: the refreshers of this definition that have nothing to do, in the order in which they came to that. */
  #refresher(definition: DefinedState, idle: Set<Service>): Service {
    // After an entity most likely another one is due.
    let isBusy = false
    // Of a batch that failed: tried one by one.
    const alone: string[] = []
    const round = async (): Promise<number> => {
      const dueInMs = isBusy ? 0 : await this.#dueInMs(definition)
      const isFound = !isBusy && dueInMs <= 0
      if (isFound && isFirst(idle, service)) this.wake()
      // Before the refresh, which may take long: another one polls.
      if (isFound) idle.delete(service)
      const outcome = isBusy || isFound ? await solitude.run(() => this.#refreshNext(definition, alone)) : 'nothing'
      isBusy = outcome === 'refreshed' || outcome === 'failed'
      if (isBusy) return 0
      idle.add(service)
      return isFirst(idle, service) ? this.#waitMs(dueInMs) : othersPollMs
    }
    const loop = this.#host.loop(`refreshes of ${definition.name}`)
    const service: Service = new Service({ round, signal: this.#stop.signal, loop })
    return service
  }

  async #dueInMs(definition: DefinedState): Promise<number> {
    const [row] = await this.#host.engine.run<{ due_in_ms: number }>(nextDueStatement, idOf(definition))
    return row?.due_in_ms ?? Number.POSITIVE_INFINITY
  }

  #waitMs(dueInMs: number): number {
    // One that is due and cannot be taken is locked, or its cursor is paused.
    const isQuick = dueInMs <= 0 || monotonicMs() - this.#grownMs < quickForMs
    return Math.min(dueInMs > 0 ? dueInMs : quickPollMs, isQuick ? quickPollMs : Number.POSITIVE_INFINITY, this.#host.pollMs)
  }

  async #refreshNext(definition: DefinedState, alone: string[]): Promise<Outcome> {
    const { name, timeout } = definition
    const tx = await openTx(this.#host)
    const leave = this.#host.watch(name, timeout)
    let entities: readonly string[] = []
    try {
      const taken = await this.#take(definition, alone[0], tx)
      if (taken === undefined) {
        await tx.rollback()
        return 'nothing'
      }
      alone.shift()
      if (taken.entity !== undefined) entities = [taken.entity]
      if (probe.on) await probe.hit('projections.state.taken', taken.entity)
      tx.send('savepoint refresh')
      const cleared = await clear(definition, taken.entity, tx)
      if (taken.entity === undefined) entities = cleared
      if (cleared.length > 0) await this.#handle(definition, cleared, taken.is_live, tx)
      if (probe.on) await probe.hit('projections.state.handled', entities)
      await tx.releaseSavepoint('refresh')
      await tx.commit()
      if (taken.refresh !== undefined) definition.own?.committed(taken.refresh)
      return entities.length > 0 ? 'refreshed' : 'nothing'
    } catch (error) {
      if (entities.length === 0) throw error
      return await this.#failed(definition, entities, alone, tx, error)
    } finally {
      leave()
      tx.release()
    }
  }

  async #take(definition: DefinedState, entity: string | undefined, tx: Transaction): Promise<Taken | undefined> {
    const { entitiesMax, timeout } = definition
    const idle_ms = String(this.#host.idleMs(timeout))
    const values = { ...idOf(definition), idle_ms, fold: foldOf(definition) }
    if (entitiesMax === undefined) return takeOne(tx, values)
    const [row] = await tx.run<{ is_live: boolean } & OwnRefresh>(takeAllStatement, values)
    return row && { entity, is_live: row.is_live, refresh: row }
  }

  /** While the entity's lock is still held, so that no other process tries it before its delay is written. */
  async #failed(
    definition: DefinedState,
    entities: readonly string[],
    alone: string[],
    tx: Transaction,
    error: unknown,
  ): Promise<Outcome> {
    const entity = entities[0]!
    // What a refresh met elsewhere, such as another database that cannot write, is its failure.
    const kind = isOwn(error) ? classify(error) : 'foreign'
    const isOurs = isOwn(error) && (kind === 'unwritable' || isConflict(error) || isPawlError(error, 'PAWL_COMMIT_UNKNOWN'))
    const isTimedOut = isPawlError(error, 'PAWL_TIMED_OUT')
    // A commit that the server refused, for a constraint that it checks only then, has ended the transaction; one that it never got has not.
    const isRefused = !tx.isOpen && !isOurs && kind !== 'connection'
    if (this.#graceOver.signal.aborted && error === this.#graceOver.signal.reason) {
      tx.abandon(this.#graceOver.signal.reason as PawlError)
      tx.release()
      return 'failed'
    }
    if (entities.length > 1 && !isOurs && kind !== 'connection') {
      if (isTimedOut) tx.abandon(error)
      else await tx.rollback()
      alone.push(...entities)
      return 'failed'
    }
    if (isTimedOut || isRefused) {
      // It may sit in a statement: without its connection the server rolls it back, and what follows is written on another one.
      if (isTimedOut) tx.abandon(error)
      tx.release()
      const isParked = await whenUnlocked(this.#host, this.#stop.signal, (other) =>
        this.#putOff(definition, entity, error, other),
      )
      if (isParked) await tripBreaker(this.#host, definition)
      return 'failed'
    }
    try {
      if (isOurs || !tx.isOpen) throw error
      await tx.query('rollback to savepoint refresh')
      const isParked = await this.#putOff(definition, entity, error, tx)
      await tx.commit()
      if (isParked) await tripBreaker(this.#host, definition)
      return 'failed'
    } catch (reason) {
      await tx.rollback()
      throw reason
    }
  }

  async #handle(definition: DefinedState, entities: readonly string[], isLive: boolean, tx: Transaction): Promise<void> {
    const what = `${definition.name} for ${entities.length === 1 ? entities[0] : `${entities.length} entities`}`
    await callHandler(this.#host, definition, { what, isLive, lost: this.#graceOver.signal }, tx, async (context) => {
      await definition.refresh(entities, tx, Object.assign(context, { mark: marking(definition, tx) }))
    })
  }

  async #putOff(definition: DefinedState, entity: string, error: unknown, runs: Transaction): Promise<boolean> {
    const { name } = definition
    const key = { ...idOf(definition), entity }
    const [row] = await runs.run<{ attempts: number; position: string }>(failStatement, { ...key, error: describeError(error) })
    if (row === undefined) return false
    const attempt = row.attempts
    const position = Number(row.position)
    const retryInMs = this.#host.failed(definition, { key: entity, position, attempt, error })
    const reason = `The refresh of ${entity} failed ${attempt} time(s): ${messageOf(error)}`
    await runs.run(delayStatement, { ...key, delay_ms: retryInMs ?? null, reason })
    if (retryInMs === undefined) this.#host.parked({ name, key: entity, position, reason })
    return retryInMs === undefined
  }
}

function isFirst(idle: ReadonlySet<Service>, service: Service): boolean {
  const [first] = idle
  return first === service
}

async function takeOne(tx: Transaction, values: Readonly<Record<string, Parameter>>): Promise<Taken | undefined> {
  for (let marks = marksMin; marks <= marksMax; marks *= 16) {
    const [row] = await tx.run<Looked>(takeStatement, { ...values, marks })
    if (row?.entity) return { entity: row.entity, is_live: row.is_live }
    if (row === undefined || row.marks < marks) return undefined
  }
  return undefined
}

/** The entities whose marks it took away. */
async function clear(definition: DefinedState, entity: string | undefined, tx: Transaction): Promise<readonly string[]> {
  const key = idOf(definition)
  if (entity !== undefined) return (await tx.run(clearStatement, { ...key, entity })).length > 0 ? [entity] : []
  const rows = await tx.run<{ entity: string }>(clearDueStatement, { ...key, limit: definition.entitiesMax! })
  return rows.map((row) => row.entity)
}

function marking(definition: DefinedState, tx: Transaction): RefreshContext['mark'] {
  return async (entities, options = {}) => {
    const { delay: delay_ms } = resolve('mark', { delay: markDelay }, options)
    if (!Array.isArray(entities) || entities.some((entity) => typeof entity !== 'string'))
      throw refused('mark', `entities must be an array of strings, got ${shown(entities)}`)
    const marks = entities.map((entity) => ({ entity, position: 0 }))
    await markDirty(tx, definition, marks, delay_ms)
  }
}
