// The verbs of projections, reactions and sinks: define them, read how they are, and what operators do to them.

import type { Config } from '../config.ts'
import { createPool, type Pool } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { resolve, type WaitOptions } from '../kernel/options.ts'
import { camelCase, type Page } from '../kernel/pages.ts'
import { read, retryingCall } from '../kernel/retry.ts'
import { type Defined, defineProjection, defineReaction, defineSink, definitionKey } from './definition.ts'
import { compare, type Pair, rebuild, retire, rollBack, switchTo } from './generations/rebuild.ts'
import { qualifyTables } from './generations/tables.ts'
import { cursorsOf, forget, pause, resume, skip, type Target, unpark } from './operator.ts'
import {
  actTable,
  compareTable,
  generationTable,
  parkedTable,
  pauseTable,
  resumeTable,
  seenTable,
  skipTable,
  switchTable,
  unparkTable,
} from './options.ts'
import { waitUntilSeen } from './seen.ts'
import type {
  Act,
  Comparison,
  CursorStatus,
  LogProjectionOptions,
  ParkedKey,
  ReactionOptions,
  ResumeFrom,
  SinkOptions,
  StateProjectionOptions,
  Token,
} from './types.ts'

const statusStatement = statement(import.meta.url, 'status')
const listParkedStatement = statement(import.meta.url, 'list-parked')

const comparisonMs = 3_600_000

export interface ProjectionsCore {
  readonly config: Config
  readonly pool: Pool
  readonly definitions: Map<string, Defined>
  /** Those that were made and not stopped. */
  readonly workers: ReadonlySet<unknown>
}

/** Projections, reactions and sinks. Those of `pawl.projections` get the events of all tenants; those of `pawl.for('acme').projections` only that tenant's. */
export class Projections {
  readonly #core: ProjectionsCore
  readonly #tenant: string

  constructor(core: ProjectionsCore, tenant: string) {
    this.#core = core
    this.#tenant = tenant
  }

  /** Declares a projection: a `log` one applies each event once, in order; a `state` one refreshes what events changed. */
  define(name: string, options: LogProjectionOptions | StateProjectionOptions): void {
    this.#add(defineProjection(this.#tenant, name, options))
  }

  /** Declares a handler that acts on events: the jobs and events that it adds through its `tx` exist exactly once per event. It is never rebuilt. */
  react(name: string, options: ReactionOptions): void {
    this.#add(defineReaction(this.#tenant, name, options))
  }

  /** Declares a function that gets every event, in the order of its key, at least once. */
  sink(name: string, options: SinkOptions): void {
    this.#add(defineSink(this.#tenant, name, options))
  }

  /** PAWL_NOT_FOUND: neither the database nor this process knows the name. */
  async status(name?: string): Promise<CursorStatus[]> {
    const rows = await read<Record<string, unknown>>(this.#core.pool, statusStatement, {
      tenant: this.#tenant,
      name: name ?? null,
    })
    if (rows.length === 0 && name !== undefined) await this.#checkKnown(name)
    return rows.map(
      (row) =>
        ({
          ...camelCase<Record<string, unknown>>(row),
          position: Number(row.position),
          lag: Number(row.lag),
        }) as unknown as CursorStatus,
    )
  }

  /** A page of the keys that wait for an operator, oldest first. `next` is null on the last page. */
  async parked(name: string, options: { after?: string; limit?: number } = {}): Promise<Page<ParkedKey>> {
    const { after, limit } = resolve('parked', parkedTable, options)
    // One more than the page has: whether another follows.
    const values = { ...this.#target(name), after: after === undefined ? null : checkPage(after), limit: limit + 1 }
    const rows = await read<Record<string, unknown> & { next: string }>(this.#core.pool, listParkedStatement, values)
    if (rows.length === 0) await this.#checkKnown(name)
    const items = rows.slice(0, limit).map(({ next, ...row }) => {
      const { firstPosition, ...key } = camelCase(row) as unknown as ParkedKey & { firstPosition: string | null }
      return { ...key, name, firstPosition: firstPosition === null ? null : Number(firstPosition) }
    })
    return { items, next: rows.length > limit ? rows[limit - 1]!.next : null }
  }

  /** Stops it. When this resolves, no handler of a projection commits any more; a sink's calls in progress end, and a moment later none begins. */
  async pause(name: string, act: Act & { generation?: number }): Promise<void> {
    resolve('pause', pauseTable, act)
    await pause(this.#core.pool, this.#target(name), act, act.generation ?? null)
  }

  /**
   * Goes on after a pause, a latch, or a lag that made it stale: where it stands (after a latch in the log as it is now), or after `from`. What lies
   * between is missed, or applied again.
   */
  async resume(name: string, act: Act & { generation?: number; from?: ResumeFrom }): Promise<void> {
    resolve('resume', resumeTable, act)
    await resume(this.#core.pool, this.#target(name), act, act.generation ?? null)
  }

  /** Passes over one event: the parked one at this position, or the next one that a projection applies. */
  async skip(name: string, options: Act & { position: number }): Promise<void> {
    resolve('skip', skipTable, options)
    await skip(this.#core.pool, this.#target(name), options.position, options)
  }

  /** Replays a parked key in order, or, without a key, all of them. Gives the keys. */
  async unpark(name: string, options: Act & { key?: string; keyTenant?: string }): Promise<string[]> {
    resolve('unpark', unparkTable, options)
    const which = { key: options.key ?? null, keyTenant: options.keyTenant ?? null }
    return unpark(this.#core.pool, this.#target(name), which, options)
  }

  /** Removes a projection, reaction or sink that no living process defines any more, with its parked keys. Its tables are yours and stay. */
  async forget(name: string, act: Act): Promise<void> {
    resolve('forget', actTable, act)
    await forget(this.#core.pool, this.#target(name), act)
  }

  /** Read-your-writes: resolves when the live generation has applied what was appended with this token. */
  async seen(name: string, token: Token, options: WaitOptions = {}): Promise<void> {
    await waitUntilSeen(this.#core.pool, this.#target(name), token, resolve('seen', seenTable, options))
  }

  /** Starts the highest generation that this process declares beside the live one: its tables are made, and runners fill them from the first event. */
  async rebuild(name: string, act: Act): Promise<{ generation: number }> {
    resolve('rebuild', actTable, act)
    const [definition] = this.#declared(name).sort((a, b) => b.generation - a.generation)
    return rebuild(this.#core.pool, this.#target(name), definition && (await this.#qualified(definition)), act)
  }

  /** Holds both generations at one position and compares the declared columns of their rows. */
  async compare(name: string, options: { generation: number; timeout?: number | string }): Promise<Comparison> {
    const { generation, timeout } = resolve('compare', compareTable, options)
    return this.#compared(name, generation, (pool, pair) => compare(pool, pair, timeout))
  }

  /** Makes a generation the live one, in one transaction, after both stand at one position and their rows are equal (or `mayDiffer` allows it). */
  async switchTo(
    name: string,
    options: Act & { generation: number; mayDiffer?: boolean; timeout?: number | string },
  ): Promise<Comparison> {
    const { generation, timeout: timeoutMs, mayDiffer } = resolve('switchTo', switchTable, options)
    return this.#compared(name, generation, (pool, pair) => switchTo(pool, pair, { ...options, timeoutMs, mayDiffer }))
  }

  /** Makes an earlier generation live again at once, wherever it stands. */
  async rollBack(name: string, options: Act & { generation: number }): Promise<void> {
    resolve('rollBack', generationTable, options)
    await rollBack(this.#core.pool, await this.#pair(name, options.generation), options)
  }

  /** Removes a generation that is not live, and its tables. */
  async retire(name: string, options: Act & { generation: number }): Promise<void> {
    resolve('retire', generationTable, options)
    await retire(this.#core.pool, await this.#pair(name, options.generation), options)
  }

  /** Tables are read from end to end. A connection that gives up would leave its query running, and with it both generations locked. */
  async #compared(name: string, generation: number, work: (pool: Pool, pair: Pair) => Promise<Comparison>): Promise<Comparison> {
    const { tables } = this.#defined(name, generation)
    const pair = await this.#pair(name, generation)
    const pool = createPool({ ...this.#core.config.database, queryTimeoutMs: comparisonMs }, 'comparison', 2, 'own')
    try {
      const comparison = await work(pool, pair)
      return { ...comparison, tables: comparison.tables.map((each, index) => ({ ...each, table: tables[index]!.name })) }
    } finally {
      await pool.end()
    }
  }

  #target(name: string): Target {
    return { tenant: this.#tenant, name }
  }

  #defined(name: string, generation: number): Defined {
    const definition = this.#core.definitions.get(definitionKey({ tenant: this.#tenant, name, generation }))
    if (definition !== undefined) return definition
    throw new PawlError(
      'PAWL_CONFIG',
      `Generation ${generation} of '${name}' is not defined in this process. Define it before this call.`,
    )
  }

  /** The tables are the same for every generation, so any that is defined here has them. */
  async #pair(name: string, generation: number): Promise<Pair> {
    const declared = this.#declared(name)
    const definition = declared.find((each) => each.generation === generation) ?? declared[0] ?? this.#defined(name, generation)
    return { target: this.#target(name), definition: await this.#qualified(definition), generation }
  }

  /** What is defined here and has no cursor yet waits for its first worker. */
  async #checkKnown(name: string): Promise<void> {
    if (this.#declared(name).length === 0) await retryingCall(() => cursorsOf(this.#core.pool, this.#target(name)))
  }

  #declared(name: string): Defined[] {
    return [...this.#core.definitions.values()].filter((each) => each.tenant === this.#tenant && each.name === name)
  }

  #qualified(definition: Defined): Promise<Defined> {
    return qualifyTables(this.#core.config.database, definition)
  }

  #add(definition: Defined): void {
    const key = definitionKey(definition)
    if (this.#core.definitions.has(key))
      throw new PawlError(
        'PAWL_KIND_DEFINED_TWICE',
        `'${definition.name}' generation ${definition.generation} is already defined. Define each generation once.`,
      )
    this.#core.definitions.set(key, definition)
    if (this.#core.workers.size === 0) return
    this.#core.config.logger.warn(
      { projection: definition.name },
      `'${definition.name}' was defined after a worker was created, and that worker will not run it. Define projections, reactions and sinks before pawl.worker(), or create another worker`,
    )
  }
}

/** [time, key, tenant of the key, generation, shard], as list-parked returns it. */
function checkPage(after: string): string {
  const types = 'string string string number number'
  try {
    const parts = JSON.parse(after) as readonly unknown[]
    if (Array.isArray(parts) && parts.map((part) => typeof part).join(' ') === types) return after
  } catch {
    // Not JSON.
  }
  throw new PawlError('PAWL_CONFIG', `after must be the next of the previous page, got ${shown(after)}.`)
}
