// The limit for submissions: COPY of the same rows into one table with a primary key. The text is ready before the clock starts, so the client
// only sends it. As 'jsonb' or 'json', the table has a key and the data as that; as 'csv', the file itself goes into a table with a typed
// column for each field.

import { createReadStream } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import { load } from '../../harness/system/load.ts'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import { columns, jsonOf, loads } from './rows.ts'

interface CopyStreams {
  from(text: string): NodeJS.WritableStream & pg.Submittable
}

const chunkBytes = 65_536
const sqlTypes: Readonly<Record<string, string>> = {
  text: 'text',
  number: 'numeric',
  integer: 'bigint',
  boolean: 'boolean',
  date: 'date',
  timestamp: 'timestamptz',
}

export function open(_started: unknown, variant = 'jsonb'): Peer {
  let client: pg.Client
  let copy: CopyStreams

  return {
    async prepare({ url }: Setup) {
      copy = await load<CopyStreams>('pg-copy-streams')
      client = new pg.Client({ connectionString: url })
      await client.connect()
      await client.query(
        variant === 'csv' ? typedTable() : `create table plain (key text collate "C" primary key, data ${variant} not null)`,
      )
    },
    /** Milliseconds for one file. */
    async run(_task: string, file: string) {
      const body = variant === 'csv' ? createReadStream(file) : Readable.from(chunksOf(file))
      const text = variant === 'csv' ? 'copy plain from stdin with (format csv, header)' : 'copy plain (key, data) from stdin'
      const from = now()
      await pipeline(body, client.query(copy.from(text)))
      return { value: now() - from }
    },
    close: () => client.end(),
  }
}

function typedTable(): string {
  const typed = columns.map((column) => {
    const given = loads.types.load!.columns[column]!
    return `"${column}" ${sqlTypes[typeof given === 'string' ? given : given.type]}`
  })
  return `create table plain (${typed.join(', ')}, primary key ("rowId"))`
}

function chunksOf(file: string): Buffer[] {
  const chunks: Buffer[] = []
  let text = ''
  for (const { key, data } of jsonOf(file)) {
    text += `${key}\t${data}\n`
    if (text.length < chunkBytes) continue
    chunks.push(Buffer.from(text))
    text = ''
  }
  return [...chunks, Buffer.from(text)]
}
