// Definitions of projections and sinks, checked and filled in.

import { isPawlError, NonRetryable } from '../errors.ts'
import type { LogEvent } from '../events/types.ts'
import { check, type Resolved, refused, resolve } from '../kernel/options.ts'
import { type Backoff, backoffMs, mayRetry } from '../kernel/retry.ts'
import { type breakerTable, type cursorTable, logTable, projectionName, sinkTable, stateTable } from './options.ts'
import { assertTables } from './tables.ts'
import type {
  EventHandler,
  LogProjectionOptions,
  ProjectionContext,
  ProjectionTable,
  ProjectionTx,
  SinkOptions,
  StartFrom,
  StateProjectionOptions,
} from './types.ts'

/** Events whose entities are marked in one transaction. */
const stateBatchMax = 500

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

export function defineProjection(tenant: string, name: string, given: LogProjectionOptions | StateProjectionOptions): Defined {
  const call = `define('${check('define', 'name', projectionName, name)}')`
  const kind = check(call, 'kind', logTable.kind, given?.kind)
  return kind === 'state' ? defineState(call, tenant, name, given) : defineLog(call, tenant, name, given)
}

function defineLog(call: string, tenant: string, name: string, given: unknown): DefinedLog {
  const options = resolve(call, logTable, given)
  const { on, each, batch } = options
  if ([on, each, batch].filter((handler) => handler !== undefined).length !== 1)
    throw refused(call, 'give a handler: one of on, each and batch')
  if (on !== undefined && Object.keys(on).length === 0)
    throw refused(call, 'on must name at least one type of event, got an empty object')
  return {
    ...baseOf(tenant, name, options),
    kind: 'log',
    batchMax: options.tuning.batchMax,
    isBatch: batch !== undefined,
    batch,
    handlerOf:
      each === undefined
        ? (event) => (on !== undefined && Object.hasOwn(on, event.type) ? on[event.type] : undefined)
        : () => each,
  }
}

function defineState(call: string, tenant: string, name: string, given: unknown): DefinedState {
  const options = resolve(call, stateTable, given)
  return {
    ...baseOf(tenant, name, options),
    kind: 'state',
    batchMax: stateBatchMax,
    entitiesOf: (event) => {
      const entities = options.entity(event)
      if (entities === undefined) return []
      return typeof entities === 'string' ? [entities] : entities
    },
    refresh: options.refresh,
    concurrency: options.concurrency,
  }
}

export function defineSink(tenant: string, name: string, given: SinkOptions): DefinedSink {
  const options = resolve(`sink('${check('sink', 'name', projectionName, name)}')`, sinkTable, given)
  return { ...baseOf(tenant, name, options), kind: 'sink', handle: options.handle, concurrency: options.concurrency }
}

interface Generation {
  readonly generation?: number
  readonly tables?: readonly ProjectionTable[] | undefined
}

function baseOf(tenant: string, name: string, options: Resolved<typeof cursorTable> & Generation): DefinedBase {
  const { attempts, crashes, when, ...backoff } = options.retry
  const { generation = 1, tables = [] } = options
  assertTables(name, tables)
  return {
    tenant,
    name,
    generation,
    shards: options.shards,
    channel: options.channel ?? null,
    from: options.from,
    timeoutMs: options.timeout,
    maxLagMs: options.maxLag ?? null,
    attempts,
    crashes,
    backoff,
    when,
    breaker: options.breaker,
    tables,
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
