// Many rows in one transaction of our own: chunks that are made as they are sent, a few of them ahead of their answers, so that the length
// costs no memory and no chunk runs out of its time while it waits for those before it.

import type { Durability } from '../config.ts'
import type { Db } from '../db/db.ts'
import type { Pool } from '../db/driver.ts'
import { beforeCommit } from './definite.ts'
import { setDurability } from './installation.ts'

/** The server has its next chunk while the answer to the last is on its way. */
const windowChunks = 4

export interface BulkOptions {
  readonly durability: Durability
  readonly queryTimeoutMs: number
}

export function sendChunks<Chunk, Row>(
  pool: Pool,
  { durability, queryTimeoutMs }: BulkOptions,
  chunks: Iterable<Chunk> | AsyncIterable<Chunk>,
  send: (tx: Db, chunk: Chunk) => Promise<Row[]>,
): Promise<Row[]> {
  const sendAll = async (tx: Db) => {
    // A pool's transactions are durable already.
    if (durability !== 'durable') await setDurability(tx, durability, true)
    return inWindow(chunks, (chunk) => send(tx, chunk))
  }
  // The driver counts the time of a chunk from when it is sent, after those that the server still works on.
  return pool.transaction((tx) => beforeCommit(sendAll(tx)), { statementMs: queryTimeoutMs * (windowChunks + 1) })
}

async function inWindow<Chunk, Row>(
  chunks: Iterable<Chunk> | AsyncIterable<Chunk>,
  send: (chunk: Chunk) => Promise<Row[]>,
): Promise<Row[]> {
  const rows: Row[] = []
  const inFlight: Promise<Row[]>[] = []
  const take = async () => {
    for (const row of await inFlight.shift()!) rows.push(row)
  }
  for await (const chunk of chunks) {
    if (inFlight.length >= windowChunks) await take()
    const sent = send(chunk)
    sent.catch(() => undefined)
    inFlight.push(sent)
  }
  while (inFlight.length > 0) await take()
  return rows
}
