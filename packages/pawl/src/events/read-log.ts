// Reads the log. One statement reads pages and joins their events; the log is dense, so a missing position is an error, never skipped.

import type { Db } from '../db/db.ts'
import { numbersLiteral, statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import type { LogEvent } from './types.ts'

const readStatement = statement(import.meta.url, 'read-log')

/** The number of buckets that keys are spread over; a shard is a range of them. */
export const buckets = 1024
/** The number of positions that a filtered reader scans at once. Those without a match cost it little. */
const filteredScan = 5000

export interface ReadLogOptions {
  /** Read from the position after this one; 0: from the first. */
  readonly after: number
  readonly limit: number
  readonly channel?: string | undefined
  readonly tenant?: string | undefined
  /** The shard with this index, from 0, of `of` shards. */
  readonly shard?: { readonly index: number; readonly of: number } | undefined
  /** Their events are left out without being read, so that one of them is missing is not noticed. */
  readonly passedOver?: PassedOver | undefined
}

/** Committed transactions, each with the head of the log before it appended. Ids come again after a failover or a restore, hence the era. */
export interface PassedOver {
  /** The generation of the log and the start of the server, as take-all-dirty returns it. */
  readonly era: string
  readonly xids: readonly string[]
  readonly heads: readonly string[]
}

export interface LogRead {
  readonly events: LogEvent[]
  /** The last position. */
  readonly head: number
  /** The log's generation now. */
  readonly generation: number
  /** Everything up to here was scanned, also where nothing matched: the `after` of the next read. */
  readonly next: number
  /** The size of the events as they were sent. */
  readonly chars: number
}

interface Row {
  readonly head: string
  readonly log_generation: number
  readonly until: string
  readonly covered: string
  readonly is_cut: boolean
  /** Words between spaces; null: no event. */
  readonly positions: string | null
  readonly generations: string
  readonly xids: string
  readonly ids: string
  readonly times: string
  /** JSON arrays. */
  readonly tenants: string
  readonly channels: string
  readonly aggregate_types: string
  readonly keys: string
  readonly types: string
  readonly payloads: string
  readonly headers: string
}

export async function readLog(connection: Db, options: ReadLogOptions): Promise<LogRead> {
  const { after, limit, channel = null, tenant = null, shard, passedOver } = options
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
    passed_era: passedOver?.era ?? null,
    passed_xids: numbersLiteral(passedOver?.xids ?? []),
    passed_heads: numbersLiteral(passedOver?.heads ?? []),
  })
  if (row === undefined) throw sequencerMissing()
  const [head, until] = [Number(row.head), Number(row.until)]
  if (until > after && Number(row.covered) !== until - after) throw gap(after, until)
  const events = eventsOf(row)
  return {
    events,
    head,
    generation: row.log_generation,
    chars: events.length === 0 ? 0 : row.payloads.length + row.headers.length,
    next: events.length === limit || row.is_cut ? events.at(-1)!.position : Math.max(after, until),
  }
}

/** The events that came with the answer of a tick: all from `after` to `head`. */
export interface FreshEvents {
  readonly after: number
  readonly head: number
  readonly generation: number
  readonly events: readonly { readonly event: LogEvent; readonly bucket: number }[]
}

type FreshRow = [
  number,
  string,
  string,
  number,
  string,
  string,
  string,
  string,
  string,
  unknown,
  LogEvent['headers'] | null,
  number,
]

export function freshEvents(json: string, head: number, generation: number): FreshEvents {
  const rows = JSON.parse(json) as FreshRow[]
  const events = rows.map(([position, xid, id, at, tenant, channel, aggregateType, key, type, data, headers, bucket]) => {
    const shared = { position, generation, id, tenant, channel, aggregateType, key, type, data, xid }
    return { event: { ...shared, headers: headers ?? {}, at: new Date(at * 1000) }, bucket }
  })
  return { after: head - events.length, head, generation, events }
}

/** The answer that a read of the log would give; undefined: they do not begin after `options.after`, or exceed its limit. */
export function readFresh({ after, head, generation, events }: FreshEvents, options: ReadLogOptions): LogRead | undefined {
  const { channel, tenant, shard } = options
  if (options.after !== after) return undefined
  const { from, to } = bucketRange(shard ?? { index: 0, of: 1 })
  const matching = events
    .filter(({ bucket }) => bucket >= from && bucket <= to)
    .map(({ event }) => event)
    .filter((event) => event.channel === (channel ?? event.channel) && event.tenant === (tenant ?? event.tenant))
  return matching.length > options.limit ? undefined : { events: matching, head, generation, next: head, chars: 0 }
}

/** The buckets of a shard, both ends included. Every bucket belongs to one shard, for any number of shards. */
export function bucketRange({ index, of }: { readonly index: number; readonly of: number }): { from: number; to: number } {
  return { from: Math.floor((index * buckets) / of), to: Math.floor(((index + 1) * buckets) / of) - 1 }
}

function eventsOf(row: Row): LogEvent[] {
  if (row.positions === null) return []
  const [generations, xids, ids, times] = [words(row.generations), words(row.xids), words(row.ids), words(row.times)]
  const [tenants, channels, keys] = [strings(row.tenants), strings(row.channels), strings(row.keys)]
  const [aggregateTypes, types] = [strings(row.aggregate_types), strings(row.types)]
  const data = JSON.parse(row.payloads) as unknown[]
  const headers = JSON.parse(row.headers) as (Record<string, unknown> | null)[]
  return words(row.positions).map((word, n) => {
    const position = Number(word)
    if (ids[n] === '-') throw gap(position - 1, position)
    return {
      position,
      generation: Number(generations[n]),
      id: ids[n]!,
      tenant: tenants[n]!,
      channel: channels[n]!,
      aggregateType: aggregateTypes[n]!,
      key: keys[n]!,
      type: types[n]!,
      data: data[n],
      headers: headers[n] ?? {},
      at: new Date(Number(times[n]) * 1000),
      xid: xids[n]!,
    }
  })
}

function words(column: string): string[] {
  return column.split(' ')
}

function strings(column: string): string[] {
  return JSON.parse(column) as string[]
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
