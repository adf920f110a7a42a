import { installProbe, moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { z } from 'zod'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { csv, defineLoads, ended, loadRows, loads, readerView, startWorker, submitted } from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

test('[R11] any two versions can be read and compared by number, submission, time', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await startWorker(pawl)
  const one = await submitted(pawl, scope, ['rowId,note,tonnes\na,first,1\nb,x,1\n'])
  await moveClock(db.pool, 3_600_000)
  const two = await submitted(pawl, scope, ['rowId,tonnes,isExport\na,2,true\nb,1,\n'])
  await moveClock(db.pool, 7_200_000)
  const three = await scope.put({ data: { rowId: 'a', note: 'third', tonnes: 2 } }, { by: 'anna' })
  expect(
    (await scope.history('load', 'a')).items.map(({ number, status, submission, by, origin }) => [
      number,
      status,
      submission,
      by,
      origin,
    ]),
  ).toEqual([
    ['3', 'UPDATED', three.submission, 'anna', 'put'],
    ['2', 'UPDATED', two.id, null, 'upload'],
    ['1', 'CREATED', one.id, null, 'upload'],
  ])
  expect((await scope.get('load', 'a', { number: '1' }))?.data).toEqual({ rowId: 'a', note: 'first', tonnes: '1' })
  expect((await scope.get('load', 'a', { submission: two.id }))?.data).toEqual({ rowId: 'a', tonnes: '2', isExport: true })
  expect((await scope.get('load', 'a', { time: new Date(one.endedAt!.getTime() + 60_000) }))?.number).toBe('1')
  expect((await scope.get('load', 'a', { time: new Date(two.endedAt!.getTime() + 60_000) }))?.number).toBe('2')
  expect(await scope.get('load', 'a', { time: new Date(0) })).toBeUndefined()
  expect(await scope.get('load', 'a', { number: '999' })).toMatchObject({ number: '3' })
  expect((await scope.list({ at: { number: '1' } })).items.map(({ key, data }) => [key, data?.note])).toEqual([
    ['a', 'first'],
    ['b', 'x'],
  ])
  const diff = await scope.diff('load', 'a', { number: '1' }, { submission: two.id })
  expect(diff.table).toEqual([
    { field: 'isExport', after: true },
    { field: 'note', before: 'first' },
    { field: 'tonnes', before: '1', after: '2' },
  ])
  expect((await scope.diff('load', 'a', { number: '3' }, { number: '1' })).table).toEqual([
    { field: 'note', before: 'third', after: 'first' },
    { field: 'tonnes', before: '2', after: '1' },
  ])
  await expect(scope.diff('load', 'zzz', { number: '1' }, { number: '2' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
})

test('[R11] pages of one number stay consistent while submissions run and commit', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { tuning: { chunkRows: 10 } }), here)
  await scope.append(loadRows(30).map((data) => ({ data })))
  const first = await scope.list({ limit: 10 })
  // All of it is written, and nothing is committed.
  const [written, commit] = [deferred(), deferred()]
  installProbe(async (name) => {
    if (name !== 'records.commit.before') return
    written.resolve()
    await commit.promise
  })
  const upload = await scope.upload(csv(loadRows(40, (row) => ({ ...row, note: 'new' }))), { format: 'csv' })
  await pawl.records.submit(upload.id)
  await startWorker(pawl)
  await written.promise
  expect(await pawl.records.get(upload.id)).toMatchObject({ state: 'submitting', progress: { applied: 40, of: 40 } })
  const during = await scope.list({ limit: 100 })
  const first30 = loadRows(30).sort((a, b) => (a.rowId < b.rowId ? -1 : 1))
  expect(during.items.map(({ number, data }) => [number, data?.note])).toEqual(first30.map(({ note }) => ['1', note]))
  expect(await scope.get('load', 'row-1')).toMatchObject({ number: '1', data: { note: 'note 1' } })
  expect(await scope.get('load', 'row-1', { number: '2' })).toMatchObject({ number: '1' })
  expect((await scope.history('load', 'row-1')).items).toHaveLength(1)
  expect(await scope.get('load', 'row-39')).toBeUndefined()
  commit.resolve()
  installProbe(undefined)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', number: '2' })
  const rest = []
  let after = first.next
  while (after !== null) {
    const page = await scope.list({ limit: 10, after })
    rest.push(...page.items)
    after = page.next
  }
  const seen = [...first.items, ...rest]
  expect(seen).toHaveLength(30)
  expect(new Set(seen.map(({ number }) => number))).toEqual(new Set(['1']))
  expect((await scope.list({ filter: { note: 'new', isExport: true }, limit: 1000 })).items).toHaveLength(14)
  expect((await scope.list({ filter: { tonnes: 3.5 } })).items.map(({ key }) => key)).toEqual(['row-3'])
})

test('[R11] an erasure empties every version, is audited and supersedes staged uploads', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await startWorker(pawl)
  await submitted(pawl, scope, csv(loadRows(3)))
  await scope.put({ data: { rowId: 'row-1', note: 'secret' } })
  const pending = await scope.upload(csv(loadRows(4, (row) => ({ ...row, note: 'secret' }))), { format: 'csv' })
  const before = (await scope.history('load', 'row-1')).items
  expect(await scope.erase('load', 'row-1', { reason: 'asked for by the person', by: 'anna' })).toEqual({ versions: 2 })
  const after = (await scope.history('load', 'row-1')).items
  expect(after.map(({ number, status, submission, data, isErased }) => [number, status, submission, data, isErased])).toEqual(
    before.map(({ number, status, submission }) => [number, status, submission, null, true]),
  )
  expect(
    await db.query(
      "select count(*)::int as n from pawl.record_version where data::text like '%secret%' or hash is null <> is_erased",
    ),
  ).toEqual([{ n: 0 }])
  expect(await db.query("select count(*)::int as n from pawl.submission_row where key = 'row-1'")).toEqual([{ n: 0 }])
  expect(await db.query('select versions, reason, erased_by from pawl.record_erasure')).toEqual([
    { versions: 2, reason: 'asked for by the person', erased_by: 'anna' },
  ])
  await expect(pawl.records.submit(pending.id)).rejects.toMatchObject({ code: 'PAWL_SUPERSEDED' })
  await expect(pawl.records.rebase(pending.id)).rejects.toMatchObject({ code: 'PAWL_UPLOAD_FAILED' })
  await expect(scope.erase('load', 'row-1', { reason: 'again' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  expect((await scope.audit())?.isSound).toBe(true)
  // The others' data is untouched, and the record can have data again.
  expect((await scope.get('load', 'row-2'))?.data).toMatchObject({ note: 'note 2' })
  expect(await scope.put({ data: { rowId: 'row-1', note: 'new' } })).toMatchObject({ updated: 1 })
})

test('[R11] an erasure reaches submitted rows that are still staged', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await startWorker(pawl)
  const { id } = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  await db.query('create table kept as select * from pawl.submission_row')
  await pawl.records.submit(id)
  const staged = () => db.query<{ key: string }>('select key from pawl.submission_row order by line')
  await until('the worker has tidied up', async () => (await staged()).length === 0)
  // As it is before that.
  await db.query('insert into pawl.submission_row select * from kept')
  expect(await scope.erase('load', 'row-1', { reason: 'asked' })).toEqual({ versions: 1 })
  expect(await staged()).toEqual([{ key: 'row-0' }])
})

test('[R11] an erasure of a record only staged supersedes its upload', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const pending = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    expect(await scope.erase('load', 'row-1', { reason: 'asked', by: 'anna', tx: client })).toEqual({ versions: 0 })
    await expect(scope.erase('load', 'row-1', { reason: 'again', tx: client })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
    await client.query('commit')
  } finally {
    client.release()
  }
  expect(await db.query('select key from pawl.submission_row order by line')).toEqual([{ key: 'row-0' }, { key: 'row-2' }])
  expect(await db.query('select record_id, versions, reason, erased_by from pawl.record_erasure')).toEqual([
    { record_id: null, versions: 0, reason: 'asked', erased_by: 'anna' },
  ])
  await expect(pawl.records.submit(pending.id)).rejects.toMatchObject({ code: 'PAWL_SUPERSEDED' })
  // A record whose data is gone already, and is staged again.
  await scope.put({ data: { rowId: 'a' } })
  await scope.erase('load', 'a', { reason: 'first' })
  await scope.upload(['rowId,note\na,secret\n'], { format: 'csv' })
  expect(await scope.erase('load', 'a', { reason: 'second' })).toEqual({ versions: 0 })
  expect(await db.query("select count(*)::int as n from pawl.submission_row where key = 'a'")).toEqual([{ n: 0 }])
  expect(
    await db.query('select versions, record_id is not null as is_known from pawl.record_erasure order by id offset 1'),
  ).toEqual([
    { versions: 1, is_known: true },
    { versions: 0, is_known: true },
  ])
})

test("[R11] an erasure that finds nothing changes nothing in a caller's transaction", async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await expect(scope.erase('load', 'a', { reason: 'asked', tx: client })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
    await scope.put({ data: { rowId: 'a' } }, { tx: client })
    expect(await scope.erase('load', 'a', { reason: 'asked', tx: client })).toEqual({ versions: 1 })
    await client.query('commit')
    const upload = await scope.upload(csv(loadRows(1)), { format: 'csv' })
    await client.query('begin')
    await expect(scope.erase('load', 'b', { reason: 'asked', tx: client })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
    await client.query('commit')
    await pawl.records.submit(upload.id)
  } finally {
    client.release()
  }
})

test('of two puts with the same expected number one wins', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const made = await scope.put({ data: { rowId: 'a', note: '1' } }, { number: '0' })
  expect(made).toMatchObject({ created: 1, number: '1' })
  await expect(scope.put({ data: { rowId: 'a', note: '1' } }, { number: '0' })).rejects.toMatchObject({
    code: 'PAWL_REVISION_CONFLICT',
    details: { expected: '0', actual: '1' },
  })
  const answers = await Promise.allSettled(
    Array.from({ length: 8 }, (_, n) => scope.put({ data: { rowId: 'a', note: `by ${n}` } }, { number: '1' })),
  )
  expect(answers.filter(({ status }) => status === 'fulfilled')).toHaveLength(1)
  expect((await scope.history('load', 'a')).items.map(({ number }) => number)).toEqual(['2', '1'])
  expect(await scope.history('load', 'a', { limit: 1, after: '2' })).toMatchObject({ items: [{ number: '1' }], next: '1' })
  // The same content writes nothing.
  const { data } = (await scope.get('load', 'a'))!
  expect(await scope.put({ data: data! })).toMatchObject({ submission: null, unchanged: 1, number: '2' })
  await expect(scope.put({ data: { rowId: 'a', tonnes: 'x' } })).rejects.toMatchObject({
    code: 'PAWL_RECORD_INVALID',
    details: { errors: [{ column: 'tonnes' }] },
  })
})

test("put and append commit and roll back with the caller's transaction", async () => {
  const pawl = db.pawl({ tuning: { callerConnectionsMax: 20 } })
  const scope = pawl.records.in(defineLoads(pawl), here)
  await Promise.all(Array.from({ length: 20 }, (_, n) => scope.put({ data: { rowId: `r${n}` } })))
  expect(await scope.state()).toMatchObject({ number: '20', live: 20 })
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await scope.append([{ data: { rowId: 'x' } }, { key: 'r0', data: null }], { tx: client })
    await client.query('rollback')
  } finally {
    client.release()
  }
  expect(await scope.state()).toMatchObject({ number: '20', live: 20 })
  expect(await scope.append([{ data: { rowId: 'x' } }, { key: 'r0', data: null }, { key: 'never', data: null }])).toMatchObject({
    created: 1,
    deleted: 1,
    number: '21',
  })
  await expect(scope.append([{ data: { rowId: 'y' } }], { revision: 1 })).rejects.toMatchObject({
    code: 'PAWL_REVISION_CONFLICT',
  })
  expect((await scope.audit())?.isSound).toBe(true)
})

test("a scope's attributes are set once and are separate per tenant", async () => {
  const pawl = db.pawl()
  const set = defineLoads(pawl, { attributes: ['accreditation'] })
  const scope = pawl.records.in(set, here)
  await scope.put({ data: { rowId: 'a' } })
  await scope.put({ data: { rowId: 'b' } }, { attributes: { accreditation: 'A1' } })
  await expect(scope.put({ data: { rowId: 'c' } }, { attributes: { accreditation: 'A2' } })).rejects.toMatchObject({
    code: 'PAWL_SCOPE_ATTRIBUTES',
  })
  expect(await scope.state()).toMatchObject({ attributes: { accreditation: 'A1' }, live: 2 })
  const acme = pawl.for('acme').records.in(set, here)
  expect(await acme.state()).toBeUndefined()
  const upload = await acme.upload(csv(loadRows(2)), { format: 'csv' })
  await expect(pawl.records.get(upload.id)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await pawl.for('acme').records.submit(upload.id)
  const worker = await startWorker(pawl)
  expect(worker).toBeDefined()
  expect(await ended(pawl.for('acme') as typeof pawl, upload.id)).toMatchObject({ state: 'submitted' })
  expect((await readerView(scope)).count).toBe(2)
  expect((await acme.list()).items.map(({ key }) => key)).toEqual(['row-0', 'row-1'])
})

test('each attribute of a scope is set once, at any commit', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { attributes: ['accreditation', 'site'] }), here)
  await scope.put({ data: { rowId: 'a' } }, { attributes: {} })
  await scope.put({ data: { rowId: 'b' } }, { attributes: { accreditation: 'A1' } })
  await scope.put({ data: { rowId: 'c' } }, { attributes: { site: 'S1' } })
  await scope.put({ data: { rowId: 'd' } }, { attributes: { accreditation: 'A1' } })
  await expect(scope.put({ data: { rowId: 'e' } }, { attributes: { site: 'S1', accreditation: 'A2' } })).rejects.toMatchObject({
    code: 'PAWL_SCOPE_ATTRIBUTES',
    details: { stored: { accreditation: 'A1', site: 'S1' } },
  })
  expect(await scope.state()).toMatchObject({ attributes: { accreditation: 'A1', site: 'S1' }, live: 4 })
  // Two who set different ones at once both have their way; of two who set the same one otherwise one has.
  const other = pawl.records.in('loads', { ...here, registration: '5' })
  await Promise.all([
    other.put({ data: { rowId: 'a' } }, { attributes: { accreditation: 'A1' } }),
    other.put({ data: { rowId: 'b' } }, { attributes: { site: 'S1' } }),
  ])
  expect(await other.state()).toMatchObject({ attributes: { accreditation: 'A1', site: 'S1' } })
  const third = pawl.records.in('loads', { ...here, registration: '6' })
  const answers = await Promise.allSettled(
    ['A1', 'A2'].map((accreditation) => third.put({ data: { rowId: accreditation } }, { attributes: { accreditation } })),
  )
  expect(answers.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
})

test('[R9] a filter finds a value however it is written', async () => {
  const pawl = db.pawl()
  const columns = {
    id: 'text',
    price: 'number',
    on: { type: 'date', format: 'dd/mm/yyyy' },
    ok: 'boolean',
    deep: 'json',
  } as const
  const define = (name: string, more: object) =>
    pawl.records.in(pawl.records.define(name, { scope: ['x'], types: { p: { key: 'id', columns, ...more } } }), { x: '1' })
  const schema = z.object({ id: z.string(), price: z.string(), on: z.coerce.date(), ok: z.boolean(), deep: z.unknown() })
  for (const scope of [define('plain', {}), define('checked', { schema })]) {
    await scope.put({ data: { id: 'S', price: 5, on: '31/01/2026', ok: 'yes', deep: { a: 1 } } })
    for (const filter of [{ price: 5 }, { price: '5.00' }, { price: 5n, ok: 'y' }, { id: ' S ' }, { deep: { a: 1 } }])
      expect((await scope.list({ filter })).items).toHaveLength(1)
    expect((await scope.list({ filter: { price: '5.01' } })).items).toEqual([])
  }
  const [plain, checked] = ['plain', 'checked'].map((name) => pawl.records.in(name, { x: '1' }))
  expect((await plain!.list({ filter: { on: '31/01/2026' } })).items).toHaveLength(1)
  expect((await checked!.list({ filter: { on: '2026-01-31T00:00:00.000Z' } })).items).toHaveLength(1)
  for (const [filter, message] of [
    [{ price: 'five' }, /filter.price must be a number, got 'five'/],
    [{ price: ' ' }, /filter.price must have a value, got ' '/],
  ] as const)
    await expect(plain!.list({ filter })).rejects.toMatchObject({ code: 'PAWL_CONFIG', message: expect.stringMatching(message) })
})

test('[R9] a filter that means different values in two types is refused', async () => {
  const pawl = db.pawl()
  const types = { a: { key: 'v', columns: { v: 'number' } }, b: { key: 'v', columns: { v: 'text' } } } as const
  const scope = pawl.records.in(pawl.records.define('two', { scope: ['x'], types }), { x: '1' })
  await scope.append([
    { type: 'a', data: { v: 5 } },
    { type: 'b', data: { v: '5.0' } },
  ])
  await expect(scope.list({ filter: { v: '5.0' } })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  for (const type of ['a', 'b'] as const) expect((await scope.list({ type, filter: { v: '5.0' } })).items).toHaveLength(1)
  expect((await scope.list({ filter: { v: '5' } })).items).toHaveLength(1)
})

test('[R6] a key is read in the form in which it is stored', async () => {
  const pawl = db.pawl()
  const types = {
    text: { key: 'id', columns: { id: 'text' } },
    exact: { key: 'id', columns: { id: { type: 'text', trim: false } } },
    pair: { key: ['day', 'n'], columns: { day: { type: 'date', format: 'dd/mm/yyyy' }, n: 'number' } },
  } as const
  const scope = pawl.records.in(pawl.records.define('keys', { scope: ['x'], types }), { x: '1' })
  const rows = [
    { type: 'text', data: { id: ' S ' } },
    { type: 'exact', data: { id: ' S ' } },
    { type: 'pair', data: { day: '31/01/2026', n: '5.00' } },
  ] as const
  const keys = [' S ', ' S ', '["31/01/2026", 5.00]']
  await scope.append(rows)
  for (const [index, { type }] of rows.entries()) {
    const found = await scope.get(type, keys[index]!)
    expect(found, type).toMatchObject({ status: 'CREATED' })
    expect(await scope.get(type, found!.key)).toEqual(found)
    expect((await scope.history(type, keys[index]!)).items).toHaveLength(1)
  }
  expect(await scope.get('exact', 'S')).toBeUndefined()
  expect(await scope.append(rows.map(({ type }, n) => ({ type, key: keys[n]!, data: null })))).toMatchObject({ deleted: 3 })
  expect(await scope.erase('text', ' S ', { reason: 'asked' })).toMatchObject({ versions: 1 })
})

test('[R6] a key of an older set version names its own record', async () => {
  const id = (type: 'text' | 'integer', schemaVersion: number) =>
    ({ scope: ['x'], schemaVersion, types: { t: { key: 'id', columns: { id: type } } } }) as const
  const old = db.pawl()
  await old.records.in(old.records.define('s', id('text', 1)), { x: '1' }).put({ data: { id: '007' } })
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('s', id('integer', 2)), { x: '1' })
  await scope.put({ data: { id: '007' } })
  expect((await scope.get('t', '007'))?.key).toBe('007')
  expect((await scope.get('t', '07'))?.key).toBe('7')
})

test('a filter by no value is refused: it would match every record', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'a', note: 'n' } })
  for (const filter of [{ note: null }, { note: undefined }, { note: 'nul\u0000' }])
    await expect(scope.list({ filter })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  expect((await scope.list({ filter: { note: 'n' } })).items).toHaveLength(1)
})

test('a key with a NUL names no record', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'a' } })
  const key = 'a\u0000'
  expect(await scope.get('load', key)).toBeUndefined()
  expect(await scope.history('load', key)).toEqual({ items: [], next: null })
  await expect(scope.diff('load', key, { number: '0' }, { number: '1' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(scope.erase('load', key, { reason: 'asked' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(scope.append([{ key, data: null }])).rejects.toMatchObject({ code: 'PAWL_RECORD_INVALID' })
})

test('a put of an unknown type is refused, an undefined field dropped', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  for (const row of [
    { type: 'bogus', data: { rowId: 'a' } },
    { type: 'bogus', key: 'a', data: null },
  ])
    await expect(scope.append([row])).rejects.toMatchObject({
      code: 'PAWL_RECORD_INVALID',
      details: { errors: [{ row: 1, code: 'type', value: 'bogus' }] },
    })
  const data = { rowId: 'a', note: undefined, extra: undefined }
  expect(await scope.put({ type: 'load', data })).toMatchObject({ created: 1 })
  expect((await scope.get('load', 'a'))?.data).toEqual({ rowId: 'a' })
  const keeping = pawl.records.define('keeping', { ...loads, unknownColumns: 'keep' })
  await pawl.records.in(keeping, here).put({ data })
  expect(await db.query('select data::text from pawl.record_version order by record_id desc limit 1')).toEqual([
    { data: '{"rowId":"a"}' },
  ])
})

test('submissions of a scope or set are listed by state in pages', async () => {
  const pawl = db.pawl()
  const set = defineLoads(pawl)
  const [scope, other] = [pawl.records.in(set, here), pawl.records.in(set, { ...here, registration: '5' })]
  const uploads: string[] = []
  const puts: string[] = []
  for (let n = 0; n < 3; n++) {
    uploads.unshift((await scope.upload(csv(loadRows(1)), { format: 'csv' })).id)
    puts.unshift((await scope.put({ data: { rowId: `put ${n}` } })).submission!)
  }
  const elsewhere = (await other.upload(csv(loadRows(1)), { format: 'csv' })).id
  const ids = async (found: Promise<{ readonly items: readonly { id: string }[] }>) => (await found).items.map(({ id }) => id)
  expect(await ids(scope.submissions())).toEqual([puts[0], uploads[0], puts[1], uploads[1], puts[2], uploads[2]])
  expect(await ids(scope.submissions({ state: 'validated' }))).toEqual(uploads)
  expect(await ids(scope.submissions({ state: 'submitted' }))).toEqual(puts)
  expect(await ids(scope.submissions({ state: 'failed' }))).toEqual([])
  expect(await ids(pawl.records.submissions(set, { state: 'validated', limit: 2 }))).toEqual([elsewhere, uploads[0]])
  expect(await ids(pawl.records.submissions(set, { state: 'validated', after: uploads[0]! }))).toEqual(uploads.slice(1))
  expect(await ids(pawl.records.submissions(set, { state: 'submitted', limit: 2 }))).toEqual(puts.slice(0, 2))
  expect(await ids(pawl.records.submissions(set, { limit: 2, after: elsewhere }))).toEqual([puts[0], uploads[0]])
  expect((await scope.submissions({ limit: 2 })).next).toBe(uploads[0])
  expect((await scope.submissions({ limit: 5, after: uploads[0]! })).next).toBeNull()
  for (const limit of [0, 501, 1.5]) {
    await expect(scope.submissions({ limit })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
    await expect(pawl.records.submissions(set, { limit })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  }
})

test('pages of any size join without gaps, each of full size', async () => {
  const pawl = db.pawl()
  const set = pawl.records.define('many', { scope: ['x'], types: { row: { key: 'id', columns: { id: 'text' } } } })
  const scope = pawl.records.in(set, { x: '1' })
  const ids = Array.from({ length: 2500 }, (_, n) => `k${String(n).padStart(4, '0')}`)
  await scope.append(ids.map((id) => ({ data: { id } })))
  for (const limit of [999, 1000, 1001, 1700, 2499, 2501]) {
    const pages: string[][] = []
    for (let after: string | undefined; pages.length === 0 || after !== undefined; ) {
      const { items, next } = await scope.list({ limit, ...(after === undefined ? {} : { after }) })
      pages.push(items.map(({ key }) => key))
      after = next ?? undefined
    }
    expect(pages.map(({ length }) => length)).toEqual(
      Array.from({ length: Math.ceil(2500 / limit) }, (_, n) => Math.min(limit, 2500 - n * limit)),
    )
    expect(pages.flat()).toEqual(ids)
  }
})

test('an export can be uploaded again and changes nothing', async () => {
  const pawl = db.pawl()
  const type = { key: 'id', columns: { id: 'text', note: 'text', tonnes: 'number', ok: 'boolean' } } as const
  const set = pawl.records.define('both', { scope: ['x'], missing: 'reject', types: { in: type, out: type } })
  const scope = pawl.records.in(set, { x: '1' })
  const rows = Array.from({ length: 2500 }, (_, n) => ({
    type: n % 2 === 0 ? ('in' as const) : ('out' as const),
    data: { id: `k${n}`, note: `"q", ${n}\nü`, tonnes: n / 8, ok: n % 3 === 0 },
  }))
  await scope.append(rows)
  for (const format of ['csv', 'ndjson'] as const) {
    const upload = await scope.upload(scope.export({ format }), { format })
    expect(upload).toMatchObject({ state: 'validated', counts: { rows: 2500, unchanged: 2500, missing: 0 } })
  }
})

test('an export has undeclared and json fields and re-uploads without changes', async () => {
  const pawl = db.pawl()
  const set = pawl.records.define('more', {
    scope: ['x'],
    unknownColumns: 'keep',
    types: { row: { key: 'id', columns: { id: 'text', deep: 'json' } } },
  })
  const scope = pawl.records.in(set, { x: '1' })
  const deep = [{ a: 1, list: ['x', true, '1'] }, 'text', '5', true, ['y'], undefined]
  await scope.append(
    deep.map((value, n) => ({ data: { id: `k${n}`, deep: value, ...(n === 3 && { colour: 'red, "or" blue' }) } })),
  )
  for (const format of ['csv', 'ndjson'] as const) {
    const upload = await scope.upload(scope.export({ format }), { format })
    expect((await pawl.records.errors(upload.id)).items).toEqual([])
    expect(upload, format).toMatchObject({ state: 'validated', counts: { rows: 6, unchanged: 6 } })
  }
  const bad = await scope.upload(['id,deep\na,{"b":\nb,null\nc,"{""n"": 1.50}"\n'], { format: 'csv' })
  expect((await pawl.records.errors(bad.id)).items).toMatchObject([{ code: 'quote' }])
  const odd = await scope.upload(['id,deep\na,no JSON\nb,null\nc,"{""n"": 1.50}"\n'], { format: 'csv' })
  expect((await pawl.records.errors(odd.id)).items).toMatchObject([{ line: 2, column: 'deep', value: 'no JSON', code: 'json' }])
  expect((await pawl.records.rows(odd.id, 'created')).items.map(({ after }) => after)).toEqual([
    { id: 'b' },
    { id: 'c', deep: { n: 1.5 } },
  ])
  // What a cell cannot say is refused, and not written as something else.
  await scope.put({ data: { id: 'k9', extra: { a: 1 } } })
  await expect(scope.upload(scope.export({ format: 'csv' }), { format: 'csv' })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/'extra' of the row 'k9'.*ndjson/),
  })
  for (const format of ['csv', 'ndjson'] as const)
    await expect(scope.upload(scope.export({ format, type: 'none' }), { format })).rejects.toMatchObject({
      code: 'PAWL_NOT_FOUND',
    })
})

test('numbers inside a kept column stay numbers, whatever brought them', async () => {
  const pawl = db.pawl()
  const columns = { id: 'text', deep: 'json' } as const
  const schema = { '~standard': { version: 1, vendor: 'test', validate: (value: unknown) => ({ value }) } } as const
  const types = { row: { key: 'id', columns }, checked: { key: 'id', columns, schema } }
  const set = pawl.records.define('kept', { scope: ['x'], unknownColumns: 'keep', types })
  const scope = pawl.records.in(set, { x: '1' })
  const json = '{"a":1,"list":[2.5,{"b":9007199254740993}]}'
  const stored = { a: 1, list: [2.5, { b: '9007199254740993' }] }
  const rows = ['row', 'checked'].map((type) => `{"type":"${type}","id":"k","deep":${json},"extra":${json},"n":5}`)
  const upload = await scope.upload(`[${rows.join(',')}]`, { format: 'json' })
  expect((await pawl.records.rows(upload.id, 'created')).items.map(({ after }) => after)).toEqual([
    { id: 'k', deep: stored, extra: stored, n: '5' },
    { id: 'k', deep: stored, extra: stored, n: '5' },
  ])
  await scope.put({ type: 'row', data: { id: 'k', deep: stored, extra: stored, n: 5 } })
  const again = await scope.upload(`[${rows[0]}]`, { format: 'json' })
  expect(again.counts).toMatchObject({ unchanged: 1 })
  for (const filter of [{ extra: { a: 1 } }, { n: 5 }, { n: '5' }, { deep: { a: 1 } }])
    expect((await scope.list({ filter })).items, JSON.stringify(filter)).toHaveLength(1)
})

test('an export can be uploaded again after an erasure', async () => {
  const pawl = db.pawl()
  for (const missing of ['keep', 'reject'] as const) {
    const columns = { a: 'text', b: 'integer', note: { type: 'text', required: missing === 'keep' } } as const
    const set = pawl.records.define(missing, { scope: ['x'], missing, types: { row: { key: ['a', 'b'], columns } } })
    const scope = pawl.records.in(set, { x: '1' })
    await scope.append([1, 2, 3].map((b) => ({ data: { a: '"', b, note: 'n' } })))
    await scope.erase('row', '["\\"","2"]', { reason: 'asked for' })
    for (const format of ['csv', 'ndjson'] as const) {
      const upload = await scope.upload(scope.export({ format }), { format })
      expect((await pawl.records.errors(upload.id)).items).toEqual([])
      expect(upload.counts, `${missing} ${format}`).toMatchObject(
        missing === 'keep' ? { rows: 2, unchanged: 2 } : { rows: 3, unchanged: 2, updated: 1, missing: 0 },
      )
    }
  }
})
