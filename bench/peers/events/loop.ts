// The limit for projections that write: one connection that does the same upserts, sent without waiting, 500 to a transaction. It knows
// the events beforehand: it reads no log, keeps no place and has no fence.

import pg from 'pg'
import type { Peer, Setup, Started } from '../../harness/system/protocol.ts'
import { countTable, keyOf, upsertCount } from './event.ts'

const perTransaction = 500

export function open(started: Started): Peer {
  let client: pg.Client
  let events = 0
  let done = 0
  let loop: Promise<void> | undefined

  async function write(): Promise<void> {
    for (let from = 0; from < events; from += perTransaction) {
      const until = Math.min(from + perTransaction, events)
      const answered: Promise<unknown>[] = [client.query('begin')]
      for (let n = from; n < until; n++) {
        started(n)
        answered.push(client.query({ name: 'upsert', text: upsertCount, values: [keyOf(n)] }))
      }
      answered.push(client.query('commit'))
      await Promise.all(answered)
      done = until
    }
  }

  return {
    async prepare({ url }: Setup) {
      client = new pg.Client({ connectionString: url, pipeline: true } as pg.ClientConfig)
      await client.connect()
      await client.query(countTable)
    },
    async fill(count) {
      events = count
    },
    async work() {
      loop = write()
      loop.catch((error: unknown) => {
        console.error(error)
        process.exit(1)
      })
    },
    remaining: async () => events - done,
    async close() {
      await loop
      await client.end()
    },
  }
}
