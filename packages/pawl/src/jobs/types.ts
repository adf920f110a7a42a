// Public types of jobs; no logic.

import type { Durability } from '../config.ts'
import type { AnyTx, Tx } from '../db/adapters.ts'
import type { WorkerEvents } from '../kernel/incarnation.ts'
import type { InTxWaking } from '../kernel/options.ts'
import type { Backoff } from '../kernel/retry.ts'
import type { Snooze } from './endings.ts'

/** The transaction of a `tx` handler. */
export interface JobTx extends Tx {
  query<Row = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<{ rows: Row[]; rowCount: number }>
}

/** The Standard Schema interface (zod, valibot, arktype and others), as far as jobs need it. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>
    readonly types?: { readonly input: Input; readonly output: Output } | undefined
  }
}
export type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | {
      readonly issues: readonly {
        readonly message: string
        readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
      }[]
    }

/** What the handler sees of a payload that this schema parsed. */
export type PayloadOf<Schema> = Schema extends StandardSchema<infer _Input, infer Output> ? Output : unknown

/** A running job as its handler sees it. */
export interface Job<Payload = unknown> {
  readonly id: string
  readonly tenant: string
  readonly queue: string
  readonly kind: string
  readonly payload: Payload
  /** 1 for the first run. A crash counts here, and apart in `crashes`. */
  readonly attempt: number
  readonly crashes: number
  /** New with every claim; every write of the result names it. */
  readonly fence: string
  /** The same for every attempt of this job, unique beyond this database: give it to the outside as the idempotency key. */
  readonly idempotencyKey: string
  readonly headers: Readonly<Record<string, unknown>>
  /** Holds the job inside your own transaction: rejects with PAWL_LEASE_LOST if it is no longer yours, and no worker can take it until you commit. */
  guard(tx: AnyTx): Promise<void>
  /** Settles the job as done inside your own transaction, once, so that its effects and its completion commit together. */
  complete(tx: AnyTx, result?: unknown): Promise<void>
  /** Return it from the handler, or throw it: runs again later, without using up an attempt. Dropped, it is a failed attempt. */
  snooze(delay: number | string): Snooze
}

export interface JobContext {
  /** Fires when the job is cancelled, timed out, taken over, or when the worker's grace is over. */
  readonly signal: AbortSignal
  /**
   * Stores progress (at most once per interval; the last value is always stored), or without a value only says that the job goes on. While the
   * handler's own transaction holds the job (after `job.guard(tx)`, or shared) it is stored with that commit. Rejects with a typed error when the
   * job is cancelled or lost.
   */
  touch(progress?: unknown): Promise<void>
  log(message: string, fields?: Readonly<Record<string, unknown>>): void
}

export interface RetryPolicy {
  /** How often it may fail before it is dead. Default 10. */
  readonly attempts?: number
  /** How often its process may die under it before it is dead. Default 3. */
  readonly crashes?: number
  readonly initialMs?: number
  readonly factor?: number
  readonly maxMs?: number
  readonly jitter?: boolean
  /** Returns false for an error that must not be retried. A promise counts as true. */
  readonly when?: (error: unknown) => boolean
}

export interface KindOptions<Payload, Input = Payload> {
  /** Checked at enqueue, where the input is stored as given; parsed at run, where the handler sees what the schema made of it. */
  readonly schema?: StandardSchema<Input, Payload>
  /** Raise it when the payload's shape changes; `upgrade` brings older ones up to date. */
  readonly payloadVersion?: number
  readonly upgrade?: (payload: unknown, version: number) => unknown
  readonly queue?: string
  /** How many of this kind one process runs at once. Default: the worker's concurrency. */
  readonly concurrency?: number
  /** How long one attempt may run. Default 15m. */
  readonly timeout?: number | string
  readonly retry?: RetryPolicy
  readonly durability?: Durability
  /** Called in the process that noticed, after its last attempt failed or its process died once too often. A hint; the alert is durable. */
  readonly onDead?: (job: DeadJob) => void | Promise<void>
}

export interface RunOptions<Payload, Input = Payload> extends KindOptions<Payload, Input> {
  /** Effects anywhere, at least once. */
  readonly run: (job: Job<Payload>, context: JobContext) => unknown
  readonly tx?: undefined
  readonly share?: undefined
}

export interface TxOptions<Payload, Input = Payload> extends KindOptions<Payload, Input> {
  /** Effects through `tx`, completion and follow-up jobs in one fenced transaction: applied exactly once. */
  readonly tx: (job: Job<Payload>, tx: JobTx, context: JobContext) => unknown
  /** Lets jobs that wait share one transaction, up to this number. Faster, and their locks and failures are coupled while they share. */
  readonly share?: number
  readonly run?: undefined
}

/** No handler: for a process that only enqueues. The module of a worker gives it one with `handle`. */
export interface DeclareOptions<Payload, Input = Payload> extends KindOptions<Payload, Input> {
  readonly run?: undefined
  readonly tx?: undefined
  readonly share?: undefined
}

export type DefineOptions<Payload, Input = Payload> =
  | RunOptions<Payload, Input>
  | TxOptions<Payload, Input>
  | DeclareOptions<Payload, Input>

/** What `handle` gives to a kind. */
export type Handler<Payload> =
  | Pick<RunOptions<Payload>, 'run' | 'tx' | 'share'>
  | Pick<TxOptions<Payload>, 'run' | 'tx' | 'share'>

/** `Input` is what enqueue takes, `Payload` what the handler sees: the schema's two sides. */
export interface Kind<Input = unknown, Payload = Input> {
  readonly name: string
  readonly queue: string
  readonly input?: Input
  readonly payload?: Payload
}

export interface EnqueueOptions extends InTxWaking {
  /** When it is due. Not with `delay`. */
  readonly runAt?: Date
  /** How long after the enqueue it is due. Not with `runAt`. */
  readonly delay?: number | string
  /** -100 to 100; a point is worth a minute of waiting. */
  readonly priority?: number
  readonly maxAttempts?: number
  readonly queue?: string
  readonly headers?: Readonly<Record<string, unknown>>
  readonly durability?: Durability
}

export interface ListOptions {
  readonly state?: JobState
  readonly kind?: string
  readonly queue?: string
  readonly limit?: number
  /** `next` of the last page. */
  readonly after?: string
}

export interface ChangeOptions extends InTxWaking {
  /** Change it only if it is still at this revision. */
  readonly revision?: number
  /** The acting person or program. With it the change has a row in pawl.audit, in the same transaction. */
  readonly by?: string
  /** Stored with a cancelled job, and in that row. */
  readonly reason?: string
}

export interface DeadJob {
  readonly tenant: string
  readonly id: string
  readonly kind: string
  readonly reason: string
}

export type JobState = 'scheduled' | 'ready' | 'running' | 'dead' | 'done' | 'cancelled'

export interface JobRow {
  readonly tenant: string
  readonly id: string
  readonly queue: string
  readonly kind: string
  readonly state: JobState
  readonly revision: number | null
  readonly priority: number
  readonly attempt: number
  readonly maxAttempts: number | null
  readonly crashes: number
  /** How often it was put off without an attempt; null once it has finished. */
  readonly snoozes: number | null
  readonly suspect: boolean
  readonly payload: unknown
  readonly headers: unknown
  readonly result: unknown
  readonly progress: unknown
  readonly lastError: string | null
  readonly holder: number | null
  readonly fence: string
  readonly createdAt: Date
  readonly runAt: Date | null
  readonly claimedAt: Date | null
  readonly finishedAt: Date | null
  readonly ranMs: number | null
}

export interface AttemptRow {
  readonly attempt: number
  readonly outcome: 'done' | 'cancelled' | 'failed' | 'timed out' | 'crashed' | 'interrupted' | 'invalid'
  readonly error: string | null
  readonly holder: number | null
  readonly fence: string
  readonly endedAt: Date
  readonly ranMs: number | null
}

export interface JobEvents extends WorkerEvents {
  'job.started': { tenant: string; id: string; kind: string; attempt: number }
  'job.done': { tenant: string; id: string; kind: string; attempt: number; ranMs: number }
  'job.failed': { tenant: string; id: string; kind: string; attempt: number; error: unknown; retryInMs: number | undefined }
  'job.dead': DeadJob
  'job.lost': { tenant: string; id: string; kind: string; reason: string }
  'job.refused': { tenant: string; id: string; fence: string; what: string }
  /** A job that must run alone waits, and this worker leaves it to another process. */
  'worker.deciding': Record<string, never>
  'worker.idle': Record<string, never>
}

export type { Backoff }
