// The jobs of a batch: prepare, the boundary with the feed of its items, the items, the end. Each step enqueues the next in its own transaction,
// under the fence of the batch.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { describeError, isPawlError, NonRetryable, PawlError, shown } from '../errors.ts'
import type { RunContext } from '../jobs/call.ts'
import { defineOwn, type Jobs } from '../jobs/jobs.ts'
import { parse } from '../jobs/kinds.ts'
import type { Handler, Job, JobContext, JobTx, KindOptions } from '../jobs/types.ts'
import { insideTx } from '../kernel/handler.ts'
import { toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { type DefinedBatch, hasHandler, keepDays, type Registry } from './definition.ts'
import { type BatchRef, type ItemPayload, pollMs } from './finish.ts'
import { needBatch } from './reads.ts'
import type { Item, ItemToRestore, Sums } from './types.ts'

const prepareFirstStatement = statement(import.meta.url, 'prepare-first')
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

const keepMs = keepDays * 86_400_000
const restoreItems = 100
const removeItems = 5000
const sumsMax = 20
/** A watch and an end are retried until they succeed: a deploy can fix an `onEnd` that throws. */
const forever = { attempts: 1_000_000, crashes: 1000, maxMs: 60_000 }
const stepRetry = { attempts: 5, maxMs: 10_000 }

interface StepPayload {
  readonly batch: string
  readonly fence: string
}

interface EndPayload extends StepPayload {
  readonly part: 'clear' | 'restore' | 'hook'
  /** Of the first part: the job of the step that the end interrupted. */
  readonly step?: string | null
  readonly after: number
}

/** The kinds that all batches share. */
function defineShared(registry: Registry, jobs: Jobs, queue: string): void {
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
  if (![...registry.batches.values()].some(hasHandler)) defineShared(registry, jobs, item.queue)
  const onDead: NonNullable<KindOptions<unknown>['onDead']> = () => registry.finisher.tendNamed(registry, name)
  const step = { queue: item.queue, timeout: '1d', onDead }
  jobs.define<StepPayload>(`pawl.batch.${name}.prepare`, {
    ...step,
    retry: stepRetry,
    run: (job, context) => prepare(registry, batch, job, context),
  })
  jobs.define<StepPayload>(`pawl.batch.${name}.step`, {
    ...step,
    retry: stepRetry,
    tx: (job, tx) => crossAndFeed(registry, batch, job, tx),
  })
  jobs.define<EndPayload>(`pawl.batch.${name}.end`, {
    ...step,
    retry: forever,
    tx: (job, tx) => end(batch, job, tx).catch(retryable),
  })
  const { run, tx: inTx, retry, ...options } = item
  const answer = async (job: Job<ItemPayload>, context: JobContext, handle: (given: never) => unknown) => {
    const mayStart = await registry.finisher.mayStart(registry, refOf(job))
    if (!mayStart || (context as RunContext).isAborted) return job.snooze(pollMs)
    const ended = registry.finisher.running(registry, refOf(job), job.payload.n)
    try {
      return checkSums(subjectOf(name, job), await handle(itemOf(name, job, await dataOf(batch, job)) as never))
    } finally {
      ended()
      if ((context as RunContext).isAborted) await noteLate(registry, job)
    }
  }
  const handler: Handler<ItemPayload> =
    run === undefined
      ? { tx: (job, tx, context) => answer(job, context, (each) => inTx!(each, tx, context)) }
      : { run: (job, context) => answer(job, context, (each) => run(each, context)) }
  const settleWith = registry.finisher.settleWith(() => registry)
  jobs[defineOwn]<ItemPayload>(`pawl.batch.${name}.item`, { ...options, retry: given(retry), onDead, ...handler }, settleWith)
}

/** What the schema makes of it now. Another attempt would read the same. */
async function dataOf({ name, schema }: DefinedBatch, { payload: { data } }: Job<ItemPayload>): Promise<unknown> {
  try {
    return await parse({ name, schema, noun: 'data' }, data)
  } catch (error) {
    throw isPawlError(error, 'PAWL_INVALID_PAYLOAD') ? new NonRetryable(error.message, { cause: error }) : error
  }
}

/** The end of a batch cancels the jobs of its items, so the settle of a late one never meets its batch. A hint: pawl.refusal has it too. */
async function noteLate({ pool, logger }: Registry, { tenant, payload: { batch: id, n } }: Job<ItemPayload>): Promise<void> {
  await insideTx
    .exit(() => pool.run(noteLateStatement, { tenant, id, n }))
    .catch((error: unknown) => logger.debug({ batch: id, n, error: describeError(error) }, 'a late answer is not noted'))
}

/** An end must succeed, so a NonRetryable of its hook is retried like any other error. */
function retryable(error: unknown): never {
  throw error instanceof NonRetryable ? new Error(error.message, { cause: error }) : error
}

/** `when` has no default, and jobs.define refuses undefined. */
function given({ when, ...retry }: DefinedBatch['item']['retry']): NonNullable<KindOptions<unknown>['retry']> {
  return when === undefined ? retry : { ...retry, when }
}

function itemOf(name: string, job: Job<ItemPayload>, data: unknown): Item {
  const { batch, n, key } = job.payload
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

/** The end of a batch is PAWL_CANCELLED in a worker that has already seen it, and a refused fence in others: one code for both. */
function lost(error: unknown): never {
  throw isPawlError(error, 'PAWL_CANCELLED')
    ? new PawlError('PAWL_LEASE_LOST', `${error.message} Its result is refused; stop working on it.`, { cause: error })
    : error
}

function subjectOf(name: string, { payload: { key } }: Job<ItemPayload>): string {
  return `Item ${shown(key)} of '${name}'`
}

/** Refuses all but numbers by name, or nothing: the sums would drop other values in silence. */
function checkSums(subject: string, sums: unknown): Sums | undefined {
  if (sums === undefined || sums === null) return undefined
  // As the database stores them: toJSON may turn a number into a string.
  const fault = faultOfSums(sums) ?? faultOfSums(JSON.parse(JSON.stringify(sums) ?? 'null'))
  if (fault === undefined) return sums as Sums
  throw new NonRetryable(`${subject} must return numbers by name, at most ${sumsMax}, or nothing: ${fault}.`)
}

function faultOfSums(sums: unknown): string | undefined {
  if (typeof sums !== 'object' || sums === null || Array.isArray(sums)) return `it returned ${shown(sums)}`
  const entries = Object.entries(sums)
  if (entries.length > sumsMax) return `it returned ${entries.length} names`
  const [field, value] = entries.find(([, each]) => !Number.isFinite(each)) ?? []
  if (field === undefined) return undefined
  const isNumeric = typeof value === 'string' && value.trim() !== '' && Number.isFinite(Number(value))
  const fix = isNumeric ? ' (pg gives count(*) as a string: Number(...))' : ''
  return `${shown(field)} is ${shown(value)}${fix}`
}

async function prepare(registry: Registry, batch: DefinedBatch, job: Job<StepPayload>, context: JobContext): Promise<unknown> {
  const { tenant } = job
  const { batch: id, fence } = job.payload
  const report = await needBatch(registry.pool, tenant, id)
  if (report.state !== 'running') return undefined
  if (!(await registry.finisher.mayStart(registry, refOf(job)))) return job.snooze(pollMs)
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

/** An overdue batch begins nothing. Its step waits for the end, or for an extend: one that returned would count as lost, and fail the batch. */
async function crossAndFeed(registry: Registry, batch: DefinedBatch, job: Job<StepPayload>, tx: JobTx): Promise<unknown> {
  const { tenant } = job
  const { batch: id, fence } = job.payload
  const db = tx as unknown as TxDb
  registry.finisher.poll(registry)
  // Not only before the deadline: an extend between this statement and the next would let the boundary pass without its prepare.
  if (batch.prepare !== undefined && (await db.run(prepareFirstStatement, { tenant, id, fence })).length > 0) return undefined
  const [crossed] = await db.run(boundaryStatement, { tenant, id, fence })
  if (crossed !== undefined) {
    const sums = checkSums(`The boundary of '${batch.name}'`, await batch.boundary?.(await needBatch(db, tenant, id), tx))
    await db.run(boundarySumsStatement, { tenant, id, sums: sums === undefined ? null : JSON.stringify(sums) })
    if (probe.on) await probe.hit('batches.boundary.written', { id })
  }
  const [fed] = await db.run<{ is_fed: boolean | null }>(feedStatement, { tenant, id, fence })
  if (probe.on) await probe.hit('batches.feed.written', { id })
  return fed!.is_fed === null ? job.snooze(pollMs) : undefined
}

/** One chunk of one part: clears jobs, restores items, or calls onEnd. */
async function end(batch: DefinedBatch, job: Job<EndPayload>, tx: JobTx): Promise<unknown> {
  const { tenant } = job
  const { batch: id, part, after, step = null } = job.payload
  const db = tx as unknown as TxDb
  const next = (to: EndPayload['part'], from: number) =>
    db.run(nextStepStatement, { tenant, id, kind: 'end', payload: JSON.stringify({ part: to, after: from }) })
  if (part === 'clear') {
    const [row] = await db.run<{ last: number | null; locked: number }>(clearStatement, { tenant, id, after, step })
    // A transaction in progress has locked these jobs. The batch refuses its settle, and the next round cancels them.
    if (row!.locked > 0) return job.snooze(200)
    await (row!.last === null ? next('restore', 0) : next('clear', row!.last))
  } else if (part === 'restore') {
    const items = batch.restore === undefined ? [] : await restorable(db, tenant, id, after)
    if (items.length > 0) await batch.restore!(items, tx)
    await (items.length < restoreItems ? next('hook', 0) : next('restore', items.at(-1)!.n))
  } else await close(batch, tenant, id, tx)
  if (probe.on) await probe.hit('batches.end.written', { id, part })
  return undefined
}

/** The next 100 items of a batch that ended before its boundary; none of one that crossed it. */
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
