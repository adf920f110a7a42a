// COPY of rows into a table of Pawl, written out by the client as text: the limit of everything that writes many rows.

import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createPawl } from 'pawl'
import pg from 'pg'
import { load } from '../harness/system/load.ts'
import type { Peer, Setup } from '../harness/system/protocol.ts'

interface CopyStreams {
  from(text: string): NodeJS.WritableStream & pg.Submittable
}

const rowsPerChunk = 500

/** The table with its columns, and the nth row as a line of COPY's text. */
export function copyRows(into: string, row: (n: number) => string): Peer {
  let client: pg.Client
  let copy: CopyStreams

  function* chunks(from: number, count: number): Generator<string> {
    for (let start = from; start < from + count; start += rowsPerChunk) {
      let chunk = ''
      for (let n = start; n < Math.min(start + rowsPerChunk, from + count); n++) chunk += row(n)
      yield chunk
    }
  }

  return {
    async prepare({ url }: Setup) {
      copy = await load<CopyStreams>('pg-copy-streams')
      const pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      await pawl.close()
      client = new pg.Client({ connectionString: url })
      await client.connect()
    },
    async bulk(count, callSize) {
      for (let from = 0; from < count; from += callSize) {
        const rows = Readable.from(chunks(from, Math.min(callSize, count - from)))
        await pipeline(rows, client.query(copy.from(`copy ${into} from stdin`)))
      }
    },
    close: () => client.end(),
  }
}
