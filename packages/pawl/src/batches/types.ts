// The shapes of batches that users see.

import type { AnyTx } from '../db/adapters.ts'
import type { JobContext, JobTx, RetryPolicy, StandardSchema } from '../jobs/types.ts'
import type { PageOptions } from '../kernel/pages.ts'

export type BatchState = 'queued' | 'running' | 'finished' | 'timed-out' | 'replaced' | 'cancelled' | 'failed'

/** What a start does while another batch of its track runs. */
export type TrackPolicy = 'refuse' | 'queue' | 'replace'

/** Numbers by name. They are added up over the items of a batch. */
export type Sums = Readonly<Record<string, number>>

export interface Batch {
  readonly id: string
  readonly name: string
  readonly track: string
  readonly policy: TrackPolicy
  readonly state: BatchState
  /** The step that it is at: 'end' until `onEnd` has run. Null: it waits, or nothing is left to do. */
  readonly phase: 'prepare' | 'boundary' | 'items' | 'end' | null
  readonly revision: number
  readonly total: number
  readonly units: number
  /** How long it may run. */
  readonly allowanceMs: number
  readonly deadline: Date | null
  readonly createdAt: Date
  readonly startedAt: Date | null
  /** The boundary was crossed: nothing is reverted after it. Null: it was not, and an end before it restores the items. */
  readonly boundaryAt: Date | null
  readonly endedAt: Date | null
  readonly endReason: string | null
  /** What `prepare` returned. */
  readonly prepared: unknown
  readonly meta: unknown
  readonly by: string | null
  readonly rerunOf: string | null
}

export interface BatchReport extends Batch {
  /** Finished, and no item has failed. */
  readonly isSuccess: boolean
  /** `late`: those that answered after the end, and were refused; `restored`: those that `restore` got. Both are among the waiting. */
  readonly counts: Readonly<Record<'total' | 'done' | 'failed' | 'late' | 'restored' | 'waiting', number>>
  /** Of the boundary and of all items that are done. */
  readonly sums: Sums
}

/** `data` may be left out where its type allows undefined. */
export type NewItem<Data = unknown> = NewItemFields &
  (undefined extends Data ? { readonly data?: Data } : { readonly data: Data })

interface NewItemFields {
  /** Unique in its batch. 1 to 500 characters. */
  readonly key: string
  /** Its share of the work, such as a number of records. Default 0. */
  readonly units?: number
  /** Kept for `restore`. */
  readonly before?: unknown
}

export type ItemOutcome = 'done' | 'failed' | 'waiting' | 'late'

export interface BatchItem {
  readonly batch: string
  readonly n: number
  readonly key: string
  readonly data: unknown
  readonly before: unknown
  readonly outcome: 'done' | 'failed' | null
  readonly sums: Sums | null
  readonly error: string | null
  readonly jobId: string
  readonly endedAt: Date | null
  readonly lateAt: Date | null
  readonly restoredAt: Date | null
}

/** What the handler of an item gets. */
export interface Item<Data = unknown> {
  readonly batch: string
  readonly n: number
  readonly key: string
  readonly data: Data
  /** 1 for the first. */
  readonly attempt: number
  readonly idempotencyKey: string
  /** Holds item and batch inside your own transaction: rejects with PAWL_LEASE_LOST once the batch has ended. Commit soon: the batch cannot end before. */
  guard(tx: AnyTx): Promise<void>
  /** Ends the item as done inside your own transaction. Call it last. */
  complete(tx: AnyTx, sums?: Sums): Promise<void>
}

export type ItemToRestore = Pick<BatchItem, 'batch' | 'n' | 'key' | 'data' | 'before'>

export interface Allowance {
  /** Milliseconds for each item. Default 10,000. */
  readonly perItemMs?: number
  /** Milliseconds for each unit. Default 0.557. */
  readonly perUnitMs?: number
  /** Multiplies the time for units. Default 2. */
  readonly safety?: number
  /** The shortest allowance. Default 1. */
  readonly minMs?: number
  /** The longest allowance. Default 30 days. */
  readonly maxMs?: number
}

/** A handler returns `Sums` or nothing. Anything else, such as a row count or a query's result, fails the item after its effects, without another attempt. */
export interface ItemHandler<Data = never> {
  /** Effects anywhere, at least once. Only what it writes after `item.guard(tx)` is refused once the batch has ended. */
  readonly run?: (item: Item<Data>, context: JobContext) => unknown
  /** Effects and the end of the item in one transaction: exactly once, and not at all once the batch has ended. */
  readonly tx?: (item: Item<Data>, tx: JobTx, context: JobContext) => unknown
}

export interface ItemOptions<Data = never> extends ItemHandler<Data> {
  /** The retry policy. */
  readonly retry?: RetryPolicy
  /** How long one attempt may run. Default 15m. */
  readonly timeout?: number | string
  /** How many items of this batch one process runs at once. Default: the worker's concurrency. */
  readonly concurrency?: number
  /** The queue of its items and steps. Default 'default'. */
  readonly queue?: string
}

export interface BatchHandlers<Data = never> {
  /** How one item is done. */
  readonly item: ItemHandler<Data>
  /** Before the boundary: reversible, anywhere, at least once. What it returns is kept as `prepared`. */
  readonly prepare?: (batch: BatchReport, context: JobContext) => unknown
  /** The destructive step, in one transaction. It returns `Sums`, which are added to those of the items, or nothing; anything else fails it. */
  readonly boundary?: (batch: BatchReport, tx: JobTx) => unknown
  /** If the batch ends before the boundary: each item once, 100 in a transaction. Leave alone what has moved on since. */
  readonly restore?: (items: readonly ItemToRestore[], tx: JobTx) => unknown
  /** Exactly once, after the end is committed. */
  readonly onEnd?: (batch: BatchReport, tx: JobTx) => unknown
}

/** Without a handler of items: for a process that only starts. The module of a worker gives the handlers with `handle`. */
export interface BatchOptions<Data = never, Input = Data> extends Partial<Omit<BatchHandlers<Data>, 'item'>> {
  /** How one item is done. */
  readonly item?: ItemOptions<Data>
  /** Checked at the start, where the data of an item is stored as given; parsed at each run, where the handler sees what the schema made of it. */
  readonly schema?: StandardSchema<Input, Data>
  /** The name of the track; batches with the same one never run at once. Default: its name. */
  readonly track?: string
  /** What a start does while another batch of its track runs. Default 'refuse'. */
  readonly policy?: TrackPolicy
  /** How long a batch may run, by its size. */
  readonly allowance?: Allowance
}

/** `Input` is the data of an item as start takes it, `Data` as the handler sees it: the schema's two sides. */
export interface BatchKind<Input = unknown, Data = Input> {
  readonly name: string
  readonly input?: Input
  readonly data?: Data
}

export interface StartOptions {
  /** Added to the units of the items. */
  readonly units?: number
  /** Kept with the batch, and with its reruns. */
  readonly meta?: Readonly<Record<string, unknown>>
  /** The track of this batch. Default: that of its definition. */
  readonly track?: string
  /** What this start does while another batch runs. Default: that of its definition. */
  readonly policy?: TrackPolicy
  /** The person who acts. */
  readonly by?: string
  /** Your own transaction. It holds the track until it ends. */
  readonly tx?: AnyTx
}

export interface Started {
  readonly id: string
  /** 'finished': it has no items. */
  readonly state: 'running' | 'queued' | 'finished'
  readonly deadline: Date | null
}

export interface ListBatchesOptions extends PageOptions {
  /** Only batches of this name. */
  readonly name?: string
  /** Only batches of this track. */
  readonly track?: string
  /** Only batches in this state. */
  readonly state?: BatchState
}

export interface ListItemsOptions extends PageOptions {
  /** Only items with this outcome. */
  readonly outcome?: ItemOutcome
}

export interface StuckOptions extends PageOptions {
  /** Only items of batches of this name. */
  readonly name?: string
  /** Only of batches that ended, or whose deadline passed, this long ago. */
  readonly olderThan?: number | string
}

export interface StuckItem extends BatchItem {
  readonly name: string
  readonly state: BatchState
  readonly reason: 'unfinished' | 'dead'
}

export interface EndOptions {
  /** The person who acts. */
  readonly by: string
  /** The reason, kept with the batch. */
  readonly reason: string
}

export interface ExtendOptions extends EndOptions {
  /** How much later: milliseconds, or a string such as '15m'. From now, if the deadline has passed. */
  readonly for: number | string
}

export interface RerunOptions {
  /** The items that the new batch has. Default 'both'. */
  readonly only?: 'failed' | 'unfinished' | 'both'
  /** Default: that of the batch that it runs again. */
  readonly meta?: Readonly<Record<string, unknown>>
  /** Default: that of the batch that it runs again. */
  readonly policy?: TrackPolicy
  /** The person who acts. */
  readonly by?: string
  /** Your own transaction. It holds the track until it ends. */
  readonly tx?: AnyTx
}

export interface BatchWhy {
  readonly id: string
  readonly state: BatchState
  readonly reasons: readonly { readonly code: string; readonly text: string }[]
}
