import { mkdtempSync, rmSync } from 'node:fs'
import { readdir, readlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { RecordSetOptions } from 'pawl'
import { xlsx } from 'pawl/records/xlsx'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../../../test/support/database.ts'
import { debianProgram } from '../../../../test/support/debian.ts'
import { defineLoads, startWorker, submitted } from '../../../../test/support/records.ts'
import { type BookCell, byExceljs, byOpenpyxl, rewritten, type WriteBook } from '../../../../test/support/workbooks.ts'
import { inline, sheetOf, workbook, workbookParts, zip } from '../../../../test/support/xlsx.ts'

const openpyxl = await debianProgram('openpyxl')
const writers: readonly (readonly [name: string, write: WriteBook, missing: string | undefined])[] = [
  ['exceljs', byExceljs, undefined],
  ['openpyxl', byOpenpyxl(openpyxl), openpyxl.ok ? undefined : openpyxl.missing],
]

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

const shapes: RecordSetOptions = {
  scope: ['x'],
  formats: [xlsx()],
  types: {
    shape: {
      key: 'id',
      columns: {
        id: 'text',
        note: { type: 'text', trim: false },
        day: 'date',
        moment: 'timestamp',
        clock: 'text',
        amount: 'number',
        whole: 'integer',
        isOk: 'boolean',
        more: 'json',
      },
    },
  },
}
const columns = ['id', 'note', 'day', 'moment', 'clock', 'amount', 'whole', 'isOk', 'more']
const day = (date: string, format = 'yyyy-mm-dd'): BookCell => ({ date: `${date}T00:00:00`, format })
const moment = (date: string): BookCell => ({ date, format: 'yyyy-mm-dd hh:mm:ss' })

/** A row as a workbook has it, and as a CSV has it. */
type Pair = readonly [cells: readonly BookCell[], csv: string]

const pairs: readonly Pair[] = [
  [
    ['plain', 'a note', day('2026-01-31'), moment('2026-01-31T10:20:30'), null, 12.5, 3, true, '{"a":1}'],
    'plain,a note,2026-01-31,2026-01-31T10:20:30Z,,12.5,3,true,"{""a"":1}"',
  ],
  [['entities', '<a> & "b" \'c\' ]]>'], 'entities,"<a> & ""b"" \'c\' ]]>"'],
  [['lines', 'one\ntwo_x000D_\nthree'], 'lines,"one\ntwo\r\nthree"'],
  [['underscore', '_x005F_x0041_ _x41_'], 'underscore,_x0041_ _x41_'],
  [['unicode', '漢字 ä😀', null, null, null, null, null, null, '"漢"'], 'unicode,漢字 ä😀,,,,,,,"""漢"""'],
  [
    ['midnight', null, day('2024-02-29', 'dd/mm/yyyy'), moment('2024-02-29T00:00:00')],
    'midnight,,2024-02-29,2024-02-29T00:00:00Z',
  ],
  [
    ['milliseconds', null, null, { date: '2026-01-31T10:20:30.250', format: 'yyyy-mm-dd hh:mm:ss.000' }],
    'milliseconds,,,2026-01-31T10:20:30.250Z',
  ],
  [['kanji', null, day('2026-01-31', 'yyyy"年"m"月"d"日"')], 'kanji,,2026-01-31'],
  [['era', null, day('2026-01-31', '[$-411]ggge"年"m"月"d"日"')], 'era,,2026-01-31'],
  [['hanzi', null, day('2026-01-31', '[DBNum1][$-804]yyyy"年"m"月"d"日"')], 'hanzi,,2026-01-31'],
  [['day as text', null, null, null, day('2026-01-31')], 'day as text,,,,2026-01-31'],
  [['time', null, null, null, { time: '10:30:00', format: 'h:mm' }], 'time,,,,10:30:00'],
  [['evening', null, null, null, { time: '22:05:09', format: 'h:mm:ss AM/PM' }], 'evening,,,,22:05:09'],
  [['duration', null, null, null, { hours: 36.5, format: '[h]:mm:ss' }], 'duration,,,,36:30:00'],
  [['percentage', null, null, null, null, { value: 0.125, format: '0.0%' }], 'percentage,,,,,0.125'],
  [['money', null, null, null, null, { value: -1234.5, format: '[$€-407]#,##0.00;[Red]-#,##0.00' }], 'money,,,,,-1234.5'],
  [['sum', null, null, null, null, 0.1 + 0.2], 'sum,,,,,0.3'],
  [['small', null, null, null, null, 1e-7], 'small,,,,,0.0000001'],
  [['large', null, null, null, null, null, 9_007_199_254_740_991], 'large,,,,,,9007199254740991'],
  [['no', null, null, null, null, 0, 0, false], 'no,,,,,0,0,false'],
  [[20_260_131, 'a number as key'], '20260131,a number as key'],
  [['json number', null, null, null, null, null, null, null, 7], 'json number,,,,,,,,7'],
]

/** openpyxl itself writes no more than 16 digits. */
const longNumber: Pair = [['17 digits', null, null, null, null, null, 12_345_678_901_234_568], '17 digits,,,,,,12345678901234568']

test.for(writers)('[R13] workbooks by %s equal the CSV of the same data', async ([name, write, missing], { skip }) => {
  if (missing !== undefined) return skip(`missing ${missing}`)
  const all = name === 'exceljs' ? [...pairs, longNumber] : pairs
  const sheets = [{ name: 'shape', rows: [columns, ...all.map(([cells]) => cells)] }]
  const books = Promise.all([write({ sheets }), write({ sheets, is1904: true })])
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('shapes', shapes), { x: '1' })
  await startWorker(pawl)
  await submitted(pawl, scope, [`${columns.join(',')}\n`, ...all.map(([, csv]) => `${csv}\n`)])
  for (const book of await books) {
    const upload = await scope.upload([book], { format: 'xlsx' })
    expect((await pawl.records.errors(upload.id)).items).toEqual([])
    expect((await pawl.records.rows(upload.id, 'updated')).items).toEqual([])
    expect(upload).toMatchObject({ state: 'validated', counts: { rows: all.length, unchanged: all.length, missing: 0 } })
  }
})

test('[R13] comments, CDATA, rich text and phonetic runs change no value', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('shapes', shapes), { x: '1' })
  await startWorker(pawl)
  await submitted(pawl, scope, ['id,note,amount\na,5 < 6,7\nb,漢字,8\n'])
  const rows = [
    ['id', 'note', 'amount'],
    ['a', 'five', 7],
    ['b', 'kanji', 8],
  ]
  const written = await byExceljs({ sheets: [{ name: 'shape', rows }] })
  const strings = await rewritten(written, 'xl/sharedStrings.xml', (xml) =>
    xml
      .replace('<t>five</t>', '<t><![CDATA[5 < 6]]></t>')
      .replace(
        '<t>kanji</t>',
        '<r><t>漢</t></r><!-- no --><r><rPr><b/></rPr><t>字</t></r><rPh sb="0" eb="2"><t>カンジ</t></rPh>',
      ),
  )
  const book = await rewritten(strings, 'xl/worksheets/sheet1.xml', (xml) =>
    xml
      .replace('<sheetData>', '<sheetData><!-- <row r="9"><c><v>1</v></c></row> -->')
      .replace('<v>7</v>', '<v><![CDATA[7]]></v>'),
  )
  const upload = await scope.upload([book], { format: 'xlsx' })
  expect((await pawl.records.errors(upload.id)).items).toEqual([])
  expect(upload).toMatchObject({ state: 'validated', counts: { rows: 2, unchanged: 2 } })
})

test.for(writers)('[R13] formulas by %s are read as results, errors as row errors', async ([name, write, missing], { skip }) => {
  if (missing !== undefined) return skip(`missing ${missing}`)
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('shapes', shapes), { x: '1' })
  const rows = [
    ['id', 'note', 'amount'],
    ['a', '#REF!', 1],
    ['b', '#DIV/0!', '#N/A'],
    ['c', '=A2&"x"', '=1+1'],
    ['d', 'fine', 4],
  ]
  const upload = await scope.upload([await write({ sheets: [{ name: 'shape', rows }] })], { format: 'xlsx' })
  const reason = (text: string) => expect.stringContaining(text) as string
  expect((await pawl.records.errors(upload.id)).items).toMatchObject([
    {
      line: 2,
      column: 'note',
      value: '#REF!',
      code: 'cell',
      reason: reason("row 2 of the sheet 'shape': has the spreadsheet error"),
    },
    { line: 3, column: 'amount', value: '#N/A', code: 'cell' },
    { line: 3, column: 'note', value: '#DIV/0!', code: 'cell' },
    { line: 4, column: 'amount', value: '=1+1', code: 'cell', reason: reason('result was not saved') },
    { line: 4, column: 'note', value: '=A2&"x"', code: 'cell' },
  ])
  expect(upload).toMatchObject({ state: 'invalid', counts: { rows: 4, created: 1, invalid: { created: 3 } } })
  if (name !== 'exceljs') return
  // Of a formula with its result the result counts.
  const results = await rewritten(
    await write({ sheets: [{ name: 'shape', rows: [rows[0]!, rows[3]!] }] }),
    'xl/worksheets/sheet1.xml',
    (xml) =>
      xml.replace('<f>1+1</f>', '<f>1+1</f><v>2</v>').replace(/<c r="B2"[^>]*>(<f>.*?<\/f>)/, '<c r="B2" t="str">$1<v>cx</v>'),
  )
  const good = await scope.upload([results], { format: 'xlsx' })
  expect((await pawl.records.rows(good.id, 'created')).items.map(({ after }) => after)).toEqual([
    { id: 'c', note: 'cx', amount: '2' },
  ])
})

const types = {
  received: { key: 'id', columns: { id: 'text', tonnes: 'number' } },
  sent: { key: 'id', columns: { id: 'text', tonnes: 'number' } },
} as const

test.for(writers)('[R13] unread sheets of a workbook by %s are listed', async ([, write, missing], { skip }) => {
  if (missing !== undefined) return skip(`missing ${missing}`)
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('book', { scope: ['x'], formats: [xlsx()], types }), { x: '1' })
  const rows = [
    ['id', 'tonnes'],
    ['a', 1],
  ]
  const names = ['Notes', 'received', 'Sent', 'sent ']
  const upload = await scope.upload([await write({ sheets: names.map((name) => ({ name, rows })) })], { format: 'xlsx' })
  const ignoredSheets = ['Notes', 'Sent', 'sent ']
  expect(upload).toMatchObject({ state: 'validated', counts: { rows: 1 }, ignoredSheets })
  expect(await scope.submissions()).toMatchObject({ items: [{ ignoredSheets }] })
  expect(await pawl.records.rebase(upload.id)).toMatchObject({ state: 'validated', ignoredSheets })
  const twice = workbook([
    { name: 'sent', rows: [['id', 'id']] },
    { name: 'Notes', rows },
  ])
  const invalid = await scope.upload([twice], { format: 'xlsx' })
  expect(invalid).toMatchObject({ state: 'invalid', ignoredSheets: ['Notes'] })
  expect(await scope.upload(['type,id\nsent,a\n'], { format: 'csv' })).toMatchObject({ ignoredSheets: [] })
})

test('[R10] a workbook: sheets named after types, dates, numbers, shared and inline strings', async () => {
  const pawl = db.pawl()
  const columns = { id: 'text', on: 'date', tonnes: 'number', ok: 'boolean' } as const
  const set = pawl.records.define('book', {
    scope: ['x'],
    formats: [xlsx()],
    types: { received: { key: 'id', columns }, sent: { key: 'id', columns } },
  })
  const scope = pawl.records.in(set, { x: '1' })
  const head = ['id', 'on', 'tonnes', 'ok']
  const book = workbook([
    {
      name: 'received',
      rows: [head, ['a & <b>', { date: 46_053 }, 0.1, true], [{ inline: 'c' }, '2026-02-01', '2.50', undefined]],
    },
    { name: 'notes', rows: [['ignore me']] },
    { name: 'sent', rows: [head, ['a & <b>', { date: 46_053.0 }, 7, false]] },
  ])
  const upload = await scope.upload([book.subarray(0, 700), book.subarray(700)], { format: 'xlsx' })
  expect(await pawl.records.errors(upload.id)).toMatchObject({ items: [] })
  expect(upload).toMatchObject({ state: 'validated', counts: { created: 3 } })
  expect((await pawl.records.rows(upload.id, 'created')).items.map(({ type, after }) => [type, after])).toEqual([
    ['received', { id: 'a & <b>', on: '2026-01-31', tonnes: '0.1', ok: true }],
    ['received', { id: 'c', on: '2026-02-01', tonnes: '2.5' }],
    ['sent', { id: 'a & <b>', on: '2026-01-31', tonnes: '7', ok: false }],
  ])
})

test('[R10] errors in a workbook of several sheets name sheet and row', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('book', { scope: ['x'], formats: [xlsx()], types }), { x: '1' })
  const head = ['id', 'tonnes']
  const [received, sent] = [
    { name: 'received', rows: [head, ['a', 1], ['b', 1]] },
    { name: 'sent', rows: [head, ['a', 'x']] },
  ]
  const bad = await scope.upload([workbook([received, sent])], { format: 'xlsx' })
  expect((await pawl.records.errors(bad.id)).items).toMatchObject([
    { line: 5, column: 'tonnes', value: 'x', reason: "row 2 of the sheet 'sent': must be a number" },
  ])
  const twice = await scope.upload([workbook([received, { name: 'sent', rows: [['id', 'id']] }])], { format: 'xlsx' })
  expect(twice).toMatchObject({ state: 'invalid', error: "The sheet 'sent': The header has the column 'id' twice." })
  const empty = await scope.upload([workbook([{ name: 'other', rows: [] }])], { format: 'xlsx' })
  expect(empty).toMatchObject({ state: 'invalid', error: "The sheet 'other': It is empty: it has no header." })
})

test.for([
  ['cut in row 5', (xml: string) => xml.slice(0, xml.indexOf('<row r="5">') + 20)],
  ['without the end of its rows', (xml: string) => xml.replace('</sheetData></worksheet>', '')],
  ['with a row whose cells never close', (xml: string) => xml.replaceAll('</c>', '')],
] as const)('[R10] [R13] a sheet %s deletes nothing, where missing rows are deleted', async ([, damage]) => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { missing: 'tombstone', formats: [xlsx()] }), here)
  const ids = Array.from({ length: 10 }, (_, n) => `r${n}`)
  await scope.append(ids.map((rowId) => ({ data: { rowId } })))
  const rows = [['rowId'], ...ids.map((id) => [id])]
  const parts = workbookParts([{ name: 'load', rows }])
  const whole = await scope.upload([zip(parts)], { format: 'xlsx' })
  expect(whole).toMatchObject({ state: 'validated', counts: { unchanged: 10, deleted: 0 } })
  const path = 'xl/worksheets/sheet1.xml'
  const damaged = zip({ ...parts, [path]: Buffer.from(damage(parts[path]!.toString())) })
  const upload = await scope.upload([damaged], { format: 'xlsx' })
  expect(upload).toMatchObject({ state: 'invalid', error: expect.stringMatching(/cut short/), counts: { deleted: 0 } })
  await expect(pawl.records.submit(upload.id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
})

test('[R10] [R13] a sheet of valid rows with a wrong checksum is invalid', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { formats: [xlsx()] }), here)
  const rows = [['rowId'], ...Array.from({ length: 2000 }, (_, n) => [`r${n}`])]
  const book = zip(workbookParts([{ name: 'load', rows }]), (entry) => [
    entry.name.endsWith('sheet1.xml') ? { ...entry, crc: 1 } : entry,
  ])
  const upload = await scope.upload([book], { format: 'xlsx' })
  expect(upload).toMatchObject({ state: 'invalid', error: expect.stringMatching(/CRC-32/) })
  expect((await pawl.records.errors(upload.id)).items).toMatchObject([{ code: 'xlsx' }])
})

test('[R10] a bomb after a sheet of valid rows makes the upload invalid', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('book', { scope: ['x'], formats: [xlsx()], types }), { x: '1' })
  const rows = [['id'], ...Array.from({ length: 1500 }, (_, n) => [`r${n}`])]
  const parts = workbookParts([
    { name: 'received', rows },
    { name: 'sent', rows },
  ])
  const bomb = Buffer.concat([Buffer.from('<worksheet><sheetData>'), Buffer.alloc(20_000_000, '<row/>')])
  const upload = await scope.upload([zip({ ...parts, 'xl/worksheets/sheet2.xml': bomb })], { format: 'xlsx' })
  expect(upload).toMatchObject({ state: 'invalid', error: expect.stringMatching(/more than 200 times/) })
  await expect(pawl.records.submit(upload.id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
  expect((await scope.list()).items).toEqual([])
})

test('[R10] a workbook over the limit of the format is too large', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { formats: [xlsx({ fileBytesMax: 1_000_000 })] }), here)
  const large = await scope.upload([Buffer.alloc(2_000_000)], { format: 'xlsx' })
  expect(large).toMatchObject({
    state: 'invalid',
    error: 'The file is larger than 1000000 bytes. Split it, or raise fileBytesMax of xlsx().',
  })
})

test('[G2] a set without the format refuses workbooks, naming the import', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await expect(scope.upload([sheetOf('')], { format: 'xlsx' })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/npm install saxes yauzl.*formats: \[xlsx\(\)\].*'pawl\/records\/xlsx'/),
  })
  expect(await db.query('select from pawl.record_scope')).toEqual([])
  const define = (formats: unknown) => pawl.records.define('other', { scope: ['x'], types, formats: formats as [] })
  expect(() => define(xlsx)).toThrow(/formats must be an array of formats such as xlsx\(\).*got a function/)
  expect(() => define([xlsx])).toThrow(/got a function/)
  expect(() => define(['xlsx'])).toThrow(/got 'xlsx'/)
  expect(() => xlsx({ tuning: { ratioMax: 0 } })).toThrow(/xlsx: tuning.ratioMax must be an integer from 1/)
  expect(() => xlsx({ ratioMax: 5 } as object)).toThrow(/Did you mean 'tuning.ratioMax'/)
})

/** Of this process, in this folder, where the system tells. */
async function openFiles(folder: string): Promise<string[]> {
  const numbers = await readdir('/proc/self/fd').catch(() => [])
  const paths = await Promise.all(numbers.map((number) => readlink(`/proc/self/fd/${number}`).catch(() => '')))
  return paths.filter((path) => path.startsWith(folder))
}

test('[R13] the spool file of a workbook has no name on disk', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'pawl-test-'))
  const before = process.env.TMPDIR
  process.env.TMPDIR = folder
  onTestFinished(() => {
    if (before === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = before
    rmSync(folder, { recursive: true })
  })
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { formats: [xlsx()] }), here)
  const book = sheetOf(`<row>${inline('rowId')}</row><row>${inline('a')}</row>`)
  const [sent, goOn] = [deferred(), deferred()]
  async function* body() {
    yield book.subarray(0, 200)
    sent.resolve()
    await goOn.promise
    yield book.subarray(200)
  }
  const upload = scope.upload(body(), { format: 'xlsx' })
  await sent.promise
  if (process.platform === 'linux') expect(await openFiles(folder)).toEqual([expect.stringMatching(/\.xlsx \(deleted\)$/)])
  expect(await readdir(folder)).toEqual([])
  goOn.resolve()
  expect(await upload).toMatchObject({ state: 'validated', counts: { rows: 1 } })
  await until('the file is closed', async () => (await openFiles(folder)).length === 0)
})
