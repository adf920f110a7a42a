// Reading the log. One statement reads pages and joins their events; the log is dense, so a hole is a fault that is told and not a silence.

import type { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import type { LogEvent } from './types.ts'

const readStatement = statement(import.meta.url, 'read-log')

/** Keys are spread over so many buckets; a shard is a range of them. */
export const buckets = 1024
/** A filtered reader looks this far at once. What it passes without a match costs it little. */
const filteredScan = 5000

export interface ReadLogOptions {
  /** The position up to which everything is known: 0 for all. */
  readonly after: number
  readonly limit: number
  readonly channel?: string | undefined
  readonly tenant?: string | undefined
  /** Of `of` shards the one with this index, from 0. */
  readonly shard?: { readonly index: number; readonly of: number } | undefined
}

export interface LogRead {
  readonly events: LogEvent[]
  /** The last position that was given. */
  readonly head: number
  /** The log's generation now. */
  readonly generation: number
  /** Up to here everything was looked at, also where nothing matched. Go on from here. */
  readonly next: number
  /** The size of the events as they were sent. */
  readonly chars: number
}

interface Row {
  readonly head: string
  readonly log_generation: number
  readonly until: string
  readonly covered: string
  readonly found: string
  readonly events: string | null
}

type EventParts = readonly [
  position: number,
  generation: number,
  xid: string,
  id: string | null,
  atS: number,
  tenant: string,
  channel: string,
  aggregateType: string,
  key: string,
  type: string,
  data: unknown,
  headers: Readonly<Record<string, unknown>> | null,
]

export async function readLog(connection: Pick<Connection, 'run'>, options: ReadLogOptions): Promise<LogRead> {
  const { after, limit, channel = null, tenant = null, shard } = options
  const isFiltered = channel !== null || tenant !== null || shard !== undefined
  const range = shard === undefined ? undefined : bucketRange(shard)
  const [row] = await connection.run<Row>(readStatement, {
    after,
    limit,
    scan: isFiltered ? Math.max(limit, filteredScan) : limit,
    channel,
    tenant,
    bucket_from: range?.from ?? null,
    bucket_to: range?.to ?? null,
  })
  if (row === undefined) throw sequencerMissing()
  const [head, until] = [Number(row.head), Number(row.until)]
  if (until > after && Number(row.covered) !== until - after) throw gap(after, until)
  const events = row.events === null ? [] : (JSON.parse(row.events) as EventParts[]).map(toEvent)
  return {
    events,
    head,
    generation: row.log_generation,
    chars: row.events?.length ?? 0,
    next: events.length === limit || events.length < Number(row.found) ? events.at(-1)!.position : Math.max(after, until),
  }
}

/** The buckets of a shard, both ends included. Every bucket belongs to one shard, whatever the number of them. */
export function bucketRange({ index, of }: { readonly index: number; readonly of: number }): { from: number; to: number } {
  return { from: Math.floor((index * buckets) / of), to: Math.floor(((index + 1) * buckets) / of) - 1 }
}

function toEvent(parts: EventParts): LogEvent {
  const [position, generation, xid, id, atS, tenant, channel, aggregateType, key, type, data, headers] = parts
  if (id === null) throw gap(position - 1, position)
  return {
    position,
    generation,
    id,
    tenant,
    channel,
    aggregateType,
    key,
    type,
    data,
    headers: headers ?? {},
    at: new Date(atS * 1000),
    xid,
  }
}

function gap(after: number, until: number): PawlError {
  return new PawlError(
    'PAWL_LOG_GAP',
    `Events are missing from the log at positions ${after + 1} to ${until}. If this reader was stopped for longer than events are kept, retention removed them: rebuild it. Otherwise run pawl.events.audit(), which lists what is missing.`,
    { details: { after, until } },
  )
}

function sequencerMissing(): PawlError {
  return new PawlError(
    'PAWL_SCHEMA_DRIFT',
    "pawl.sequencer has no row. Run 'insert into pawl.sequencer default values': the next tick then gives a position to every event without one.",
  )
}
