// Applies events in one fenced transaction: those of parked keys are parked too, the others go to the handler, and the cursor moves past all
// of them. A state projection only notes which entities changed. Keys that an operator has unparked are replayed in order, each event in a
// transaction that does not move the cursor; the one that takes the last event frees the key.

import { numbersLiteral, type Parameter, statement, textsLiteral } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { describeError } from '../errors.ts'
import { readLog } from '../events/read-log.ts'
import type { LogEvent } from '../events/types.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { solitude } from '../kernel/handler.ts'
import { probe } from '../kernel/probe.ts'
import { type HeldCursor, type Place, placeOf } from './cursor.ts'
import { type Defined, type DefinedLog, type DefinedState, idOf } from './definition.ts'
import { type FencedEnd, type HandlerContext, messageOf, runFenced } from './fenced.ts'
import type { Host } from './part.ts'

export const parkedStatements = {
  key: statement(import.meta.url, 'park-key'),
  events: statement(import.meta.url, 'park-events'),
  keys: statement(import.meta.url, 'parked-keys'),
  has: statement(import.meta.url, 'has-parked'),
  among: statement(import.meta.url, 'parked-among'),
  skippedAmong: statement(import.meta.url, 'skipped-among'),
  nextUnparking: statement(import.meta.url, 'next-unparking'),
  try: statement(import.meta.url, 'try-parked'),
  take: statement(import.meta.url, 'take-parked-event'),
  free: statement(import.meta.url, 'unpark-key'),
  repark: statement(import.meta.url, 'repark'),
  tripBreaker: statement(import.meta.url, 'trip-breaker'),
} as const
const feedStatement = statement(import.meta.url, 'feed-dirty')

/** After a conflict with another transaction, and beside the deciding run of a job. */
const replayAgainMs = 250

export interface ParkReason {
  readonly reason: string
  /** Undefined: the event was not tried. */
  readonly error: unknown
  readonly attempts: number
}

/** Tenants have keys of their own. */
export type EventKey = Pick<LogEvent, 'tenant' | 'key'>

export interface NextParked extends EventKey {
  /** Null: the key has no event left. */
  readonly position: string | null
}

export class Applier {
  readonly #cursor: HeldCursor
  readonly #definition: DefinedLog | DefinedState
  readonly #host: Host
  /** Only the holder parks keys, so a holder that has none does not query them. Once true it stays so: a query that finds none costs little. */
  hasParked = false
  /** Replays are polled for from here on; 0: now. */
  #replayAtMs = 0

  constructor(cursor: HeldCursor, definition: DefinedLog | DefinedState, host: Host) {
    this.#cursor = cursor
    this.#definition = definition
    this.#host = host
  }

  async begin(): Promise<void> {
    this.hasParked ||= (await this.#host.engine.run(parkedStatements.has, this.#cursor.key)).length > 0
    this.changed()
  }

  /** The next `replay` polls: an operator may have unparked a key. */
  changed(): void {
    this.#replayAtMs = 0
  }

  /** Milliseconds until the next poll for replays. */
  get replayInMs(): number {
    return this.hasParked ? Math.max(replayAgainMs, this.#replayAtMs - monotonicMs()) : Number.POSITIVE_INFINITY
  }

  /** Whether a handler would see it. */
  isHandled(event: LogEvent): boolean {
    const definition = this.#definition
    return definition.kind === 'state' || definition.batch !== undefined || definition.handlerOf(event) !== undefined
  }

  async apply(events: readonly LogEvent[], to: Place): Promise<FencedEnd> {
    const [first] = events
    let parked = new Set<string>()
    let skipped = new Set<string>()
    // The act of skipping moves the live generation past the event; other generations reach it later, or again.
    const maySkip = first !== undefined && (!this.#cursor.isLive || first.position <= this.#cursor.skippedTo)
    const prepare = async (tx: Transaction) => {
      const asked = maySkip ? this.#skippedAmong(tx, events) : skipped
      if (this.hasParked) parked = await this.#parkedAmong(tx, events)
      skipped = await asked
    }
    const end = await runFenced(this.#host, this.#cursor, {
      to,
      what: first === undefined ? 'no event' : `${this.#definition.name} at event ${first.position} (${first.type})`,
      prepare: first !== undefined && (maySkip || this.hasParked) ? prepare : undefined,
      handle: async (tx, context) => {
        if (probe.on) await probe.hit('projections.batch.moved', this.#cursor)
        const left = skipped.size === 0 ? events : events.filter(({ id }) => !skipped.has(id))
        const waiting = parked.size === 0 ? [] : left.filter((event) => parked.has(keyOf(event)))
        if (waiting.length > 0) await parkEvents(tx, this.#cursor, waiting)
        await this.#handle(waiting.length === 0 ? left : left.filter((event) => !parked.has(keyOf(event))), tx, context)
        if (probe.on) await probe.hit('projections.batch.handled', this.#cursor)
      },
    })
    if (end.type === 'committed' && this.#definition.kind === 'state') this.#host.onRefreshable()
    return end
  }

  /** Gives the events to the handler, inside its transaction. One that returns nothing is not waited for. */
  async #handle(events: readonly LogEvent[], tx: Transaction, context: HandlerContext): Promise<void> {
    const definition = this.#definition
    if (events.length === 0) return
    if (definition.kind === 'state') return markDirty(tx, definition, marksOf(definition, events))
    if (definition.batch !== undefined) {
      await definition.batch(events, tx, context)
      return
    }
    for (const event of events) {
      context.timer?.refresh()
      const answer = definition.handlerOf(event)?.(event, tx, context)
      if (answer !== undefined) await (answer as Promise<unknown>)
      if (probe.on) await probe.hit('projections.event.handled', event)
    }
  }

  async #skippedAmong(tx: Transaction, events: readonly LogEvent[]): Promise<Set<string>> {
    const { tenant, name } = this.#definition
    const [from_position, to_position] = [events[0]!.position, events.at(-1)!.position]
    const values = { tenant, name, from_position, to_position }
    const rows = await tx.run<{ event_id: string }>(parkedStatements.skippedAmong, values)
    return new Set(rows.map(({ event_id }) => event_id))
  }

  async #parkedAmong(tx: Transaction, events: readonly LogEvent[]): Promise<Set<string>> {
    const values = { ...this.#cursor.key, ...keysOf(events) }
    return new Set((await tx.run<EventKey>(parkedStatements.among, values)).map(keyOf))
  }

  // ---- parked keys

  /** Moves past an event without applying it, and parks its key. */
  async park(event: LogEvent, why: ParkReason): Promise<FencedEnd> {
    const { name } = this.#definition
    // Before it is known: a commit without an answer may have parked it.
    this.hasParked = true
    const end = await runFenced(this.#host, this.#cursor, {
      to: placeOf(event),
      what: `${name} at event ${event.position}`,
      handle: async (tx) => {
        if (probe.on) await probe.hit('projections.park.before', event)
        await parkKey(tx, this.#cursor, [event], why)
      },
    })
    if (end.type !== 'committed') return end
    this.#host.parked({ name, key: event.key, position: event.position, reason: why.reason })
    await tripBreaker(this.#host, this.#definition)
    return end
  }

  /** Replays the next event of every key that is to be replayed. 'refused': the cursor is to be reloaded. */
  async replay(): Promise<'replayed' | 'nothing' | 'refused'> {
    if (!this.hasParked || monotonicMs() < this.#replayAtMs) return 'nothing'
    // Set before the poll: a notification that comes during it sets this to 0, so the next call polls again.
    this.#replayAtMs = monotonicMs() + this.#host.idlePollMs
    let hasReplayed = false
    for (const next of await nextUnparking(this.#host, this.#cursor)) {
      const end = await solitude.run(() => this.#replayNext(next))
      if (end === 'refused') {
        this.changed()
        return end
      }
      hasReplayed ||= end === 'committed'
      if (end === 'again' || end === undefined) this.#replayAtMs = Math.min(this.#replayAtMs, monotonicMs() + replayAgainMs)
    }
    if (hasReplayed) this.#replayAtMs = 0
    return hasReplayed ? 'replayed' : 'nothing'
  }

  async #replayNext(next: NextParked): Promise<FencedEnd['type']> {
    const { name } = this.#definition
    const event = await parkedEvent(this.#host, next)
    const deaths = await tryParked(this.#host, this.#cursor, event)
    if (deaths !== undefined) return this.#repark(next, deaths)
    let isFree = false
    const loop = this.#host.loop(`parked keys of ${name}`)
    const end = await runFenced(this.#host, this.#cursor, {
      to: undefined,
      what: `${name} at parked event ${next.position}`,
      handle: async (tx, context) => {
        const key = parkedKey(this.#cursor, next)
        const taken = event === undefined ? [] : await tx.run(parkedStatements.take, { ...key, position: event.position })
        if (taken.length > 0) await this.#handle([event!], tx, context)
        if (probe.on) await probe.hit('projections.unpark.handled', event)
        isFree = (await tx.run(parkedStatements.free, key)).length > 0
      },
    })
    if (end.type === 'failed') return this.#repark(next, end.error)
    if (end.type === 'again') loop.failed(end.error)
    if (end.type !== 'committed') return end.type
    loop.succeeded()
    if (isFree) this.#host.events.emit('projection.unparked', { name, key: next.key })
    return end.type
  }

  /** The replay failed: the key waits for a person again, with the new error. */
  async #repark(next: NextParked, error: unknown): Promise<'failed'> {
    const { name } = this.#definition
    const position = Number(next.position)
    await runFenced(this.#host, this.#cursor, {
      to: undefined,
      what: `${name} at parked event ${position}`,
      handle: (tx) => reparkKey(tx, this.#cursor, { ...next, position }, error),
    })
    this.#host.parked({ name, key: next.key, position, reason: messageOf(error) })
    return 'failed'
  }
}

export function parkedKey({ key }: HeldCursor, event: EventKey): Readonly<Record<string, Parameter>> {
  return { ...key, key_tenant: event.tenant, key: event.key }
}

/** Parks the key of the first event, and the events in order. */
export async function parkKey(
  tx: Transaction,
  cursor: HeldCursor,
  events: readonly LogEvent[],
  { reason, error, attempts }: ParkReason,
): Promise<void> {
  const described = error === undefined ? null : describeError(error)
  await tx.run(parkedStatements.key, { ...parkedKey(cursor, events[0]!), reason, error: described, attempts })
  await parkEvents(tx, cursor, events)
}

export async function reparkKey(
  tx: Transaction,
  cursor: HeldCursor,
  event: EventKey & { readonly position: number },
  error: unknown,
): Promise<void> {
  const reason = `The replay of event ${event.position} failed: ${messageOf(error)}`
  await tx.run(parkedStatements.repark, { ...parkedKey(cursor, event), reason, error: describeError(error) })
}

export async function parkEvents(tx: Transaction, cursor: HeldCursor, events: readonly LogEvent[]): Promise<void> {
  const positions = numbersLiteral(events.map((event) => event.position))
  await tx.run(parkedStatements.events, { ...cursor.key, ...keysOf(events), positions })
}

function keysOf(events: readonly LogEvent[]): { key_tenants: string; keys: string } {
  return {
    key_tenants: textsLiteral(events.map((event) => event.tenant)),
    keys: textsLiteral(events.map((event) => event.key)),
  }
}

/** Neither part can contain a NUL. */
export function keyOf({ tenant, key }: EventKey): string {
  return `${tenant}\u0000${key}`
}

export async function nextUnparking(host: Host, cursor: HeldCursor): Promise<NextParked[]> {
  return host.engine.run<NextParked>(parkedStatements.nextUnparking, cursor.key)
}

export async function parkedEvent(host: Host, next: NextParked): Promise<LogEvent | undefined> {
  if (next.position === null) return undefined
  const { events } = await readLog(host.engine, { after: Number(next.position) - 1, limit: 1 })
  return events[0]
}

/** After a crash, before an event is replayed, alone. Returns why it must not be: processes died at it `retry.crashes` times. */
export async function tryParked(host: Host, cursor: HeldCursor, event: LogEvent | undefined): Promise<string | undefined> {
  if (event === undefined || cursor.crashes === 0) return undefined
  const [row] = await host.engine.run<{ crashes: number }>(parkedStatements.try, {
    ...parkedKey(cursor, event),
    fence: cursor.fence,
    worker: cursor.worker,
    position: event.position,
  })
  if (row === undefined || row.crashes < cursor.definition.retry.crashes) return undefined
  return `the process died ${row.crashes} times.`
}

/**
 * The breaker: a deploy that cannot apply its events would park key after key; after `breaker.keys` within `breaker.within` the generation is paused.
 * It counts rows, so if a process dies before this, the next parking trips it.
 */
export async function tripBreaker(host: Host, definition: Defined): Promise<void> {
  const { name, generation, breaker } = definition
  const values = { ...idOf(definition), keys: breaker.keys, within_ms: breaker.within }
  const [row] = await host.engine.run<{ reason: string }>(parkedStatements.tripBreaker, values)
  if (row !== undefined) host.config.logger.error({ name, generation, reason: row.reason }, 'the breaker paused a projection')
}

interface Mark {
  readonly entity: string
  /** 0: no event waits for it. */
  readonly position: number
}

function marksOf({ entitiesOf }: DefinedState, events: readonly LogEvent[]): Mark[] {
  return events.flatMap((event) => entitiesOf(event).map((entity) => ({ entity, position: event.position })))
}

/** One row per entity and transaction, with the positions that changed it: `seen` of one of them waits for this row. */
export async function markDirty(tx: Transaction, definition: Defined, marks: readonly Mark[], delay_ms = 0): Promise<void> {
  if (marks.length === 0) return
  await tx.run(feedStatement, {
    ...idOf(definition),
    entities: textsLiteral(marks.map(({ entity }) => entity)),
    positions: numbersLiteral(marks.map(({ position }) => position)),
    delay_ms,
  })
}
