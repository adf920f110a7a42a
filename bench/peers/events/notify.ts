// The limit for delivery: a row and a notification in one transaction, and a connection that listens. The notification carries the
// number, so nothing is read; what is sent while nobody listens is lost, and nobody remembers what was handled.

import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import { effectTable, insertEffect, type Peer, type Setup, type Started } from '../../harness/system/protocol.ts'

export function open(started: Started): Peer {
  let pool: pg.Pool
  let listener: pg.Client | undefined
  let url: string

  return {
    async prepare(setup: Setup) {
      url = setup.url
      pool = new pg.Pool({ connectionString: url, max: setup.connections })
      await pool.query(effectTable)
    },
    async work() {
      listener = new pg.Client({ connectionString: url })
      await listener.connect()
      listener.on('notification', ({ payload }) => started(Number(payload)))
      await listener.query('listen bench')
    },
    async enqueue(n: number) {
      const client = await pool.connect()
      try {
        await client.query('begin')
        await client.query(insertEffect, [n])
        await client.query(`select pg_notify('bench', $1)`, [String(n)])
        const at = now()
        await client.query('commit')
        return at
      } finally {
        client.release()
      }
    },
    async close() {
      await listener?.end()
      await pool.end()
    },
  }
}
