import { expect, test } from 'vitest'
import { inline, sheetOf, workbook } from '../../../../test/support/xlsx.ts'
import { readRows } from '../../../../test/support/xlsx-rows.ts'
import { builtInKind, kindOf } from './number-formats.ts'

const head = `<row r="1">${inline('id')}${inline('note')}</row>`

/** The value of one cell, with these number formats as styles 1, 2 and so on. */
async function cellOf(
  cell: string,
  formats: readonly string[] = [],
  more: Record<string, string | Buffer> = {},
): Promise<unknown> {
  const own = formats.map((code, index) => `<numFmt numFmtId="${200 + index}" formatCode="${code.replaceAll('"', '&quot;')}"/>`)
  const styles = ['<xf/>', ...formats.map((_code, index) => `<xf numFmtId="${200 + index}"/>`)]
  const { rows } = await readRows(
    sheetOf(`${head}<row r="2"><c r="A2"><v>1</v></c>${cell}</row>`, {
      'xl/styles.xml': `<styleSheet><numFmts>${own.join('')}</numFmts><cellStyleXfs><xf numFmtId="14"/></cellStyleXfs><cellXfs>${styles.join('')}</cellXfs></styleSheet>`,
      ...more,
    }),
  )
  return rows[0]![1]
}

const moment = async (serial: string, format: string, is1904 = false) => {
  const workbookXml = `<workbook><workbookPr date1904="${is1904 ? 1 : 0}"/><sheets><sheet name="load" id="rId1"/></sheets></workbook>`
  const value = await cellOf(`<c r="B2" s="1"><v>${serial}</v></c>`, [format], { 'xl/workbook.xml': workbookXml })
  return value instanceof Date ? value.toISOString().replace('T00:00:00.000Z', '') : value
}

test.each([
  ['46053', 'yyyy-mm-dd', '2026-01-31'],
  ['46053.5', 'yyyy-mm-dd hh:mm', '2026-01-31T12:00:00.000Z'],
  ['46053.430555555555', 'dd/mm/yyyy h:mm', '2026-01-31T10:20:00.000Z'],
  ['1', 'd mmm', '1900-01-01'],
  ['59', 'd mmm', '1900-02-28'],
  ['60', 'd mmm', '1900-02-29'],
  ['61', 'd mmm', '1900-03-01'],
  ['2958465', 'yyyy', '9999-12-31'],
  ['2958466', 'yyyy', 2_958_466],
  ['-1', 'yyyy', -1],
  ['0.4375', 'h:mm', '10:30:00'],
  ['0.4375', 'h:mm AM/PM', '10:30:00'],
  ['0.43752893518518516', 'mm:ss.000', '10:30:02.500'],
  ['0', 'h:mm', '00:00:00'],
  ['0.5', 'yyyy-mm-dd', '12:00:00'],
  ['46053.5', 'h:mm', '2026-01-31T12:00:00.000Z'],
  ['1.5', '[h]:mm:ss', '36:00:00'],
  ['100.5', '[hh]:mm', '2412:00:00'],
  ['-0.5', '[h]:mm', '-12:00:00'],
])('[R13] %s as %s is %s', async (serial, format, expected) => {
  expect(await moment(serial, format)).toBe(expected)
})

test('[R13] a workbook of the 1904 system has shifted days, same times', async () => {
  expect(await moment('0', 'yyyy-mm-dd', true)).toBe('1904-01-01')
  expect(await moment('44591', 'yyyy-mm-dd', true)).toBe('2026-01-31')
  expect(await moment('0.25', 'h:mm', true)).toBe('06:00:00')
  expect(await moment('2957003', 'yyyy', true)).toBe('9999-12-31')
  expect(await moment('2957004', 'yyyy', true)).toBe(2_957_004)
})

test.each([
  [
    'date',
    [
      'yyyy"年"m"月"d"日"',
      '[$-411]ggge"年"m"月"d"日"',
      '[DBNum1][$-804]yyyy"年"m"月"d"日"',
      'e.m.d',
      '[$-F800]dddd, mmmm dd, yyyy',
    ],
  ],
  ['date', ['mmm-yy', 'm', 'd', 'YYYY/MM/DD', 'bbbb', '[$-1070000]d/mm/yyyy', 'yyyy\\-mm\\-dd;@', '[Red]d/m/yy h:mm']],
  ['time', ['h"时"mm"分"', '上午/下午h"时"mm"分"', 'h:mm', 'mm:ss', 'ss.00', '[$-409]h:mm:ss AM/PM', 'hh"h"mm']],
  ['duration', ['[h]:mm', '[mm]:ss', '[s]', '[Red][hh]:mm:ss']],
  [
    'number',
    ['General', '0.00E+00', '#,##0.00 "days"', '[Red]0', '0.0%', '_-* #,##0.00_-', '[$kr-406] #,##0', '0\\d', '@', '"yyyy"0'],
  ],
  ['number', ['# ?/?', '[>100]0;0', '0;"d"', '[$-409]#,##0', '"[h]"0', '']],
] as const)('[R13] formats of a %s: %j', (kind, formats) => {
  for (const format of formats) expect(kindOf(format), format).toBe(kind)
})

test('[R13] built-in number formats are known by their number', () => {
  const kinds = Array.from({ length: 60 }, (_, id) => builtInKind(id)[0]).join('')
  const [plain, dates] = ['n'.repeat(14), 'ddddttttd']
  expect(kinds).toBe(`${plain}${dates}nnnnddddd${'tt'}dddnnnnnnnntdtnndddddddddn`)
})

test.each([
  ['19.989999999999998', 19.99],
  ['1.1000000000000001', 1.1],
  ['0.30000000000000004', 0.3],
  ['1.0000000000000001E-3', 0.001],
  ['123456789012.35001', 123456789012.35],
  ['-2.5', -2.5],
  ['.5', 0.5],
  ['1E+3', 1000],
  ['1.5E+20', 150_000_000_000_000_000_000n],
  ['9007199254740993', 9007199254740993n],
  ['12345678901234567', 12345678901234567n],
  ['-12345678901234567', -12345678901234567n],
  ['123456789012345', 123456789012345],
])('[R6] [R13] the number %s is read as %s', async (text, expected) => {
  expect(await cellOf(`<c r="B2"><v>${text}</v></c>`)).toBe(expected)
})

test.each(['abc', 'NaN', '1e999', '1,5', '0x10', '9'.repeat(1001)])(
  '[R13] the number %s is an error of its row',
  async (text) => {
    expect(await cellOf(`<c r="B2"><v>${text}</v></c>`)).toEqual(new Error('has a number that cannot be read'))
  },
)

test.each([
  ['plain', 'plain'],
  ['a_x000D_\nb', 'a\r\nb'],
  ['_x005F_x000D_', '_x000D_'],
  ['_x0041__x0042_', 'AB'],
  ['_xD83D__xDE00_', '😀'],
  ['_x41_ _xZZZZ_ _x0041', '_x41_ _xZZZZ_ _x0041'],
  ['&lt;&amp;&gt;&quot;&apos;&#65;&#x1F600;', '<&>"\'A😀'],
  ['<![CDATA[5 < 6 & "7"]]>', '5 < 6 & "7"'],
  ['a<!-- not b -->c', 'ac'],
  ['one<![CDATA[ two ]]>three', 'one two three'],
])('[R13] %j is the string %j, inline, shared and as a result', async (xml, expected) => {
  const strings = { 'xl/sharedStrings.xml': `<sst><si><t>${xml}</t></si></sst>` }
  expect(await cellOf(inline(xml))).toBe(expected)
  expect(await cellOf('<c r="B2" t="s"><v>0</v></c>', [], strings)).toBe(expected)
  expect(await cellOf(`<c r="B2" t="str"><f>A1</f><v>${xml}</v></c>`)).toBe(expected)
})

test('[R13] rich text is joined without its phonetic runs', async () => {
  const runs =
    '<r><rPr><b/></rPr><t>漢</t></r><r><t xml:space="preserve">字 </t></r><rPh sb="0" eb="2"><t>カンジ</t></rPh><phoneticPr fontId="1"/>'
  expect(await cellOf(`<c r="B2" t="inlineStr"><is>${runs}</is></c>`)).toBe('漢字 ')
  const strings = { 'xl/sharedStrings.xml': `<sst><si>${runs}</si></sst>` }
  expect(await cellOf('<c r="B2" t="s"><v>0</v></c>', [], strings)).toBe('漢字 ')
})

test('[R13] booleans, percentages, ISO dates and formula results have their values', async () => {
  expect(await cellOf('<c r="B2" t="b"><v>1</v></c>')).toBe(true)
  expect(await cellOf('<c r="B2" t="b"><v>0</v></c>')).toBe(false)
  expect(await cellOf('<c r="B2" s="1"><v>0.125</v></c>', ['0.0%'])).toBe(0.125)
  expect(await cellOf('<c r="B2" t="d"><v>2026-01-31T10:00:00</v></c>')).toEqual(new Date('2026-01-31T10:00:00Z'))
  expect(await cellOf('<c r="B2" t="d"><v>2026-01-31</v></c>')).toEqual(new Date('2026-01-31T00:00:00Z'))
  expect(await cellOf('<c r="B2" t="d"><v>2026-02-30</v></c>')).toBe('2026-02-30')
  expect(await cellOf('<c r="B2" t="d"><v>T10:00:00</v></c>')).toBe('10:00:00')
  expect(await cellOf('<c r="B2"><f>1+1</f><v>2</v></c>')).toBe(2)
  expect(await cellOf('<c r="B2" t="str"><f>""</f><v></v></c>')).toBe('')
  expect(await cellOf('<c r="B2"/>')).toBeUndefined()
})

test('[R13] an error or a formula without result is a fault', async () => {
  const error = await cellOf('<c r="B2" t="e"><f>1/0</f><v>#DIV/0!</v></c>')
  expect(error).toMatchObject({ message: 'has the spreadsheet error #DIV/0!', cause: '#DIV/0!' })
  for (const v of ['', '<v></v>', '<v/>'])
    expect(await cellOf(`<c r="B2"><f>SUM(A1:A2)</f>${v}</c>`)).toMatchObject({
      message: expect.stringMatching(/result was not saved/),
      cause: '=SUM(A1:A2)',
    })
})

test.each(['utf8', 'utf16le', 'utf16be'] as const)('[R13] a part in %s, with and without its mark, is read', async (encoding) => {
  const name = encoding === 'utf8' ? 'UTF-8' : 'UTF-16'
  const xml = `<?xml version="1.0" encoding="${name}"?><sst><si><t>ä漢😀</t></si></sst>`
  const encode = (text: string) =>
    encoding === 'utf8'
      ? Buffer.from(text)
      : encoding === 'utf16le'
        ? Buffer.from(text, 'utf16le')
        : Buffer.from(text, 'utf16le').swap16()
  for (const text of [xml, `\ufeff${xml}`])
    expect(await cellOf('<c r="B2" t="s"><v>0</v></c>', [], { 'xl/sharedStrings.xml': encode(text) })).toBe('ä漢😀')
})

test('[R13] prefixes, quotes and foreign elements in the XML change no value', async () => {
  const xml = `<x:worksheet xmlns:x='x'><!-- <x:row r="1"/> --><x:sheetData><x:row r='1' note="a>b"><x:c t='inlineStr'><x:is><x:t>id</x:t></x:is></x:c></x:row>
    <x:row r='2'><x:c r='A2'><x:extLst><x:v>9</x:v></x:extLst><x:v>7</x:v></x:c></x:row></x:sheetData><x:legacy><x:row r="3"/></x:legacy></x:worksheet>`
  const { rows } = await readRows(sheetOf('', { 'xl/worksheets/sheet1.xml': xml }))
  expect(rows).toEqual([[7, undefined]])
})

test('[R13] parts are found by their relationships, whatever their names are', async () => {
  const type = 'http://schemas.openxmlformats.org/officeDocument/2006/relationships'
  const relationship = (id: string, name: string, target: string) =>
    `<Relationship Id="${id}" Type="${type}/${name}" Target="${target}"/>`
  const relationships = [
    relationship('a', 'chartsheet', 'chart.xml'),
    relationship('b', 'worksheet', '/data/one.xml'),
    relationship('c', 'sharedStrings', '../texts.xml'),
  ]
  const book = sheetOf('', {
    '_rels/.rels': `<Relationships>${relationship('r', 'officeDocument', 'book/Main.xml')}</Relationships>`,
    'book/main.xml': '<workbook><sheets><sheet name="load" id="a"/><sheet name="data" id="b"/></sheets></workbook>',
    'book/_rels/main.xml.rels': `<Relationships>${relationships.join('')}</Relationships>`,
    'texts.xml': '<sst><si><t>shared</t></si></sst>',
    'data/one.xml': `<worksheet><sheetData>${head}<row><c t="s"><v>0</v></c></row></sheetData></worksheet>`,
  })
  expect(await readRows(book)).toMatchObject({ rows: [['shared', undefined]], ignored: [] })
})

test('[R13] unread sheets are listed, also those named almost like a type', async () => {
  const rows = [
    ['id', 'note'],
    ['a', 'b'],
  ]
  const names = ['received', 'Received ', 'Sent', 'sent ', 'notes']
  const book = workbook(names.map((name) => ({ name, rows })))
  const types = ['received', 'sent']
  expect(await readRows(book, { types })).toEqual({ rows: [['a', 'b']], types: ['received'], ignored: names.slice(1) })
  expect(await readRows(book, { types: ['other'] })).toEqual({ rows: [['a', 'b']], types: [undefined], ignored: names.slice(1) })
})
