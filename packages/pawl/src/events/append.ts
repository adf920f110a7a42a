// Append: one statement in the caller's transaction, or a transaction of our own. The event exists if and only if that transaction commits.

import type { Config } from '../config.ts'
import { type Db, dbOf } from '../db/db.ts'
import type { Pool } from '../db/driver.ts'
import { type Statement, statement, type Values } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { txHandler } from '../kernel/handler.ts'
import { assertKnown, type InTxWaking, resolve, type TableOf, transaction, wake as wakeOption } from '../kernel/options.ts'
import { atIndex, invalid, toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { retryingDefinite, sendChunks, setDurability } from '../kernel/retry.ts'
import type { NewEvent } from './types.ts'

const appendOneStatement = statement(import.meta.url, 'append-event', 'any')
const appendManyStatement = statement(import.meta.url, 'append-events', 'any')

export const eventFields = new Set(['type', 'aggregateType', 'key', 'data', 'channel', 'headers'])
const chunkRows = 1000
/** A chunk is one JSON array: at most 256 MB in the server, and 512 M characters in Node. */
const chunkChars = 8_000_000
const headersBytesMax = 65_536

export interface AppendEventOptions extends InTxWaking {}

export const appendTable = {
  tx: transaction({ doc: 'Your own transaction: the events exist if and only if it commits.' }),
  wake: wakeOption,
} satisfies TableOf<AppendEventOptions>

export interface Appended {
  /** One per event, in order. */
  readonly ids: string[]
  /** For `pawl.projections.seen(name, token)`, once your transaction has committed. */
  readonly token: string
}

export interface AppendCore {
  readonly config: Config
  readonly pool: Pool
  /** Wakes the readers of this process before the notification arrives. */
  readonly onAppended: () => void
}

interface Call {
  readonly statement: Statement
  readonly values: Values
}

interface Answer {
  readonly answer: string
}

export async function append(
  core: AppendCore,
  tenant: string,
  events: readonly NewEvent[],
  options: AppendEventOptions,
): Promise<Appended> {
  const { tx, wake } = resolve('append', appendTable, options)
  if (events.length === 0) return { ids: [], token: '0' }
  const texts = events.map((event, index) => textsAt(core.config, event, events.length === 1 ? undefined : index))
  const calls = () => callsFor(tenant, texts, wake)
  if (tx !== undefined) return appendIn(core, dbOf(tx), calls())
  assertOutsideTx('append')
  const answers = await retryingDefinite(() => appendOwn(core, texts.length, calls))
  core.onAppended()
  return toAppended(answers)
}

/** A call inside a handler but outside its transaction would not commit with it, and could wait for the pool that the handler occupies. */
export function assertOutsideTx(verb: string, fix = 'Pass { tx }.'): void {
  const held = txHandler()
  if (held === undefined) return
  throw new PawlError(
    'PAWL_TX_REQUIRED',
    `${verb} was called inside the handler of '${held.kind}' without its transaction: it would commit separately, and could wait forever for a connection that this handler holds. ${fix}`,
  )
}

async function appendIn(core: AppendCore, tx: Db, calls: Iterable<Call>): Promise<Appended> {
  if (core.config.durability === 'replicated') await setDurability(tx, 'replicated')
  const answers: Answer[] = []
  for (const { statement, values } of calls) answers.push(...(await tx.run<Answer>(statement, values)))
  if (probe.on) await probe.hit('events.append.sent', answers)
  return toAppended(answers)
}

/** One statement is a transaction by itself; several of them, or another durability, need one around them. */
async function appendOwn(core: AppendCore, count: number, calls: () => Iterable<Call>): Promise<Answer[]> {
  const { config, pool } = core
  const { durability, database } = config
  const send = (db: Db, { statement, values }: Call) => db.run<Answer>(statement, values)
  const answers =
    count === 1 && durability === 'durable'
      ? await send(pool, [...calls()][0]!)
      : await sendChunks(pool, { durability, queryTimeoutMs: database.queryTimeoutMs }, calls(), send)
  if (probe.on) await probe.hit('events.append.sent', answers)
  return answers
}

export interface EventTexts {
  readonly event: NewEvent
  readonly data: string
  readonly headers: string | null
}

function textsAt(config: Config, event: NewEvent, index: number | undefined): EventTexts {
  try {
    return eventTexts(config, event)
  } catch (error) {
    throw index === undefined ? error : atIndex(error, index)
  }
}

/** The parts of an event as they are stored. Throws PAWL_INVALID_PAYLOAD. */
export function eventTexts(config: Config, event: NewEvent, known: ReadonlySet<string> = eventFields): EventTexts {
  assertKnown('an event', event, known)
  assertName('type', event.type, 200)
  assertName('aggregateType', event.aggregateType, 200)
  assertName('key', event.key, 500)
  if (event.channel !== undefined) assertName('channel', event.channel, 100)
  const data = toJson(event.data === undefined ? null : event.data, `The event '${event.type}': data`, {
    bytesMax: config.payloadBytesMax,
  })
  if (event.headers === undefined) return { event, data, headers: null }
  if (typeof event.headers !== 'object' || event.headers === null || Array.isArray(event.headers))
    throw invalid("The event's headers", '', `must be an object, got ${shown(event.headers)}`)
  const headers = toJson(event.headers, `The event '${event.type}': headers`, { bytesMax: headersBytesMax })
  return { event, data, headers }
}

function assertName(field: string, value: unknown, charsMax: number): void {
  if (typeof value !== 'string') throw invalid(`The event's ${field}`, '', `must be a string, got ${shown(value)}`)
  // The server counts characters, not UTF-16 units.
  if (value.length < 1 || (value.length > charsMax && [...value].length > charsMax))
    throw invalid(`The event's ${field}`, '', `must have 1 to ${charsMax} characters, got ${[...value].length}`)
  if (value.includes('\u0000') || !value.isWellFormed())
    throw invalid(`The event's ${field}`, '', 'contains a NUL character or invalid Unicode, which PostgreSQL cannot store')
}

/** The events as the JSON array that the SQL functions take. */
export function eventsJson(texts: readonly EventTexts[], more: (index: number) => string = () => ''): string {
  const parts = texts.map(({ event, data, headers }, index) => {
    const { type, aggregateType: aggregatetype, key: aggregateid, channel } = event
    const names = JSON.stringify({ type, aggregatetype, aggregateid, channel })
    return `${names.slice(0, -1)},"payload":${data}${headers === null ? '' : `,"headers":${headers}`}${more(index)}}`
  })
  return `[${parts.join(',')}]`
}

function* callsFor(tenant: string, texts: readonly EventTexts[], wake: boolean): Generator<Call> {
  if (texts.length === 1 && wake) {
    const { event, data: payload, headers } = texts[0]!
    const { channel = 'default', aggregateType: aggregatetype, key: aggregateid, type } = event
    const values = { tenant, channel, aggregatetype, aggregateid, type, payload, headers }
    yield { statement: appendOneStatement, values }
    return
  }
  for (const chunk of chunksOf(texts))
    yield { statement: appendManyStatement, values: { tenant, events: eventsJson(chunk), wake } }
}

function chunksOf(texts: readonly EventTexts[]): EventTexts[][] {
  const chunks: EventTexts[][] = []
  let chars = 0
  for (const text of texts) {
    chars += charsOf(text)
    const chunk = chunks.at(-1)
    if (chunk !== undefined && chunk.length < chunkRows && chars <= chunkChars) chunk.push(text)
    else {
      chunks.push([text])
      chars = charsOf(text)
    }
  }
  return chunks
}

export function charsOf({ data, headers }: EventTexts): number {
  return data.length + (headers?.length ?? 0)
}

function toAppended(answers: readonly Answer[]): Appended {
  const ids = answers.map(({ answer }) => answer.slice(0, answer.indexOf(' ')))
  const [, xid, seq] = answers.at(-1)!.answer.split(' ')
  return { ids, token: `${xid}:${seq}` }
}
