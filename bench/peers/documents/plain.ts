// The limits of reads and posts: bodies in a table that knows no references.

import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import { load } from '../../harness/system/load.ts'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import { times } from '../records/times.ts'
import { nth, type TypeName } from './bodies.ts'

interface CopyStreams {
  from(text: string): NodeJS.WritableStream & pg.Submittable
}

const table = `create table document (id bigint generated always as identity primary key, uuid uuid not null default gen_random_uuid(),
  type text not null default '', revision integer not null default 1, created_at timestamptz not null default now(),
  changed_at timestamptz not null default now(), body jsonb not null)`
const columns = 'id, uuid, type, revision, created_at, changed_at, body'
const get = { name: 'get', text: `select ${columns} from document where id = $1` }
const page = { name: 'page', text: `select ${columns} from document where id > $1 order by id limit 100` }
const pageReads = 300
const chunkRows = 500

export function open(): Peer {
  let pool: pg.Pool
  let copy: CopyStreams

  async function fill(type: TypeName, count: number): Promise<void> {
    const bodies = JSON.stringify(Array.from({ length: count }, (_, n) => nth[type](n)))
    await pool.query('insert into document (body) select b from jsonb_array_elements($1::jsonb) b', [bodies])
  }

  /** COPY of bodies whose text was made before. */
  async function copyBodies(type: TypeName, count: number) {
    const rows = Array.from({ length: count }, (_, n) => `${JSON.stringify(nth[type](n))}\n`)
    const chunks: string[] = []
    for (let from = 0; from < count; from += chunkRows) chunks.push(rows.slice(from, from + chunkRows).join(''))
    const client = await pool.connect()
    try {
      const from = now()
      await pipeline(Readable.from(chunks), client.query(copy.from('copy document (body) from stdin')))
      return { value: now() - from }
    } finally {
      client.release()
    }
  }

  async function read(sent: { name: string; text: string }, value: number, expected: number): Promise<void> {
    const { rows } = await pool.query({ ...sent, values: [value] })
    if (rows.length !== expected) throw new Error(`${rows.length} rows were read instead of ${expected}`)
  }

  const tasks: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = {
    fill,
    get: (count: number, calls: number) => times(calls, (n) => read(get, 1 + ((n * 37) % count), 1)),
    page: (count: number) => times(pageReads, (n) => read(page, ((n * 37) % (count / 100)) * 100, 100)),
    copy: copyBodies,
  }

  return {
    async prepare({ url, connections }: Setup) {
      copy = await load<CopyStreams>('pg-copy-streams')
      pool = new pg.Pool({ connectionString: url, max: connections })
      await pool.query(table)
    },
    run: (task: string, ...args: readonly unknown[]) => tasks[task]!(...(args as never[])),
    close: () => pool.end(),
  }
}
