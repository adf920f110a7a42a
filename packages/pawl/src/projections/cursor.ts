// A cursor that this process holds: its place in the log, and the fence that every write of it names. The row in the database is the
// truth; what is kept here is compared with it by each move.

import { setMaxListeners } from 'node:events'
import { markOwn } from '../db/classify.ts'
import type { Connection } from '../db/driver.ts'
import { type Parameter, statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import type { LogEvent } from '../events/types.ts'
import type { Defined } from './definition.ts'
import type { CursorState } from './types.ts'

export const cursorStatements = {
  acquire: statement(import.meta.url, 'acquire'),
  release: statement(import.meta.url, 'release'),
  releaseStrays: statement(import.meta.url, 'release-strays'),
  move: statement(import.meta.url, 'move'),
  stay: statement(import.meta.url, 'stay'),
  await: statement(import.meta.url, 'await-cursor'),
  read: statement(import.meta.url, 'read-cursor'),
  state: statement(import.meta.url, 'cursor-state'),
  tryAlone: statement(import.meta.url, 'try-alone'),
  fail: statement(import.meta.url, 'fail'),
  latch: statement(import.meta.url, 'latch'),
} as const

export interface AcquiredRow {
  readonly shard: number
  readonly shards: number
  readonly fence: string
  readonly position: string
  readonly event_id: string | null
  readonly log_generation: number | null
  readonly done: string
  readonly effects_after: string | null
  readonly crashes: number
  readonly attempts: number
  readonly is_tried: boolean
}

interface CursorRow extends Omit<AcquiredRow, 'shard' | 'shards' | 'is_tried'> {
  readonly state: CursorState
  readonly reason: string | null
  readonly hold_at: string | null
  readonly live_at: string | null
}

/** Where a cursor stands: the last event that it passed. */
export interface Place {
  readonly position: number
  readonly eventId: string | null
  readonly logGeneration: number | null
}

export function placeOf(event: LogEvent): Place {
  return { position: event.position, eventId: event.id, logGeneration: event.generation }
}

/** Why a fenced write met no row, other than a lost lease. */
export interface Standstill {
  readonly state: CursorState
  /** It comes to here and no further, for now. */
  readonly limitAt: number | undefined
  /** The limit is a comparison's, which waits for it. */
  readonly isHeld: boolean
  /** The position is another one than we thought: an operator moved it, or a commit without an answer had happened. */
  readonly isMoved: boolean
}

export class HeldCursor {
  readonly definition: Defined
  readonly worker: number
  readonly shard: number
  readonly shards: number
  readonly fence: string
  /** Holders that died at this place before us. */
  readonly crashes: number
  /** The next event is what they died at, by all that is known: it is not tried again. */
  readonly isSuspect: boolean
  /** After a crash: where the next event is to be noted as tried before it is. */
  #tryFrom: number | undefined
  place: Place
  effectsAfter: number | undefined
  attempts: number
  done: string
  readonly #lost = new AbortController()

  constructor(definition: Defined, worker: number, row: AcquiredRow) {
    this.definition = definition
    this.worker = worker
    this.shard = row.shard
    this.shards = row.shards
    this.fence = row.fence
    this.crashes = row.crashes
    this.isSuspect = row.is_tried && row.crashes >= definition.crashes
    this.#tryFrom = row.crashes > 0 ? Number(row.position) : undefined
    this.place = { position: Number(row.position), eventId: row.event_id, logGeneration: row.log_generation }
    this.effectsAfter = numberOf(row.effects_after)
    this.attempts = row.attempts
    this.done = row.done
    // Every handler that runs may listen.
    setMaxListeners(0, this.#lost.signal)
  }

  /** Fires when it is no longer ours. */
  get signal(): AbortSignal {
    return this.#lost.signal
  }

  get isLive(): boolean {
    return this.effectsAfter !== undefined
  }

  lose(reason: PawlError): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(reason)
  }

  /** The parameters that name its row. */
  get key(): Readonly<Record<'tenant' | 'name' | 'generation' | 'shard', Parameter>> {
    const { tenant, name, generation } = this.definition
    return { tenant, name, generation, shard: this.shard }
  }

  get fencedKey(): Readonly<Record<'tenant' | 'name' | 'generation' | 'shard' | 'fence', Parameter>> {
    return { ...this.key, fence: this.fence }
  }

  /** The parameters of a move to this place. */
  moveTo(to: Place, idleMs: number): Readonly<Record<string, Parameter>> {
    return {
      ...this.fencedKey,
      from_position: this.place.position,
      to_position: to.position,
      event_id: to.eventId,
      log_generation: to.logGeneration,
      idle_ms: String(idleMs),
    }
  }

  /** Whether somebody died here, and that we try the next event is not noted yet. */
  get isUntried(): boolean {
    return this.#tryFrom === this.place.position
  }

  async tryAlone(connection: Connection): Promise<void> {
    await connection.run(cursorStatements.tryAlone, { ...this.fencedKey, from_position: this.place.position })
    this.#tryFrom = undefined
  }

  moved(to: Place): void {
    this.place = to
    this.attempts = 0
  }

  /** Reads the row when whoever was moving it has ended. Throws PAWL_LEASE_LOST if it is another's now. */
  async reload(connection: Connection): Promise<Standstill> {
    await connection.run(cursorStatements.await, this.key)
    const [row] = await connection.run<CursorRow>(cursorStatements.read, this.key)
    if (row === undefined || row.fence !== this.fence) throw leaseLost(this)
    const isMoved = Number(row.position) !== this.place.position
    this.place = { position: Number(row.position), eventId: row.event_id, logGeneration: row.log_generation }
    this.effectsAfter = numberOf(row.effects_after)
    this.attempts = row.attempts
    this.done = row.done
    const limits = [row.hold_at, row.live_at].filter((limit) => limit !== null).map(Number)
    const limitAt = limits.length === 0 ? undefined : Math.min(...limits)
    return { state: row.state, limitAt, isHeld: row.hold_at !== null, isMoved }
  }

  toString(): string {
    const { name, generation } = this.definition
    return `${name} generation ${generation} shard ${this.shard}`
  }
}

export function leaseLost(cursor: HeldCursor, cause?: unknown): PawlError {
  const error = new PawlError(
    'PAWL_LEASE_LOST',
    `The cursor of ${cursor} is no longer held under fence ${cursor.fence}: another process took it over. Writes under that fence are refused.`,
    { cause, details: { ...cursor.key, fence: cursor.fence } },
  )
  markOwn(error)
  return error
}

function numberOf(text: string | null): number | undefined {
  return text === null ? undefined : Number(text)
}
