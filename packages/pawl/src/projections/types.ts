// Public types of projections, reactions and sinks; no logic.

import type { Tx } from '../db/adapters.ts'
import type { LogEvent } from '../events/types.ts'
import type { RetryPolicy } from '../jobs/types.ts'

/** The transaction of a handler: what it writes and the cursor's new position commit together or not at all. Jobs and events only through a reaction's. */
export interface ProjectionTx extends Tx {
  query<Row = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<{ rows: Row[]; rowCount: number }>
  /** Sends a statement without waiting for its answer; they run in the order they were sent. If one fails, the batch fails. Much faster than `query`. */
  send(text: string, values?: readonly unknown[]): void
}

export interface ProjectionContext {
  readonly generation: number
  /** false: a rebuild beside the live one. */
  readonly isLive: boolean
  /** The quoted name of this generation's table, for one that was declared in `tables`. Ask each time: it changes when generations are switched. */
  table(name: string): string
  /** Fires when the handler ran too long, the cursor was lost, or the worker stops. */
  readonly signal: AbortSignal
}

/** What a reaction's handler gets besides its events and its transaction. */
export type ReactionContext = Pick<ProjectionContext, 'signal'>

export type EventHandler = (event: LogEvent, tx: ProjectionTx, context: ProjectionContext) => unknown
export type BatchHandler = (events: readonly LogEvent[], tx: ProjectionTx, context: ProjectionContext) => unknown

export type ReactionHandler = (event: LogEvent, tx: ProjectionTx, context: ReactionContext) => unknown

export interface ProjectionTable {
  /** The table that readers use, such as 'balances' or 'app.balances'. You create it; generations beside the live one are made like it. */
  readonly name: string
  /** The columns that tell rows apart. */
  readonly key: readonly string[]
  /** The columns that two generations must agree on. Leave out what may differ, such as the time of writing. */
  readonly columns: readonly string[]
}

/** 'start': from the first event, and an error if it is no longer kept. 'oldest': from the first that is kept. 'now': only what comes after. */
export type StartFrom = 'start' | 'oldest' | 'now'

/** A position, after which it goes on; 'oldest': from the first event that is kept; 'now': only what comes after. */
export type ResumeFrom = number | 'oldest' | 'now'

interface CursorOptions {
  /** Only events of this channel. Default: all. */
  readonly channel?: string
  /** Splits the keys over this number of cursors, each held by one process. Fixed once it runs. Default 1. */
  readonly shards?: number
  /** Where a new cursor begins. */
  readonly from?: StartFrom
  readonly retry?: RetryPolicy
  /** How long a handler may take for one event or entity; `batch` for all events of its call. Default 30s. */
  readonly timeout?: number | string
  /** At a greater lag it becomes `stale` and no longer prevents the removal of events. Default: never. */
  readonly maxLag?: number | string
  /** After this number of keys parked within this time the cursor pauses with one alert, instead of parking them all. Default: 100 keys within an hour. */
  readonly breaker?: Breaker
}

interface Breaker {
  readonly keys?: number
  readonly within?: number | string
}

interface GenerationOptions {
  /** Raise it to rebuild: a runner works on the generations that its process defines. Default 1. */
  readonly generation?: number
  readonly tables?: readonly ProjectionTable[]
}

export interface LogProjectionOptions extends CursorOptions, GenerationOptions {
  readonly kind?: 'log'
  /** A handler per type of event; other types are passed over. */
  readonly on?: Readonly<Record<string, EventHandler>>
  /** One handler for every event. */
  readonly each?: EventHandler
  /** One call for many events, in order. When it fails they are given to it one by one. */
  readonly batch?: BatchHandler
  readonly tuning?: LogTuning
}

/** Settings that are rarely needed. */
interface LogTuning {
  /** The most events in one transaction. Default 500. */
  readonly batchMax?: number
}

export interface ReactionOptions extends CursorOptions {
  /** A handler per type of event; other types are passed over. The jobs and events that it adds through `tx` exist once per event. */
  readonly on?: Readonly<Record<string, ReactionHandler>>
  /** One handler for every event. */
  readonly each?: ReactionHandler
  readonly tuning?: LogTuning
}

/** What a refresh gets besides its entities and its transaction. */
export interface RefreshContext extends ProjectionContext {
  /** Marks entities for a refresh after this one. The marks commit with what the refresh writes, or roll back with it. */
  mark(entities: readonly string[], options?: MarkOptions): Promise<void>
}

export interface MarkOptions {
  /** How long the refresh waits. Default: not at all. */
  readonly delay?: number | string
}

/** With `tables` it is a projection that can be rebuilt. Without, it is a reaction: its refresh may append and enqueue, any number of times. */
export interface StateProjectionOptions extends CursorOptions, GenerationOptions {
  readonly kind: 'state'
  /** Which entity an event changes; undefined or an empty list: none. */
  readonly entity: (event: LogEvent) => string | readonly string[] | undefined
  /** Reads the entity's current state and writes what follows from it. It may run any number of times, in any order between entities. */
  readonly refresh?: (entity: string, tx: ProjectionTx, context: RefreshContext) => unknown
  /** The same for many entities in one transaction: one refresher at a time, in all processes together. When it fails, it gets them one by one. */
  readonly refreshMany?: (entities: readonly string[], tx: ProjectionTx, context: RefreshContext) => unknown
  /** Refreshes at once in one process. Default 4; with `refreshMany` always 1. */
  readonly concurrency?: number
  readonly tuning?: StateTuning
}

/** Settings that are rarely needed. */
interface StateTuning {
  /** The most entities in one `refreshMany`. Default 500. */
  readonly batchMax?: number
}

export interface SinkContext {
  /** Fires when the handler ran too long, the cursor was lost, or the worker's grace is over. */
  readonly signal: AbortSignal
  /** The same for every delivery of this event to this sink: give it to the outside. */
  readonly idempotencyKey: string
  /** 1 for the first try of this process. */
  readonly attempt: number
}

export interface SinkOptions extends CursorOptions {
  /** Called for every event, in the order of its key, several keys at once; at least once. */
  readonly handle: (event: LogEvent, context: SinkContext) => unknown
  /** Events at once in one shard. Default 16. */
  readonly concurrency?: number
}

export type CursorKind = 'log' | 'state' | 'reaction' | 'sink'
export type CursorState = 'running' | 'paused' | 'stale' | 'latched'

export interface CursorStatus {
  readonly tenant: string
  readonly name: string
  readonly kind: CursorKind
  readonly generation: number
  readonly isLive: boolean
  readonly shard: number
  readonly shards: number
  readonly state: CursorState
  readonly reason: string | null
  readonly position: number
  /** How many events it has still to pass, also those that no runner has given a position yet (of these at most 10,000 are counted). */
  readonly lag: number
  readonly holder: number | null
  readonly attempts: number
  readonly lastError: string | null
  readonly parkedKeys: number
  /** Entities that wait for a refresh. */
  readonly dirty: number
  readonly movedAt: Date
}

export interface ParkedKey {
  readonly name: string
  readonly generation: number
  readonly shard: number
  readonly keyTenant: string
  readonly key: string
  readonly state: 'parked' | 'unparking'
  readonly reason: string
  readonly error: string | null
  readonly attempts: number
  readonly parkedAt: Date
  readonly events: number
  readonly firstPosition: number | null
}

export interface Act {
  /** Stored in pawl.audit. */
  readonly reason: string
  /** The acting person or program, stored in pawl.audit. */
  readonly by?: string
}

/** What an append answers with. */
export type Token = string

export interface TableComparison {
  readonly table: string
  readonly rows: number
  readonly otherRows: number
  readonly differing: number
  /** Up to 20 keys that differ. */
  readonly sample: readonly string[]
}

export interface Comparison {
  readonly isEqual: boolean
  readonly tables: readonly TableComparison[]
}

export interface ProjectionEvents {
  'cursor.acquired': { name: string; generation: number; shard: number; fence: string; crashes: number }
  'cursor.lost': { name: string; generation: number; shard: number; fence: string }
  'cursor.refused': { name: string; generation: number; shard: number; fence: string; what: string }
  'cursor.latched': { name: string; generation: number; shard: number; reason: string }
  'projection.failed': {
    name: string
    key: string
    position: number
    attempt: number
    error: unknown
    retryInMs: number | undefined
  }
  'projection.parked': { name: string; key: string; position: number; reason: string }
  'projection.unparked': { name: string; key: string }
}

export type { LogEvent }
