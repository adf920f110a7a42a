// Bulk enqueue: one transaction, few chunks in flight, all of it or nothing.

import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const numbers = (length: number) => Array.from({ length }, (_, n) => ({ n }))

async function stored(): Promise<number> {
  const [row] = await db.query<{ n: number }>('select count(*)::integer as n from pawl.job')
  return row!.n
}

/** Nothing is inserted until the returned function is called. */
async function lockJobs(): Promise<() => Promise<void>> {
  const client = await db.pool.connect()
  await client.query('begin')
  await client.query('lock table pawl.job in access exclusive mode')
  return async () => {
    await client.query('rollback')
    client.release()
  }
}

const isWaiting = async () =>
  (await db.query("select from pg_locks where not granted and relation = 'pawl.job'::regclass")).length > 0

async function* later(length: number) {
  for (const payload of numbers(length)) yield payload
}

test('[J32] of a generator no more is read than four chunks ahead', async () => {
  const unlock = await lockJobs()
  let read = 0
  function* counted() {
    for (; read < 20_000; read++) yield { n: read }
  }
  const enqueued = db.pawl().jobs.enqueueMany('many', counted())
  await until('five chunks are read', () => read >= 5000)
  await until('the first is sent', isWaiting)
  expect(read).toBeLessThanOrEqual(5000)
  await unlock()
  const { ids } = await enqueued
  expect(new Set(ids).size).toBe(20_000)
  expect(await db.query("select count(*)::integer as n, max((payload ->> 'n')::integer) as last from pawl.job")).toEqual([
    { n: 20_000, last: 19_999 },
  ])
})

for (const [name, payloads] of Object.entries({ 'an array': numbers, 'a generator': later })) {
  test(`[J32] ${name} keeps its order over chunks`, async () => {
    const { ids } = await db.pawl().jobs.enqueueMany('many', payloads(2500))
    const rows = await db.query<{ id: string; n: number }>(
      "select id::text, (payload ->> 'n')::integer as n from pawl.job order by 2",
    )
    expect(rows.map(({ id }) => id)).toEqual(ids)
    const client = await db.pool.connect()
    await client.query('begin')
    expect((await db.pawl().jobs.enqueueMany('more', payloads(2500), { tx: client })).ids).toHaveLength(2500)
    await client.query('rollback')
    client.release()
    expect(await stored()).toBe(2500)
    expect(await db.pawl().jobs.enqueueMany('none', payloads(0))).toEqual({ ids: [] })
  })
}

test('[J32] a connection that breaks before the commit: an array is there once', async () => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const unlock = await lockJobs()
  const enqueued = db.pawl({ databaseUrl: proxy.url }).jobs.enqueueMany('many', numbers(3000))
  await until('the first is sent', isWaiting)
  proxy.reset()
  await unlock()
  expect((await enqueued).ids).toHaveLength(3000)
  expect(await stored()).toBe(3000)
})

test('[J32] a connection that breaks before the commit: a generator is not there', async () => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const unlock = await lockJobs()
  const enqueued = db.pawl({ databaseUrl: proxy.url }).jobs.enqueueMany('many', later(3000))
  const refused = expect(enqueued).rejects.toMatchObject({ code: 'PAWL_ROLLED_BACK' })
  await until('the first is sent', isWaiting)
  proxy.reset()
  await refused
  await unlock()
  expect(await stored()).toBe(0)
})

test('[J32] a generator that throws takes everything back', async () => {
  async function* failing() {
    yield* later(2500)
    throw new Error('the source broke')
  }
  const pawl = db.pawl()
  await expect(pawl.jobs.enqueueMany('many', failing())).rejects.toThrow('the source broke')
  expect(await stored()).toBe(0)
  // Its connection is sound.
  expect((await pawl.jobs.enqueueMany('many', later(1500))).ids).toHaveLength(1500)
})

test('what is no list of payloads is refused', async () => {
  for (const payloads of ['abc', null, 5, { length: 2 }])
    await expect(db.pawl().jobs.enqueueMany('many', payloads as never)).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
})
