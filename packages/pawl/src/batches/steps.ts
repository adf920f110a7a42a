// What a batch runs as jobs: prepare, then the boundary and the feeding of items, items, and its end. Each step enqueues the next in its own
// transaction, under the fence of the batch.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { describeError, isPawlError, NonRetryable, PawlError, shown } from '../errors.ts'
import type { RunContext } from '../jobs/call.ts'
import { defineOwn } from '../jobs/jobs.ts'
import type { Job, JobContext, JobTx, KindOptions } from '../jobs/types.ts'
import { insideTx } from '../kernel/handler.ts'
import { toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import type { DefinedBatch, Registry } from './definition.ts'
import type { BatchRef, ItemPayload } from './finish.ts'
import { needBatch } from './reads.ts'
import type { Item, ItemToRestore, Sums } from './types.ts'

const preparedStatement = statement(import.meta.url, 'prepared')
const boundaryStatement = statement(import.meta.url, 'boundary')
const boundarySumsStatement = statement(import.meta.url, 'boundary-sums')
const feedStatement = statement(import.meta.url, 'feed')
const nextStepStatement = statement(import.meta.url, 'next-step')
const stateStatement = statement(import.meta.url, 'state')
const clearStatement = statement(import.meta.url, 'clear-items')
const restoreStatement = statement(import.meta.url, 'to-restore')
const noteLateStatement = statement(import.meta.url, 'note-late')
const closedStatement = statement(import.meta.url, 'closed')
const removeItemsStatement = statement(import.meta.url, 'remove-items')
const removeCursorStatement = statement(import.meta.url, 'remove-cursor')
const removeStatement = statement(import.meta.url, 'remove')

/** Ended batches are kept this long, with their items. */
export const keepMs = 30 * 86_400_000
const restoreItems = 100
const removeItems = 5000
const sumsMax = 20
/** Neither a watch nor an end gives up: a deploy mends what an `onEnd` throws. */
const forever = { attempts: 1_000_000, crashes: 1000, maxMs: 60_000 }
const stepRetry = { attempts: 5, maxMs: 10_000 }

interface StepPayload {
  readonly batch: string
  readonly fence: string
}

interface EndPayload extends StepPayload {
  readonly phase: 'clear' | 'restore' | 'end'
  readonly after: number
}

/** The kinds that any batch needs. */
export function defineShared(registry: Registry, queue: string): void {
  const jobs = registry.jobs('')
  jobs.define<StepPayload>('pawl.batch.watch', {
    queue,
    retry: forever,
    run: async (job) => {
      const nextMs = await registry.finisher.tend(registry, refOf(job))
      return nextMs === undefined ? undefined : job.snooze(nextMs)
    },
  })
  jobs.define<StepPayload>('pawl.batch.remove', { queue, retry: forever, tx: (job, tx) => remove(job, tx as unknown as TxDb) })
}

export function defineKinds(registry: Registry, batch: DefinedBatch): void {
  const { name, item } = batch
  const jobs = registry.jobs('')
  const onDead: NonNullable<KindOptions<unknown>['onDead']> = ({ tenant }) => registry.finisher.tendNamed(registry, tenant, name)
  const step = { queue: item.queue, timeout: '1d', onDead }
  jobs.define<StepPayload>(`pawl.batch.${name}.prepare`, {
    ...step,
    retry: stepRetry,
    run: (job, context) => prepare(registry, batch, job, context),
  })
  jobs.define<StepPayload>(`pawl.batch.${name}.step`, {
    ...step,
    retry: stepRetry,
    tx: (job, tx) => crossAndFeed(batch, job, tx),
  })
  jobs.define<EndPayload>(`pawl.batch.${name}.end`, {
    ...step,
    retry: forever,
    tx: (job, tx) => end(batch, job, tx).catch(retryable),
  })
  const options = { queue: item.queue, timeout: item.timeout, concurrency: item.concurrency, retry: given(item.retry), onDead }
  const { run, tx: inTx } = item
  const answer = async (job: Job<ItemPayload>, context: JobContext, work: () => unknown) => {
    const ended = registry.finisher.running(registry, refOf(job), job.payload.n)
    try {
      return checkSums(subjectOf(name, job), await work())
    } finally {
      ended()
      if ((context as RunContext).isAborted) await noteLate(registry, job)
    }
  }
  const handler =
    run === undefined
      ? {
          tx: (job: Job<ItemPayload>, tx: JobTx, context: JobContext) =>
            answer(job, context, () => inTx!(itemOf(name, job) as never, tx, context)),
        }
      : {
          run: (job: Job<ItemPayload>, context: JobContext) =>
            answer(job, context, () => run(itemOf(name, job) as never, context)),
        }
  jobs[defineOwn]<ItemPayload>(
    `pawl.batch.${name}.item`,
    { ...options, ...handler },
    registry.finisher.settleWith(() => registry),
  )
}

/** Its job is cancelled when its batch ends, and then no settle meets the batch. A hint: the refusal is kept as evidence too. */
async function noteLate({ pool, logger }: Registry, { tenant, payload: { batch: id, n } }: Job<ItemPayload>): Promise<void> {
  await insideTx
    .exit(() => pool.run(noteLateStatement, { tenant, id, n }))
    .catch((error: unknown) => logger.debug({ batch: id, n, error: describeError(error) }, 'a late answer is not noted'))
}

/** An end has no other way out than its success, so NonRetryable of a hook is retried like any error. */
function retryable(error: unknown): never {
  throw error instanceof NonRetryable ? new Error(error.message, { cause: error }) : error
}

/** What the table filled in, without the option that may be missing. */
function given({ when, ...retry }: DefinedBatch['item']['retry']): NonNullable<KindOptions<unknown>['retry']> {
  return when === undefined ? retry : { ...retry, when }
}

function itemOf(name: string, job: Job<ItemPayload>): Item {
  const { batch, n, key, data } = job.payload
  return {
    batch,
    n,
    key,
    data,
    attempt: job.attempt,
    idempotencyKey: job.idempotencyKey,
    guard: (tx) => job.guard(tx).catch(lost),
    complete: async (tx, sums) => job.complete(tx, checkSums(subjectOf(name, job), sums)).catch(lost),
  }
}

/** A worker that knows of the end before the call has the job as cancelled, one that does not learns it from the fence: one code for both. */
function lost(error: unknown): never {
  throw isPawlError(error, 'PAWL_CANCELLED')
    ? new PawlError('PAWL_LEASE_LOST', `${error.message} Its result is refused; stop working on it.`, { cause: error })
    : error
}

function subjectOf(name: string, { payload: { key } }: Job<ItemPayload>): string {
  return `Item ${shown(key)} of '${name}'`
}

/** Numbers by name, or nothing: what cannot be summed up must not be dropped in silence. */
function checkSums(subject: string, sums: unknown): Sums | undefined {
  if (sums === undefined || sums === null) return undefined
  const stored = storedSums(sums)
  const fault = faultOfSums(sums) ?? faultOfSums(stored)
  if (fault === undefined) return stored as Sums
  throw new NonRetryable(`${subject} must return numbers by name, at most ${sumsMax}, or nothing: ${fault}.`)
}

function faultOfSums(sums: unknown): string | undefined {
  if (!isObject(sums)) return `it returned ${shown(sums)}`
  const entries = Object.entries(sums)
  if (entries.length > sumsMax) return `it returned ${entries.length} names`
  const [field, value] = entries.find(([, each]) => !Number.isFinite(each)) ?? []
  if (field === undefined) return undefined
  const isNumeric = typeof value === 'string' && value.trim() !== '' && Number.isFinite(Number(value))
  const fix = isNumeric ? ' (pg gives count(*) as a string: Number(...))' : ''
  return `${shown(field)} is ${shown(value)}${fix}`
}

/** As the database keeps them: toJSON may turn a number into a string. */
function storedSums(sums: unknown): unknown {
  try {
    return JSON.parse(JSON.stringify(sums))
  } catch {
    return undefined
  }
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

async function prepare(registry: Registry, batch: DefinedBatch, job: Job<StepPayload>, context: JobContext): Promise<unknown> {
  const { tenant } = job
  const { batch: id, fence } = job.payload
  const report = await needBatch(registry.pool, tenant, id)
  if (report.state !== 'running') return undefined
  const answer = await batch.prepare?.(report, context)
  const prepared = toJson(answer ?? null, `What prepare of '${batch.name}' returned`, { bytesMax: registry.payloadBytesMax })
  if (probe.on) await probe.hit('batches.prepared', { id })
  await registry.pool.transaction(async (tx) => {
    await job.guard(tx)
    const [row] = await tx.run(preparedStatement, { tenant, id, fence, prepared })
    if (row !== undefined) await tx.run(nextStepStatement, { tenant, id, kind: 'step', payload: '{}' })
    await job.complete(tx)
  })
  return undefined
}

async function crossAndFeed(batch: DefinedBatch, job: Job<StepPayload>, tx: JobTx): Promise<void> {
  const { tenant } = job
  const { batch: id, fence } = job.payload
  const db = tx as unknown as TxDb
  const [crossed] = await db.run(boundaryStatement, { tenant, id, fence })
  if (crossed !== undefined) {
    const sums = checkSums(`The boundary of '${batch.name}'`, await batch.boundary?.(await needBatch(db, tenant, id), tx))
    await db.run(boundarySumsStatement, { tenant, id, sums: sums === undefined ? null : JSON.stringify(sums) })
    if (probe.on) await probe.hit('batches.boundary.written', { id })
  }
  await db.run(feedStatement, { tenant, id, fence })
  if (probe.on) await probe.hit('batches.feed.written', { id })
}

/** One chunk of one phase: clear jobs, restore items, then onEnd. */
async function end(batch: DefinedBatch, job: Job<EndPayload>, tx: JobTx): Promise<unknown> {
  const { tenant } = job
  const { batch: id, phase, after } = job.payload
  const db = tx as unknown as TxDb
  const next = (to: EndPayload['phase'], from: number) =>
    db.run(nextStepStatement, { tenant, id, kind: 'end', payload: JSON.stringify({ phase: to, after: from }) })
  if (phase === 'clear') {
    const [row] = await db.run<{ last: number | null; locked: number }>(clearStatement, { tenant, id, after })
    // A locked job belongs to a transaction in progress. It cannot settle any more, and is cancelled when it is free.
    if (row!.locked > 0) return job.snooze(200)
    await (row!.last === null ? next('restore', 0) : next('clear', row!.last))
  } else if (phase === 'restore') {
    const items = batch.restore === undefined ? [] : await restorable(db, tenant, id, after)
    if (items.length > 0) await batch.restore!(items, tx)
    await (items.length < restoreItems ? next('end', 0) : next('restore', items.at(-1)!.n))
  } else await close(batch, tenant, id, tx)
  if (probe.on) await probe.hit('batches.end.written', { id, phase })
  return undefined
}

/** Those of a batch that ended before its boundary. */
async function restorable(db: TxDb, tenant: string, id: string, after: number): Promise<ItemToRestore[]> {
  const [row] = await db.run<{ boundary_at: Date | null }>(stateStatement, { tenant, id })
  if (row === undefined || row.boundary_at !== null) return []
  const items = await db.run<Omit<ItemToRestore, 'batch'>>(restoreStatement, { tenant, id, after })
  return items.map((item) => ({ batch: id, ...item })).sort((a, b) => a.n - b.n)
}

async function close(batch: DefinedBatch, tenant: string, id: string, tx: JobTx): Promise<void> {
  const db = tx as unknown as TxDb
  const report = await needBatch(db, tenant, id)
  const counts = JSON.stringify({ state: report.state, counts: report.counts, sums: report.sums })
  const [closed] = await db.run(closedStatement, { tenant, id, counts, keep_ms: keepMs })
  if (closed !== undefined) await batch.onEnd?.(report, tx)
}

async function remove(job: Job<StepPayload>, db: TxDb): Promise<unknown> {
  const { tenant } = job
  const { batch: id } = job.payload
  const [row] = await db.run<{ removed: number }>(removeItemsStatement, { tenant, id, limit: removeItems })
  if (row!.removed === removeItems) return job.snooze(1)
  await db.run(removeCursorStatement, { tenant, id })
  await db.run(removeStatement, { tenant, id })
  return undefined
}

function refOf(job: Job<StepPayload>): BatchRef {
  const { batch, fence } = job.payload
  return { tenant: job.tenant, batch, fence }
}
