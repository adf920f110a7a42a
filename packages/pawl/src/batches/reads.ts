// Batches and items as people see them.

import type { Db } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { type Resolved, refused } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { noBatch, type Registry } from './definition.ts'
import type { itemsTable, listTable, stuckTable } from './options.ts'
import type { Batch, BatchItem, BatchReport, StuckItem, Sums } from './types.ts'

const getStatement = statement(import.meta.url, 'get')
const listStatement = statement(import.meta.url, 'list')
const itemsStatement = statement(import.meta.url, 'items')
const stuckStatement = statement(import.meta.url, 'stuck')

export interface BatchPage<Row> {
  readonly items: readonly Row[]
  /** Pass it as `after` for the next page; null: this was the last. */
  readonly next: string | null
}

/** The number of an item is an integer. */
const numberMax = 2147483647n

type Row = Readonly<Record<string, unknown>>

export async function findBatch(db: Db, tenant: string, id: string): Promise<BatchReport | undefined> {
  const [row] = await db.run<Row & { done: number; failed: number; late: number; sums: Sums | null }>(getStatement, {
    tenant,
    id,
  })
  if (row === undefined) return undefined
  const { done, failed, late, sums } = row
  const batch = toBatch(row)
  const counts = { total: batch.total, done, failed, late, waiting: batch.total - done - failed }
  return { ...batch, isSuccess: batch.state === 'finished' && failed === 0, counts, sums: sums ?? {} }
}

export async function needBatch(db: Db, tenant: string, id: string): Promise<BatchReport> {
  const batch = await findBatch(db, tenant, id)
  if (batch === undefined) throw noBatch(id)
  return batch
}

export async function listBatches({ pool }: Registry, tenant: string, o: Resolved<typeof listTable>): Promise<BatchPage<Batch>> {
  const { name = null, track = null, state = null, limit } = o
  const after = o.after === undefined ? null : cursor('list', o.after)
  const rows = await read<Row>(pool, listStatement, { tenant, name, track, state, after, limit: limit + 1 })
  return pageOf(rows.map(toBatch), limit, ({ id }) => id)
}

export async function listItems(
  { pool }: Registry,
  tenant: string,
  id: string,
  { outcome, limit, ...page }: Resolved<typeof itemsTable>,
): Promise<BatchPage<BatchItem>> {
  const after = Number(cursor('items', page.after ?? '0', numberMax))
  const rows = await read<Row>(pool, itemsStatement, { tenant, id, outcome: outcome ?? null, after, limit: limit + 1 })
  if (rows.length === 0) await needBatch(pool, tenant, id)
  return pageOf(rows.map(toItem), limit, ({ n }) => String(n))
}

export async function listStuck(
  { pool }: Registry,
  tenant: string,
  o: Resolved<typeof stuckTable>,
): Promise<BatchPage<StuckItem>> {
  const { name = null, olderThan, limit } = o
  const [batch = '', n = '0'] = o.after?.split('.') ?? []
  const after_batch = o.after === undefined ? null : cursor('stuck', batch)
  const after_n = Number(cursor('stuck', n, numberMax))
  const values = { tenant, name, older_ms: olderThan, after_batch, after_n, limit: limit + 1 }
  const rows = await read<Row>(pool, stuckStatement, values)
  return pageOf(
    rows.map((row) => toItem(row) as StuckItem),
    limit,
    (item) => `${item.batch}.${item.n}`,
  )
}

function cursor(call: string, after: string, max = 9223372036854775807n): string {
  if (/^\d{1,19}$/.test(after) && BigInt(after) <= max) return after
  throw refused(call, `after must be \`next\` of the page before, got '${after.slice(0, 50)}'`)
}

/** Of one row more than the page has: whether there is a next. */
function pageOf<Item>(rows: readonly Item[], limit: number, keyOf: (item: Item) => string): BatchPage<Item> {
  const items = rows.slice(0, limit)
  return { items, next: rows.length > limit ? keyOf(items.at(-1)!) : null }
}

function toBatch(row: Row): Batch {
  const { id, name, track, state, phase, revision, total, units, prepared, meta, by } = row
  const known = { id, name, track, state, phase, revision, total, units, deadline: dateOf(row.deadline), prepared, meta, by }
  const times = { createdAt: dateOf(row.created_at), startedAt: dateOf(row.started_at), endedAt: dateOf(row.ended_at) }
  return {
    ...known,
    ...times,
    endReason: row.end_reason,
    allowanceMs: Number(row.allowance_ms),
    rerunOf: row.rerun_of,
  } as unknown as Batch
}

/** In a caller's transaction it comes as a string. */
function dateOf(value: unknown): Date | null {
  return value === null ? null : new Date(value as Date | string)
}

function toItem({ job_id, ended_at, late_at, restored_at, ...row }: Row): BatchItem {
  return { ...row, jobId: job_id, endedAt: ended_at, lateAt: late_at, restoredAt: restored_at } as unknown as BatchItem
}
