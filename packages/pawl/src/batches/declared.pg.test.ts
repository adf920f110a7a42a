// Batches whose handlers are given apart from their definition, and items whose data has a schema.

import { type BatchKind, type Item, NonRetryable, type Pawl } from 'pawl'
import { afterEach, beforeEach, expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { closed, files, startWorker } from '../../test/support/batches.ts'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const schema = z.object({ path: z.string(), at: z.coerce.date() })
const declare = (pawl: Pawl) => pawl.batches.define('reparse', { schema, policy: 'queue' })
const good = { path: '/a', at: '2030-01-01' }

test('what a batch without handlers starts, another process runs', async () => {
  const web = db.pawl()
  const { id } = await web.batches.start(declare(web), [{ key: 'a', data: good }])
  const worker = db.pawl()
  const seen: unknown[] = []
  worker.batches.handle(declare(worker), {
    prepare: ({ phase }) => void seen.push(`prepare in ${phase}`),
    boundary: ({ prepared }) => void seen.push(`boundary after ${JSON.stringify(prepared)}`),
    item: { run: ({ data }) => void seen.push(data) },
    onEnd: ({ state }) => void seen.push(state),
  })
  await startWorker(worker)
  expect(await closed(web, id)).toMatchObject({ isSuccess: true, prepared: null })
  expect(seen).toEqual(['prepare in prepare', 'boundary after null', { path: '/a', at: new Date(good.at) }, 'finished'])
})

test('a process without the handlers leaves the batch to others', async () => {
  const pawl = db.pawl()
  const { id } = await pawl.batches.start(declare(pawl), [{ key: 'a', data: good }])
  pawl.jobs.define('other', { run: () => undefined })
  const worker = pawl.worker()
  expect(worker.kinds).toEqual(['other'])
  const codes = (await pawl.batches.why(id)).reasons.map(({ code }) => code)
  expect(codes.filter((code) => code.startsWith('boundary-'))).toEqual(['boundary-queue-not-worked'])
})

test('handlers of an unknown batch, given twice, none or both are refused', () => {
  const pawl = db.pawl()
  const { define, handle } = {
    define: pawl.batches.define.bind(pawl.batches),
    handle: pawl.batches.handle.bind(pawl.batches),
  }
  const run = () => undefined
  const reparse = declare(pawl)
  expect(() => handle({ name: 'other' }, { item: { run } })).toThrow(
    "got the handle of 'other', which another Pawl may define: each Pawl has its own",
  )
  expect(() => handle(reparse, { item: {} })).toThrow("batches.handle('reparse'): give item a handler: either run or tx.")
  expect(() => handle(reparse, { item: { run, tx: run } })).toThrow('give item a handler: either run or tx, not both.')
  expect(() => define('early', { onEnd: run })).toThrow('onEnd needs a handler of items beside it: give item run or tx.')
  handle(reparse, { item: { run } })
  expect(() => handle(reparse, { item: { run } })).toThrow("The batch 'reparse' already has its handlers.")
})

test('data that the schema refuses is named with its index', async () => {
  const pawl = db.pawl()
  const reparse = declare(pawl)
  const error = await pawl.batches
    .start(reparse, [
      { key: 'a', data: good },
      { key: 'b', data: { path: 5 } as never },
    ])
    .catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ code: 'PAWL_INVALID_PAYLOAD', details: { index: 1 } })
  expect(String(error)).toMatch(/The data of 'reparse' is not valid: data\.path: .*; data\.at: .* It is at index 1 of the call\./)
  expect((await pawl.batches.list()).items).toEqual([])
})

test('stored data that the schema refuses now fails its item at once', async () => {
  const pawl = db.pawl()
  const { id } = await pawl.batches.start(declare(pawl), [
    { key: 'a', data: good },
    { key: 'b', data: good },
  ])
  await db.query(`update pawl.batch_item set data = '{"path": 7, "at": "2030-01-01"}' where key = 'b'`)
  const worker = db.pawl()
  worker.batches.handle(declare(worker), { item: { tx: () => undefined } })
  await startWorker(worker)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 1, failed: 1 } })
  const { items } = await pawl.batches.items(id, { outcome: 'failed' })
  expect(items).toMatchObject([{ key: 'b', error: expect.stringMatching(/The data of 'reparse' is not valid: data\.path/) }])
})

test('the types of data reach start and handler', () => {
  const pawl = db.pawl()
  const typed = pawl.batches.define<{ lines: number }>('typed', {
    item: { run: (item) => expectTypeOf(item).toEqualTypeOf<Item<{ lines: number }>>() },
  })
  const checked = declare(pawl)
  expectTypeOf(checked).toEqualTypeOf<BatchKind<z.input<typeof schema>, z.output<typeof schema>>>()
  const calls = () => {
    void pawl.batches.start(typed, [{ key: 'a', data: { lines: 1 } }])
    // @ts-expect-error: a string is no number
    void pawl.batches.start(typed, [{ key: 'a', data: { lines: '1' } }])
    // @ts-expect-error: data is missing
    void pawl.batches.start(typed, [{ key: 'a' }])
    void pawl.batches.start('typed', [{ key: 'a' }])
  }
  expect(calls).toBeTypeOf('function')
})

test('a rerun takes a transaction, a policy and meta', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const first = await pawl.batches.start(reparse, files(2), { meta: { try: 1 } })
  await pawl.batches.cancel(first.id, { by: 'ada', reason: 'test' })
  const running = await pawl.batches.start(reparse, files(1))
  await expect(pawl.batches.rerun(first.id)).rejects.toMatchObject({ code: 'PAWL_TRACK_BUSY' })
  const client = await db.pool.connect()
  try {
    const again = (meta: { try: number }) => pawl.batches.rerun(first.id, { tx: client, policy: 'queue', meta, by: 'ada' })
    await client.query('begin')
    await again({ try: 2 })
    await client.query('rollback')
    expect((await pawl.batches.list({ state: 'queued' })).items).toEqual([])
    await client.query('begin')
    const { id, state } = await again({ try: 3 })
    await client.query('commit')
    expect(state).toBe('queued')
    expect(await pawl.batches.get(id)).toMatchObject({ rerunOf: first.id, policy: 'queue', meta: { try: 3 }, by: 'ada' })
  } finally {
    client.release()
  }
  expect(await pawl.batches.rerun(first.id, { policy: 'replace' })).toMatchObject({ state: 'running' })
  expect(await pawl.batches.get(running.id)).toMatchObject({ state: 'replaced' })
})

test('log lines of an item name its batch and key', async () => {
  const lines: Record<string, unknown>[] = []
  const log = (fields: object, message: string) => void lines.push({ ...fields, message })
  const logger = { debug: () => undefined, info: log, warn: log, error: log }
  const pawl = db.pawl({ logger })
  const reparse = pawl.batches.define('reparse', {
    item: {
      run: (_, { log: say }) => {
        say('half way', { lines: 2 })
        throw new NonRetryable('bad file')
      },
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  await closed(pawl, id)
  const named = { batch: id, n: 1, key: 'file-1', kind: 'pawl.batch.reparse.item', job: expect.any(String) }
  expect(lines).toContainEqual(expect.objectContaining({ ...named, message: 'half way', lines: 2 }))
  expect(lines).toContainEqual(expect.objectContaining({ ...named, message: 'job is dead' }))
})

test('jobs of batches that wait for their time are listed when asked', async () => {
  const pawl = db.pawl()
  const { id } = await pawl.batches.start(declare(pawl), [{ key: 'a', data: good }])
  const kinds = async (options = {}) => (await pawl.jobs.list(options)).items.map(({ kind }) => kind)
  expect(await kinds()).toEqual(['pawl.batch.reparse.step'])
  expect(await kinds({ state: 'scheduled' })).toEqual(['pawl.batch.watch'])
  expect(await kinds({ kind: 'pawl.batch.watch' })).toEqual(['pawl.batch.watch'])
  await pawl.batches.cancel(id, { by: 'ada', reason: 'test' })
})
