// The verbs of batches.

import { sqlState } from '../db/classify.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { assertOutsideTx } from '../events/append.ts'
import { currentTenant } from '../kernel/handler.ts'
import { resolve } from '../kernel/options.ts'
import type { Page } from '../kernel/pages.ts'
import { read } from '../kernel/retry.ts'
import {
  batchOf,
  callOf,
  checkBatchId,
  type DefinedBatch,
  defineBatch,
  hasHandler,
  nameOf,
  noBatch,
  type Registry,
  withHandlers,
} from './definition.ts'
import { endTable, extendTable, itemsTable, listTable, rerunTable, startTable, stuckTable } from './options.ts'
import { listBatches, listItems, listStuck, needBatch } from './reads.ts'
import { endTriesMax, rerunBatch, startBatch } from './start.ts'
import { defineKinds } from './steps.ts'
import type {
  Batch,
  BatchHandlers,
  BatchItem,
  BatchKind,
  BatchOptions,
  BatchReport,
  BatchState,
  BatchWhy,
  EndOptions,
  ExtendOptions,
  ListBatchesOptions,
  ListItemsOptions,
  NewItem,
  RerunOptions,
  Started,
  StartOptions,
  StuckItem,
  StuckOptions,
} from './types.ts'
import { explainBatch } from './why.ts'

const cancelStatement = statement(import.meta.url, 'cancel-batch')
const markEndingStatement = statement(import.meta.url, 'mark-ending')
const extendStatement = statement(import.meta.url, 'extend')
const holdersStatement = statement(import.meta.url, 'holders')

interface Cancelled {
  readonly state: BatchState | 'busy' | null
  /** By this call. */
  readonly is_ended: boolean
}

const noTx = 'It takes no { tx }: call it from a run handler, or after the transaction.'

/** What is called for jobs of batches in place of jobs.cancel and jobs.retry. */
export const batchesVerbs = { prefix: 'pawl.batch.', cancel: 'batches.cancel(id, { by, reason })', retry: 'batches.rerun(id)' }

/** Batches of one tenant. `pawl.batches` is that of the job whose handler calls it, else the empty one; `pawl.for('acme').batches` cannot name another's. */
export class Batches {
  readonly #registry: Registry
  readonly #given: string | undefined

  constructor(registry: Registry, tenant: string | undefined) {
    this.#registry = registry
    this.#given = tenant
  }

  get #tenant(): string {
    return this.#given ?? currentTenant()
  }

  /**
   * Declares a batch and its handlers. The workers of this process run its steps and items: a process that only starts it leaves the handlers out, and
   * the module of the worker gives them with `handle`.
   */
  define<Data = unknown, Input = Data>(name: string, options: BatchOptions<Data, Input> = {}): BatchKind<Input, Data> {
    const batch = defineBatch(name, options as unknown as BatchOptions<never>)
    if (this.#registry.batches.has(name))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The batch '${name}' is already defined. Define each batch once.`)
    this.#add(batch)
    return { name }
  }

  /** Gives a batch that was defined without them its handlers, in the processes that work. */
  handle<Input, Data>(batch: BatchKind<Input, Data>, handlers: BatchHandlers<Data>): void {
    const defined = batchOf(this.#registry, callOf('handle', nameOf(batch)), batch)
    this.#add(withHandlers(defined, handlers as unknown as BatchHandlers<never>))
  }

  #add(batch: DefinedBatch): void {
    if (hasHandler(batch)) defineKinds(this.#registry, batch)
    this.#registry.batches.set(batch.name, batch)
  }

  /** Starts a batch, or queues it. With `tx` it is there if and only if your transaction commits, which holds its track until then. */
  async start<Input>(
    batch: BatchKind<Input, unknown> | string,
    items: Iterable<NewItem<Input>>,
    options: StartOptions = {},
  ): Promise<Started> {
    const call = callOf('start', nameOf(batch))
    const resolved = resolve(call, startTable, options)
    if (resolved.tx === undefined) assertOutsideTx(call)
    return startBatch(this.#registry, this.#tenant, batchOf(this.#registry, call, batch), items, resolved)
  }

  /** A batch with its counts and sums. */
  async get(id: string): Promise<BatchReport> {
    return needBatch(this.#registry.pool, this.#tenant, checkBatchId('get', this.#tenant, id))
  }

  /** A page of its items, in their order. */
  async items(id: string, options: ListItemsOptions = {}): Promise<Page<BatchItem>> {
    const resolved = resolve(callOf('items', id), itemsTable, options)
    return listItems(this.#registry, this.#tenant, checkBatchId('items', this.#tenant, id), resolved)
  }

  /** A page of batches, newest first. */
  async list(options: ListBatchesOptions = {}): Promise<Page<Batch>> {
    return listBatches(this.#registry, this.#tenant, resolve(callOf('list'), listTable, options))
  }

  /** Why a batch is where it is. */
  async why(id: string): Promise<BatchWhy> {
    return explainBatch(this.#registry, this.#tenant, checkBatchId('why', this.#tenant, id))
  }

  /** The latest item of each key that is unfinished in a batch that has ended or is overdue, and items whose jobs are dead. */
  async stuck(options: StuckOptions = {}): Promise<Page<StuckItem>> {
    return listStuck(this.#registry, this.#tenant, resolve(callOf('stuck'), stuckTable, options))
  }

  /** Ends a batch that runs or waits. Items that still run get their signal, and their results are refused. */
  async cancel(id: string, options: EndOptions): Promise<{ state: BatchState }> {
    const tenant = this.#tenant
    const values = { tenant, id: checkBatchId('cancel', tenant, id), ...resolve(callOf('cancel', id), endTable, options) }
    assertOutsideTx(callOf('cancel', id), noTx)
    const { pool } = this.#registry
    const attempt = async () => (await read<Cancelled>(pool, cancelStatement, values))[0]!
    let { state, is_ended } = await attempt()
    for (let tried = 1; state === 'busy' && tried < endTriesMax; tried++) {
      await read(pool, markEndingStatement, { tenant, id })
      ;({ state, is_ended } = await attempt())
    }
    if (state === null) throw noBatch(tenant, id)
    if (state === 'busy') throw await this.#held(tenant, id, 'cancelled')
    if (is_ended) return { state }
    throw wrongState(id, state, 'cancelled')
  }

  /** Moves the deadline of a running batch. */
  async extend(id: string, options: ExtendOptions): Promise<{ deadline: Date }> {
    const tenant = this.#tenant
    const { for: ms, ...act } = resolve(callOf('extend', id), extendTable, options)
    const values = { tenant, id: checkBatchId('extend', tenant, id), ms, ...act }
    assertOutsideTx(callOf('extend', id), noTx)
    const [row] = await this.#registry.pool.run<{ deadline: Date }>(extendStatement, values).catch(async (error: unknown) => {
      throw sqlState(error) === '55P03' ? await this.#held(tenant, id, 'extended') : error
    })
    if (row === undefined) throw wrongState(id, (await this.get(id)).state, 'extended')
    return { deadline: row.deadline }
  }

  /** Starts a new batch of those items of an ended one that failed or have not ended. `tx` as for start. */
  async rerun(id: string, options: RerunOptions = {}): Promise<Started> {
    const resolved = resolve(callOf('rerun', id), rerunTable, options)
    if (resolved.tx === undefined) assertOutsideTx(callOf('rerun', id))
    return rerunBatch(this.#registry, this.#tenant, checkBatchId('rerun', this.#tenant, id), resolved)
  }

  async #held(tenant: string, id: string, verb: string): Promise<PawlError> {
    const [row] = await read<{ holders: string | null }>(this.#registry.pool, holdersStatement, { tenant, id })
    const holders = row?.holders ?? null
    const by = holders === null ? '' : `: ${holders}`
    return new PawlError(
      'PAWL_TRACK_BUSY',
      `Batch ${id} cannot be ${verb} now, because an open transaction holds it${by}. Try again when it has ended.`,
      { details: { id, holders, retryAfterMs: 1000 } },
    )
  }
}

function wrongState(id: string, state: BatchState, verb: 'cancelled' | 'extended'): PawlError {
  const fix =
    state === 'queued'
      ? 'Its deadline is set when it starts to run.'
      : `Nothing is left to do; ${callOf('rerun', id)} runs the items again that failed or did not end.`
  return new PawlError('PAWL_WRONG_STATE', `Batch ${id} is ${state} and cannot be ${verb}. ${fix}`, { details: { id, state } })
}
