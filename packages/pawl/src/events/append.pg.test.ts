// Append: an event exists if and only if its transaction committed, ours or the caller's.

import type { Pawl } from 'pawl'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest'
import { adapters, awkward } from '../../test/support/adapters.ts'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { Connection } from '../db/driver.ts'
import { Transaction } from '../db/transaction.ts'
import { toCloudEvent } from './cloudevent.ts'
import { readLog } from './read-log.ts'
import { sequence } from './sequence.ts'

let db: TestDatabase
let pawl: Pawl
beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
beforeEach(() => db.query('truncate pawl.event'))
afterAll(() => db.drop())

const placed = (key: string) => ({ type: 'OrderPlaced', aggregateType: 'order', key, data: { total: '0.10' } })
const keys = async () =>
  (await db.query<{ key: string }>('select aggregateid as key from pawl.event order by seq')).map(({ key }) => key)

class Undo extends Error {}

test.each(Object.keys(adapters))('[O1] through %s an event exists exactly if its transaction commits', async (name) => {
  const adapter = await adapters[name]!(db.url)
  onTestFinished(async () => void (await adapter.close()))
  await expect(
    adapter.transaction(async ({ tx }) => {
      await pawl.events.append(placed('undone'), { tx })
      await pawl.events.append([placed('undone'), placed('undone')], { tx })
      throw new Undo()
    }),
  ).rejects.toBeInstanceOf(Undo)
  expect(await keys()).toEqual([])
  const answers: string[] = []
  await adapter.transaction(async ({ tx }) => {
    const one = await pawl.events.append({ ...placed('a'), data: awkward, headers: { traceparent: '00-1-2-01' } }, { tx })
    const many = await pawl.events.append([placed('b'), placed('c')], { tx })
    answers.push(...one.ids, ...many.ids)
    expect(one.token).toMatch(/^\d+:\d+$/)
  })
  expect(await db.query('select id::text, aggregateid as key, payload from pawl.event order by seq')).toEqual(
    ['a', 'b', 'c'].map((key, index) => ({ id: answers[index], key, payload: key === 'a' ? awkward : { total: '0.10' } })),
  )
})

test('[O1] plain SQL and a trigger append too', async () => {
  await db.query(`create table orders (id text primary key);
    create function order_placed() returns trigger language plpgsql as $$
    begin
      perform pawl.append('OrderPlaced', 'order', new.id, jsonb_build_object('by', 'trigger'));
      return new;
    end $$;
    create trigger placed after insert on orders for each row execute function order_placed()`)
  await db.query("insert into orders values ('1')")
  await db.query("insert into pawl.event (aggregatetype, aggregateid, type, payload) values ('order', '2', 'OrderPlaced', '{}')")
  const client = await db.pool.connect()
  await client.query('begin')
  await client.query("insert into orders values ('3')")
  await client.query('rollback')
  client.release()
  expect(await keys()).toEqual(['1', '2'])
})

test('[O1] without a transaction a bulk append is all or nothing', async () => {
  const { ids } = await pawl.events.append(Array.from({ length: 2500 }, (_, n) => placed(String(n))))
  expect(new Set(ids).size).toBe(2500)
  expect(await keys()).toEqual(Array.from({ length: 2500 }, (_, n) => String(n)))
  await db.query(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no' using errcode = '23000'; end $$;
    create trigger refuse before insert on pawl.event for each row when (new.aggregateid = 'bad') execute function refuse()`)
  try {
    await expect(pawl.events.append([...Array.from({ length: 1500 }, () => placed('x')), placed('bad')])).rejects.toMatchObject({
      code: '23000',
    })
  } finally {
    await db.query('drop function refuse cascade')
  }
  expect(await db.query("select count(*)::int as n from pawl.event where aggregateid = 'x'")).toEqual([{ n: 0 }])
})

test('an append is prepared by name only if its client does so', async () => {
  const client = new pg.Client({ connectionString: db.url })
  await client.connect()
  onTestFinished(() => client.end())
  const prepared = async () => {
    await client.query('begin')
    await pawl.events.append(placed('a'), { tx: client })
    await pawl.events.append(placed('b'), { tx: client })
    await client.query('commit')
    const { rows } = await client.query<{ name: string }>('select name from pg_prepared_statements order by name')
    return rows.map(({ name }) => name)
  }
  expect(await prepared()).toEqual([])
  await client.query({ name: 'mine', text: 'select 1' })
  expect(await prepared()).toEqual(['mine', expect.stringMatching(/^pawl_append_event_\w+_tx$/)])
  expect(await keys()).toEqual(['a', 'b', 'a', 'b'])
})

test('the events of one key, given as two arrays, keep their order', async () => {
  const types = Array.from({ length: 300 }, (_, index) => `record.${index}`)
  const payloads = types.map((_, index) => `{"n":${index}}`)
  const [row] = await db.query<{ appended: number }>(
    `select pawl.append_key_events('', 'row', 'k', array(select jsonb_array_elements_text('${JSON.stringify(types)}')), '{${payloads.map((one) => JSON.stringify(one)).join(',')}}') as appended`,
  )
  expect(row).toEqual({ appended: 300 })
  const stored = await db.query<{ type: string; n: number }>(
    "select type, (payload ->> 'n')::integer as n from pawl.event order by seq",
  )
  expect(stored).toEqual(types.map((type, n) => ({ type, n })))
  await expect(db.query("select pawl.append_key_events('', 'row', '', '{a}', '{1}')")).rejects.toThrow(/a name of an event/)
})

test('an erasure by type, content and time leaves the other events', async () => {
  await db.query(
    `select pawl.append_key_events('', 'row', 'k', '{a,a,b,a}', '{"{\\"key\\":1}","{\\"key\\":2}","{\\"key\\":1}",null}')`,
  )
  const erase = async (more: string) =>
    (await db.query<{ n: number }>(`select pawl.erase_events('', 'row', 'k', '{a}', '{"key":1}' ${more}) as n`))[0]!.n
  expect(await erase(", p_to => pawl.now() - interval '1 hour'")).toBe(0)
  expect(await erase(", pawl.now() - interval '1 hour', pawl.now()")).toBe(1)
  expect(await erase('')).toBe(0)
  expect(await db.query('select payload from pawl.event order by seq')).toEqual(
    [null, { key: 2 }, { key: 1 }, null].map((payload) => ({ payload })),
  )
})

test('large events are sent in parts, in their order', async () => {
  const data = 'x'.repeat(900_000)
  const events = Array.from({ length: 20 }, (_, n) => ({ ...placed(String(n)), data }))
  const client = await db.pool.connect()
  onTestFinished(() => client.release())
  const sent: number[] = []
  const tx = {
    query: async (text: string, values: readonly unknown[] = []) => {
      if (text.includes('append_events')) sent.push(String(values[1]).length)
      return client.query(text, [...values])
    },
  }
  await client.query('begin')
  const { ids } = await pawl.events.append(events, { tx })
  await client.query('commit')
  expect(ids).toHaveLength(20)
  expect(sent).toHaveLength(3)
  expect(Math.max(...sent)).toBeLessThan(9_000_000)
  expect(await keys()).toEqual(events.map(({ key }) => key))
})

test('a bulk append sends at most four parts at once, in order', async () => {
  let inFlight = 0
  let most = 0
  const { run } = Transaction.prototype
  onTestFinished(() => {
    Transaction.prototype.run = run
  })
  Transaction.prototype.run = async function (this: Transaction, sent, values) {
    most = Math.max(most, ++inFlight)
    return run.call(this, sent, values).finally(() => inFlight--) as never
  }
  const events = Array.from({ length: 12_000 }, (_, n) => placed(String(n)))
  const { ids } = await pawl.events.append(events)
  expect(most).toBe(4)
  expect(new Set(ids).size).toBe(12_000)
  const stored = await db.query<{ id: string }>('select id from pawl.event order by seq')
  expect(stored.map(({ id }) => id)).toEqual(ids)
})

test('[O1] an append whose writer dies before its commit is not there', async () => {
  const client = new pg.Client({ connectionString: db.url })
  client.on('error', () => undefined)
  await client.connect()
  await client.query('begin')
  await pawl.events.append(placed('k'), { tx: client })
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid')
  await db.query('select pg_terminate_backend($1)', [rows[0]!.pid])
  await expect(client.query('commit')).rejects.toThrow()
  expect(await keys()).toEqual([])
})

test('[O1] an append without an answer is PAWL_COMMIT_UNKNOWN, not sent again', async () => {
  const proxy = await FaultProxy.start(db.url)
  const far = db.pawl({ databaseUrl: proxy.url })
  await far.events.append(placed('first'))
  const lost = proxy.loseReply(/insert into pawl\.event /)
  await expect(far.events.append(placed('second'))).rejects.toMatchObject({ code: 'PAWL_COMMIT_UNKNOWN' })
  await lost.happened
  await far.close()
  await proxy.stop()
  expect(await keys()).toEqual(['first', 'second'])
})

test.each([
  ['relaxed', 'none', 'off'],
  ['durable', 'none', 'on'],
  ['durable', 'transaction', 'on'],
] as const)('[O1] an append of durability %s commits with it (pooler %s)', async (durability, pooler, level) => {
  const own = await createDatabase()
  onTestFinished(() => own.drop())
  await own.query(`
    create table committed (key text, level text);
    create function note() returns trigger language plpgsql set search_path from current as $$
    begin
      insert into committed values (new.aggregateid, current_setting('synchronous_commit'));
      return null;
    end $$;
    create constraint trigger noted after insert on pawl.event deferrable initially deferred for each row execute function note()`)
  await own.query(`alter database ${own.name} set synchronous_commit = ${durability === 'relaxed' ? 'on' : 'off'}`)
  const { events } = own.pawl({ durability, pooler })
  await events.append(placed('one'))
  await events.append([placed('many'), placed('many')])
  await events.ingest([{ ...placed('ingested'), id: '1' }], { source: 's' })
  // Taken in again it would be told from what is there, so it is never less than durable.
  expect(await own.query('select key, level from committed order by key')).toEqual([
    { key: 'ingested', level: 'on' },
    { key: 'many', level },
    { key: 'many', level },
    { key: 'one', level },
  ])
})

test('ids are UUIDs of version 7 in order of time', async () => {
  const { ids } = await pawl.events.append([placed('a'), placed('b')])
  for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  const ms = Number.parseInt(ids[0]!.replaceAll('-', '').slice(0, 12), 16)
  const [now] = await db.query<{ ms: string }>("select (date_part('epoch', pawl.now()) * 1000)::bigint::text as ms")
  expect(Math.abs(Number(now!.ms) - ms)).toBeLessThan(60_000)
})

test.each([
  ['no key', { ...placed('k'), key: '' }],
  ['a key that is too long', placed('\u{1f600}'.repeat(501))],
  ['no type', { ...placed('k'), type: undefined as unknown as string }],
  ['NUL in the key', placed('a\u0000b')],
  ['half a surrogate pair in data', { ...placed('k'), data: { a: '\ud800' } }],
  ['NUL in data', { ...placed('k'), data: { a: 'x\u0000' } }],
  ['data that is too large', { ...placed('k'), data: 'x'.repeat(1_100_000) }],
  ['headers that are too large', { ...placed('k'), headers: { a: 'x'.repeat(70_000) } }],
  ['headers that are a list', { ...placed('k'), headers: [] as never }],
])('%s is refused with a clear error and nothing is stored', async (_what, event) => {
  await expect(pawl.events.append([placed('good'), event])).rejects.toMatchObject({ code: 'PAWL_INVALID_PAYLOAD' })
  expect(await keys()).toEqual([])
})

test.each([
  ["select pawl.append('T', 'a', '')", /name of an event/],
  ["select pawl.append('T', 'a', null)", /name of an event/],
  ["select pawl.append(repeat('t', 201), 'a', 'k')", /name of an event/],
  ["select pawl.append('T', 'a', 'k', headers => jsonb_build_object('h', repeat('x', 70000)))", /headers/],
  ["select pawl.append('T', 'a', 'k', headers => '[]')", /headers/],
  ['select pawl.append_events(\'\', \'[{"type": "T", "aggregatetype": "a"}]\')', /name of an event/],
  [
    'select pawl.append_events(repeat(\'t\', 101), \'[{"type": "T", "aggregatetype": "a", "aggregateid": "k"}]\')',
    /name of an event/,
  ],
])('the SQL function refuses too: %s', async (text, message) => {
  await expect(db.query(text)).rejects.toMatchObject({ code: '22023', message: expect.stringMatching(message) })
})

test('an append inside a tx handler without its transaction names the fix', async () => {
  pawl.jobs.define('work', { retry: { attempts: 1 }, tx: async () => void (await pawl.events.append(placed('k'))) })
  const { id } = await pawl.jobs.enqueue('work', {})
  const worker = pawl.worker()
  await worker.start()
  await until('it is dead', async () => (await pawl.jobs.get(id))?.state === 'dead')
  await worker.stop()
  expect((await pawl.jobs.get(id))!.lastError).toContain('Pass { tx }')
  expect(await keys()).toEqual([])
})

test('an append notifies only while a reader sleeps, at every isolation level', async () => {
  const listener = new pg.Client({ connectionString: db.url })
  await listener.connect()
  let heard = 0
  listener.on('notification', () => heard++)
  await listener.query('listen pawl_events')
  const adapter = await adapters.pg!(db.url)
  onTestFinished(async () => void (await adapter.close()))
  const appendAll = async () => {
    await pawl.events.append(placed('a'))
    await pawl.events.append([placed('a'), placed('b')])
    await db.query(
      "insert into pawl.event (aggregatetype, aggregateid, type, payload) values ('order', 'a', 'OrderPlaced', '{}')",
    )
    for (const level of ['repeatable read', 'serializable']) {
      await adapter.transaction(async ({ tx, run }) => {
        await run(`set transaction isolation level ${level}`)
        await run('select 1 from pawl.event')
        // A reader that goes to sleep now is later than this transaction's snapshot.
        await sleepers(1)
        await pawl.events.append(placed('a'), { tx })
      })
    }
    await listener.query('select 1')
  }
  const sleepers = async (count: number) => {
    await db.query('delete from pawl.sleeper where worker > $1', [count * isAsleep])
    for (let worker = 1; worker <= count * isAsleep; worker++)
      await db.query("insert into pawl.sleeper (queue, worker) values ('pawl.events', $1) on conflict do nothing", [worker])
  }
  let isAsleep = 0
  await appendAll()
  expect(heard).toBe(0)
  isAsleep = 1
  await sleepers(1)
  await appendAll()
  await until('all five are heard', () => heard === 5)
  await pawl.events.append(placed('a'), { wake: false })
  await pawl.events.append([placed('a'), placed('b')], { wake: false })
  await db.query("select pawl.append('OrderPlaced', 'order', 'a', wake => false)")
  // Of two sleepers one wakes up; the other still has to be told.
  await sleepers(2)
  await sleepers(1)
  await pawl.events.append(placed('a'))
  await until('it is heard', () => heard === 6)
  isAsleep = 0
  await sleepers(0)
  await pawl.events.append(placed('a'))
  await listener.query('select 1')
  expect(heard).toBe(6)
  await listener.end()
})

test.each([
  ['an insert', "insert into pawl.event (aggregatetype, aggregateid, type) values ('a', 'k', 'T') returning seq, xid"],
  ['pawl.append_event', "select pawl.append_event('', 'default', 'a', 'k', 'T', '1')"],
  ['pawl.append_events', `select pawl.append_events('', '[{"type": "T", "aggregatetype": "a", "aggregateid": "k"}]')`],
])('%s has its transaction id before it draws a number', async (_what, text) => {
  // Drawing a number is stopped while another session holds the sequence; by then the transaction has its id.
  const [holder, writer] = [await db.pool.connect(), await db.pool.connect()]
  onTestFinished(() => {
    holder.release()
    writer.release()
  })
  const [{ pid }] = (await writer.query<{ pid: number }>('select pg_backend_pid() as pid')).rows as [{ pid: number }]
  await holder.query('begin; alter sequence pawl.event_seq maxvalue 9223372036854775806')
  const writing = writer.query(text)
  const row = await until('it waits for the sequence', async () => {
    const [row] = await db.query<{ xid: string | null }>(
      "select backend_xid::text as xid from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'",
      [pid],
    )
    return row
  })
  await holder.query('rollback')
  await writing
  expect(row!.xid).not.toBeNull()
})

test('readers that sleep and wake at once leave the right flag', async () => {
  const rounds = Array.from({ length: 8 }, async (_, index) => {
    for (let n = 0; n < 25; n++) {
      await db.query("insert into pawl.sleeper (queue, worker) values ('pawl.events', $1)", [100 + index])
      if (n === 24 && index === 3) return
      await db.query('delete from pawl.sleeper where worker = $1', [100 + index])
    }
  })
  await Promise.all(rounds)
  expect(await db.query('select is_called from pawl.reader_sleeps')).toEqual([{ is_called: true }])
  await db.query('delete from pawl.sleeper')
  expect(await db.query('select is_called from pawl.reader_sleeps')).toEqual([{ is_called: false }])
})

test('a tenant appends only for itself, and events name their tenant', async () => {
  await pawl.for('acme').events.append(placed('k'))
  await pawl.events.append(placed('k'))
  const connection = new Connection(pawl.config.database, 'test')
  await sequence(connection, pawl.config.database)
  const { head } = await pawl.events.lag()
  const all = await readLog(connection, { after: head - 2, limit: 10 })
  expect(all.events.map(({ tenant }) => tenant)).toEqual(['acme', ''])
  const own = await readLog(connection, { after: head - 2, limit: 10, tenant: 'acme' })
  expect(own).toMatchObject({ events: [{ tenant: 'acme', position: head - 1 }], next: head, head })
  await connection.close()
})

test('an event of the log as a CloudEvent', async () => {
  await pawl
    .for('acme')
    .events.append({ ...placed('k'), headers: { traceparent: '00-1-2-01', dataschema: 'v1', 'not valid': 1, id: 'mine' } })
  const connection = new Connection(pawl.config.database, 'test')
  await sequence(connection, pawl.config.database)
  const { head } = await pawl.events.lag()
  const { events } = await readLog(connection, { after: head - 1, limit: 10 })
  await connection.close()
  expect(toCloudEvent(events[0]!, '/shop')).toEqual({
    specversion: '1.0',
    id: events[0]!.id,
    source: '/shop',
    type: 'OrderPlaced',
    subject: 'k',
    time: events[0]!.at.toISOString(),
    datacontenttype: 'application/json',
    partitionkey: 'k',
    sequence: String(head),
    pawltenant: 'acme',
    traceparent: '00-1-2-01',
    dataschema: 'v1',
    data: { total: '0.10' },
  })
})
