// What a batch is: its options as the code uses them, and what all batches of a process run on.

import type { Logger } from '../config.ts'
import type { Pool } from '../db/driver.ts'
import { PawlError, shown } from '../errors.ts'
import type { Jobs } from '../jobs/jobs.ts'
import { assertUsers } from '../jobs/options.ts'
import type { StandardSchema } from '../jobs/types.ts'
import { check, type Resolved, refused, required, resolve, text } from '../kernel/options.ts'
import type { Finisher } from './finish.ts'
import { batchTable, handlersTable } from './options.ts'
import type { BatchHandlers, BatchOptions } from './types.ts'

export interface DefinedBatch extends Omit<Resolved<typeof batchTable>, 'schema'> {
  readonly name: string
  readonly track: string
  readonly schema: StandardSchema | undefined
}

export interface Registry {
  readonly pool: Pool
  readonly batches: Map<string, DefinedBatch>
  /** Jobs of Pawl's own kinds. */
  readonly jobs: (tenant: string) => Jobs
  readonly finisher: Finisher
  readonly logger: Logger
  readonly payloadBytesMax: number
}

/** Ended batches are kept this long, with their items. */
export const keepDays = 30

const batchName = required(text({ to: 100, doc: 'The name of a batch.' }))
const stepNames = ['prepare', 'boundary', 'restore', 'onEnd'] as const

export function defineBatch(name: string, given: BatchOptions<never>): DefinedBatch {
  const call = callOf('define', name)
  check(call, 'name', batchName, name)
  assertUsers(call, 'name', name)
  const options = resolve(call, batchTable, given)
  const { item, allowance } = options
  assertNotBoth(call, item)
  const alone = hasHandler(options) ? undefined : stepNames.find((step) => options[step] !== undefined)
  if (alone !== undefined) throw refused(call, `${alone} needs a handler of items beside it: give item run or tx`)
  if (allowance.maxMs < allowance.minMs)
    throw refused(call, `allowance.maxMs must be at least allowance.minMs (${allowance.minMs}), got ${allowance.maxMs}`)
  assertUsers(call, 'item.queue', item.queue)
  return { ...options, name, track: options.track ?? name, schema: options.schema as StandardSchema | undefined }
}

/** The batch with the handlers that `handle` was given. */
export function withHandlers(batch: DefinedBatch, given: BatchHandlers<never>): DefinedBatch {
  const call = callOf('handle', batch.name)
  if (hasHandler(batch))
    throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The batch '${batch.name}' already has its handlers. Give each batch one set.`)
  const { item, ...steps } = resolve(call, handlersTable, given)
  assertNotBoth(call, item)
  const handled = { ...batch, ...steps, item: { ...batch.item, ...item } }
  if (!hasHandler(handled)) throw refused(call, 'give item a handler: either run or tx')
  return handled
}

type WithItem = Pick<DefinedBatch, 'item'>

export function hasHandler({ item }: WithItem): boolean {
  return item.run !== undefined || item.tx !== undefined
}

function assertNotBoth(call: string, { run, tx }: Pick<DefinedBatch['item'], 'run' | 'tx'>): void {
  if (run !== undefined && tx !== undefined) throw refused(call, 'give item a handler: either run or tx, not both')
}

/** A call as messages name it: batches.start('reparse'). */
export function callOf(verb: string, subject?: unknown): string {
  return subject === undefined ? `batches.${verb}` : `batches.${verb}(${shown(subject)})`
}

/** Of a handle, or of its name. */
export function nameOf(kind: unknown): unknown {
  return typeof kind === 'object' && kind !== null ? (kind as { name?: unknown }).name : kind
}

export function batchOf(registry: Registry, call: string, kind: unknown): DefinedBatch {
  const name = nameOf(kind)
  const defined = registry.batches.get(name as string)
  if (defined !== undefined) return defined
  const isHandle = typeof kind === 'object' && typeof name === 'string'
  const fix = isHandle
    ? `got the handle of ${shown(name)}, which another Pawl may define: each Pawl has its own definitions. Call batches.define on this one`
    : `got ${shown(name)}. Call batches.define first`
  throw refused(call, `batch must be one that this Pawl defines, ${fix}`)
}

export function noBatch(tenant: string, id: string): PawlError {
  return new PawlError(
    'PAWL_NOT_FOUND',
    `There is no batch ${shown(id)} of tenant ${shown(tenant)}. A batch is removed ${keepDays} days after its end.`,
    { details: { id, tenant } },
  )
}

/** A number of JavaScript is refused: it would round a bigint. */
export function checkBatchId(verb: string, tenant: string, id: unknown): string {
  if (typeof id === 'string' && /^\d{1,18}$|^[1-8]\d{18}$/.test(id)) return id
  if (typeof id === 'string') throw noBatch(tenant, id)
  const fix = typeof id === 'number' ? '. A number would be rounded: keep the string' : ''
  throw refused(callOf(verb), `id must be the string that start returned, got ${shown(id)}${fix}`)
}
