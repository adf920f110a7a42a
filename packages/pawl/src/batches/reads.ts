// Batches and items as people see them.

import type { Db } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { type Page, type Resolved, refused } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { callOf, noBatch, type Registry } from './definition.ts'
import type { itemsTable, listTable, stuckTable } from './options.ts'
import type { Batch, BatchItem, BatchReport, StuckItem, Sums } from './types.ts'

const getStatement = statement(import.meta.url, 'get')
const listStatement = statement(import.meta.url, 'list')
const itemsStatement = statement(import.meta.url, 'items')
const stuckStatement = statement(import.meta.url, 'stuck')

/** The number of an item is an integer. */
const numberMax = 2147483647n

/** In a caller's transaction a time comes as a string. */
type Time = Date | string

type AsStored =
  | 'id'
  | 'name'
  | 'track'
  | 'policy'
  | 'state'
  | 'phase'
  | 'revision'
  | 'total'
  | 'units'
  | 'prepared'
  | 'meta'
  | 'by'

/** A row of get and list. */
interface BatchRow extends Pick<Batch, AsStored> {
  readonly allowance_ms: string
  readonly deadline: Time | null
  readonly created_at: Time
  readonly started_at: Time | null
  readonly ended_at: Time | null
  readonly end_reason: string | null
  readonly boundary_at: Time | null
  readonly rerun_of: string | null
}

interface ReportRow extends BatchRow {
  readonly done: number
  readonly failed: number
  readonly late: number
  readonly restored: number
  readonly sums: Sums | null
}

interface ItemRow extends Omit<BatchItem, 'jobId' | 'endedAt' | 'lateAt' | 'restoredAt'> {
  readonly job_id: string
  readonly ended_at: Date | null
  readonly late_at: Date | null
  readonly restored_at: Date | null
}

type StuckRow = ItemRow & Pick<StuckItem, 'name' | 'state' | 'reason'>

export async function findBatch(db: Db, tenant: string, id: string): Promise<BatchReport | undefined> {
  const [row] = await db.run<ReportRow>(getStatement, { tenant, id })
  if (row === undefined) return undefined
  const { done, failed, late, restored, sums } = row
  const batch = toBatch(row)
  const counts = { total: batch.total, done, failed, late, restored, waiting: batch.total - done - failed }
  return { ...batch, isSuccess: batch.state === 'finished' && failed === 0, counts, sums: sums ?? {} }
}

export async function needBatch(db: Db, tenant: string, id: string): Promise<BatchReport> {
  const batch = await findBatch(db, tenant, id)
  if (batch === undefined) throw noBatch(tenant, id)
  return batch
}

export async function listBatches({ pool }: Registry, tenant: string, o: Resolved<typeof listTable>): Promise<Page<Batch>> {
  const { name = null, track = null, state = null, limit } = o
  const after = o.after === undefined ? null : cursor(callOf('list'), o.after)
  const rows = await read<BatchRow>(pool, listStatement, { tenant, name, track, state, after, limit: limit + 1 })
  return pageOf(rows.map(toBatch), limit, ({ id }) => id)
}

export async function listItems(
  { pool }: Registry,
  tenant: string,
  id: string,
  { outcome, limit, ...page }: Resolved<typeof itemsTable>,
): Promise<Page<BatchItem>> {
  const after = Number(cursor(callOf('items', id), page.after ?? '0', numberMax))
  const rows = await read<ItemRow>(pool, itemsStatement, { tenant, id, outcome: outcome ?? null, after, limit: limit + 1 })
  if (rows.length === 0) await needBatch(pool, tenant, id)
  return pageOf(rows.map(toItem), limit, ({ n }) => String(n))
}

export async function listStuck({ pool }: Registry, tenant: string, o: Resolved<typeof stuckTable>): Promise<Page<StuckItem>> {
  const { name = null, olderThan, limit } = o
  const [batch = '', n = '0'] = o.after?.split('.') ?? []
  const after_batch = o.after === undefined ? null : cursor(callOf('stuck'), batch)
  const after_n = Number(cursor(callOf('stuck'), n, numberMax))
  const values = { tenant, name, older_ms: olderThan, after_batch, after_n, limit: limit + 1 }
  const rows = await read<StuckRow>(pool, stuckStatement, values)
  return pageOf(rows.map(toItem), limit, (item) => `${item.batch}.${item.n}`)
}

function cursor(call: string, after: string, max = 9223372036854775807n): string {
  if (/^\d{1,19}$/.test(after) && BigInt(after) <= max) return after
  throw refused(call, `after must be \`next\` of the page before, got '${after.slice(0, 50)}'`)
}

/** Of one row more than the page has: whether there is a next. */
function pageOf<Item>(rows: readonly Item[], limit: number, keyOf: (item: Item) => string): Page<Item> {
  const items = rows.slice(0, limit)
  return { items, next: rows.length > limit ? keyOf(items.at(-1)!) : null }
}

function toBatch(row: BatchRow): Batch {
  const { id, name, track, policy, state, phase, revision, total, units, prepared, meta, by } = row
  return {
    ...{ id, name, track, policy, state, phase, revision, total, units, prepared, meta, by },
    allowanceMs: Number(row.allowance_ms),
    deadline: dateOf(row.deadline),
    createdAt: new Date(row.created_at),
    startedAt: dateOf(row.started_at),
    boundaryAt: dateOf(row.boundary_at),
    endedAt: dateOf(row.ended_at),
    endReason: row.end_reason,
    rerunOf: row.rerun_of,
  }
}

function dateOf(time: Time | null): Date | null {
  return time === null ? null : new Date(time)
}

function toItem<Row extends ItemRow>({ job_id, ended_at, late_at, restored_at, ...row }: Row) {
  return { ...row, jobId: job_id, endedAt: ended_at, lateAt: late_at, restoredAt: restored_at }
}
