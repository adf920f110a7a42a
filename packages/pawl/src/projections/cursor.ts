// A cursor that this process holds: its place in the log, and the fence that every write of it names. The row in the database is the truth;
// what is kept here is compared with it by each move. Positions alone do not tell whether the log is still the one that was read: after a
// restore they may belong to other events. So a cursor keeps the id of the event at its place, and stops for a person if another one is there.

import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { markOwn } from '../db/classify.ts'
import type { Db } from '../db/db.ts'
import type { Connection } from '../db/driver.ts'
import { type Parameter, statement } from '../db/statement.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { type ReadLogOptions, readLog } from '../events/read-log.ts'
import type { LogEvent } from '../events/types.ts'
import { type Defined, idOf } from './definition.ts'
import type { Host } from './part.ts'
import type { CursorState } from './types.ts'

export const cursorStatements = {
  acquire: statement(import.meta.url, 'acquire'),
  release: statement(import.meta.url, 'release'),
  releaseStrays: statement(import.meta.url, 'release-strays'),
  move: statement(import.meta.url, 'move'),
  stay: statement(import.meta.url, 'stay'),
  flush: statement(import.meta.url, 'flush'),
  await: statement(import.meta.url, 'await-cursor'),
  read: statement(import.meta.url, 'read-cursor'),
  state: statement(import.meta.url, 'cursor-state'),
  tryAlone: statement(import.meta.url, 'try-alone'),
  fail: statement(import.meta.url, 'fail'),
  latch: statement(import.meta.url, 'latch'),
  bounds: statement(import.meta.url, 'log-bounds'),
} as const

interface CursorRow {
  readonly fence: string
  readonly position: string
  readonly event_id: string | null
  readonly log_generation: number | null
  readonly done: string
  readonly is_live: boolean
  /** The last event that a person has skipped for this projection. */
  readonly skipped_to: string
}

export interface AcquiredRow extends CursorRow {
  readonly shard: number
  readonly shards: number
  readonly crashes: number
  readonly is_tried: boolean
}

interface ReadRow extends CursorRow {
  readonly state: CursorState
  readonly hold_at: string | null
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
  /** After a crash: where the last holder died, and whether it is noted that we try the next event. */
  readonly #diedAt: number | undefined
  #isNoted = false
  #row: CursorRow
  place: Place
  readonly #lost = new AbortController()

  constructor(definition: Defined, worker: number, row: AcquiredRow) {
    this.definition = definition
    this.worker = worker
    this.shard = row.shard
    this.shards = row.shards
    this.fence = row.fence
    this.crashes = row.crashes
    this.isSuspect = row.is_tried && row.crashes >= definition.retry.crashes
    this.#row = row
    this.place = placeIn(row)
    this.#diedAt = row.crashes > 0 ? this.place.position : undefined
    // Every handler that runs may listen.
    setMaxListeners(0, this.#lost.signal)
  }

  /** Fires when it is no longer ours. */
  get signal(): AbortSignal {
    return this.#lost.signal
  }

  /** Whether its tables have the names that readers use. */
  get isLive(): boolean {
    return this.#row.is_live
  }

  /** The live generation has no skipped event after this position: a skip of its next event moves it past that event. */
  get skippedTo(): number {
    return Number(this.#row.skipped_to)
  }

  /** What a sink has finished above the place. */
  get done(): string {
    return this.#row.done
  }

  lose(reason: PawlError): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(reason)
  }

  /** The parameters that name its row. */
  get key(): Readonly<Record<'tenant' | 'name' | 'generation' | 'shard', Parameter>> {
    return { ...idOf(this.definition), shard: this.shard }
  }

  get fencedKey(): Readonly<Record<'tenant' | 'name' | 'generation' | 'shard' | 'fence', Parameter>> {
    return { ...this.key, fence: this.fence }
  }

  /** What of the log it reads. */
  get filter(): ReturnType<typeof filterOf> {
    const { tenant, channel } = this.definition
    return filterOf({ tenant, channel, shard: this.shard, shards: this.shards })
  }

  /** The parameters of a move to this place. */
  moveTo(to: Place): Readonly<Record<string, Parameter>> {
    return {
      ...this.fencedKey,
      from_position: this.place.position,
      to_position: to.position,
      event_id: to.eventId,
      log_generation: to.logGeneration,
    }
  }

  /** Whether a holder died at this place: the next event may be why, so it is tried alone. */
  get isAfterCrash(): boolean {
    return this.#diedAt === this.place.position
  }

  /** The same, and that we try the next event is not noted yet. */
  get isUntried(): boolean {
    return this.isAfterCrash && !this.#isNoted
  }

  async tryAlone(connection: Connection): Promise<void> {
    await connection.run(cursorStatements.tryAlone, { ...this.fencedKey, from_position: this.place.position })
    this.#isNoted = true
  }

  /**
   * Reads the row, after the transaction that was moving it has ended. Throws PAWL_LEASE_LOST if it is another's now. `holdAt`: a comparison lets it move
   * up to there. `isMoved`: an operator moved it, or a commit without an answer had happened.
   */
  async reload(connection: Connection): Promise<{ state: CursorState; holdAt: number | undefined; isMoved: boolean }> {
    await connection.run(cursorStatements.await, this.key)
    const [row] = await connection.run<ReadRow>(cursorStatements.read, this.key)
    if (row === undefined || row.fence !== this.fence) throw leaseLost(this)
    const isMoved = Number(row.position) !== this.place.position
    this.#row = row
    this.place = placeIn(row)
    return { state: row.state, holdAt: row.hold_at === null ? undefined : Number(row.hold_at), isMoved }
  }

  /** Waits, unless it is lost or the loop that holds it stops. */
  async pause(delayMs: number, stop: AbortSignal): Promise<void> {
    await sleep(delayMs, undefined, { signal: AbortSignal.any([stop, this.signal]) }).catch(() => undefined)
  }

  toString(): string {
    const { name, generation } = this.definition
    return `${name} generation ${generation} shard ${this.shard}`
  }
}

function placeIn({ position, event_id, log_generation }: CursorRow): Place {
  return { position: Number(position), eventId: event_id, logGeneration: log_generation }
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

// ---- its log

export interface LogBounds {
  /** The position before the first that is kept. */
  readonly before: number
  readonly head: number
  readonly generation: number
}

export async function logBounds(db: Db): Promise<LogBounds> {
  const [row] = await db.run<{ before: string; head: string; generation: number }>(cursorStatements.bounds, {})
  return { before: Number(row!.before), head: Number(row!.head), generation: row!.generation }
}

interface Reads {
  readonly tenant: string
  readonly channel: string | null
  readonly shard: number
  readonly shards: number
}

/** What of the log a cursor reads. Those of the empty tenant span all. */
export function filterOf({ tenant, channel, shard, shards }: Reads): Pick<ReadLogOptions, 'channel' | 'tenant' | 'shard'> {
  return {
    channel: channel ?? undefined,
    tenant: tenant === '' ? undefined : tenant,
    shard: shards === 1 ? undefined : { index: shard, of: shards },
  }
}

/** A filtered cursor that met nothing of its own stores its place this often; retention and lag go by it. */
export const passEveryMs = 1000
export const passEvents = 20_000

/** The place of this position: the event there, ours or not. None if the log is of another generation than what was read up to it. */
export async function placeAt(host: Host, position: number, generation?: number): Promise<Place | undefined> {
  const read = await readLog(host.engine, { after: position - 1, limit: 1 })
  const [event] = read.events
  return event === undefined || (generation ?? read.generation) !== read.generation ? undefined : placeOf(event)
}

/** Whether the log is the one that the cursor has read. If not, the cursor is latched. */
export async function isLogOf(host: Host, cursor: HeldCursor): Promise<boolean> {
  // Retention may remove the event between the two reads, and has noted that before: so the second check does not read it.
  const again = () => whyAnotherLog(host, cursor).catch(messageOfGap)
  const why = await whyAnotherLog(host, cursor).catch((error: unknown) => messageOfGap(error) && again())
  if (why !== undefined) await latch(host, cursor, why)
  return why === undefined
}

/** The event at its position is missing. Thrown, this would repeat after every resume, before the row is read. */
function messageOfGap(error: unknown): string {
  if (isPawlError(error, 'PAWL_LOG_GAP')) return error.message
  throw error
}

async function whyAnotherLog(host: Host, { place }: HeldCursor): Promise<string | undefined> {
  const { position, eventId } = place
  const { before, head } = await logBounds(host.engine)
  if (position > head)
    return `The cursor is at position ${position}, but the log ends at ${head}: the log is older than the cursor.`
  if (position < before)
    return `Events ${position + 1} to ${before} have been removed from the log. To continue without them, resume it with from: 'oldest'.`
  // What retention has removed cannot be compared.
  if (eventId === null || position === before) return undefined
  const found = await placeAt(host, position)
  if (found === undefined || found.eventId === eventId) return undefined
  return `At position ${position} the log has event ${found.eventId}, but the cursor read ${eventId} there: the log lost events from before that position and has grown since.`
}

export async function latch(host: Host, cursor: HeldCursor, reason: string): Promise<void> {
  const rows = await host.engine.run(cursorStatements.latch, { ...cursor.fencedKey, position: cursor.place.position, reason })
  // Lost, stopped already, or not where we thought: after a failover its row is as old as the log. The caller reads the row.
  if (rows.length === 0) return
  const { name, generation } = cursor.definition
  host.config.logger.error({ name, generation, shard: cursor.shard, reason }, 'a cursor is latched; resume or rebuild it')
  host.events.emit('cursor.latched', { name, generation, shard: cursor.shard, reason })
}
