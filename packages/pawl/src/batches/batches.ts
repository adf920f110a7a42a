// The verbs of batches.

import { sqlState } from '../db/classify.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { assertOutsideTx } from '../events/append.ts'
import { currentTenant } from '../kernel/handler.ts'
import { resolve } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { batchOf, checkBatchId, defineBatch, noBatch, type Registry } from './definition.ts'
import { endTable, extendTable, itemsTable, listTable, rerunTable, startTable, stuckTable } from './options.ts'
import { type BatchPage, listBatches, listItems, listStuck, needBatch } from './reads.ts'
import { endTriesMax, rerunBatch, startBatch } from './start.ts'
import { defineKinds, defineShared } from './steps.ts'
import type {
  Batch,
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

  /** Declares a batch. The workers of this process run its steps and items. */
  define<Data = unknown>(name: string, options: BatchOptions<Data>): BatchKind<Data> {
    const { batches } = this.#registry
    const batch = defineBatch(name, options as unknown as BatchOptions<never>)
    if (batches.has(name))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The batch '${name}' is already defined. Define each batch once.`)
    if (batches.size === 0) defineShared(this.#registry, batch.item.queue)
    defineKinds(this.#registry, batch)
    batches.set(name, batch)
    return { name }
  }

  /** Starts a batch, or queues it. With `tx` it is there if and only if your transaction commits, which holds its track until then. */
  async start<Data>(batch: BatchKind<Data> | string, items: Iterable<NewItem>, options: StartOptions = {}): Promise<Started> {
    const resolved = resolve('start', startTable, options)
    if (resolved.tx === undefined) assertOutsideTx('batches.start')
    return startBatch(this.#registry, this.#tenant, batchOf(this.#registry, batch), items, resolved)
  }

  /** A batch with its counts and sums. */
  async get(id: string): Promise<BatchReport> {
    checkBatchId(id)
    return needBatch(this.#registry.pool, this.#tenant, id)
  }

  /** A page of its items, in their order. */
  async items(id: string, options: ListItemsOptions = {}): Promise<BatchPage<BatchItem>> {
    return listItems(this.#registry, this.#tenant, checkBatchId(id), resolve('items', itemsTable, options))
  }

  /** A page of batches, newest first. */
  async list(options: ListBatchesOptions = {}): Promise<BatchPage<Batch>> {
    return listBatches(this.#registry, this.#tenant, resolve('list', listTable, options))
  }

  /** Why a batch is where it is. */
  async why(id: string): Promise<BatchWhy> {
    return explainBatch(this.#registry, this.#tenant, checkBatchId(id))
  }

  /** The latest item of each key that is unfinished in a batch that has ended or is overdue, and items whose jobs are dead. */
  async stuck(options: StuckOptions = {}): Promise<BatchPage<StuckItem>> {
    return listStuck(this.#registry, this.#tenant, resolve('stuck', stuckTable, options))
  }

  /** Ends a batch that runs or waits. Items that still run get their signal, and their results are refused. */
  async cancel(id: string, options: EndOptions): Promise<{ state: BatchState }> {
    const values = { tenant: this.#tenant, id: checkBatchId(id), ...resolve('cancel', endTable, options) }
    assertOutsideTx('batches.cancel', noTx)
    const { pool } = this.#registry
    const attempt = async () =>
      (await read<{ state: BatchState | 'busy' | null; is_open: boolean }>(pool, cancelStatement, values))[0]!
    let { state, is_open } = await attempt()
    for (let tried = 1; state === 'busy' && tried < endTriesMax; tried++) {
      await read(pool, markEndingStatement, { tenant: values.tenant, id })
      ;({ state, is_open } = await attempt())
    }
    if (is_open && (state === 'cancelled' || state === 'finished')) return { state }
    if (state === null) throw noBatch(id)
    if (state === 'busy') throw held(id, 'end')
    throw wrongState(id, state, 'cancelled')
  }

  /** Moves the deadline of a running batch. */
  async extend(id: string, options: ExtendOptions): Promise<{ deadline: Date }> {
    const { for: ms, ...act } = resolve('extend', extendTable, options)
    const values = { tenant: this.#tenant, id: checkBatchId(id), ms, ...act }
    assertOutsideTx('batches.extend', noTx)
    const [row] = await this.#registry.pool.run<{ deadline: Date }>(extendStatement, values).catch((error: unknown) => {
      throw sqlState(error) === '55P03' ? held(id, 'be extended') : error
    })
    if (row === undefined) throw wrongState(id, (await this.get(id)).state, 'extended')
    return { deadline: row.deadline }
  }

  /** Starts a new batch of those items of an ended one that failed or have not ended. */
  async rerun(id: string, options: RerunOptions = {}): Promise<Started> {
    const resolved = resolve('rerun', rerunTable, options)
    assertOutsideTx('batches.rerun', noTx)
    return rerunBatch(this.#registry, this.#tenant, checkBatchId(id), resolved)
  }
}

function held(id: string, verb: string): PawlError {
  return new PawlError('PAWL_TRACK_BUSY', `Batch ${id} cannot ${verb} now, because an open transaction holds it. Try again.`, {
    details: { id, retryAfterMs: 1000 },
  })
}

function wrongState(id: string, state: BatchState, verb: string): PawlError {
  return new PawlError('PAWL_WRONG_STATE', `Batch ${id} is ${state} and cannot be ${verb}.`, { details: { id, state } })
}
