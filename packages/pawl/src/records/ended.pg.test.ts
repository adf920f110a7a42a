import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { cancelJobs, csv, defineLoads, loadRows, startWorker } from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

test('[R15] ended resolves once a submission is submitted, in any process', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(5)), { format: 'csv' })
  const elsewhere = db.pawl()
  // Before it is submitted, while it is, and afterwards.
  const early = elsewhere.records.ended(upload.id)
  await pawl.records.submit(upload.id)
  const here2 = pawl.records.ended(upload.id)
  await startWorker(pawl)
  for (const waited of [early, here2, elsewhere.records.ended(upload.id)])
    expect(await waited).toMatchObject({ id: upload.id, state: 'submitted', counts: { created: 5 } })
})

test('[R15] when a submission fails, ended resolves and an event is appended', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(5)), { format: 'csv' })
  await db.query('alter table pawl.record_version add constraint refused check (false) not valid')
  await startWorker(pawl)
  await pawl.records.submit(upload.id)
  expect(await pawl.records.ended(upload.id)).toMatchObject({ state: 'failed', failureClass: 'permanent' })
  const failed = {
    aggregatetype: 'loads',
    aggregateid: '["17","4"]',
    type: 'submission.failed',
    payload: {
      set: 'loads',
      scope: ['17', '4'],
      submission: upload.id,
      failureClass: 'permanent',
      error: expect.stringMatching(/refused/),
    },
  }
  const events = () => db.query('select aggregatetype, aggregateid, type, payload from pawl.event')
  expect(await events()).toEqual([failed])
  await pawl.records.resume(upload.id)
  expect(await pawl.records.ended(upload.id)).toMatchObject({ state: 'failed' })
  expect(await events()).toHaveLength(2)
})

test('[R15] a cancelled submission appends an event unless its set has none', async () => {
  const pawl = db.pawl()
  const ends = async (set: Parameters<typeof pawl.records.in>[0]) => {
    const scope = pawl.records.in(set, here)
    const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
    await pawl.records.submit(upload.id)
    await cancelJobs(db)
    const waiting = pawl.records.ended(upload.id)
    await scope.put({ data: { rowId: 'x' } })
    expect(await waiting).toMatchObject({ state: 'failed' })
  }
  await ends(defineLoads(pawl))
  const types = () => db.query("select payload ->> 'set' as set, type from pawl.event order by seq")
  const told = [
    { set: 'loads', type: 'submission.failed' },
    { set: 'loads', type: 'submission.committed' },
  ]
  expect(await types()).toEqual(told)
  await ends(
    pawl.records.define('silent', {
      scope: ['organisation', 'registration'],
      unknownColumns: 'keep',
      types: { load: { key: 'rowId', columns: { rowId: 'text' } } },
      events: 'none',
    }),
  )
  expect(await types()).toEqual(told)
})

test('[R15] ended rejects at its timeout, its signal or an unknown id', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  const reason = new Error('enough')
  const abort = new AbortController()
  const signalled = pawl.records.ended(upload.id, { signal: abort.signal })
  await expect(pawl.records.ended(upload.id, { timeout: 20 })).rejects.toMatchObject({ code: 'PAWL_TIMED_OUT' })
  abort.abort(reason)
  await expect(signalled).rejects.toBe(reason)
  await expect(pawl.records.ended(upload.id, { signal: abort.signal })).rejects.toBe(reason)
  await expect(pawl.records.ended('999')).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(pawl.for('acme').records.ended(upload.id)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  const bad = await scope.upload(['nothing\n1\n'], { format: 'csv' })
  expect(await pawl.records.ended(bad.id)).toMatchObject({ state: 'invalid' })
})

test('[R15] append takes 15,000 rows in one call, all or nothing, once', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const rows = loadRows(15_000).map((data) => ({ data }))
  const first = await scope.append(rows, { once: 'monday' })
  expect(first).toMatchObject({ number: '1', created: 15_000 })
  expect(await scope.append(rows, { once: 'monday' })).toEqual(first)
  expect(await scope.state()).toMatchObject({ number: '1', live: 15_000 })
  expect((await scope.audit())?.isSound).toBe(true)
})

test('[R15] a repeated once key returns the first answer and refuses other rows', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const data = { rowId: 'a', note: 'first' }
  const first = await scope.put({ data }, { once: 'k', number: '0' })
  expect(await scope.put({ data }, { once: 'k', number: '0' })).toEqual(first)
  await scope.put({ data: { rowId: 'a', note: 'second' } })
  expect(await scope.put({ data }, { once: 'k', number: '0' })).toEqual(first)
  expect((await scope.get('load', 'a'))?.data).toMatchObject({ note: 'second' })
  await expect(scope.put({ data: { rowId: 'b' } }, { once: 'k' })).rejects.toMatchObject({
    code: 'PAWL_INVALID_PAYLOAD',
    details: { once: 'k' },
  })
  // Another scope has its own keys; what was rolled back or refused has taken none.
  const other = pawl.records.in('loads', { ...here, registration: '5' })
  expect(await other.put({ data }, { once: 'k' })).toMatchObject({ created: 1, number: '1' })
  const upload = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  const client = await db.pool.connect()
  await client.query('begin')
  await scope.put({ data: { rowId: 'c' } }, { once: 'rolled back', tx: client })
  await client.query('rollback')
  await pawl.records.submit(upload.id)
  await client.query('begin')
  await expect(scope.put({ data }, { once: 'busy', tx: client })).rejects.toMatchObject({ code: 'PAWL_SCOPE_BUSY' })
  expect(await scope.put({ data }, { once: 'k', tx: client })).toEqual(first)
  await client.query('commit')
  client.release()
  expect(await db.query("select key from pawl.once where namespace = 'pawl.records'")).toHaveLength(2)
})

test('[R15] concurrent calls with one once key write once and answer alike', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const calls = Array.from({ length: 8 }, () => scope.append([{ data: { rowId: 'a' } }], { once: 'k' }))
  const [first, ...others] = await Promise.all(calls)
  for (const other of others) expect(other).toEqual(first)
  expect(first).toMatchObject({ created: 1, number: '1' })
})
