// The limit for delivery in bulk: logical decoding of Pawl's own table, read by pg-logical-replication. It counts the rows, confirms each
// transaction and keeps nothing.

import { createPawl, type Pawl } from 'pawl'
import pg from 'pg'
import { load } from '../../harness/system/load.ts'
import type { Peer, Setup, Started } from '../../harness/system/protocol.ts'
import { eventOf } from './event.ts'

interface Service {
  on(event: 'data', listener: (lsn: string, log: { readonly tag: string }) => void): this
  on(event: 'start', listener: () => void): this
  on(event: 'error', listener: (error: Error) => void): this
  subscribe(plugin: object, slot: string): Promise<unknown>
  acknowledge(lsn: string): Promise<boolean>
  stop(): Promise<unknown>
}

interface LogicalReplication {
  readonly LogicalReplicationService: new (config: pg.ClientConfig, options: object) => Service
  readonly PgoutputPlugin: new (options: { protoVersion: 1; publicationNames: string[] }) => object
}

const slot = `bench_${process.pid}`

export function open(started: Started): Peer {
  let library: LogicalReplication
  let pawl: Pawl
  let client: pg.Client
  let service: Service | undefined
  let url: string
  let seen = 0

  return {
    async prepare(setup: Setup) {
      url = setup.url
      library = await load<LogicalReplication>('pg-logical-replication')
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      client = new pg.Client({ connectionString: url })
      await client.connect()
      await client.query('create publication bench for table pawl.event with (publish_via_partition_root = true)')
      await client.query(`select pg_create_logical_replication_slot('${slot}', 'pgoutput')`)
    },
    async fill(count) {
      for (let from = 0; from < count; from += 1_000) {
        await pawl.events.append(Array.from({ length: Math.min(1_000, count - from) }, (_, index) => eventOf(from + index)))
      }
    },
    async work() {
      const reader = new library.LogicalReplicationService(
        { connectionString: url },
        { acknowledge: { auto: false, timeoutSeconds: 10 } },
      )
      service = reader
      reader.on('data', (lsn, { tag }) => {
        if (tag === 'insert') started(seen++)
        else if (tag === 'commit') void reader.acknowledge(lsn)
      })
      const begun = new Promise<void>((resolve, reject) => reader.on('start', resolve).on('error', reject))
      reader.subscribe(new library.PgoutputPlugin({ protoVersion: 1, publicationNames: ['bench'] }), slot).catch(() => undefined)
      await begun
    },
    remaining: async () => 0,
    async close() {
      await service?.stop()
      // A slot keeps its database from being dropped, and its reader ends in its own time.
      await client.query(
        `select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where slot_name = '${slot}' and active`,
      )
      await client.query(`select pg_drop_replication_slot('${slot}')`)
      await client.end()
      await pawl.close()
    },
  }
}
