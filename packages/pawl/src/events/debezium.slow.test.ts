// The event table as Debezium's event router wants it, read back through logical decoding with pgoutput, which is what Debezium uses.

import { migrate } from 'pawl/admin'
import { expect, test } from 'vitest'
import { query, startOwnServer } from '../../test/support/standby.ts'

interface Relation {
  readonly name: string
  readonly columns: readonly string[]
}

type Message =
  | { readonly kind: 'relation'; readonly relation: Relation }
  | { readonly kind: 'insert'; readonly of: string; readonly row: Readonly<Record<string, string | null>> }
  | { readonly kind: 'other'; readonly tag: string }

/** The messages of pgoutput, protocol 1. */
class Decoder {
  readonly #relations = new Map<number, Relation>()

  decode(data: Buffer): Message {
    let at = 1
    const text = () => {
      const end = data.indexOf(0, at)
      const value = data.toString('utf8', at, end)
      at = end + 1
      return value
    }
    const int = (bytes: number) => {
      const value = data.readUIntBE(at, bytes)
      at += bytes
      return value
    }
    const tag = String.fromCharCode(data[0]!)
    if (tag === 'R') {
      const id = int(4)
      const name = `${text()}.${text()}`
      int(1)
      const columns = Array.from({ length: int(2) }, () => {
        int(1)
        const column = text()
        at += 8
        return column
      })
      const relation = { name, columns }
      this.#relations.set(id, relation)
      return { kind: 'relation', relation }
    }
    if (tag !== 'I') return { kind: 'other', tag }
    const { name: of, columns } = this.#relations.get(int(4))!
    expect(String.fromCharCode(int(1))).toBe('N')
    expect(int(2)).toBe(columns.length)
    const row: Record<string, string | null> = {}
    for (const column of columns) {
      const isText = String.fromCharCode(int(1)) === 't'
      if (!isText) row[column] = null
      else {
        const length = int(4)
        row[column] = data.toString('utf8', at, at + length)
        at += length
      }
    }
    return { kind: 'insert', of, row }
  }
}

test("[O11] the event table publishes inserts with the columns of Debezium's event router", async () => {
  const { url } = await startOwnServer({ wal_level: 'logical' })
  await migrate({ url, pooler: 'none', connectTimeoutMs: 10_000, queryTimeoutMs: 60_000, applicationName: 'pawl test' })
  // As docs/guides/debezium.md says.
  await query(
    url,
    "create publication pawl_events for table pawl.event with (publish = 'insert', publish_via_partition_root = true)",
  )
  await query(url, "select pg_create_logical_replication_slot('pawl_debezium', 'pgoutput')")
  await query(url, `select pawl.append('OrderPlaced', 'order', '42', '{"total": 7}', headers => '{"traceparent": "00-1-2-01"}')`)
  await query(url, `begin; select pawl.append('OrderPlaced', 'order', 'undone'); rollback`)
  await query(
    url,
    `begin; select pawl.append('OrderPaid', 'order', '42'); savepoint s; select pawl.append('OrderPaid', 'order', 'undone');
    rollback to s; select pawl.append('OrderSent', 'order', '42'); commit`,
  )
  // What we write beside it is not an event of theirs, nor is an erasure or a removal.
  await query(url, 'select pawl.rebase_events()')
  await query(url, "update pawl.event set payload = null, headers = '{\"erased\": true}' where aggregateid = '42'")
  await query(url, 'delete from pawl.event')
  const decoder = new Decoder()
  const changes = await query<{ data: Buffer }>(
    url,
    "select data from pg_logical_slot_get_binary_changes('pawl_debezium', null, null, 'proto_version', '1', 'publication_names', 'pawl_events')",
  )
  const messages = changes.map(({ data }) => decoder.decode(data))
  const relations = messages.flatMap((message) => (message.kind === 'relation' ? [message.relation] : []))
  // The partition is described as well, but every row comes under the name of the whole table.
  expect(new Set(messages.flatMap((message) => (message.kind === 'insert' ? [message.of] : [])))).toEqual(new Set(['pawl.event']))
  expect(relations.find(({ name }) => name === 'pawl.event')!.columns).toEqual(
    expect.arrayContaining(['id', 'aggregatetype', 'aggregateid', 'type', 'payload', 'headers', 'tenant']),
  )
  const rows = messages.flatMap((message) => (message.kind === 'insert' ? [message.row] : []))
  expect(rows).toMatchObject([
    {
      aggregatetype: 'order',
      aggregateid: '42',
      type: 'OrderPlaced',
      payload: '{"total": 7}',
      headers: '{"traceparent": "00-1-2-01"}',
      tenant: '',
    },
    { aggregatetype: 'order', aggregateid: '42', type: 'OrderPaid', payload: 'null' },
    { aggregatetype: 'order', aggregateid: '42', type: 'OrderSent' },
  ])
  for (const { id } of rows) expect(id).toMatch(/^[0-9a-f-]{36}$/)
  // Begin, commit, relation and insert: no update, no delete, no truncate.
  expect(new Set(messages.map((message) => (message.kind === 'other' ? message.tag : message.kind)))).toEqual(
    new Set(['B', 'C', 'relation', 'insert']),
  )
}, 120_000)

test('[O11] who holds back names the slot with the bytes that it keeps', async () => {
  const { url } = await startOwnServer({ wal_level: 'logical' })
  await migrate({ url, pooler: 'none', connectTimeoutMs: 10_000, queryTimeoutMs: 60_000, applicationName: 'pawl test' })
  const { createPawl } = await import('pawl')
  const pawl = createPawl({ databaseUrl: url })
  await query(url, "select pg_create_logical_replication_slot('pawl_debezium', 'pgoutput')")
  await pawl.events.append({ type: 'T', aggregateType: 'a', key: 'k' })
  const holds = await pawl.events.whoHoldsBack()
  await pawl.close()
  expect(holds).toMatchObject([
    {
      what: 'replication slot',
      delays: 'retention',
      name: 'pawl_debezium',
      endWith: "select pg_drop_replication_slot('pawl_debezium')",
    },
  ])
  expect(holds[0]!.bytes).toBeGreaterThan(0)
}, 120_000)
