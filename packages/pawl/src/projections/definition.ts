// Definitions of projections and sinks, checked and filled in.

import { isPawlError, NonRetryable, PawlError, shown } from '../errors.ts'
import type { LogEvent } from '../events/types.ts'
import { retryTable } from '../jobs/options.ts'
import {
  assertKnown,
  check,
  duration,
  durationIn,
  integer,
  nested,
  notOneOf,
  type Resolved,
  refused,
  type TableOf,
  whole,
  withoutUndefined,
} from '../kernel/options.ts'
import { type Backoff, backoffMs, mayRetry } from '../kernel/retry.ts'
import { assertTables } from './tables.ts'
import type {
  CursorKind,
  EventHandler,
  LogProjectionOptions,
  ProjectionContext,
  ProjectionTable,
  ProjectionTx,
  SinkOptions,
  StartFrom,
  StateProjectionOptions,
} from './types.ts'

export const projectionDefaults = {
  attempts: 5,
  crashes: 3,
  timeoutMs: 30_000,
  batchMax: 500,
  sinkConcurrency: 16,
  stateConcurrency: 4,
  /** Five attempts of a projection take a few seconds, in which all its keys wait. */
  backoff: { initialMs: 200, factor: 3, maxMs: 10_000, jitter: true },
  /** Only failing keys wait. Forty attempts take 17 minutes on average: full jitter halves each delay, and a few long ones vary too much. */
  sinkAttempts: 40,
  sinkBackoff: { initialMs: 1000, factor: 2, maxMs: 60_000, jitter: true },
} as const

export const breakerTable = {
  keys: integer({ from: 1, to: 1_000_000, default: 100, doc: 'The number of parked keys after which the cursor pauses.' }),
  within: duration({
    from: 1000,
    to: 30 * 86_400_000,
    default: '1h',
    doc: 'The time window. Keys parked before it, or before the last resume, do not count.',
  }),
} satisfies TableOf<NonNullable<LogProjectionOptions['breaker']>>

interface DefinedBase {
  readonly tenant: string
  readonly name: string
  readonly generation: number
  readonly shards: number
  readonly channel: string | null
  readonly from: StartFrom
  readonly timeoutMs: number
  readonly maxLagMs: number | null
  readonly attempts: number
  readonly crashes: number
  readonly backoff: Backoff
  readonly when: ((error: unknown) => boolean) | undefined
  readonly breaker: Resolved<typeof breakerTable>
  readonly tables: readonly ProjectionTable[]
}

export interface DefinedLog extends DefinedBase {
  readonly kind: 'log'
  readonly batchMax: number
  /** Whether one call gets all events of a transaction. */
  readonly isBatch: boolean
  /** The handler of an event; undefined: the event is passed over. */
  readonly handlerOf: (event: LogEvent) => EventHandler | undefined
  readonly batch: LogProjectionOptions['batch']
}

export interface DefinedState extends DefinedBase {
  readonly kind: 'state'
  readonly batchMax: number
  readonly entitiesOf: (event: LogEvent) => readonly string[]
  readonly refresh: (entity: string, tx: ProjectionTx, context: ProjectionContext) => unknown
  readonly concurrency: number
}

export interface DefinedSink extends DefinedBase {
  readonly kind: 'sink'
  readonly handle: SinkOptions['handle']
  readonly concurrency: number
}

export type Defined = DefinedLog | DefinedState | DefinedSink

const cursorOptions = ['channel', 'shards', 'from', 'retry', 'timeout', 'maxLag', 'breaker']
const known: Readonly<Record<CursorKind, ReadonlySet<string>>> = {
  log: new Set([...cursorOptions, 'kind', 'generation', 'tables', 'on', 'each', 'batch', 'batchMax']),
  state: new Set([...cursorOptions, 'kind', 'generation', 'tables', 'entity', 'refresh', 'concurrency']),
  sink: new Set([...cursorOptions, 'handle', 'concurrency']),
}

const projectionKinds = ['log', 'state']
const starts: readonly StartFrom[] = ['start', 'oldest', 'now']

export function defineProjection(tenant: string, name: string, options: LogProjectionOptions | StateProjectionOptions): Defined {
  if (options?.kind !== undefined && !projectionKinds.includes(options.kind))
    throw notOneOf(`define(${shown(name)}): kind`, options.kind, projectionKinds)
  return options?.kind === 'state' ? defineState(tenant, name, options) : defineLog(tenant, name, options)
}

function defineLog(tenant: string, name: string, options: LogProjectionOptions): DefinedLog {
  assertKnown(`define('${name}')`, options, known.log)
  const { on, each, batch } = options
  const handlers = Object.entries({ on, each, batch }).filter(([, handler]) => handler !== undefined)
  if (handlers.length !== 1) throw refused(`define('${name}')`, 'give a handler: one of on, each and batch')
  if (on !== undefined && (typeof on !== 'object' || on === null))
    throw refused(`define('${name}')`, `on must be an object with a function per type of event, got ${shown(on)}`)
  if (on !== undefined && Object.keys(on).length === 0)
    throw refused(`define('${name}')`, 'on must name at least one type of event, got an empty object')
  assertHandlers(`define('${name}')`, { each, batch })
  assertHandlers(`define('${name}').on`, on ?? {})
  return {
    ...baseOf(tenant, name, options, 'log'),
    kind: 'log',
    batchMax: whole('batchMax', options.batchMax ?? projectionDefaults.batchMax, 1, 5000),
    isBatch: batch !== undefined,
    batch,
    handlerOf:
      each === undefined
        ? (event) => (on !== undefined && Object.hasOwn(on, event.type) ? on[event.type] : undefined)
        : () => each,
  }
}

function defineState(tenant: string, name: string, options: StateProjectionOptions): DefinedState {
  assertKnown(`define('${name}')`, options, known.state)
  if (typeof options.entity !== 'function' || typeof options.refresh !== 'function')
    throw new PawlError('PAWL_CONFIG', `define('${name}') is a state projection and needs the functions entity and refresh.`)
  return {
    ...baseOf(tenant, name, options, 'state'),
    kind: 'state',
    batchMax: projectionDefaults.batchMax,
    entitiesOf: (event) => {
      const entities = options.entity(event)
      if (entities === undefined) return []
      return typeof entities === 'string' ? [entities] : entities
    },
    refresh: options.refresh,
    concurrency: whole('concurrency', options.concurrency ?? projectionDefaults.stateConcurrency, 1, 1000),
  }
}

export function defineSink(tenant: string, name: string, options: SinkOptions): DefinedSink {
  assertKnown(`sink('${name}')`, options, known.sink)
  if (typeof options.handle !== 'function') throw new PawlError('PAWL_CONFIG', `sink('${name}') needs the function handle.`)
  return {
    ...baseOf(tenant, name, options, 'sink'),
    kind: 'sink',
    handle: options.handle,
    concurrency: whole('concurrency', options.concurrency ?? projectionDefaults.sinkConcurrency, 1, 1000),
  }
}

function assertHandlers(call: string, handlers: Readonly<Record<string, unknown>>): void {
  for (const [name, handler] of Object.entries(handlers))
    if (handler !== undefined && typeof handler !== 'function')
      throw refused(call, `${name} must be a function, got ${shown(handler)}`)
}

function baseOf(
  tenant: string,
  name: string,
  options: Pick<
    LogProjectionOptions,
    'channel' | 'shards' | 'from' | 'retry' | 'timeout' | 'maxLag' | 'breaker' | 'generation' | 'tables'
  >,
  kind: CursorKind,
): DefinedBase {
  if (typeof name !== 'string' || name.length < 1 || name.length > 100)
    throw new PawlError(
      'PAWL_CONFIG',
      `The name of a projection or sink must be a string of 1 to 100 characters, got ${shown(name)}.`,
    )
  const isSink = kind === 'sink'
  const call = `${isSink ? 'sink' : 'define'}('${name}')`
  const { attempts, crashes, when, ...backoff } = check(call, 'retry', nested(retryTable, { doc: 'The retry policy.' }), {
    crashes: projectionDefaults.crashes,
    attempts: isSink ? projectionDefaults.sinkAttempts : projectionDefaults.attempts,
    ...(isSink ? projectionDefaults.sinkBackoff : projectionDefaults.backoff),
    ...withoutUndefined(options.retry ?? {}),
  })
  const from = options.from ?? (isSink ? 'oldest' : 'start')
  if (!starts.includes(from)) throw notOneOf(`${call}: from`, from, starts)
  if (options.channel !== undefined && typeof options.channel !== 'string')
    throw refused(call, `channel must be a string, got ${shown(options.channel)}`)
  assertTables(name, options.tables ?? [])
  return {
    tenant,
    name,
    generation: whole('generation', options.generation ?? 1, 1, 1_000_000),
    shards: whole('shards', options.shards ?? 1, 1, 1024),
    channel: options.channel ?? null,
    from,
    timeoutMs: durationIn('timeout', options.timeout ?? projectionDefaults.timeoutMs, 1, 86_400_000),
    maxLagMs: options.maxLag === undefined ? null : durationIn('maxLag', options.maxLag, 1000, 3650 * 86_400_000),
    attempts,
    crashes,
    backoff,
    when,
    breaker: check(
      call,
      'breaker',
      nested(breakerTable, { doc: 'When the cursor pauses instead of parking more keys.' }),
      options.breaker,
    ),
    tables: options.tables ?? [],
  }
}

/** The delay before the next attempt, or undefined when there is none: the error is final or the attempts are used up. */
export function retryDelayMs(
  definition: Defined,
  failures: number,
  error: unknown,
  onHookError: (thrown: unknown) => void,
): number | undefined {
  if (error instanceof NonRetryable || isPawlError(error, 'PAWL_ROWS_EXPECTED') || !mayRetry(definition, error, onHookError))
    return undefined
  if (failures >= definition.attempts) return undefined
  return Math.max(1, backoffMs(definition.backoff, failures))
}

/** How a definition is named in a map: a process may define several generations of one projection. */
export function definitionKey(definition: { tenant: string; name: string; generation: number }): string {
  return JSON.stringify([definition.tenant, definition.name, definition.generation])
}

/** How a worker's row says that its process can run it. */
export function kindOf(definition: { tenant: string; name: string; generation: number }): string {
  return `${kindPrefix(definition)}${definition.generation}`
}

/** What its kind begins with, whichever generation a process defines. */
export function kindPrefix({ tenant, name }: { readonly tenant: string; readonly name: string }): string {
  return `projection:${tenant}/${name}/`
}
