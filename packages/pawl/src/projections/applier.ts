// Applies events in one fenced transaction: those of parked keys go behind their keys, the others to the handler, and the cursor moves past all
// of them. A log projection's handler writes its tables; a state projection only notes which entities changed.

import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { describeError } from '../errors.ts'
import type { LogEvent } from '../events/types.ts'
import { probe } from '../kernel/probe.ts'
import { tripBreaker } from './breaker.ts'
import type { HandlerContext } from './context.ts'
import type { HeldCursor, Place } from './cursor.ts'
import { placeOf } from './cursor.ts'
import type { DefinedLog, DefinedState } from './definition.ts'
import { type FencedEnd, handleEach, runFenced } from './fenced.ts'
import type { World } from './world.ts'

const parkedAmongStatement = statement(import.meta.url, 'parked-among')
const hasParkedStatement = statement(import.meta.url, 'has-parked')
const skippedAmongStatement = statement(import.meta.url, 'skipped-among')
export const parkKeyStatement = statement(import.meta.url, 'park-key')
export const parkEventsStatement = statement(import.meta.url, 'park-events')
const feedStatement = statement(import.meta.url, 'feed-dirty')

export interface ParkReason {
  readonly reason: string
  readonly error: unknown
  readonly attempts: number
}

export class Applier {
  readonly #cursor: HeldCursor
  readonly #definition: DefinedLog | DefinedState
  readonly #world: World
  /** Only the holder parks keys, so a holder that has none does not look. Once true it stays so: to look in vain costs little. */
  hasParked = false

  constructor(cursor: HeldCursor, definition: DefinedLog | DefinedState, world: World) {
    this.#cursor = cursor
    this.#definition = definition
    this.#world = world
  }

  async begin(): Promise<void> {
    this.hasParked ||= (await this.#world.engine.run(hasParkedStatement, this.#cursor.key)).length > 0
  }

  /** Whether a handler would see it. */
  isHandled(event: LogEvent): boolean {
    const definition = this.#definition
    return definition.kind === 'state' || definition.isBatch || definition.handlerOf(event) !== undefined
  }

  /** The events are on one side of where effects begin. */
  async apply(events: readonly LogEvent[], to: Place): Promise<FencedEnd> {
    const [first] = events
    let parked = new Set<string>()
    let skipped = new Set<string>()
    const isEffective = first !== undefined && first.position > (this.#cursor.effectsAfter ?? Number.POSITIVE_INFINITY)
    return runFenced(this.#world, this.#cursor, {
      to,
      what: first === undefined ? 'no event' : `${this.#definition.name} at event ${first.position} (${first.type})`,
      isEffective,
      timeoutMs: this.#definition.timeoutMs,
      prepare: async (tx) => {
        if (events.length === 0) return
        // What a person skips, the live generation passes over with that very act; the others come to it later, or again.
        const asked = isEffective ? skipped : this.#skippedAmong(tx, events)
        if (this.hasParked) parked = await this.#parkedAmong(tx, events)
        skipped = await asked
      },
      handle: async (tx, context) => {
        if (probe.on) await probe.hit('projections.batch.moved', this.#cursor)
        const left = skipped.size === 0 ? events : events.filter(({ id }) => !skipped.has(id))
        const waiting = parked.size === 0 ? [] : left.filter((event) => parked.has(keyOf(event)))
        if (waiting.length > 0) await parkEvents(tx, this.#cursor, waiting)
        await this.handle(waiting.length === 0 ? left : left.filter((event) => !parked.has(keyOf(event))), tx, context)
        if (probe.on) await probe.hit('projections.batch.handled', this.#cursor)
      },
      onCommitted: () => {
        if (this.#definition.kind === 'state') this.#world.onRefreshable()
      },
    })
  }

  /** Gives the events to the handler, inside its transaction. */
  async handle(events: readonly LogEvent[], tx: Transaction, context: HandlerContext): Promise<void> {
    const definition = this.#definition
    if (events.length === 0) return
    if (definition.kind === 'state') return this.#feed(events, tx)
    if (definition.batch !== undefined) {
      await definition.batch(events, tx, context)
      return
    }
    const after = probe.on ? (event: LogEvent) => probe.hit('projections.event.handled', event) : undefined
    const handle = (event: LogEvent) => {
      context.timer?.refresh()
      return definition.handlerOf(event)?.(event, tx, context)
    }
    await handleEach(events, handle, after)
  }

  /** Moves past an event without applying it, and parks its key. */
  async park(event: LogEvent, { reason, error, attempts }: ParkReason): Promise<FencedEnd> {
    const { name } = this.#definition
    // Before it is known: a commit without an answer may have parked it.
    this.hasParked = true
    const end = await runFenced(this.#world, this.#cursor, {
      to: placeOf(event),
      what: `${name} at event ${event.position}`,
      isEffective: false,
      timeoutMs: this.#definition.timeoutMs,
      handle: async (tx) => {
        if (probe.on) await probe.hit('projections.park.before', event)
        await tx.run(parkKeyStatement, {
          ...this.#cursor.key,
          key_tenant: event.tenant,
          key: event.key,
          reason,
          error: error === undefined ? null : describeError(error),
          attempts,
        })
        await parkEvents(tx, this.#cursor, [event])
      },
      onCommitted: () => {
        this.#world.config.logger.warn({ name, key: event.key, position: event.position, reason }, 'a key was parked')
        this.#world.events.emit('projection.parked', { name, key: event.key, position: event.position, reason })
      },
    })
    if (end.type === 'committed') await tripBreaker(this.#world, this.#definition)
    return end
  }

  /** One row per entity and transaction, with the positions that changed it: who waits for one of them waits for this row. */
  async #feed(events: readonly LogEvent[], tx: Transaction): Promise<void> {
    const definition = this.#definition as DefinedState
    const [entities, positions]: [string[], number[]] = [[], []]
    for (const event of events) {
      for (const entity of definition.entitiesOf(event)) {
        entities.push(entity)
        positions.push(event.position)
      }
    }
    if (entities.length === 0) return
    const { tenant, name, generation } = definition
    await tx.run(feedStatement, {
      tenant,
      name,
      generation,
      entities: textsLiteral(entities),
      positions: numbersLiteral(positions),
    })
  }

  async #skippedAmong(tx: Transaction, events: readonly LogEvent[]): Promise<Set<string>> {
    const { tenant, name } = this.#definition
    const [from_position, to_position] = [events[0]!.position, events.at(-1)!.position]
    const rows = await tx.run<{ event_id: string }>(skippedAmongStatement, { tenant, name, from_position, to_position })
    return new Set(rows.map(({ event_id }) => event_id))
  }

  async #parkedAmong(tx: Transaction, events: readonly LogEvent[]): Promise<Set<string>> {
    const rows = await tx.run<{ key_tenant: string; key: string }>(parkedAmongStatement, {
      ...this.#cursor.key,
      key_tenants: textsLiteral(events.map((event) => event.tenant)),
      keys: textsLiteral(events.map((event) => event.key)),
    })
    return new Set(rows.map((row) => keyOf({ tenant: row.key_tenant, key: row.key })))
  }
}

export async function parkEvents(tx: Transaction, cursor: HeldCursor, events: readonly LogEvent[]): Promise<void> {
  await tx.run(parkEventsStatement, {
    ...cursor.key,
    key_tenants: textsLiteral(events.map((event) => event.tenant)),
    keys: textsLiteral(events.map((event) => event.key)),
    positions: numbersLiteral(events.map((event) => event.position)),
  })
}

/** Tenants have keys of their own. Neither can have a NUL in it. */
export function keyOf(event: { readonly tenant: string; readonly key: string }): string {
  return `${event.tenant}\u0000${event.key}`
}
