// The inbox takes in what outside sources say, once; and erasure empties events without moving them.

import type { OutsideEvent, Pawl } from 'pawl'
import { installProbe, moveClock } from 'pawl/testing'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { LogReader } from '../../test/support/log-readers.ts'

let db: TestDatabase
let pawl: Pawl
beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
beforeEach(async () => {
  installProbe(undefined)
  await db.query('truncate pawl.event, pawl.inbox, pawl.inbox_source, pawl.audit')
})
afterAll(() => db.drop())

const coin = (id: string, key = 'wallet'): OutsideEvent => ({ id, type: 'Moved', aggregateType: 'wallet', key, data: { id } })
const taken = async () =>
  (await db.query<{ id: string }>("select headers ->> 'sourceid' as id from pawl.event order by seq")).map(({ id }) => id)
const position = async () =>
  (await db.query<{ position: string }>("select position::text from pawl.inbox_source where source = 'chain'"))[0]?.position

test('[O15] an event that a source delivers repeatedly is ingested once', async () => {
  expect(await pawl.events.ingest(coin('1'), { source: 'chain' })).toMatchObject({
    outcome: 'ingested',
    ingested: 1,
    repeated: 0,
  })
  expect(await pawl.events.ingest([coin('1'), coin('2'), coin('2')], { source: 'chain' })).toMatchObject({
    ingested: 1,
    repeated: 2,
  })
  expect(await pawl.events.ingest(coin('1'), { source: 'chain' })).toMatchObject({
    outcome: 'replayed',
    ingested: 0,
    repeated: 1,
  })
  // Another source, and another tenant, has ids of its own.
  await pawl.events.ingest(coin('1'), { source: 'other' })
  await pawl.for('acme').events.ingest(coin('1'), { source: 'chain' })
  expect(await taken()).toEqual(['1', '2', '1', '1'])
  expect(await db.query("select distinct headers ->> 'source' as source from pawl.event order by 1")).toEqual([
    { source: 'chain' },
    { source: 'other' },
  ])
})

test('[O15] after twenty concurrent deliveries each event is ingested once', async () => {
  const ids = Array.from({ length: 10 }, (_, index) => String(index))
  const deliveries = Array.from({ length: 20 }, (_, index) => {
    const events = ids.map((id) => coin(id))
    if (index % 2 === 1) events.reverse()
    return pawl.events.ingest(events, index % 4 < 2 ? { source: 'chain' } : { source: 'chain', position: 7 })
  })
  const answers = await Promise.all(deliveries)
  expect(answers.reduce((sum, { ingested }) => sum + ingested, 0)).toBe(10)
  expect((await taken()).sort()).toEqual(ids)
})

test('[O15] events of one source transaction, in any calls, keep their order', async () => {
  await pawl.events.ingest([coin('42-1', 'sender'), coin('42-0', 'receiver')], { source: 'chain', position: 42 })
  expect(await pawl.events.ingest(coin('42-2'), { source: 'chain', position: 42 })).toMatchObject({
    outcome: 'ingested',
    ingested: 1,
    position: 42n,
  })
  expect(await taken()).toEqual(['42-1', '42-0', '42-2'])
  expect(await position()).toBe('42')
})

test('[O15] a replay is answered, a gap is an error; neither stores anything', async () => {
  for (const block of [1, 2, 3])
    await pawl.events.ingest(coin(String(block)), { source: 'chain', position: block, after: block - 1 })
  expect(await pawl.events.ingest(coin('2'), { source: 'chain', position: 2, after: 1 })).toEqual({
    outcome: 'replayed',
    ingested: 0,
    repeated: 1,
    position: 3n,
  })
  await expect(pawl.events.ingest(coin('9'), { source: 'chain', position: 9, after: 8 })).rejects.toMatchObject({
    code: 'PAWL_SOURCE_GAP',
    details: { was: '3', after: '8', position: '9' },
  })
  // The source says itself that nothing lies between: no gap.
  await pawl.events.ingest(coin('9'), { source: 'chain', position: 9, after: 3 })
  expect(await taken()).toEqual(['1', '2', '3', '9'])
  expect(await position()).toBe('9')
})

test('[O15] events up to the position are refused after their ids are removed', async () => {
  await pawl.events.ingest(coin('1'), { source: 'chain', position: 1, remember: '1d' })
  await pawl.events.ingest(coin('2'), { source: 'chain', position: 2, remember: '1d' })
  await pawl.events.ingest(coin('3'), { source: 'without positions', remember: '1d' })
  await moveClock(db.pool, 2 * 86_400_000)
  try {
    await pawl.events.retain()
    expect(await db.query('select event_id as id from pawl.inbox')).toEqual([{ id: '2' }])
    expect(await pawl.events.ingest(coin('1'), { source: 'chain', position: 1 })).toMatchObject({ outcome: 'replayed' })
    expect(await pawl.events.ingest(coin('2'), { source: 'chain', position: 2 })).toMatchObject({ outcome: 'replayed' })
  } finally {
    await moveClock(db.pool, 0)
  }
  expect(await taken()).toEqual(['1', '2', '3'])
})

test('[O15] events and position commit with the caller, or neither', async () => {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await pawl.events.ingest([coin('1'), coin('2')], { source: 'chain', position: 5, tx: client })
    await client.query('rollback')
    expect([await taken(), await position()]).toEqual([[], undefined])
    await client.query('begin')
    await pawl.events.ingest([coin('1'), coin('2')], { source: 'chain', position: 5, tx: client })
    await expect(pawl.events.ingest(coin('9'), { source: 'chain', position: 9, after: 8, tx: client })).rejects.toMatchObject({
      code: 'PAWL_SOURCE_GAP',
    })
    await client.query('commit')
  } finally {
    client.release()
  }
  expect([await taken(), await position()]).toEqual([['1', '2'], '5'])
})

test.each([
  [{ source: '' }, 'PAWL_CONFIG'],
  [{ source: 'chain', after: 3 }, 'PAWL_CONFIG'],
])('ingest with %o is refused', async (options, code) => {
  await expect(pawl.events.ingest(coin('1'), options)).rejects.toMatchObject({ code })
})

test('more than one call can carry is refused before it is sent', async () => {
  const data = 'x'.repeat(1_000_000)
  const events = Array.from({ length: 70 }, (_, index) => ({ ...coin(String(index)), data }))
  await expect(pawl.events.ingest(events, { source: 'chain', position: 1 })).rejects.toMatchObject({
    code: 'PAWL_INVALID_PAYLOAD',
    message: expect.stringContaining('several calls'),
  })
  expect(await position()).toBeUndefined()
})

test('an event of a source without an id is refused', async () => {
  await expect(pawl.events.ingest(coin(''), { source: 'chain' })).rejects.toMatchObject({ code: 'PAWL_INVALID_PAYLOAD' })
})

test("[O15] an erasure empties one key's events, keeps positions and is audited", async () => {
  const log = new LogReader(pawl.config.database)
  const event = (key: string, n: number) => ({
    type: 'Told',
    aggregateType: 'person',
    key,
    data: { key, version: n, n },
    headers: { ip: '10.0.0.1' },
  })
  await pawl.events.append([event('ann', 1), event('bob', 2), event('ann', 3)])
  await pawl.for('acme').events.append(event('ann', 4))
  await log.catchUp()
  // One that has no position yet when it is erased.
  await pawl.events.append(event('ann', 5))
  expect(await pawl.events.erase({ aggregateType: 'person', key: 'ann', reason: 'asked to', by: 'clerk' })).toEqual({
    erased: 3,
  })
  expect(await pawl.events.erase({ aggregateType: 'person', key: 'ann', reason: 'again' })).toEqual({ erased: 0 })
  await log.catchUp()
  const { head } = await pawl.events.lag()
  expect(log.positions.slice(-5)).toEqual([head - 4, head - 3, head - 2, head - 1, head])
  expect(await db.query('select aggregateid as key, tenant, payload, headers from pawl.event order by seq')).toEqual([
    { key: 'ann', tenant: '', payload: null, headers: { erased: true } },
    { key: 'bob', tenant: '', payload: { key: 'bob', version: 2, n: 2 }, headers: { ip: '10.0.0.1' } },
    { key: 'ann', tenant: '', payload: null, headers: { erased: true } },
    { key: 'ann', tenant: 'acme', payload: { key: 'ann', version: 4, n: 4 }, headers: { ip: '10.0.0.1' } },
    { key: 'ann', tenant: '', payload: null, headers: { erased: true } },
  ])
  expect(await db.query('select actor, action, subject, reason, detail from pawl.audit order by id')).toEqual([
    {
      actor: 'clerk',
      action: 'events.erase',
      subject: 'person ann',
      reason: 'asked to',
      detail: { key: 'ann', events: 3, aggregatetype: 'person' },
    },
    {
      actor: null,
      action: 'events.erase',
      subject: 'person ann',
      reason: 'again',
      detail: { key: 'ann', events: 0, aggregatetype: 'person' },
    },
  ])
  await log.close()
})

test('[O15] an erasure needs a reason and rolls back with its audit row', async () => {
  await pawl.events.append({ type: 'Told', aggregateType: 'person', key: 'ann', data: { secret: 1 } })
  const client = await db.pool.connect()
  await client.query('begin')
  expect(await pawl.events.erase({ aggregateType: 'person', key: 'ann', reason: 'asked to', tx: client })).toEqual({ erased: 1 })
  await client.query('rollback')
  client.release()
  expect(await db.query('select payload from pawl.event')).toEqual([{ payload: { secret: 1 } }])
  expect(await db.query('select 1 from pawl.audit')).toEqual([])
  await expect(pawl.events.erase({ aggregateType: 'person', key: 'ann', reason: ' ' })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
  })
})
