// Many payloads as chunks: JSON arrays that are made as they are sent, a few in flight at a time, so that the length of a bulk enqueue
// costs no memory and no chunk runs out of its time while it waits for those before it.

import type { Durability } from '../config.ts'
import { classify, markOwn } from '../db/classify.ts'
import type { Connection, Pool, PoolClient, QueryConfig } from '../db/driver.ts'
import { PawlError } from '../errors.ts'
import { atIndex } from '../kernel/payload.ts'
import { assertStandby } from '../kernel/start-checks.ts'

/** A generator is read once, as its chunks are sent; an array can be read again when the transaction is. */
export type Payloads<Input> = Iterable<Input> | AsyncIterable<Input>

export interface Chunk {
  /** A JSON array. */
  readonly text: string
  readonly rows: number
}

export const chunkRows = 1000
/** PostgreSQL takes 256 MB in one value; this much is many times what a statement costs by itself. */
const chunkChars = 4 * 1_048_576
/** The server has its next chunk while the answer to the last is on its way. */
const windowChunks = 4

/** Chunks of at most 1,000 payloads and 4 M characters, unless one payload alone is longer. `textOf` checks each. */
export async function* chunksOf(
  payloads: Payloads<unknown>,
  textOf: (payload: unknown) => string | Promise<string>,
): AsyncGenerator<Chunk, void> {
  // Not `for await`: of an array it would await every payload, and take a promise among them for what it gives.
  const source = Symbol.asyncIterator in payloads ? payloads[Symbol.asyncIterator]() : payloads[Symbol.iterator]()
  let texts: string[] = []
  let chars = 0
  let isRead = false
  try {
    for (let index = 0; ; index++) {
      const taken = source.next()
      const step = taken instanceof Promise ? await taken : (taken as IteratorResult<unknown>)
      if (step.done === true) {
        isRead = true
        break
      }
      const checked = textAt(index, step.value, textOf)
      const text = typeof checked === 'string' ? checked : await checked
      if (texts.length === chunkRows || (texts.length > 0 && chars + text.length > chunkChars)) {
        yield toChunk(texts)
        texts = []
        chars = 0
      }
      texts.push(text)
      chars += text.length
    }
    if (texts.length > 0) yield toChunk(texts)
  } finally {
    if (!isRead) await source.return?.()
  }
}

function textAt(
  index: number,
  payload: unknown,
  textOf: (payload: unknown) => string | Promise<string>,
): string | Promise<string> {
  try {
    const text = textOf(payload)
    if (typeof text === 'string') return text
    return text.catch((error: unknown) => {
      throw atIndex(error, index)
    })
  } catch (error) {
    throw atIndex(error, index)
  }
}

export function toChunk(texts: readonly string[]): Chunk {
  return { text: `[${texts.join(',')}]`, rows: texts.length }
}

interface EnqueueQuery {
  readonly text: string
  readonly values: unknown[]
}

export interface BulkOptions {
  readonly pool: Pool
  readonly durability: Durability
  readonly queryTimeoutMs: number
  readonly queryOf: (chunk: Chunk) => EnqueueQuery
}

interface EnqueuedRow {
  readonly ids: string | null
}

const durabilitySql = 'select pawl.set_durability($1::text, $2::boolean)::text as level'

/** All chunks in one transaction of our own. */
export async function sendChunks(chunks: Iterable<Chunk> | AsyncIterable<Chunk>, options: BulkOptions): Promise<string[]> {
  const client = await options.pool.connect()
  let isBroken = true
  try {
    if (options.durability === 'replicated')
      await assertStandby({ query: async (text: string) => (await client.query(text)).rows } as unknown as Connection)
    const ids = await sendInWindow(client, chunks, options).catch(async (error: unknown) => {
      isBroken = !(await isRolledBack(client))
      throw classify(error) === 'connection' ? brokenBefore(error) : error
    })
    const { command } = await client.query('commit')
    isBroken = false
    if (command !== 'COMMIT') throw new PawlError('PAWL_ROLLED_BACK', 'The enqueue was rolled back.')
    return ids
  } finally {
    client.release(isBroken)
  }
}

async function sendInWindow(
  client: PoolClient,
  chunks: Iterable<Chunk> | AsyncIterable<Chunk>,
  { durability, queryOf, queryTimeoutMs }: BulkOptions,
): Promise<string[]> {
  const ids: string[] = []
  const inFlight: Promise<{ rows: EnqueuedRow[] }>[] = []
  const send = (query: { text: string; values?: unknown[] }) => {
    // pg starts the timer when it sends: each chunk gets the time of those that the server has before it, too.
    const timed: QueryConfig = { ...query, query_timeout: queryTimeoutMs * (inFlight.length + 1) }
    const sent = client.query<EnqueuedRow>(timed)
    sent.catch(() => undefined)
    inFlight.push(sent)
  }
  const take = async () => ids.push(...idsOf((await inFlight.shift()!).rows))
  send({ text: 'begin' })
  send({ text: durabilitySql, values: [durability, true] })
  for await (const chunk of chunks) {
    if (inFlight.length >= windowChunks) await take()
    send(queryOf(chunk))
  }
  while (inFlight.length > 0) await take()
  return ids
}

/** It waits for the answers to all that was sent before. */
async function isRolledBack(client: PoolClient): Promise<boolean> {
  return client.query('rollback').then(
    () => true,
    () => false,
  )
}

function brokenBefore(error: unknown): unknown {
  return markOwn(
    new PawlError('PAWL_ROLLED_BACK', 'The connection broke before the commit was sent, so no job was stored. Call it again.', {
      cause: error,
    }),
  )
}

/** A row of `begin` and of the durability has no ids. */
export function idsOf(rows: readonly EnqueuedRow[]): string[] {
  return rows[0]?.ids?.split(',') ?? []
}
