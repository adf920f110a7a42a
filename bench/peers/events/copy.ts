// The limit for bulk append: COPY of the same events into Pawl's own table, the rows written out by the client as text.

import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createPawl } from 'pawl'
import pg from 'pg'
import { load } from '../../harness/load.ts'
import { type Peer, payloadOf, type Setup } from '../../harness/protocol.ts'
import { keyOf } from './event.ts'

interface CopyStreams {
  from(text: string): NodeJS.WritableStream & pg.Submittable
}

const text = 'copy pawl.event (aggregatetype, aggregateid, type, payload) from stdin'
const rowsPerChunk = 500

export function open(): Peer {
  let client: pg.Client
  let copy: CopyStreams

  function* chunks(from: number, count: number): Generator<string> {
    for (let start = from; start < from + count; start += rowsPerChunk) {
      let chunk = ''
      for (let n = start; n < Math.min(start + rowsPerChunk, from + count); n++) {
        chunk += `mail\t${keyOf(n)}\tSent\t${JSON.stringify(payloadOf(n))}\n`
      }
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
        await pipeline(Readable.from(chunks(from, Math.min(callSize, count - from))), client.query(copy.from(text)))
      }
    },
    close: () => client.end(),
  }
}
