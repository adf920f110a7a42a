// Definitions of projections, reactions and sinks, checked and filled in.

import { isPawlError, NonRetryable } from '../errors.ts'
import type { PassedOver } from '../events/read-log.ts'
import type { LogEvent } from '../events/types.ts'
import { check, type Resolved, refused, resolve } from '../kernel/options.ts'
import { backoffMs, mayRetry } from '../kernel/retry.ts'
import { assertTables } from './generations/tables.ts'
import { type cursorTable, logTable, projectionName, reactionTable, sinkTable, stateTable } from './options.ts'
import type {
  EventHandler,
  LogProjectionOptions,
  ProjectionTable,
  ReactionOptions,
  SinkOptions,
  StateProjectionOptions,
} from './types.ts'

/** Events whose entities are marked in one transaction. */
const stateBatchMax = 500

/** Its options, filled in. */
interface DefinedBase extends Omit<Resolved<typeof cursorTable>, 'channel'> {
  readonly tenant: string
  readonly name: string
  readonly generation: number
  readonly channel: string | null
  readonly tables: readonly ProjectionTable[]
  /** It writes its tables and nothing else: append and enqueue refuse its transaction, and a rebuild may repeat it. */
  readonly isPure: boolean
}

export interface DefinedLog extends DefinedBase {
  readonly kind: 'log' | 'reaction'
  readonly batchMax: number
  /** The handler of an event; undefined: the event is passed over. */
  readonly handlerOf: (event: LogEvent) => EventHandler | undefined
  /** One call gets all events of a transaction. */
  readonly batch: LogProjectionOptions['batch']
}

export interface DefinedState extends DefinedBase {
  readonly kind: 'state'
  readonly batchMax: number
  readonly entitiesOf: (event: LogEvent) => readonly string[]
  readonly refresh: NonNullable<StateProjectionOptions['refreshMany']>
  /** Of one refresh, under one lock; undefined: one entity at a time, under the entity's own lock. */
  readonly entitiesMax: number | undefined
  readonly concurrency: number
  readonly own: OwnRefreshes | undefined
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
  if (kind === 'state') return defineState(call, tenant, name, given)
  const options = resolve(call, logTable, given)
  const { on, each, batch } = options
  if ([on, each, batch].filter((handler) => handler !== undefined).length !== 1)
    throw refused(call, 'give a handler: one of on, each and batch')
  return { ...baseOf(tenant, name, options, true), ...handling(call, options), kind, batch }
}

export function defineReaction(tenant: string, name: string, given: ReactionOptions): DefinedLog {
  const call = `react('${check('react', 'name', projectionName, name)}')`
  const options = resolve(call, reactionTable, given)
  if ((options.on === undefined) === (options.each === undefined)) throw refused(call, 'give a handler: one of on and each')
  return { ...baseOf(tenant, name, options, false), ...handling(call, options), kind: 'reaction', batch: undefined }
}

function handling(
  call: string,
  { on, each, tuning }: Resolved<typeof reactionTable>,
): Pick<DefinedLog, 'batchMax' | 'handlerOf'> {
  if (on !== undefined && Object.keys(on).length === 0)
    throw refused(call, 'on must name at least one type of event, got an empty object')
  return {
    batchMax: tuning.batchMax,
    handlerOf:
      each === undefined
        ? (event) => (on !== undefined && Object.hasOwn(on, event.type) ? on[event.type] : undefined)
        : () => each,
  }
}

function defineState(call: string, tenant: string, name: string, given: unknown): DefinedState {
  const options = resolve(call, stateTable, given)
  const { refresh, refreshMany } = options
  if ((refresh === undefined) === (refreshMany === undefined)) throw refused(call, 'give one of refresh and refreshMany')
  const isOne = refreshMany !== undefined
  if (isOne && ((given as StateProjectionOptions).concurrency ?? 1) !== 1)
    throw refused(call, `refreshMany has one refresher at a time, got concurrency ${options.concurrency}; leave concurrency out`)
  const isPure = options.tables !== undefined && options.tables.length > 0
  if ((given as StateProjectionOptions).generation !== undefined && !isPure)
    throw refused(call, 'a state projection without tables is never rebuilt, so it has no generation; declare its tables')
  return {
    ...baseOf(tenant, name, options, isPure),
    kind: 'state',
    batchMax: stateBatchMax,
    entitiesOf: (event) => {
      const entities = options.entity(event)
      if (entities === undefined) return []
      return typeof entities === 'string' ? [entities] : entities
    },
    refresh: refreshMany ?? (([entity], tx, context) => refresh!(entity!, tx, context)),
    entitiesMax: isOne ? options.tuning.batchMax : undefined,
    concurrency: isOne ? 1 : options.concurrency,
    own: ownRefreshesOf(options.entity),
  }
}

export function defineSink(tenant: string, name: string, given: SinkOptions): DefinedSink {
  const options = resolve(`sink('${check('sink', 'name', projectionName, name)}')`, sinkTable, given)
  return { ...baseOf(tenant, name, options, false), kind: 'sink', handle: options.handle, concurrency: options.concurrency }
}

interface Generation {
  readonly generation?: number
  readonly tables?: readonly ProjectionTable[] | undefined
}

function baseOf(tenant: string, name: string, options: Resolved<typeof cursorTable> & Generation, isPure: boolean): DefinedBase {
  const { channel = null, generation = 1, tables = [] } = options
  assertTables(name, tables)
  return { ...options, tenant, name, generation, channel, tables, isPure }
}

/** The delay before the next attempt, or undefined when there is none: the error is final or the attempts are used up. */
export function retryDelayMs(
  { retry }: Defined,
  failures: number,
  error: unknown,
  onHookError: (thrown: unknown) => void,
): number | undefined {
  const isFinal = error instanceof NonRetryable || isPawlError(error, 'PAWL_ROWS_EXPECTED')
  if (isFinal || !mayRetry(retry, error, onHookError) || failures >= retry.attempts) return undefined
  return Math.max(1, backoffMs(retry, failures))
}

/** What its transactions say, for the server: the name of a projection, through which no event and no job is added. */
export function foldOf({ isPure, name }: Defined): string {
  return isPure ? name : ''
}

/** The parameters that name its rows. */
export function idOf({ tenant, name, generation }: Defined): { tenant: string; name: string; generation: number } {
  return { tenant, name, generation }
}

/** How a definition is named in a map: a process may define several generations of one projection. */
export function definitionKey({ tenant, name, generation }: { tenant: string; name: string; generation: number }): string {
  return JSON.stringify([tenant, name, generation])
}

/** How a worker's row says that its process can run it. */
export function kindOf(definition: Defined): string {
  return `${kindPrefix(definition)}${definition.generation}`
}

/** What its kind begins with, whichever generation a process defines. */
export function kindPrefix({ tenant, name }: { readonly tenant: string; readonly name: string }): string {
  return `projection:${tenant}/${name}/`
}

// ---- a state projection that ignores the events of its refresh. The cursor passes over those of this process's last refreshes unread. A hint: lost, or
// in another process, the events are read, and mark nothing.

type Entity = StateProjectionOptions['entity']

/** Each costs a comparison per position that is read. */
const transactionsMax = 64

/** What a refresh's transaction tells of itself before it appends; all null: its commit could be lost, and another get its id. */
export interface OwnRefresh {
  readonly era: string | null
  readonly head: string | null
  readonly xid: string | null
}

const ignoring = new WeakSet<Entity>()

/** Declares that the function returns nothing for any event of the projection's own refresh, in any release. Pawl's own projections only. */
export function ignoringOwnEvents(entity: Entity): Entity {
  ignoring.add(entity)
  return entity
}

export function ownRefreshesOf(entity: Entity): OwnRefreshes | undefined {
  return ignoring.has(entity) ? new OwnRefreshes() : undefined
}

export class OwnRefreshes {
  #passedOver: PassedOver | undefined

  /** After the commit: a transaction that was rolled back leaves its id to nothing, one without an answer is read. */
  committed({ era, head, xid }: OwnRefresh): void {
    if (era === null || head === null || xid === null) return
    const { xids, heads } = this.#passedOver?.era === era ? this.#passedOver : { xids: [], heads: [] }
    const last = 1 - transactionsMax
    this.#passedOver = { era, xids: [...xids.slice(last), xid], heads: [...heads.slice(last), head] }
  }

  get passedOver(): PassedOver | undefined {
    return this.#passedOver
  }
}
