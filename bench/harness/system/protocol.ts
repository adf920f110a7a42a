// What passes between the benchmark and the process of each system under test.

/** What the handlers of a worker do. */
export type Handler =
  /** Nothing: the cost of the system itself. */
  | 'noop'
  /** Each writes one row into public.effect. */
  | 'tx'
  /** The same, with the system's own way of sharing a transaction between jobs, if it has one. */
  | 'tx shared'
  /** Each adds one to a row of its event's key. */
  | 'upsert'
  /** Each takes 50 ms, so that the worker is busy and never asleep. */
  | 'slow'
  /** Each waits 5 ms, as for an answer from another service. */
  | 'wait'
  /** Tells when it started, for the time from enqueue to start. */
  | 'stamp'
  /** Never ends. */
  | 'hang'

export interface Setup {
  readonly url: string
  readonly redisPort: number | undefined
  /** Connections for enqueuing, the same for every system. */
  readonly connections: number
}

export interface Work {
  readonly handler: Handler
  readonly concurrency: number
  /** Tells its memory with its progress. */
  readonly countsMemory?: boolean
}

export type Via = 'plain' | 'tx' | 'pipelined'

/** One system under test. What it does not offer it leaves out; the measure then shows no value for it. */
export interface Peer {
  /** Connects, and installs its tables if they are missing. */
  prepare(setup: Setup): Promise<void>
  /** Puts jobs into the queue, as fast as it can; not timed. */
  fill?(count: number): Promise<void>
  /** Starts a worker and returns. */
  work?(work: Work): Promise<void>
  /** Jobs that its own store does not count as finished; any number above 0 will do while there are some. */
  remaining?(): Promise<number>
  /** Enqueues in calls of so many, one call after the other. Timed by the caller. */
  bulk?(count: number, callSize: number): Promise<void>
  /** Gives the moment of the call that enqueues, if other statements came before it. */
  enqueue?(n: number, via: Via): Promise<number | undefined>
  /** Writes for so long, and tells what it committed. */
  load?(durationMs: number): Promise<Written[]>
  /** One of its own tasks, by name. */
  run?(task: string, ...args: readonly unknown[]): Promise<unknown>
  close?(): Promise<void>
}

/** A committed event of a load: it carries its key's version, and this is when its commit was sent. */
export interface Written {
  readonly n: number
  readonly key: string
  readonly version: number
  readonly at: number
}

/** What a system calls when one of its handlers starts. */
export type Started = (n: number) => void

export type Call = { readonly id: number; readonly verb: string; readonly args: readonly unknown[] }
export type Answer = { readonly id: number; readonly value?: unknown; readonly error?: string }
export type Progress = { readonly handled: number; readonly firstAt: number; readonly rss: number | undefined }
export type Stamp = { readonly stamp: number; readonly at: number }
export type FromChild = Answer | { readonly progress: Progress } | Stamp

const delaysMs: Partial<Record<Handler, number>> = { slow: 50, wait: 5 }

/** The time that a handler takes beside its own work. */
export function delay(handler: Handler): Promise<void> | undefined {
  const ms = delaysMs[handler]
  return ms === undefined ? undefined : new Promise((resolve) => setTimeout(resolve, ms))
}

/** About 70 bytes, as in the measurements that the bars come from. */
export function payloadOf(n: number): { n: number; to: string; subject: string } {
  return { n, to: 'someone@example.com', subject: 'nothing to do here' }
}

export const effectTable =
  'create table if not exists effect (id bigint generated always as identity primary key, n integer not null)'
export const insertEffect = 'insert into effect (n) values ($1)'
