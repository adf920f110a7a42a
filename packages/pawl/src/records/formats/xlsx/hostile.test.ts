// Workbooks that are damaged, or made to hurt. Each must be refused, by its reason, and with less than a second of work.

import { randomBytes } from 'node:crypto'
import { deflateRawSync } from 'node:zlib'
import { expect, test } from 'vitest'
import { inline, sheetOf, workbook, workbookParts, type ZipEntry, zip } from '../../../../test/support/xlsx.ts'
import { readRows } from '../../../../test/support/xlsx-rows.ts'
import type { InvalidFile } from '../bytes.ts'
import type { XlsxOptions } from './index.ts'

const head = `<row r="1">${inline('id')}${inline('note')}</row>`
const rows = (from: number, to: number) =>
  Array.from({ length: to - from }, (_, index) => `<row r="${from + index}">${inline(`id ${from + index}`)}</row>`).join('')
const sheetPath = 'xl/worksheets/sheet1.xml'
const stringsPath = 'xl/sharedStrings.xml'
/** Text that does not pack well, so that no ratio gives it away. */
const noise = (bytes: number) => randomBytes(bytes).toString('hex')
const numbered = (count: number) => Array.from({ length: count }, (_, n) => n)
const noisy = (count: number, before: string, after = '') =>
  numbered(count)
    .map((n) => `${before}x${n * 7919}${after}`)
    .join('')

/** A workbook whose one sheet is this XML. */
const part = (xml: string | Buffer) => sheetOf('', { [sheetPath]: xml })
const row = (cells: string) => sheetOf(`${head}<row r="2">${cells}</row>`)
const whole = () => sheetOf(head + rows(2, 12))
const parts = () =>
  workbookParts([
    {
      name: 'load',
      rows: [
        ['id', 'note'],
        ['a', 'b'],
      ],
    },
  ])
const changed = (change: (entry: ZipEntry) => Partial<ZipEntry>, only?: string) =>
  zip(parts(), (entry) => [only === undefined || entry.name === only ? { ...entry, ...change(entry) } : entry])
const declared = (encoding: string) => `<?xml version="1.0" encoding="${encoding}"?><worksheet/>`
const laughs = (n: number) =>
  `<!DOCTYPE x [<!ENTITY a0 "ha">${Array.from({ length: n }, (_, i) => `<!ENTITY a${i + 1} "&a${i};&a${i};">`).join('')}]>`
const manySheets = Array.from({ length: 11 }, (_, n) => `<sheet name="s${n}" id="rId1"/>`).join('')
const oneName = [
  { name: 'load', rows: [['id']] },
  { name: 'load', rows: [['id']] },
]

const damaged: readonly (readonly [what: string, code: string, reason: RegExp, book: () => Buffer, options?: XlsxOptions])[] = [
  ['is cut in its last bytes', 'xlsx', /cut short/, () => whole().subarray(0, -40)],
  ['is cut in the middle', 'xlsx', /cut short/, () => whole().subarray(0, 500)],
  ['is no zip', 'xlsx', /^The workbook cannot be read/, () => Buffer.from('this is no zip')],
  ['is empty', 'xlsx', /^The workbook cannot be read/, () => Buffer.alloc(0)],
  ['is an .xls file', 'xlsx', /\.xls file/, () => Buffer.from('d0cf11e0a1b11ae1', 'hex')],
  // The sheet ends early.
  ['has a sheet that ends in a row', 'xlsx', /unclosed tag/, () => part(`<worksheet><sheetData>${head}<row r="2"><c>`)],
  ['has a sheet that ends in a tag', 'xlsx', /unclosed tag/, () => part(`<worksheet><sheetData>${head}<row r="2"><c r="A`)],
  ['has a sheet that ends after a row', 'xlsx', /unclosed tag/, () => part(`<worksheet><sheetData>${head}${rows(2, 5)}`)],
  ['has no </sheetData>', 'xlsx', /unexpected close tag/, () => part(`<worksheet><sheetData>${head}${rows(2, 5)}</worksheet>`)],
  ['has no <sheetData>', 'xlsx', /no <sheetData>/, () => part('<worksheet></worksheet>')],
  ['has <sheetData> twice', 'xlsx', /twice/, () => part(`<worksheet><sheetData>${head}</sheetData><sheetData/></worksheet>`)],
  ['has a part of another kind', 'xlsx', /root element <worksheet>, got <html>/, () => part('<html/>')],
  // Tags that are never closed, below and above the ratio.
  ['has a row whose cells never close', 'xlsx', /unexpected close tag/, () => row('<c><v>1</v><c><v>2</v>')],
  ['has 80,000 unclosed cells', 'xlsx', /nested more than/, () => sheetOf(head + noisy(80_000, '<c>'))],
  ['has 80,000 unclosed values', 'xlsx', /nested more than/, () => row(`<c>${noisy(80_000, '<v>')}`)],
  [
    'has 80,000 unclosed phonetic runs',
    'xlsx',
    /nested more than/,
    () => sheetOf(head, { [stringsPath]: `<sst><si>${noisy(80_000, '<rPh>')}` }),
  ],
  ['has 300,000 unclosed cells in 2 kB', 'bomb', /more than 200 times/, () => sheetOf(head + '<c>'.repeat(300_000))],
  ['has one tag that never ends', 'xlsx', /without a tag/, () => row(`<c ${noisy(200_000, ' ', '="x"')}`)],
  ['has one text that never ends', 'xlsx', /without a tag/, () => row(`<c><v>${noise(1_500_000)}`)],
  // XML that no workbook has.
  ['has a document type', 'xlsx', /document type/, () => part(`${laughs(40)}<worksheet>&a40;</worksheet>`)],
  ['has an entity that is none', 'xlsx', /undefined entity/, () => row(inline('&constructor;'))],
  ['has a character that is none', 'xlsx', /not well-formed/, () => row(inline('&#0;'))],
  ['is not UTF-8', 'encoding', /not UTF-8/, () => part(Buffer.from('<worksheet>\xe4 ', 'latin1'))],
  ['is declared as Windows-1252', 'encoding', /declared as windows-1252/, () => part(declared('windows-1252'))],
  ['is declared as UTF-16 and is not', 'encoding', /declared as UTF-16/, () => part(declared('UTF-16'))],
  ['is UTF-16 and declared as UTF-8', 'encoding', /declared as utf-8/, () => part(Buffer.from(declared('utf-8'), 'utf16le'))],
  // Entries that are not what the directory says.
  ['has a wrong checksum', 'xlsx', /CRC-32/, () => changed(({ crc }) => ({ crc: (crc ^ 1) >>> 0 }))],
  ['has one sheet with a wrong checksum', 'xlsx', /CRC-32/, () => changed(() => ({ crc: 1 }), sheetPath)],
  [
    'has larger parts than it says',
    'xlsx',
    /too many bytes/,
    () => changed(({ unpackedBytes: n }) => ({ unpackedBytes: n - 1 })),
  ],
  ['has smaller parts than it says', 'xlsx', /not enough/, () => changed(({ unpackedBytes: n }) => ({ unpackedBytes: n + 1 }))],
  ['has cut parts', 'xlsx', /end of file/, () => changed(({ packed }) => ({ packed: packed.subarray(0, -6) }))],
  ['has a cut sheet', 'xlsx', /end of file/, () => changed(({ packed }) => ({ packed: packed.subarray(0, -6) }), sheetPath)],
  ['has parts of noise', 'xlsx', /cannot be read/, () => changed(({ packed }) => ({ packed: packed.map(() => 0xff) as Buffer }))],
  ['has a part twice', 'xlsx', /twice/, () => zip(parts(), (entry) => [entry, { ...entry, name: entry.name.toUpperCase() }])],
  ['is encrypted', 'xlsx', /encrypted/, () => changed(() => ({ flags: 1 }))],
  // Bombs.
  ['is a bomb of 40 MB', 'bomb', /more than 200 times/, () => part(Buffer.alloc(40_000_000, 32))],
  ['is a bomb of 100 kB', 'bomb', /more than 200 times/, () => part(Buffer.alloc(100_000, 32))],
  [
    'is a bomb that hides its size',
    'xlsx',
    /too many bytes/,
    () => changed(() => ({ packed: deflateRawSync(Buffer.alloc(40_000_000)) })),
  ],
  [
    'unpacks to too much',
    'too-large',
    /100000 bytes/,
    () => sheetOf(`${head}<!--${noise(99_000)}-->`),
    { tuning: { unpackedBytesMax: 100_000 } },
  ],
  [
    'has too many entries',
    'too-large',
    /11 entries/,
    () => zip(Object.fromEntries(numbered(11).map((n) => [`f${n}`, Buffer.from('x')]))),
    { tuning: { entriesMax: 10 } },
  ],
  [
    'has too many strings',
    'too-large',
    /strings of/,
    () => sheetOf(head, { [stringsPath]: `<sst>${noisy(60_000, '<si><t>', '</t></si>')}</sst>` }),
    { tuning: { sharedStringsBytesMax: 1_000_000 } },
  ],
  [
    'has too many sheets',
    'too-large',
    /10 sheets/,
    () => sheetOf(head, { 'xl/workbook.xml': `<workbook><sheets>${manySheets}</sheets></workbook>` }),
    { tuning: { entriesMax: 10 } },
  ],
  // Workbooks that programs would not agree on.
  ['has two sheets of one name', 'xlsx', /two sheets named 'load'/, () => workbook(oneName)],
  ['has no sheet', 'xlsx', /no sheet/, () => workbook([])],
  ['has no workbook part', 'xlsx', /no 'xl\/workbook.xml'/, () => zip({ 'a.txt': Buffer.from('a') })],
  ['refers to a string that is not there', 'xlsx', /refers to string 7/, () => row('<c t="s"><v>7</v></c>')],
  ['has a cell of no known type', 'xlsx', /type 'what'/, () => row('<c t="what"><v>7</v></c>')],
  ['has a cell twice', 'xlsx', /Cell 'A2' cannot follow/, () => row('<c r="A2"><v>1</v></c><c r="A2"><v>2</v></c>')],
  ['has cells out of order', 'xlsx', /Cell 'A2' cannot follow/, () => row('<c r="B2"><v>1</v></c><c r="A2"><v>2</v></c>')],
  ['has a cell in no column', 'xlsx', /Cell '12' cannot follow/, () => row('<c r="12"><v>1</v></c>')],
  ['has a cell too far to the right', 'xlsx', /16384 cells/, () => row('<c r="XFE2"><v>1</v></c>')],
  ['has a boolean that is none', 'xlsx', /boolean cell must be .*, got 'x'/, () => row('<c t="b"><v>x</v></c>')],
  ['has an error in its header', 'header', /#REF!/, () => sheetOf('<row r="1"><c t="e"><v>#REF!</v></c></row>')],
]

test.for(damaged)('[R10] [R13] a workbook that %s is refused within a second', async ([, code, reason, book, options = {}]) => {
  // Of this process: another one may have the machine.
  const bytes = book()
  const before = process.cpuUsage()
  const error = await readRows(bytes, { options }).then(
    () => undefined,
    (caught: unknown) => caught as InvalidFile,
  )
  const { user, system } = process.cpuUsage(before)
  expect(error).toMatchObject({ name: 'InvalidFile', code, message: expect.stringMatching(reason) })
  expect((user + system) / 1e6).toBeLessThan(1)
})

test('[R13] the workbook that the damaged ones are made of is read', async () => {
  expect((await readRows(whole())).rows).toHaveLength(10)
  expect((await readRows(zip(parts()))).rows).toEqual([['a', 'b']])
})

test.each(['0', '-1', '2', '1', 'x', '1e1', '9007199254740993'])('[R10] a row numbered %s after row 2 is refused', async (r) => {
  const book = sheetOf(`${head}<row r="2">${inline('a')}</row><row r="${r}">${inline('b')}</row>`)
  await expect(readRows(book)).rejects.toMatchObject({
    code: 'xlsx',
    message: expect.stringMatching(/: Row .+ follows row 2\. Re-save the workbook\.$/),
  })
})

test('[R10] a row of repeated shared strings has the usual limit', async () => {
  const text = noise(15_000)
  const cells = (cell: string) => `<row>${cell.repeat(40)}</row>`
  const header = Array.from({ length: 40 }, (_, n) => inline(`c${n}`)).join('')
  const book = sheetOf(`<row>${header}</row>${cells('<c t="s"><v>0</v></c>')}`, {
    [stringsPath]: `<sst><si><t>${text}</t></si></sst>`,
  })
  await expect(readRows(book)).rejects.toMatchObject({
    code: 'row-too-long',
    message: expect.stringMatching(/more than 1000000 characters/),
  })
})
