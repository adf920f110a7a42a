// Batches and items as people see them.

import type { Db } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { type Resolved, refused } from '../kernel/options.ts'
import { camelCase, type Page, pageOf } from '../kernel/pages.ts'
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

type Row = Readonly<Record<string, unknown>>

/** Of a batch's row as it is stored. */
interface Counted {
  readonly done: number
  readonly failed: number
  readonly late: number
  readonly restored: number
  readonly sums: Sums | null
}

export async function findBatch(db: Db, tenant: string, id: string): Promise<BatchReport | undefined> {
  const [row] = await db.run<Counted & Row>(getStatement, { tenant, id })
  if (row === undefined) return undefined
  const { done, failed, late, restored, sums, ...stored } = row
  const batch = toBatch(stored)
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
  const rows = await read<Row>(pool, listStatement, { tenant, name, track, state, after, limit: limit + 1 })
  return pageOf(rows.map(toBatch), limit, ({ id }) => id)
}

export async function listItems(
  { pool }: Registry,
  tenant: string,
  id: string,
  o: Resolved<typeof itemsTable>,
): Promise<Page<BatchItem>> {
  const { outcome = null, limit } = o
  const after = Number(cursor(callOf('items', id), o.after ?? '0', numberMax))
  const rows = await read<Row>(pool, itemsStatement, { tenant, id, outcome, after, limit: limit + 1 })
  if (rows.length === 0) await needBatch(pool, tenant, id)
  return pageOf(rows.map(camelCase) as unknown as BatchItem[], limit, ({ n }) => String(n))
}

export async function listStuck({ pool }: Registry, tenant: string, o: Resolved<typeof stuckTable>): Promise<Page<StuckItem>> {
  const { name = null, olderThan, limit } = o
  const [batch = '', n = '0'] = o.after?.split('.') ?? []
  const after_batch = o.after === undefined ? null : cursor(callOf('stuck'), batch)
  const after_n = Number(cursor(callOf('stuck'), n, numberMax))
  const values = { tenant, name, older_ms: olderThan, after_batch, after_n, limit: limit + 1 }
  const rows = await read<Row>(pool, stuckStatement, values)
  return pageOf(rows.map(camelCase) as unknown as StuckItem[], limit, (item) => `${item.batch}.${item.n}`)
}

function cursor(call: string, after: string, max = 9223372036854775807n): string {
  if (/^\d{1,19}$/.test(after) && BigInt(after) <= max) return after
  throw refused(call, `after must be \`next\` of the page before, got '${after.slice(0, 50)}'`)
}

/** In a caller's transaction a time comes as a string. */
function toBatch(row: Row): Batch {
  const batch = camelCase(row)
  for (const name of ['deadline', 'createdAt', 'startedAt', 'boundaryAt', 'endedAt'])
    batch[name] = batch[name] === null ? null : new Date(batch[name] as Date | string)
  return batch as unknown as Batch
}
