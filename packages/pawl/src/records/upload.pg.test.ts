import type { PawlError, RecordScope } from 'pawl'
import { installProbe, moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { z } from 'zod'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { csv, defineLoads, ended, loadRows, ndjson, startWorker, submitted } from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

/** In pieces that cut everything in two somewhere. */
function* inPieces(text: string, bytes: number): Generator<Uint8Array> {
  const all = Buffer.from(text)
  for (let at = 0; at < all.length; at += bytes) yield all.subarray(at, at + bytes)
}

test('[R6] keys of any characters, types and scopes do not collide', async () => {
  const pawl = db.pawl()
  const type = { key: ['a', 'b'], columns: { a: 'text', b: 'text', note: 'text' } } as const
  const set = pawl.records.define('keys', { scope: ['x', 'y'], types: { 'in:coming': type, in: type } })
  await startWorker(pawl)
  const pairs = [
    ['a:b', 'c'],
    ['a', 'b:c'],
    ['a/b', 'ü\u{1f600}'],
    ['["a","b"]', '"'],
    ['a', 'b'],
    ['\\', '\\N'],
    ['tab\there', 'line\nbreak'],
  ]
  const rows = ['in:coming', 'in'].flatMap((name) => pairs.map(([a, b]) => ({ type: name, a, b, note: `${name} ${a} ${b}` })))
  const scopes = [pawl.records.in(set, { x: 'a', y: 'b:c' }), pawl.records.in(set, { x: 'a:b', y: 'c' })]
  for (const scope of scopes) {
    const done = await submitted(
      pawl,
      scope,
      rows.map((row) => `${JSON.stringify(row)}\n`),
      'ndjson',
    )
    expect(done.counts).toMatchObject({ created: rows.length, updated: 0 })
  }
  for (const scope of scopes) {
    const found = (await scope.list()).items
    expect(found.map(({ type: name, data }) => ({ type: name, ...data }))).toHaveLength(rows.length)
    for (const row of rows) {
      const { type: name, ...data } = row
      expect((await scope.get(name as 'in', JSON.stringify([row.a, row.b])))?.data).toEqual(data)
    }
    expect(
      (
        await scope.upload(
          rows.map((row) => `${JSON.stringify(row)}\n`),
          { format: 'ndjson' },
        )
      ).counts,
    ).toMatchObject({ unchanged: rows.length })
  }
})

test('[R6] numbers keep every digit in every format', async () => {
  const pawl = db.pawl()
  const set = pawl.records.define('numbers', {
    scope: ['x'],
    types: { n: { key: 'id', columns: { id: 'integer', v: 'number', deep: 'json' } } },
  })
  await startWorker(pawl)
  const scope = pawl.records.in(set, { x: '1' })
  const values = ['12345678901234567890.12345678901234567890', '0.10', '-0.0', '1e3', '9007199254740993', '1E-7', '.5', '00042']
  await submitted(pawl, scope, ['id,v\n', ...values.map((value, id) => `${id},${value}\n`)])
  const expected = ['12345678901234567890.1234567890123456789', '0.1', '0', '1000', '9007199254740993', '0.0000001', '0.5', '42']
  expect((await scope.list()).items.map(({ data }) => data?.v)).toEqual(expected)
  const jsonValues = values.map((value, id) => `{"id":${id},"v":${['.5', '00042'].includes(value) ? `"${value}"` : value}}`)
  expect((await scope.upload([jsonValues.join('\n')], { format: 'ndjson' })).counts).toMatchObject({ unchanged: values.length })
  expect((await scope.upload([`[${jsonValues.join(',')}]`], { format: 'json' })).counts).toMatchObject({
    unchanged: values.length,
  })
  await scope.put({ data: { id: 100, deep: { list: [1, 0.5, 'x'], big: 1n << 70n } } })
  expect((await scope.get('n', '100'))?.data).toEqual({ id: '100', deep: { list: [1, 0.5, 'x'], big: String(1n << 70n) } })
})

test('[R6] a schema keeps numbers of json columns and makes others strings', async () => {
  const pawl = db.pawl()
  const schema = z.object({ id: z.string(), v: z.coerce.number(), deep: z.object({ a: z.number() }) })
  const types = { n: { key: 'id', columns: { id: 'text', v: 'number', deep: 'json' }, schema } } as const
  const scope = pawl.records.in(pawl.records.define('kept', { scope: ['x'], types }), { x: '1' })
  await scope.put({ data: { id: 'a', v: '1.50', deep: { a: 1.5 } } })
  expect((await scope.get('n', 'a'))?.data).toEqual({ id: 'a', v: '1.5', deep: { a: 1.5 } })
  expect(await scope.put({ data: { id: 'a', v: 1.5, deep: { a: 1.5 } } })).toMatchObject({ unchanged: 1 })
})

test('[R6] a field that is absent in the new data is reported removed', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'a', note: 'n', tonnes: 2 } })
  const upload = await scope.upload(['{"rowId":"a","tonnes":"2.00","note":null}'], { format: 'ndjson' })
  expect((await pawl.records.rows(upload.id, 'updated')).items).toMatchObject([
    { line: 1, key: 'a', changes: [{ field: 'note', before: 'n' }] },
  ])
})

test('[R9] spellings of a number are one value; a bad cell invalidates', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'a', tonnes: 1 } })
  for (const tonnes of ['1', '"1"', '" 1.0 "', '1.00', '10e-1'])
    expect((await scope.upload([`{"rowId":"a","tonnes":${tonnes}}`], { format: 'ndjson' })).counts).toMatchObject({
      unchanged: 1,
      updated: 0,
    })
  const bad = await scope.upload(
    [
      'rowId,date,tonnes,isExport\na,2026-02-30,1,yes\nb,2026-02-28,"1,5",maybe\n,,3,\nc,2026-02-28,-1,no\nd,2026-02-28,1,no\nd,2026-02-28,2,no\n',
    ],
    { format: 'csv' },
  )
  expect(bad).toMatchObject({
    state: 'invalid',
    counts: { rows: 6, created: 2, invalid: { created: 2, updated: 1, unkeyed: 1 }, errors: 6 },
  })
  expect((await pawl.records.errors(bad.id)).items.map(({ line, column, value, code }) => [line, column, value, code])).toEqual([
    [2, 'date', '2026-02-30', 'date'],
    [3, 'isExport', 'maybe', 'boolean'],
    [3, 'tonnes', '1,5', 'number'],
    [4, 'rowId', '', 'required'],
    [5, 'tonnes', '-1', 'min'],
    [7, null, 'd', 'duplicate'],
  ])
  expect((await pawl.records.rows(bad.id, 'invalid')).items.map(({ line, key }) => [line, key])).toEqual([
    [2, 'a'],
    [3, 'b'],
    [4, ''],
    [5, 'c'],
  ])
  expect((await scope.list()).items.map(({ data }) => data)).toEqual([{ rowId: 'a', tonnes: '1' }])
})

test('[R9] a schema sees the coerced row, and its issues are row errors', async () => {
  const pawl = db.pawl()
  const set = pawl.records.define('schema', {
    scope: ['x'],
    classify: ({ data }) => (data.kind === 'b' ? 'excluded' : 'included'),
    types: {
      row: {
        key: 'id',
        columns: { id: 'text', kind: 'text', from: 'date', to: 'date' },
        schema: z
          .object({ id: z.string(), kind: z.string().default('a'), from: z.string(), to: z.string() })
          .refine(({ from, to }) => from <= to, { message: 'it ends before it begins', path: ['to'] }),
      },
    },
  })
  const scope = pawl.records.in(set, { x: '1' })
  const bad = await scope.upload(['id,kind,from,to\n1,,2026-01-02,2026-01-01\n'], { format: 'csv' })
  expect((await pawl.records.errors(bad.id)).items).toMatchObject([
    { line: 2, column: 'to', value: '2026-01-01', code: 'schema', reason: 'it ends before it begins' },
  ])
  await scope.put({ data: { id: '1', from: '2026-01-01', to: '2026-01-02' } })
  expect(await scope.get('row', '1')).toMatchObject({ data: { kind: 'a' }, classification: 'included' })
  await scope.put({ data: { id: '1', kind: 'b', from: '2026-01-01', to: '2026-01-02' } })
  expect(await scope.get('row', '1')).toMatchObject({ classification: 'excluded' })
})

test('a CSV in pieces of any size is the same CSV', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const text = '\ufeffrowId,note,tonnes\r\n"a ""1""","two\r\nlines, ü\u{1f600}",1\r\nb,"",2\r\n\r\n"c",plain,3'
  await scope.append([
    { data: { rowId: 'a "1"', note: 'two\r\nlines, ü\u{1f600}', tonnes: 1 } },
    { data: { rowId: 'b', tonnes: 2 } },
    { data: { rowId: 'c', note: 'plain', tonnes: 3 } },
  ])
  for (const bytes of [1, 2, 3, 5, 7, 64, 1000]) {
    const upload = await scope.upload(inPieces(text, bytes), { format: 'csv' })
    expect(upload, `in pieces of ${bytes}`).toMatchObject({ state: 'validated', counts: { rows: 3, unchanged: 3 } })
  }
})

test('[R10] with another delimiter a comma in a CSV is plain content', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  for (const delimiter of [';', '\t', '|']) {
    const text = `rowId;note;tonnes\na;"x${delimiter}y";1.5\nb;x,y;2\n`.replaceAll(';', delimiter)
    const upload = await scope.upload(inPieces(text, 3), { format: 'csv', delimiter })
    expect((await pawl.records.rows(upload.id, 'created')).items.map(({ after }) => after)).toEqual([
      { rowId: 'a', note: `x${delimiter}y`, tonnes: '1.5' },
      { rowId: 'b', note: 'x,y', tonnes: '2' },
    ])
  }
})

test('[R9] a CSV may have a decimal comma, in and out', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await startWorker(pawl)
  const comma = { format: 'csv', delimiter: ';', decimal: ',' } as const
  const upload = await scope.upload('rowId;tonnes;note\na;1,50;1,5\nb;1234;\nc; ;\n', comma)
  await pawl.records.submit(upload.id)
  await ended(pawl, upload.id)
  expect((await scope.list()).items.map(({ data }) => data)).toEqual([
    { rowId: 'a', tonnes: '1.5', note: '1,5' },
    { rowId: 'b', tonnes: '1234' },
    { rowId: 'c' },
  ])
  const bad = await scope.upload('rowId;tonnes\na;1.234,5\nb;1.500\nc;1,5,0\n', comma)
  expect((await pawl.records.errors(bad.id)).items.map(({ value, reason }) => [value, reason])).toEqual(
    ['1.234,5', '1.500', '1,5,0'].map((value) => [value, 'must be a number such as 1234,5']),
  )
  const texts: string[] = []
  for await (const text of scope.export(comma)) texts.push(text)
  expect(texts.join('')).toContain('a;;;1,5;;1,5\r\n')
  expect((await scope.upload(texts, comma)).counts).toMatchObject({ unchanged: 3 })
  await expect(scope.upload('{}', { format: 'ndjson', decimal: ',' })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/decimal is only for format 'csv'/),
  })
})

test('[R6] a string with a leading control character is kept in every format', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'a', note: '\u00017' } })
  expect((await scope.get('load', 'a'))?.data).toEqual({ rowId: 'a', note: '\u00017' })
  const texts = {
    csv: 'rowId,note\na,\u00017\n',
    ndjson: '{"rowId":"a","note":"\\u00017"}',
    json: '[{"rowId":"a","note":"\\u00017"}]',
  }
  for (const [format, text] of Object.entries(texts))
    expect((await scope.upload([text], { format: format as 'csv' })).counts, format).toMatchObject({ unchanged: 1 })
  const bad = await scope.upload(['rowId,tonnes\na,\u00017\n'], { format: 'csv' })
  expect((await pawl.records.errors(bad.id)).items).toMatchObject([{ column: 'tonnes', code: 'number' }])
})

test.each([
  ['csv', 'rowId,note\na,"never closed\nb,c\n', 'quote', 2],
  ['csv', 'rowId,note\na,"closed"x\n', 'quote', 2],
  ['csv', 'rowId,rowId\na,b\n', 'header', 1],
  ['csv', Array.from({ length: 5001 }, (_, n) => `c${n}`).join(','), 'too-many-columns', 1],
  ['csv', '', 'empty', 1],
  ['csv', 'rowId,note\r1,foo\r2,bar\r', 'header', 1],
  ['csv', Buffer.from('rowId,note\n1,foo\n', 'utf16le'), 'header', 1],
  ['ndjson', '', 'empty', 1],
  ['ndjson', ' \n\n', 'empty', 1],
  ['csv', Buffer.from([0x72, 0x6f, 0x77, 0xff, 0xfe, 0x0a]), 'encoding', 0],
  ['csv', `rowId,note\na,"${'x'.repeat(1_100_000)}`, 'row-too-long', 2],
  ['ndjson', '{"rowId":"a"}\n{"rowId":"b"\n{"rowId":"c"}\n', 'json', 2],
  ['ndjson', '{"rowId":"a"}\n{"rowId":"b","no', 'json', 2],
  ['json', '[{"rowId":"a"},{"rowId":"b"}', 'json', 3],
  ['json', '{"rowId":"a"}', 'json', 1],
] as const)('[R10] a malformed %s (%#) is invalid with a clear error', async (format, body, code, line) => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload([body as string], { format })
  expect(upload).toMatchObject({ state: 'invalid' })
  const { items } = await pawl.records.errors(upload.id)
  expect(items.at(-1)).toMatchObject({ code, line })
  expect(upload.error!.length).toBeGreaterThan(20)
})

test('[R10] rows of the wrong shape are row errors', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const wide = await scope.upload(['rowId,note\na,b,c\n'], { format: 'csv' })
  expect((await pawl.records.errors(wide.id)).items).toMatchObject([{ line: 2, code: 'cells', value: 'c' }])
  const unknown = await scope.upload(['rowId,colour\na,red\n'], { format: 'csv' })
  expect((await pawl.records.errors(unknown.id)).items).toMatchObject([
    { line: 2, code: 'unknown-column', column: 'colour', value: 'red' },
  ])
  const odd = await scope.upload(['[1]\n"x"\n{"rowId":{"a":1}}\n{"rowId":"nul\\u0000"}\n{"rowId":"half\\ud800"}\n'], {
    format: 'ndjson',
  })
  expect((await pawl.records.errors(odd.id)).items.map(({ code }) => code)).toEqual([
    'object',
    'object',
    'text',
    'nul',
    'surrogate',
  ])
})

test('[R10] a row error that quotes unstorable data is stored', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const deep = `${'['.repeat(50_000)}${']'.repeat(50_000)}`
  const odd = await scope.upload(
    [
      '{"rowId":"1","a\\u0000b":"x"}\n{"rowId":"2","c\\ud800":"x"}\n',
      `{"rowId":"3","${'d'.repeat(900_000)}":"x"}\n{"rowId":${deep}}\n"${'\\u0000'.repeat(10)}"\n`,
    ],
    { format: 'ndjson' },
  )
  expect(odd).toMatchObject({ state: 'invalid', counts: { errors: 5 } })
  expect((await pawl.records.errors(odd.id)).items).toMatchObject([
    { line: 1, code: 'unknown-column', column: 'a b' },
    { line: 2, code: 'unknown-column', column: 'c\ufffd' },
    { line: 3, code: 'unknown-column', column: 'd'.repeat(200) },
    { line: 4, code: 'text', column: 'rowId', value: '(nested too deeply)' },
    { line: 5, code: 'object' },
  ])
  const quote = await scope.upload(['rowId,note\nx\0"y,1\n'], { format: 'csv' })
  expect(quote).toMatchObject({ state: 'invalid', error: expect.stringMatching(/contains a quote: x "y/) })
  const wide = await scope.upload(['rowId\na,b\0\n'], { format: 'csv' })
  expect((await pawl.records.errors(wide.id)).items).toMatchObject([{ code: 'cells', value: 'b ' }])
  const key = `${'k'.repeat(199)}\u{1f600}${'k'.repeat(50)}`
  const twice = await scope.upload([`rowId\n${key}\n${key}\n`], { format: 'csv' })
  expect((await pawl.records.errors(twice.id)).items).toMatchObject([{ code: 'duplicate', value: `${'k'.repeat(199)}\ufffd` }])
})

test('[R8] large rows make small batches, bounded in bytes', async () => {
  const pawl = db.pawl()
  const set = pawl.records.define('large', {
    scope: ['x'],
    types: { row: { key: 'id', columns: { id: 'text', text: { type: 'text', charsMax: 900_000 } } } },
  })
  const scope = pawl.records.in(set, { x: '1' })
  await startWorker(pawl)
  function* rows() {
    for (let id = 10; id < 22; id++) yield `{"id":"${id}","text":"${'x'.repeat(900_000)}"}\n`
  }
  /** How many bytes each transaction staged. */
  const batches = async (id: string) =>
    (
      await db.query<{ bytes: number }>(
        'select sum(octet_length(data::text))::int as bytes from pawl.submission_row where submission = $1 group by xmin::text',
        [id],
      )
    ).map(({ bytes }) => bytes)
  const upload = await scope.upload(rows(), { format: 'ndjson' })
  await scope.put({ data: { id: '1' } })
  await pawl.records.submit(upload.id).catch(() => undefined)
  const rebased = await pawl.records.rebase(upload.id)
  for (const { id } of [upload, rebased]) {
    const found = await batches(id)
    expect(found.reduce((sum, bytes) => sum + bytes)).toBeGreaterThan(10_800_000)
    expect(Math.max(...found)).toBeLessThan(5_000_000)
  }
  await pawl.records.submit(rebased.id)
  expect(await ended(pawl, rebased.id)).toMatchObject({ state: 'submitted', counts: { created: 12 } })
  const { items, next } = await scope.list({ limit: 1000 })
  expect(items.length).toBeLessThan(10)
  expect(next).toEqual(expect.any(String))
  const texts: string[] = []
  for await (const text of scope.export({ format: 'ndjson' })) texts.push(text)
  expect(Math.max(...texts.map(({ length }) => length))).toBeLessThan(5_500_000)
  expect(texts.join('').match(/"id"/g)).toHaveLength(13)
})

test('[R8] undeclared columns of a row make at most 51 errors', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const names = Array.from({ length: 300 }, (_, n) => `n${n}`)
  const upload = await scope.upload([`rowId,${names.join(',')}\na,${names.join(',')}\nb\n`], { format: 'csv' })
  expect(upload).toMatchObject({ state: 'invalid', counts: { created: 1, invalid: { created: 1 }, errors: 51 } })
  const { items } = await pawl.records.errors(upload.id, { limit: 100 })
  expect(items.slice(-2)).toMatchObject([
    { line: 2, code: 'unknown-column', column: 'n49' },
    { line: 2, code: 'unknown-columns', reason: "the row has 250 more columns that 'load' does not have" },
  ])
})

test('[R10] one row more than limits.rowsMax is invalid, naming limit and row', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { limits: { rowsMax: 5 } }), here)
  expect((await scope.upload(csv(loadRows(5)), { format: 'csv' })).state).toBe('validated')

  // The fourth row is on two lines, so the sixth begins on line 8.
  const rows = loadRows(7, (row, index) => ({
    ...row,
    ...(index === 1 && { tonnes: 'x' }),
    ...(index === 3 && { note: 'a\nb' }),
  }))
  const upload = await scope.upload(csv(rows), { format: 'csv' })
  expect(upload).toMatchObject({ state: 'invalid', error: expect.stringContaining('more than 5 rows: line 8 is row 6') })
  const errors = (await pawl.records.errors(upload.id)).items
  expect(errors.map(({ line, code }) => [line, code])).toEqual([
    [3, 'number'],
    [8, 'too-many-rows'],
  ])
})

test('[R10] values without a column name are errors; empty rows are skipped', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const nameless = await scope.upload(['rowId,,note\n1,secret,x\n2,,y\n'], { format: 'csv' })
  expect(nameless).toMatchObject({ state: 'invalid', counts: { created: 1, errors: 1 } })
  expect((await pawl.records.errors(nameless.id)).items).toMatchObject([{ line: 2, code: 'cells', value: 'secret' }])
  const padded = await scope.upload(['rowId,"Note\r\nof it",note\n,,\n1,,x\n,,\n"","",\n'], { format: 'csv' })
  expect(padded).toMatchObject({ state: 'validated', counts: { rows: 1, created: 1 } })
})

test('[R10] a truncated upload fails; its restart refuses the first sender', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  async function* broken() {
    yield* csv(loadRows(3000))
    throw new Error('socket hang up')
  }
  const error = await scope.upload(broken(), { format: 'csv' }).catch((caught: unknown) => caught)
  expect(error).toMatchObject({ code: 'PAWL_UPLOAD_FAILED' })
  const { id } = (error as { details: { id: string } }).details
  expect(await pawl.records.get(id)).toMatchObject({ state: 'upload-failed' })
  await expect(pawl.records.submit(id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
  const short = scope.upload(csv(loadRows(3)), { format: 'csv', restart: id, expect: { bytes: 100_000 } })
  await expect(short).rejects.toMatchObject({ code: 'PAWL_UPLOAD_FAILED', details: { expected: 100_000 } })
  const damaged = scope.upload(csv(loadRows(3)), { format: 'csv', restart: id, expect: { sha256: '00' } })
  await expect(damaged).rejects.toMatchObject({ code: 'PAWL_UPLOAD_FAILED' })
  // Two at once: the second took it over, so the first is refused whatever it still sends.
  const { promise, resolve } = deferred()
  async function* slow() {
    yield* csv(loadRows(10))
    await promise
  }
  const first = scope.upload(slow(), { format: 'csv', restart: id }).catch((caught: unknown) => caught)
  await until('the first is uploading', async () => (await pawl.records.get(id)).state === 'uploading')
  const second = await scope.upload(csv(loadRows(20)), { format: 'csv', restart: id })
  expect(second).toMatchObject({ id, state: 'validated', counts: { rows: 20, created: 20 } })
  resolve()
  expect(await first).toMatchObject({ code: 'PAWL_LEASE_LOST' })
  expect(await pawl.records.get(id)).toMatchObject({ state: 'validated', counts: { rows: 20, created: 20 } })
  expect(await db.query('select count(*)::int as n from pawl.submission_row where submission = $1', [id])).toEqual([{ n: 20 }])
})

test('[R10] a restart that stalls deletes no rows of a later one', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await startWorker(pawl)
  async function* broken() {
    yield* csv(loadRows(3000))
    throw new Error('socket hang up')
  }
  const { details } = (await scope.upload(broken(), { format: 'csv' }).catch((caught: unknown) => caught)) as PawlError
  const restart = String(details.id)
  const [stalled, goOn] = [deferred(), deferred()]
  let times = 0
  installProbe(async (name) => {
    if (name !== 'records.restart.committed' || ++times > 1) return
    stalled.resolve()
    await goOn.promise
  })
  onTestFinished(() => installProbe(undefined))
  const first = scope.upload(csv(loadRows(10)), { format: 'csv', restart }).catch((caught: unknown) => caught)
  await stalled.promise
  const second = await scope.upload(csv(loadRows(20)), { format: 'csv', restart })
  goOn.resolve()
  expect(await first).toMatchObject({ code: 'PAWL_LEASE_LOST' })
  expect(await db.query('select count(*)::int as n from pawl.submission_row where submission = $1', [restart])).toEqual([
    { n: 20 },
  ])
  await pawl.records.submit(second.id)
  await until('it is applied', async () => (await pawl.records.get(second.id)).state === 'submitted')
  expect((await scope.list()).items.length).toBe(20)
})

test('[R10] an upload that expires before its validation is refused', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  installProbe(async (name, subject) => {
    if (name !== 'records.validate.before') return
    const { id } = subject as { id: string }
    await db.query("update pawl.submission set expires_at = pawl.now() - interval '1 second' where id = $1", [id])
  })
  onTestFinished(() => installProbe(undefined))
  const late = await scope.upload(csv(loadRows(5)), { format: 'csv' }).catch((caught: unknown) => caught)
  expect(late).toMatchObject({ code: 'PAWL_LEASE_LOST' })
  expect(await pawl.records.get(String((late as PawlError).details.id))).toMatchObject({ state: 'validating' })
})

test('an abort ends an upload whose body hangs, and its body', { timeout: 20_000 }, async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const [hung, told] = [deferred(), deferred()]
  const chunks = csv(loadRows(3))
  const body: AsyncIterable<string> = {
    [Symbol.asyncIterator]: () => ({
      async next() {
        const value = chunks.shift()
        if (value !== undefined) return { done: false, value }
        hung.resolve()
        return new Promise(() => undefined)
      },
      async return() {
        told.resolve()
        return new Promise(() => undefined)
      },
    }),
  }
  const abort = new AbortController()
  const upload = scope.upload(body, { format: 'csv', signal: abort.signal }).catch((caught: unknown) => caught)
  await hung.promise
  abort.abort(new Error('the browser was closed'))
  const error = await upload
  expect(error).toMatchObject({ code: 'PAWL_UPLOAD_FAILED', message: expect.stringContaining('the browser was closed') })
  await told.promise
  expect(await pawl.records.get((error as { details: { id: string } }).details.id)).toMatchObject({ state: 'upload-failed' })
  const late = scope.upload(csv(loadRows(3)), { format: 'csv', signal: abort.signal })
  await expect(late).rejects.toMatchObject({ code: 'PAWL_UPLOAD_FAILED' })
})

test('[R2] a restart of anything but a stopped upload is refused', async () => {
  const pawl = db.pawl()
  const set = defineLoads(pawl)
  const scope = pawl.records.in(set, here)
  const upload = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  const restart = (id: string, where = scope) => where.upload(csv(loadRows(3)), { format: 'csv', restart: id })
  for (const id of ['abc', '999999']) await expect(restart(id)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND', details: { id } })
  const elsewhere = pawl.records.in(set, { ...here, registration: '5' })
  await expect(restart(upload.id, elsewhere)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(restart(upload.id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE', details: { state: 'validated' } })
  const rebased = await pawl.records.rebase(upload.id)
  await expect(restart(rebased.id)).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringContaining(`records.rebase('${upload.id}')`),
  })
  expect(await pawl.records.get(upload.id)).toEqual(upload)
})

test("a restart by a later release follows that release's rules", async () => {
  const [older, newer] = [db.pawl(), db.pawl()]
  defineLoads(older)
  const set = defineLoads(newer, { schemaVersion: 2, missing: 'tombstone' })
  async function* broken() {
    yield* csv(loadRows(1))
    throw new Error('socket hang up')
  }
  const error = await older.records
    .in('loads', here)
    .upload(broken(), { format: 'csv' })
    .catch((caught: unknown) => caught)
  const { id } = (error as { details: { id: string } }).details
  const scope = newer.records.in(set, here)
  await scope.put({ data: { rowId: 'gone' } })
  expect(await scope.upload(csv(loadRows(1)), { format: 'csv', restart: id })).toMatchObject({ counts: { deleted: 1 } })
  expect(await db.query('select schema_version, missing_policy from pawl.submission where id = $1', [id])).toEqual([
    { schema_version: 2, missing_policy: 'tombstone' },
  ])
})

test('rows read under another schema version are not rebased', async () => {
  const [older, newer] = [db.pawl(), db.pawl()]
  const scope = older.records.in(defineLoads(older), here)
  defineLoads(newer, { schemaVersion: 2 })
  const upload = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  await expect(newer.records.rebase(upload.id)).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    details: { id: upload.id, schemaVersion: 1, current: 2 },
    message: expect.stringContaining('Upload the file again'),
  })
  expect((await scope.submissions()).items).toHaveLength(1)
  expect(await older.records.rebase(upload.id)).toMatchObject({ state: 'validated' })
})

test('a rebase that fails says to rebase again, and so does why', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  await db.query(`
    create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'no room'; end $$;
    create trigger refuse before insert on pawl.submission_row for each row execute function public.refuse()`)
  const advice = `records.rebase('${upload.id}')`
  const error = await pawl.records.rebase(upload.id).catch((caught: unknown) => caught)
  expect(error).toMatchObject({ code: 'PAWL_UPLOAD_FAILED', message: expect.stringContaining(advice) })
  const { id } = (error as { details: { id: string } }).details
  expect(await pawl.records.why(id)).toMatchObject({
    state: 'upload-failed',
    reasons: [{ code: 'upload-failed', text: expect.stringContaining(advice) }],
  })
  const sent = await scope.upload(csv(loadRows(3)), { format: 'csv' }).catch((caught: unknown) => caught)
  const again = (sent as { details: { id: string } }).details.id
  expect(sent).toMatchObject({ message: expect.stringContaining(`{ restart: '${again}' }`) })
})

test('an expired upload cannot be rebased, and why says so', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  await moveClock(db.pool, 8 * 86_400_000)
  await expect(pawl.records.rebase(upload.id)).rejects.toMatchObject({
    code: 'PAWL_NOT_FOUND',
    message: expect.stringContaining('expired'),
  })
  expect((await pawl.records.why(upload.id)).reasons).toMatchObject([{ code: 'expired' }])
})

test('[R9] an invalid row has no changes in the preview', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'a', note: 'n', tonnes: 2 } })
  const upload = await scope.upload(ndjson([{ rowId: 'a', tonnes: 'many' }]), { format: 'ndjson' })
  expect((await pawl.records.rows(upload.id, 'invalid')).items).toEqual([
    { line: 1, type: 'load', key: 'a', before: { rowId: 'a', note: 'n', tonnes: '2' }, after: null, changes: [] },
  ])
})

test('[R10] missing rows are rejected, kept or deleted by policy', async () => {
  const pawl = db.pawl()
  const names = ['reject', 'keep', 'tombstone'] as const
  const sets = names.map((missing) =>
    pawl.records.define(missing, { scope: ['x'], missing, types: { n: { key: 'id', columns: { id: 'text', v: 'text' } } } }),
  )
  const [reject, keep, tombstone] = sets.map((set): RecordScope => pawl.records.in(set, { x: '1' })) as [
    RecordScope,
    RecordScope,
    RecordScope,
  ]
  await startWorker(pawl)
  const all = ['id,v\na,1\nb,1\nc,1\n']
  const some = ['id,v\na,2\nc,1\n']
  for (const scope of [reject, keep, tombstone]) await submitted(pawl, scope, all)
  const rejected = await reject.upload(some, { format: 'csv' })
  expect(rejected).toMatchObject({ state: 'invalid', counts: { missing: 1, errors: 1 } })
  expect((await pawl.records.errors(rejected.id)).items).toMatchObject([{ code: 'missing', value: 'b' }])
  expect((await pawl.records.rows(rejected.id, 'missing')).items).toMatchObject([
    { key: 'b', before: { id: 'b', v: '1' }, after: null },
  ])
  expect(await submitted(pawl, keep, some)).toMatchObject({ counts: { missing: 1, deleted: 0 } })
  expect((await keep.list()).items.map(({ key, data }) => [key, data?.v])).toEqual([
    ['a', '2'],
    ['b', '1'],
    ['c', '1'],
  ])
  expect(await submitted(pawl, tombstone, some)).toMatchObject({ counts: { missing: 1, deleted: 1 } })
  expect((await tombstone.list()).items.map(({ key }) => key)).toEqual(['a', 'c'])
  expect(await tombstone.get('n', 'b')).toMatchObject({ status: 'DELETED', data: null })
  expect(await submitted(pawl, tombstone, all)).toMatchObject({ counts: { created: 1, updated: 1, unchanged: 1 } })
  expect((await tombstone.history('n', 'b')).items.map(({ status }) => status)).toEqual(['CREATED', 'DELETED', 'CREATED'])
  for (const scope of [reject, keep, tombstone]) expect(await scope.audit()).toMatchObject({ isSound: true })
})
