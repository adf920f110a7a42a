import { isPawlError, type Pawl } from 'pawl'
import { moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { closed, eventsOf, files, startWorker } from '../../test/support/batches.ts'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { startTable } from './options.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const define = (pawl: Pawl, more = {}) => pawl.batches.define('reparse', { item: { run: () => ({ records: 3 }) }, ...more })

test('[B4] all items done: finished, successful, sums added up, events in order', async () => {
  const pawl = db.pawl()
  const ends: string[] = []
  const reparse = define(pawl, { onEnd: ({ state }: { state: string }) => void ends.push(state) })
  const { id, state, deadline } = await pawl.batches.start(reparse, files(25), { by: 'ada', meta: { why: 'x' } })
  expect(state).toBe('running')
  expect(deadline).toBeInstanceOf(Date)
  await startWorker(pawl)
  const batch = await closed(pawl, id)
  expect(batch).toMatchObject({ state: 'finished', isSuccess: true, by: 'ada', meta: { why: 'x' }, sums: { records: 75 } })
  expect(batch.counts).toEqual({ total: 25, done: 25, failed: 0, late: 0, restored: 0, waiting: 0 })
  expect(ends).toEqual(['finished'])
  expect(await eventsOf(db, id)).toEqual(['batch.started', 'batch.boundary', 'batch.finished', 'batch.closed'])
})

test('[B4] one item failed: finished and not successful', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', {
    item: {
      retry: { attempts: 1 },
      tx: ({ n }) => {
        if (n === 2) throw new Error('bad file')
        return { records: n }
      },
    },
  })
  const { id } = await pawl.batches.start(reparse, files(3))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({
    state: 'finished',
    isSuccess: false,
    counts: { done: 2, failed: 1 },
    sums: { records: 4 },
  })
  const { items } = await pawl.batches.items(id, { outcome: 'failed' })
  expect(items).toMatchObject([{ key: 'file-2', error: expect.stringMatching(/bad file/) }])
})

test('[B4] no items: finished at once, with its hook and events', async () => {
  const pawl = db.pawl()
  let ends = 0
  const reparse = define(pawl, { onEnd: () => void ends++ })
  const { id, state } = await pawl.batches.start(reparse, [])
  expect(state).toBe('finished')
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', isSuccess: true })
  expect(ends).toBe(1)
})

test('[B1] a running batch refuses the next start and is named', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const { id } = await pawl.batches.start(reparse, files(2))
  const error = await pawl.batches.start(reparse, files(2)).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({
    code: 'PAWL_TRACK_BUSY',
    details: { blocker: id, name: 'reparse', counts: { total: 2, waiting: 2 } },
  })
  expect((await pawl.batches.list()).items).toHaveLength(1)
  expect(await pawl.batches.start(reparse, files(2), { track: 'other' })).toMatchObject({ state: 'running' })
  expect(await pawl.for('acme').batches.start(reparse, files(1))).toMatchObject({ state: 'running' })
})

test('[B1] a start with the policy queue waits, and runs next', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const first = await pawl.batches.start(reparse, files(2))
  const second = await pawl.batches.start(reparse, files(2), { policy: 'queue' })
  expect(second).toMatchObject({ state: 'queued', deadline: null })
  expect((await pawl.batches.why(second.id)).reasons.map(({ code }) => code)).toEqual(['track-busy', 'queued'])
  await startWorker(pawl)
  const [one, two] = [await closed(pawl, first.id), await closed(pawl, second.id)]
  expect(two).toMatchObject({ state: 'finished', counts: { done: 2 } })
  expect(two.startedAt!.getTime()).toBeGreaterThanOrEqual(one.endedAt!.getTime())
})

test('[B1] a start with the policy replace ends the running one', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const first = await pawl.batches.start(reparse, files(2))
  const second = await pawl.batches.start(reparse, files(2), { policy: 'replace' })
  expect(second.state).toBe('running')
  expect(await pawl.batches.get(first.id)).toMatchObject({ state: 'replaced', endReason: `replaced by batch ${second.id}` })
})

test('[B1] past its deadline a batch is timed out by the next start', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const first = await pawl.batches.start(reparse, files(1))
  await moveClock(db.pool, 60_000)
  expect(await pawl.batches.start(reparse, files(1))).toMatchObject({ state: 'running' })
  expect(await pawl.batches.get(first.id)).toMatchObject({ state: 'timed-out', counts: { waiting: 1 } })
})

test('[B1] of 50 concurrent starts on one track exactly one runs', async () => {
  const pawls = Array.from({ length: 5 }, () => db.pawl())
  const kinds = pawls.map((pawl) => define(pawl))
  const starts = await Promise.allSettled(
    Array.from({ length: 50 }, (_, index) => pawls[index % 5]!.batches.start(kinds[index % 5]!, files(10))),
  )
  const refused = starts.filter((each) => each.status === 'rejected').map(({ reason }) => reason as unknown)
  expect(refused.filter((each) => isPawlError(each, 'PAWL_TRACK_BUSY'))).toHaveLength(49)
  expect(await db.query('select state, count(*)::integer from pawl.batch group by state')).toEqual([
    { state: 'running', count: 1 },
  ])
  expect(await db.query('select count(*)::integer from pawl.batch_item')).toEqual([{ count: 10 }])
})

test.each([
  [4, 3104, {}, 43_461],
  [4, 50, {}, 40_056],
  [4, 0, {}, 40_000],
  [4, 200_000_000, {}, 223_009_056],
  [2, 100, { perItemMs: 1, perUnitMs: 2, safety: 10 }, 2002],
  [2, 100, { minMs: 60_000 }, 60_000],
  [2, 100, { maxMs: 1000 }, 1000],
])('[B2] %i files of %i records with %o get %i ms', async (count, units, allowance, expected) => {
  const pawl = db.pawl()
  const reparse = define(pawl, { allowance })
  const { id } = await pawl.batches.start(reparse, files(count), { units })
  const { allowanceMs, startedAt, deadline } = await pawl.batches.get(id)
  expect(allowanceMs).toBe(expected)
  expect(deadline!.getTime() - startedAt!.getTime()).toBe(expected)
})

test('[B2] an allowance that is a string is refused', () => {
  expect(() => define(db.pawl(), { allowance: { perItemMs: '10' } })).toThrow(/allowance.perItemMs must be a number/)
})

test('[B2] time in the queue costs no allowance', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl, { policy: 'queue' })
  const first = await pawl.batches.start(reparse, files(1))
  const second = await pawl.batches.start(reparse, files(1))
  await moveClock(db.pool, 3_600_000)
  await pawl.batches.cancel(first.id, { by: 'ada', reason: 'test' })
  const { state, createdAt, startedAt, deadline } = await pawl.batches.get(second.id)
  expect(state).toBe('running')
  expect(startedAt!.getTime() - createdAt.getTime()).toBeGreaterThan(3_500_000)
  expect(deadline!.getTime() - startedAt!.getTime()).toBe(10_000)
})

test("[B7] a start in a caller's transaction commits or rolls back with it", async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await pawl.batches.start(reparse, files(3), { tx: client })
    await client.query('rollback')
    expect((await pawl.batches.list()).items).toEqual([])
    await client.query('begin')
    const { id, deadline } = await pawl.batches.start(reparse, files(3), { tx: client })
    expect(deadline).toBeInstanceOf(Date)
    expect(await pawl.batches.start(reparse, files(1), { track: 'another' })).toMatchObject({ state: 'running' })
    await client.query('commit')
    expect(await pawl.batches.get(id)).toMatchObject({ state: 'running', counts: { total: 3 } })
    await client.query('begin')
    await expect(pawl.batches.start(reparse, files(3), { tx: client, policy: 'refuse' })).rejects.toMatchObject({
      code: 'PAWL_TRACK_BUSY',
    })
    await client.query('select 1')
    await client.query('commit')
  } finally {
    client.release()
  }
})

test('a start while the transaction of another is open says: try again', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await pawl.batches.start(reparse, files(1), { tx: client })
    await expect(pawl.batches.start(reparse, files(1), { policy: 'queue' })).rejects.toMatchObject({
      code: 'PAWL_TRACK_BUSY',
      message:
        "Track 'reparse' is busy: an open transaction holds it, such as that of another start. Try again when it has ended.",
      details: { retryAfterMs: 1000 },
    })
    await client.query('rollback')
  } finally {
    client.release()
  }
})

test('a tx handler calls a verb without its transaction: it is refused', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const act = { by: 'ada', reason: 'test' }
  const errors: unknown[] = []
  const next = pawl.batches.define('next', {
    item: { run: () => undefined },
    onEnd: async ({ id }, tx) => {
      const { batches } = pawl
      const calls = [
        batches.start(reparse, files(1)),
        batches.cancel(id, act),
        batches.extend(id, { ...act, for: 1 }),
        batches.rerun(id),
      ]
      for (const call of calls) errors.push(await call.catch((error: unknown) => error))
      await batches.start(reparse, files(1), { tx, track: 'started' })
    },
  })
  const { id } = await pawl.batches.start(next, [])
  await startWorker(pawl)
  await closed(pawl, id)
  expect(errors.map((error) => (error as { code: string }).code)).toEqual(Array(4).fill('PAWL_TX_REQUIRED'))
  expect(String(errors[0])).toMatch(/batches\.start\('\w+'\) was called inside .* Pass \{ tx \}/)
  expect((await pawl.batches.list({ name: 'reparse' })).items).toMatchObject([{ track: 'started' }])
})

test('two items with one key are refused before anything is written', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  await expect(pawl.batches.start(reparse, [{ key: 'a' }, { key: 'a' }])).rejects.toMatchObject({ code: 'PAWL_INVALID_PAYLOAD' })
  expect((await pawl.batches.list()).items).toEqual([])
})

test.each([
  [
    { key: 'a', payload: 1 },
    "batches.start('reparse'): items[0] has no field 'payload'. The fields of an item are key, data, units, before.",
  ],
  ['a', "batches.start('reparse'): items[0] must be an object with a key, got 'a'."],
  [null, "batches.start('reparse'): items[0] must be an object with a key, got null."],
])('an item that is %o is refused', async (item, message) => {
  const pawl = db.pawl()
  await expect(pawl.batches.start(define(pawl), [item as never])).rejects.toMatchObject({ code: 'PAWL_CONFIG', message })
})

test("a batch whose name begins with 'pawl.' is refused", () => {
  expect(() => db.pawl().batches.define('pawl.watch', { item: { run: () => undefined } })).toThrow(
    /name must not begin with 'pawl\.'/,
  )
})

test.each(['repeatable read', 'serializable'])('[B7] a start in a %s transaction runs, or is refused', async (level) => {
  const pawl = db.pawl()
  const reparse = define(pawl)
  const client = await db.pool.connect()
  try {
    await client.query(`begin isolation level ${level}`)
    const { id } = await pawl.batches.start(reparse, files(3), { tx: client })
    await client.query('commit')
    await pawl.batches.cancel(id, { by: 'ada', reason: 'test' })
    await client.query(`begin isolation level ${level}`)
    await client.query('select count(*) from pawl.batch')
    // Its snapshot does not show this one.
    const other = await pawl.batches.start(reparse, files(1))
    await expect(pawl.batches.start(reparse, files(3), { tx: client })).rejects.toMatchObject({ code: 'PAWL_TRACK_BUSY' })
    await client.query('rollback')
    expect((await pawl.batches.list({ state: 'running' })).items.map((batch) => batch.id)).toEqual([other.id])
  } finally {
    client.release()
  }
})

test('a track with 1,000 queued batches refuses one more', async () => {
  const pawl = db.pawl()
  const reparse = define(pawl, { policy: 'queue' })
  await pawl.batches.start(reparse, files(1))
  const { id } = await pawl.batches.start(reparse, files(1))
  await db.query(
    `insert into pawl.batch (name, track, queue, policy, step, total, allowance, allowance_ms)
     select b.name, b.track, b.queue, b.policy, b.step, 0, b.allowance, b.allowance_ms from pawl.batch b, generate_series(1, 998) where b.id = $1`,
    [id],
  )
  expect(await pawl.batches.start(reparse, files(1))).toMatchObject({ state: 'queued' })
  await expect(pawl.batches.start(reparse, files(1))).rejects.toMatchObject({
    code: 'PAWL_TRACK_BUSY',
    details: { queued: 1000 },
  })
  expect(await db.query("select count(*)::integer from pawl.batch where state = 'queued'")).toEqual([{ count: 1000 }])
})

test('every option of a start comes back from get and list', async () => {
  const pawl = db.pawl()
  const options = { units: 7, meta: { why: 'x' }, track: 'other', policy: 'queue', by: 'ada' } as const
  const { tx: _, ...stored } = startTable
  expect(Object.keys(options).sort()).toEqual(Object.keys(stored).sort())
  const { id } = await pawl.batches.start(define(pawl), files(1), options)
  expect(await pawl.batches.get(id)).toMatchObject(options)
  expect((await pawl.batches.list()).items).toMatchObject([options])
})

test('a refused call is named with its verb and subject', async () => {
  const { batches } = db.pawl()
  const reparse = batches.define('reparse', { item: { run: () => undefined } })
  const wrong = (value: unknown) => value as never
  await expect(batches.start(reparse, wrong(7))).rejects.toThrow(
    "batches.start('reparse'): items must be an array or another iterable of items, got 7.",
  )
  await expect(batches.start(reparse, [], { by: wrong(7) })).rejects.toThrow(/^batches\.start\('reparse'\): by /)
  await expect(batches.start('reprase', [])).rejects.toThrow(/^batches\.start\('reprase'\): batch must be one that /)
  await expect(batches.start(reparse, [{ key: 'a' }, { key: 'a' }])).rejects.toThrow(
    "batches.start('reparse'): items[1].key repeats 'a'.",
  )
  await expect(batches.start(reparse, [{ key: 'a', data: 1n }])).rejects.toThrow(/^batches\.start\('reparse'\): item/)
  await expect(batches.items('17', { after: 'x' })).rejects.toThrow(/^batches\.items\('17'\): after must be /)
  await expect(batches.list({ limit: 0 })).rejects.toThrow(/^batches\.list: limit must be /)
  await expect(batches.cancel('17', wrong({ by: 'ada' }))).rejects.toThrow(/^batches\.cancel\('17'\): reason must be /)
})

test('a batch that is not there is named with its tenant', async () => {
  const message = "There is no batch '17' of tenant 'acme'. A batch is removed 30 days after its end."
  await expect(db.pawl().for('acme').batches.get('17')).rejects.toThrow(message)
})

test('an id that is no string is refused with the fix', async () => {
  const { batches } = db.pawl()
  await expect(batches.get(undefined as never)).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: 'batches.get: id must be the string that start returned, got undefined.',
  })
  await expect(batches.cancel((2 ** 60) as never, { by: 'ada', reason: 'x' })).rejects.toThrow(
    /^batches\.cancel.*: id must be the string that start returned, got 1152921504606847000\. A number would be rounded/,
  )
})

test('why names no boundary that the batch does not have', async () => {
  const pawl = db.pawl()
  const plain = pawl.batches.define('plain', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(plain, [{ key: 'a' }])
  await pawl.batches.start(plain, [{ key: 'b' }], { track: 'other' })
  const texts = async () => (await pawl.batches.why(id)).reasons.map(({ text }) => text).join('\n')
  expect(await texts()).toMatch(/Its step that gives its items their jobs is job \d+\. No running worker works the queue/)
  expect(await texts()).not.toMatch(/ahead of it/)
  await db.query('update pawl.batch set boundary_at = pawl.now() where id = $1', [id])
  await pawl.batches.cancel(id, { by: 'ada', reason: 'enough' })
  expect(await texts()).toMatch(/Its items could begin at \S+; nothing is reverted\./)
})
