// Everything that delays delivery or prevents the removal of events, each with its name and the statement that ends it.

import type { Db } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { oldPartitions } from './retention.ts'

const transactionsStatement = statement(import.meta.url, 'hold-transactions')
const cursorsStatement = statement(import.meta.url, 'hold-cursors')
const slotsStatement = statement(import.meta.url, 'hold-slots')

export interface HoldBack {
  readonly what: 'transaction' | 'prepared transaction' | 'cursor' | 'parked key' | 'replication slot'
  /** 'delivery': events reach readers later. 'retention': events, or the server's WAL, cannot be removed. */
  readonly delays: 'delivery' | 'retention'
  readonly name: string
  readonly since: Date | null
  readonly detail: string
  /** Its cost on disk, beyond the days that are kept anyway. Undefined: unknown. */
  readonly bytes: number | undefined
  /** The statement or call that ends it. */
  readonly endWith: string
}

interface TransactionRow {
  readonly is_sequencer: boolean
  readonly is_reader: boolean
  readonly pid: number | null
  readonly gid: string | null
  readonly since: Date | null
  readonly state: string | null
  readonly application: string | null
  readonly query: string | null
}

interface CursorRow {
  readonly what: 'cursor' | 'parked key'
  readonly name: string
  readonly generation: number
  readonly shard: number
  readonly key: string | null
  readonly state: string
  readonly position: string
  readonly behind: string
  readonly since: Date
}

interface SlotRow {
  readonly name: string
  readonly is_active: boolean
  readonly state: string | null
  readonly bytes: string | null
}

export async function whoHoldsBack(db: Db, keepDays: number): Promise<HoldBack[]> {
  const transactions = await db.run<TransactionRow>(transactionsStatement)
  const cursors = await db.run<CursorRow>(cursorsStatement)
  const slots = await db.run<SlotRow>(slotsStatement)
  const old = await oldPartitions(db, keepDays)
  const bytesAfter = (position: number) =>
    old.filter(({ until }) => Number(until) > position).reduce((sum, { bytes }) => sum + Number(bytes), 0)
  return [
    // A transaction that only reads delays nothing but a removal.
    ...transactions.filter((row) => !row.is_reader || old.length > 0).map(ofTransaction),
    ...cursors.map((row) => ofCursor(row, bytesAfter(Number(row.position)))),
    ...slots.map(ofSlot),
  ]
}

function ofTransaction(row: TransactionRow): HoldBack {
  const whose = whoseIs(row)
  const common = { delays: row.is_reader ? 'retention' : 'delivery', since: row.since, bytes: undefined } as const
  if (row.pid === null) {
    const gid = row.gid ?? 'unknown'
    const endWith = `commit prepared '${gid.replaceAll("'", "''")}' -- or rollback prepared`
    return { ...common, what: 'prepared transaction', name: gid, detail: whose, endWith }
  }
  const about = [row.application, row.state, row.query].filter((part) => part !== null && part !== '').join(', ')
  return {
    ...common,
    what: 'transaction',
    name: `process ${row.pid}`,
    detail: about === '' ? whose : `${whose} ${about}`,
    endWith: `select pg_terminate_backend(${row.pid})`,
  }
}

function whoseIs(row: TransactionRow): string {
  if (row.is_sequencer) return 'It holds the lock of the sequencer, so no event gets a position.'
  if (row.is_reader) return 'It has read pawl.event, so no day of events is removed before it ends.'
  return 'It appended events, which are delivered after it commits.'
}

function ofCursor(row: CursorRow, bytes: number): HoldBack {
  const cursor = `${row.name} generation ${row.generation} shard ${row.shard}`
  const isCursor = row.what === 'cursor'
  return {
    what: row.what,
    delays: 'retention',
    name: isCursor ? cursor : `${row.key} of ${cursor}`,
    since: row.since,
    detail: `It is ${row.state} at position ${row.position}, ${row.behind} events behind the head.`,
    bytes,
    endWith: isCursor ? endOfCursor(row) : `pawl.projections.unpark('${row.name}', ...), or skip it`,
  }
}

function endOfCursor({ name, state }: CursorRow): string {
  if (state !== 'running') return `pawl.projections.resume('${name}', ...)`
  return `start a runner that defines '${name}', or set its maxLag`
}

function ofSlot(row: SlotRow): HoldBack {
  return {
    what: 'replication slot',
    delays: 'retention',
    name: row.name,
    since: null,
    detail: `It is ${row.is_active ? 'in use' : 'not in use'}${row.state === null ? '' : `, ${row.state}`}; the server retains WAL for it.`,
    bytes: row.bytes === null ? undefined : Number(row.bytes),
    endWith: `select pg_drop_replication_slot('${row.name}')`,
  }
}
