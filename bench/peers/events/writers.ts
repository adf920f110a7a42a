// The load of the readers: 12 writers, 200 keys, and every event carries its key's version. Half of the transactions have an id before they
// take their key, so ids and versions differ in order; 2 % roll back. The variant 'append lock' lets one transaction append at a time.

import { createPawl, type Pawl } from 'pawl'
import pg from 'pg'
import { now, pause } from '../../harness/machine/clock.ts'
import type { Peer, Setup, Started, Written } from '../../harness/system/protocol.ts'

const writers = 12
const keys = 200
const idEarlyShare = 0.5
const rollbackShare = 0.02
const thinkMsMax = 4

export const appendLock = 'select pg_advisory_xact_lock(1)'

export function open(_started: Started, variant: string | undefined): Peer {
  let pawl: Pawl
  let clients: pg.Client[] = []
  let next = 1

  async function writeOnce(client: pg.Client, written: Written[]): Promise<void> {
    const n = next++
    const key = `key-${Math.floor(Math.random() * keys)}`
    await client.query('begin')
    if (Math.random() < idEarlyShare) {
      await client.query('select pg_current_xact_id()')
      await pause(Math.random() * thinkMsMax)
    }
    const { rows } = await client.query<{ version: number }>(
      'update versioned set version = version + 1 where key = $1 returning version',
      [key],
    )
    const version = rows[0]!.version
    if (variant === 'append lock') await client.query(appendLock)
    await pawl.events.append({ type: 'Changed', aggregateType: 'thing', key, data: { key, version, n } }, { tx: client })
    await pause(Math.random() * thinkMsMax)
    if (Math.random() < rollbackShare) {
      await client.query('rollback')
      return
    }
    const at = now()
    await client.query('commit')
    written.push({ n, key, version, at })
  }

  return {
    async prepare({ url }: Setup) {
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      clients = Array.from({ length: writers }, () => new pg.Client({ connectionString: url }))
      await Promise.all(clients.map((client) => client.connect()))
      await clients[0]!.query('create table versioned (key text primary key, version integer not null) with (fillfactor = 20)')
      await clients[0]!.query(`insert into versioned select 'key-' || k, 0 from generate_series(0, ${keys - 1}) k`)
      // For those that read by number alone; Pawl has no use for it.
      await clients[0]!.query('create index on pawl.event (seq)')
    },
    async load(durationMs) {
      const until = now() + durationMs
      const written: Written[] = []
      const write = async (client: pg.Client) => {
        while (now() < until) await writeOnce(client, written)
      }
      await Promise.all(clients.map(write))
      return written
    },
    async close() {
      await pawl.close()
      await Promise.all(clients.map((client) => client.end()))
    },
  }
}
