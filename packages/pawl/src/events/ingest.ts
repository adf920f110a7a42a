// The inbox: events of an outside source, each appended once, with the source's position moved in the same transaction.

import { classify, unavailable } from '../db/classify.ts'
import { type Db, dbOf } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import {
  duration,
  type InTxWaking,
  option,
  ownTx,
  refused,
  required,
  resolve,
  type TableOf,
  text,
  wake as wakeOption,
} from '../kernel/options.ts'
import { answerLost, retrying } from '../kernel/retry.ts'
import { type AppendCore, assertOutsideTx, charsOf, type EventTexts, eventFields, eventsJson, eventTexts } from './append.ts'
import type { NewEvent } from './types.ts'

const ingestStatement = statement(import.meta.url, 'ingest', 'any')

const knownFields = new Set(['id', ...eventFields])
const eventsMax = 10_000
/** The server parses them as one JSON of at most 256 MB, and a character may take three bytes. */
const charsMax = 64_000_000

export interface OutsideEvent<Data = unknown> extends NewEvent<Data> {
  /** The source's own id of the event: one id is appended once. 1 to 500 characters. */
  readonly id: string
}

export interface IngestOptions extends InTxWaking {
  /** The name of the source, such as 'chain:main'. 1 to 200 characters. */
  readonly source: string
  /** The position of the events in the source: a block, an offset, a sequence number. It moves forward in the same transaction. */
  readonly position?: number | bigint
  /** The position before this one, according to the source. If it was never ingested, events are missing: PAWL_SOURCE_GAP. */
  readonly after?: number | bigint
  /** How long ids are kept after the source has moved on. Events below its position are repeats even when their ids are gone. Default 30d. */
  readonly remember?: number | string
}

const place = (doc: string) => option<number | bigint>('an integer, as a number or a bigint', { doc }, isPlace)

export const ingestTable = {
  source: required(text({ to: 200, doc: "The name of the source, such as 'chain:main'." })),
  position: place('The position of these events in the source, stored in the same transaction.'),
  after: place('The position before this one, according to the source.'),
  remember: duration({
    from: 1,
    to: 10 * 365 * 86_400_000,
    default: '30d',
    doc: 'How long event ids are kept to recognise repeats.',
  }),
  tx: ownTx,
  wake: wakeOption,
} satisfies TableOf<IngestOptions>

function isPlace(given: unknown): boolean {
  return Number.isSafeInteger(given) || (typeof given === 'bigint' && BigInt.asIntN(64, given) === given)
}

export interface Ingested {
  /** 'replayed': every event was ingested before. */
  readonly outcome: 'ingested' | 'replayed'
  readonly ingested: number
  readonly repeated: number
  /** The position of the source now; undefined for a source without positions. */
  readonly position: bigint | undefined
}

interface Row {
  readonly outcome: 'ingested' | 'replayed' | 'gap'
  readonly was: string | null
  readonly reached: string | null
  readonly ingested: number | string
  readonly repeated: number | string
}

export async function ingest(
  core: AppendCore,
  tenant: string,
  events: readonly OutsideEvent[],
  options: IngestOptions,
): Promise<Ingested> {
  const { source, position, after, remember: keepMs, tx, wake } = resolve('ingest', ingestTable, options)
  if (after !== undefined && position === undefined) throw refused('ingest', 'after cannot be given without position')
  if (events.length > eventsMax)
    throw refused('ingest', `events must be at most ${eventsMax}, got ${events.length}; use several calls`)
  const texts = events.map((event) => eventTexts(core.config, event, knownFields))
  assertFits(texts)
  const json = eventsJson(texts, (index) => `,"event_id":${JSON.stringify(idOf(events[index]!))}`)
  const values = {
    tenant,
    source,
    position: position?.toString() ?? null,
    after: after?.toString() ?? null,
    events: json,
    keep_ms: keepMs,
    wake,
  }
  const run = async (db: Db) => (await db.run<Row>(ingestStatement, values))[0]!
  if (tx !== undefined) return toIngested(await run(dbOf(tx)), options)
  assertOutsideTx('ingest')
  // Safe to repeat: the inbox refuses an id that it has.
  const row = await retrying(() => run(core.pool)).catch((error: unknown) => {
    throw classify(error) === 'connection' ? answerLost(error) : unavailable(error)
  })
  core.onAppended()
  return toIngested(row, options)
}

function assertFits(texts: readonly EventTexts[]): void {
  const chars = texts.reduce((sum, text) => sum + charsOf(text), 0)
  if (chars > charsMax)
    throw new PawlError(
      'PAWL_INVALID_PAYLOAD',
      `ingest: data and headers of one call must have at most ${charsMax} characters, got ${chars}. Split it into several calls at the same position.`,
    )
}

function idOf(event: OutsideEvent): string {
  if (
    typeof event.id === 'string' &&
    event.id.length >= 1 &&
    event.id.length <= 500 &&
    event.id.isWellFormed() &&
    !event.id.includes('\u0000')
  )
    return event.id
  throw new PawlError(
    'PAWL_INVALID_PAYLOAD',
    `The event's id must be the source's own id, a string of 1 to 500 characters, got ${shown(event.id)}.`,
  )
}

function toIngested(row: Row, { source, position, after }: IngestOptions): Ingested {
  if (row.outcome === 'gap') {
    throw new PawlError(
      'PAWL_SOURCE_GAP',
      `Source '${source}' has a gap: it was ingested up to position ${row.was}, but position ${position} comes after ${after}. Read the source again from ${row.was}.`,
      { details: { source, was: row.was, after: String(after), position: String(position) } },
    )
  }
  return {
    outcome: row.outcome,
    ingested: Number(row.ingested),
    repeated: Number(row.repeated),
    position: row.reached === null ? undefined : BigInt(row.reached),
  }
}
