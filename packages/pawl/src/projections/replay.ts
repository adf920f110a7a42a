// Replays the events of keys that an operator has unparked, in order, each in a fenced transaction that does not move the cursor. While it
// goes on the key stays parked, so later events queue behind; the transaction that takes the last one frees the key.

import { statement } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import { readLog } from '../events/read-log.ts'
import type { LogEvent } from '../events/types.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { probe } from '../kernel/probe.ts'
import { solitude } from '../kernel/solitude.ts'
import type { Applier } from './applier.ts'
import type { HeldCursor } from './cursor.ts'
import { messageOf, runFenced } from './fenced.ts'
import type { World } from './world.ts'

const nextStatement = statement(import.meta.url, 'next-unparking')
const tryStatement = statement(import.meta.url, 'try-parked')
export const takeEventStatement = statement(import.meta.url, 'take-parked-event')
export const unparkKeyStatement = statement(import.meta.url, 'unpark-key')
export const reparkStatement = statement(import.meta.url, 'repark')

const lookEveryMs = 250

export interface NextParked {
  readonly key_tenant: string
  readonly key: string
  readonly position: string | null
}

interface Taken {
  readonly owes_effects: boolean
}

export async function nextUnparking(world: World, cursor: HeldCursor): Promise<NextParked[]> {
  return world.engine.run<NextParked>(nextStatement, cursor.key)
}

export class Replay {
  readonly #cursor: HeldCursor
  readonly #applier: Applier
  readonly #world: World
  #lookedMs = 0

  constructor(cursor: HeldCursor, applier: Applier, world: World) {
    this.#cursor = cursor
    this.#applier = applier
    this.#world = world
  }

  get mayHaveParked(): boolean {
    return this.#applier.hasParked
  }

  begin(hasParked: boolean): void {
    if (hasParked) this.#lookedMs = 0
  }

  /** Replays the next event of every key that is to be replayed; says whether there was one. */
  async step(): Promise<boolean> {
    if (!this.#applier.hasParked || monotonicMs() - this.#lookedMs < lookEveryMs) return false
    const keys = await nextUnparking(this.#world, this.#cursor)
    let hasWorked = false
    for (const next of keys) hasWorked = (await solitude.run(() => this.#replayNext(next))) || hasWorked
    // While it goes well, the next event of the key is looked for at once.
    this.#lookedMs = hasWorked ? 0 : monotonicMs()
    return hasWorked
  }

  async #replayNext(next: NextParked): Promise<boolean> {
    const event = await parkedEvent(this.#world, next)
    const deaths = await tryParked(this.#world, this.#cursor, event)
    if (deaths !== undefined) {
      await this.#repark(next, deaths)
      return false
    }
    const { effectsAfter } = this.#cursor
    let isFree = false
    const loop = this.#world.loop(`parked keys of ${this.#cursor.definition.name}`)
    const end = await runFenced(this.#world, this.#cursor, {
      to: undefined,
      what: `${this.#cursor.definition.name} at parked event ${next.position}`,
      isEffective: event !== undefined && effectsAfter !== undefined && event.position > effectsAfter,
      timeoutMs: this.#cursor.definition.timeoutMs,
      handle: async (tx, context) => {
        const key = { ...this.#cursor.key, key_tenant: next.key_tenant, key: next.key }
        const [taken] = event === undefined ? [] : await tx.run<Taken>(takeEventStatement, { ...key, position: event.position })
        // Only under the cursor's lock is it known what a switch has left for us to let out.
        if (taken?.owes_effects && this.#cursor.isLive) tx.effects = 'allowed'
        if (taken !== undefined) await this.#applier.handle([event!], tx, context)
        if (probe.on) await probe.hit('projections.unpark.handled', event)
        isFree = (await tx.run(unparkKeyStatement, key)).length > 0
      },
    })
    if (end.type === 'failed') await this.#repark(next, end.error)
    else if (end.type === 'again') loop.failed(end.error)
    else if (end.type === 'committed' && isFree)
      this.#world.events.emit('projection.unparked', { name: this.#cursor.definition.name, key: next.key })
    if (end.type === 'committed') loop.succeeded()
    return end.type === 'committed'
  }

  async #repark(next: NextParked, error: unknown): Promise<void> {
    await repark(this.#world, this.#cursor, next, error)
    const { name } = this.#cursor.definition
    const position = Number(next.position)
    this.#world.events.emit('projection.parked', { name, key: next.key, position, reason: messageOf(error) })
  }
}

export async function parkedEvent(world: World, next: NextParked): Promise<LogEvent | undefined> {
  if (next.position === null) return undefined
  const { events } = await readLog(world.reader, { after: Number(next.position) - 1, limit: 1 })
  return events[0]
}

/** After a crash, before an event is replayed, alone. Says why it is not to be: so many processes died at it that it must be the reason. */
export async function tryParked(world: World, cursor: HeldCursor, event: LogEvent | undefined): Promise<string | undefined> {
  if (event === undefined || cursor.crashes === 0) return undefined
  const [row] = await world.engine.run<{ crashes: number }>(tryStatement, {
    ...cursor.fencedKey,
    worker: cursor.worker,
    key_tenant: event.tenant,
    key: event.key,
    position: event.position,
  })
  if (row === undefined || row.crashes < cursor.definition.crashes) return undefined
  return `the process died ${row.crashes} times.`
}

/** The replay failed: the key waits for a person again, with the new error. */
export async function repark(world: World, cursor: HeldCursor, next: NextParked, error: unknown): Promise<void> {
  await runFenced(world, cursor, {
    to: undefined,
    what: `${cursor.definition.name} at parked event ${next.position}`,
    isEffective: false,
    timeoutMs: cursor.definition.timeoutMs,
    handle: async (tx) => {
      await tx.run(reparkStatement, {
        ...cursor.key,
        key_tenant: next.key_tenant,
        key: next.key,
        reason: `The replay of event ${next.position} failed: ${messageOf(error)}`,
        error: describeError(error),
      })
    },
  })
}
