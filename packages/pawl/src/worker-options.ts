// The options of a worker: what they are, their table, and how they are checked and filled in.

import { hostname } from 'node:os'
import { shown } from './errors.ts'
import { keepTable } from './events/maintenance.ts'
import type { DefinedKind } from './jobs/kinds.ts'
import type { JobsReport } from './jobs/part.ts'
import { lookEveryMs } from './kernel/lease.ts'
import { boolean, duration, integer, list, oneOf, refused, resolve, type TableOf, text, tuning } from './kernel/options.ts'
import type { Defined } from './projections/definition.ts'

/** More than the jobs of a process need, for its cursors. */
const cursorConnections = 10

export interface WorkerOptions {
  /** Shown in lists; default: the host's name and the process id. */
  readonly name?: string
  /** Default: the queues of the kinds that are defined. With [] it runs no jobs. */
  readonly queues?: readonly string[]
  /** The names of projections and sinks. Default: all that are defined. With [] it runs none. */
  readonly projections?: readonly string[]
  /** Handlers at once in this process. Default 20. */
  readonly concurrency?: number
  /** How long the lease of a hung process lasts. Default 30s. */
  readonly lease?: number | string
  /** Days that finished jobs stay. Default 14. */
  readonly keepDays?: number
  /** Days that events stay at least; longer while a cursor or a parked key needs them. Keep them for as long as you may want to rebuild. Default 7. */
  readonly keepEventDays?: number
  /**
   * Jobs whose next crash would be their last must run with nothing beside them. 'alone' (default): this worker empties itself for one.
   * 'leave': it leaves them to another process. 'only': it claims nothing else, one at a time.
   */
  readonly deciding?: 'alone' | 'leave' | 'only'
  readonly tuning?: WorkerTuning
}

/** Settings that are rarely needed. */
export interface WorkerTuning {
  /** The most jobs one claim takes. It adapts below this. Default 1000. */
  readonly batchMax?: number
  /**
   * How often the keeper renews the lease and watches the main thread, for tests. By default it renews every quarter of the lease and watches
   * twice a second.
   */
  readonly beatMs?: number
  /** The longest wait between two polls, in case a notification is missed, or 2.5 s for each kind with a limit, up to a minute. Default 5s. */
  readonly pollMs?: number
  /** The longest a claimed job may wait in this process before it is given back. Default 10s. */
  readonly bufferMs?: number
  /** How often progress is stored. Default 5s, and at most a third of the lease. */
  readonly touchMs?: number
  /** Connections for the handlers of tx jobs and of projections together. Default: the concurrency if it runs jobs, and 10 more if it runs projections. */
  readonly handlerConnectionsMax?: number
  /** End the process when a handler still blocks it the lease's time (10 s at most) after a timeout; nothing else can stop synchronous code. */
  readonly exitWhenBlocked?: boolean
}

export interface StopOptions {
  /** How long running handlers get. Default 20s. */
  readonly grace?: number | string
  /** true: the process ends after this. What still runs at the end of the grace is given up at once, so that others take it, without a crash counted. */
  readonly abandon?: boolean
}

export interface StopReport extends JobsReport {
  /** Projections and sinks whose handlers were aborted at the end of the grace. Their transactions rolled back. */
  readonly aborted: readonly string[]
  /** Why the database could not be told that what still runs is given up. */
  readonly abandonError?: unknown
}

export interface Metrics {
  readonly claimed: number
  readonly started: number
  readonly done: number
  readonly failed: number
  readonly dead: number
  readonly timedOut: number
  readonly rescued: number
  readonly released: number
  readonly refused: number
  readonly touches: number
  readonly settles: number
  readonly conflicts: number
  readonly retries: number
  /** Errors of the engine's own statements and loops that no repetition mends: see the alert engine.failing. */
  readonly errors: number
  readonly claims: number
}

const workerTuningTable = {
  batchMax: integer({
    from: 1,
    to: 5000,
    default: 1000,
    doc: 'The maximum number of jobs that one claim takes; the worker adapts below this.',
  }),
  beatMs: integer({
    from: 10,
    to: 900_000,
    otherwise: 'a quarter of the lease',
    doc: 'The interval at which the lease is renewed and the main thread is checked. For tests.',
  }),
  pollMs: integer({
    from: 10,
    to: 3_600_000,
    default: 5000,
    doc: 'The longest wait between two polls, or 2.5 s for each kind with a limit, up to a minute.',
  }),
  bufferMs: integer({
    from: 10,
    to: 3_600_000,
    default: 10_000,
    doc: 'The longest that a claimed job waits in this process before it starts.',
  }),
  touchMs: integer({
    from: 1,
    to: 3_600_000,
    default: 5000,
    doc: 'The interval at which progress is stored, at most a third of the lease.',
  }),
  handlerConnectionsMax: integer({
    from: 1,
    to: 10_000,
    otherwise: 'the concurrency, and 10 more with projections',
    doc: 'The maximum number of connections for handlers, of tx jobs and of projections together.',
  }),
  exitWhenBlocked: boolean({ default: false, doc: 'true: exit the process if a handler still blocks it after its timeout.' }),
} satisfies TableOf<WorkerTuning>

export const workerTable = {
  name: text({ to: 200, otherwise: "the host's name and the process id", doc: 'The name shown in lists.' }),
  queues: list(text({ to: 100, doc: 'The name of a queue.' }), {
    otherwise: 'the queues of the kinds',
    doc: 'The queues to take jobs from. With [] it runs no jobs.',
  }),
  projections: list(text({ to: 200, doc: 'The name of a projection or sink.' }), {
    otherwise: 'all that are defined',
    doc: 'The projections and sinks to run. With [] it runs none.',
  }),
  concurrency: integer({
    from: 1,
    to: 10_000,
    default: 20,
    doc: 'The maximum number of handlers that run at once in this process.',
  }),
  lease: duration({ from: 100, to: 3_600_000, default: '30s', doc: 'How long a lease lasts after its process hangs.' }),
  keepDays: integer({ from: 1, to: 36_500, default: 14, doc: 'How many days to keep finished jobs.' }),
  keepEventDays: keepTable.keepDays,
  deciding: oneOf(['alone', 'leave', 'only'], {
    default: 'alone',
    doc: 'Jobs that would be dead after one more crash: run them alone, leave them to others, or claim only them.',
  }),
  tuning: tuning(workerTuningTable),
} satisfies TableOf<WorkerOptions>

export const stopTable = {
  grace: duration({ from: 0, to: 86_400_000, default: '20s', doc: 'How long running handlers may take to finish.' }),
  abandon: boolean({ default: false, doc: 'true: the process ends after this, so jobs that still run are given up at once.' }),
} satisfies TableOf<StopOptions>

export type ResolvedWorkerOptions = ReturnType<typeof resolveWorkerOptions>

/** What of a Pawl can be run in this process. */
interface Runnable {
  readonly kinds: readonly DefinedKind[]
  readonly projections: readonly Defined[]
}

export function resolveWorkerOptions(given: WorkerOptions, { kinds, projections }: Runnable) {
  const { lease: leaseMs, tuning, ...options } = resolve('worker', workerTable, given)
  const queues = [...new Set(options.queues ?? kinds.map(({ queue }) => queue))]
  // Beside a job whose next crash would be its last runs nothing else, no cursor either.
  const cursors = options.deciding === 'only' ? [] : chosen(projections, options.projections)
  return {
    ...options,
    ...tuning,
    ...resolveBeat('worker', leaseMs, tuning.beatMs),
    name: options.name ?? `${hostname()}-${process.pid}`,
    queues,
    projections: cursors,
    // The shorter the lease, the sooner another may take a job over: the progress that it finds is at most a third of a lease old.
    touchMs: Math.min(tuning.touchMs, Math.floor(leaseMs / 3)),
    ...handlerConnections(
      tuning.handlerConnectionsMax,
      kinds.length * queues.length === 0 ? 0 : options.concurrency,
      cursors.length,
    ),
  }
}

/** One pool for the handlers of jobs and of cursors; each of the two leaves a connection to the other. */
function handlerConnections(given: number | undefined, jobs: number, cursors: number) {
  const hasBoth = jobs > 0 && cursors > 0
  if (hasBoth && given === 1)
    throw refused('worker', 'tuning.handlerConnectionsMax must be at least 2 in a worker that runs jobs and projections, got 1')
  const handlerConnectionsMax = given ?? jobs + (cursors > 0 ? cursorConnections : 0)
  return { handlerConnectionsMax, txMax: hasBoth ? handlerConnectionsMax - 1 : handlerConnectionsMax }
}

function chosen(defined: readonly Defined[], names: readonly string[] | undefined): readonly Defined[] {
  const unknown = names?.find((name) => !defined.some((definition) => definition.name === name))
  if (unknown !== undefined)
    throw refused(
      'worker',
      `projections must be names of projections or sinks that this process defines, got ${shown(unknown)}. Import the module that defines it`,
    )
  return defined.filter(({ name }) => names?.includes(name) ?? true)
}

/** How often a lease is renewed, and how often its keeper checks. */
function resolveBeat(call: string, leaseMs: number, given: number | undefined) {
  const beatMs = given ?? Math.floor(leaseMs / 4)
  if (beatMs * 3 > leaseMs) throw refused(call, `tuning.beatMs (${beatMs}) must be at most a third of the lease (${leaseMs} ms)`)
  return { leaseMs, beatMs, keeperMs: Math.min(beatMs, lookEveryMs(leaseMs)) }
}
