// A transaction that stores an order, with an event (the variant 'event') or without one. Via 'plain' it is one statement; via 'pipelined'
// it is what an application does, begin, insert, append and commit, sent without waiting for answers in between.

import { createPawl, type Pawl } from 'pawl'
import pg from 'pg'
import { type Peer, payloadOf, type Setup, type Started, type Via } from '../../harness/system/protocol.ts'
import { eventOf, keyOf } from './event.ts'

const table =
  'create table if not exists purchase (id bigint generated always as identity primary key, customer text not null, detail jsonb)'
const insert = 'insert into purchase (customer, detail) values ($1, $2::jsonb)'
const insertWithEvent = `
  with stored as (${insert} returning id)
  insert into pawl.event (aggregatetype, aggregateid, type, payload)
  select 'mail', $3::text, 'Sent', $2::jsonb from stored`

export function open(_started: Started, variant: string | undefined): Peer {
  const hasEvent = variant === 'event'
  let pawl: Pawl
  let clients: pg.Client[] = []
  const free: pg.Client[] = []

  async function oneStatement(client: pg.Client, n: number): Promise<void> {
    const values = [keyOf(n), JSON.stringify(payloadOf(n))]
    if (hasEvent) await client.query({ name: 'with event', text: insertWithEvent, values: [...values, keyOf(n)] })
    else await client.query({ name: 'without', text: insert, values })
  }

  async function pipelined(client: pg.Client, n: number): Promise<void> {
    const sent: Promise<unknown>[] = [
      client.query('begin'),
      client.query({ name: 'insert', text: insert, values: [keyOf(n), JSON.stringify(payloadOf(n))] }),
    ]
    if (hasEvent) sent.push(pawl.events.append(eventOf(n), { tx: client }))
    sent.push(client.query('commit'))
    await Promise.all(sent)
  }

  return {
    async prepare({ url, connections }: Setup) {
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      clients = Array.from(
        { length: connections },
        () => new pg.Client({ connectionString: url, pipeline: true } as pg.ClientConfig),
      )
      await Promise.all(clients.map((client) => client.connect()))
      await clients[0]!.query(table)
      free.push(...clients)
    },
    /** There are as many connections as calls in flight. */
    async enqueue(n: number, via: Via) {
      const client = free.pop()!
      await (via === 'pipelined' ? pipelined(client, n) : oneStatement(client, n))
      free.push(client)
      return undefined
    },
    async close() {
      await pawl.close()
      await Promise.all(clients.map((client) => client.end()))
    },
  }
}
