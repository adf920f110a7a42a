// Workbooks. A zip has its directory at its end, so the file is spooled to disk first, within its limit, and then read sheet by sheet as a
// stream. Cells become what a CSV would have had: texts, numbers as Excel shows them, booleans, and dates by their cell's format.

import { mkdtemp, open, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Malformed } from './bytes.ts'
import { numberMark } from './json-text.ts'
import type { SourceRow } from './rows.ts'
import { Header } from './tabular.ts'
import type { UploadLimits } from './types.ts'
import { attribute, elements, elementText, unescapeXml } from './xml.ts'
import { ZipFile } from './zip.ts'

const cellsMax = 16_384
/** More rows than any program has in one sheet. */
const rowNumberMax = 16_777_216
/** Rows that are read before they are given on, or fewer if they are long. */
const turnRows = 500
const turnChars = 1_000_000

export async function* readXlsx(
  chunks: AsyncIterable<Buffer>,
  limits: UploadLimits,
  types: ReadonlySet<string>,
): AsyncGenerator<readonly SourceRow[]> {
  const folder = await mkdtemp(join(tmpdir(), 'pawl-xlsx-'))
  try {
    const path = join(folder, 'workbook')
    const sizeBytes = await spool(chunks, path)
    const file = await open(path, 'r')
    try {
      yield* readWorkbook(await ZipFile.open(file, sizeBytes, limits.xlsx), limits, types)
    } finally {
      await file.close()
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function spool(chunks: AsyncIterable<Buffer>, path: string): Promise<number> {
  const file = await open(path, 'wx', 0o600)
  let bytes = 0
  try {
    for await (const chunk of chunks) {
      await file.write(chunk)
      bytes += chunk.length
    }
  } finally {
    await file.close()
  }
  return bytes
}

interface Sheet {
  readonly name: string
  readonly path: string
}

interface Book {
  readonly zip: ZipFile
  readonly strings: readonly string[]
  /** Whether the style of this index shows a date. */
  readonly dates: readonly boolean[]
  readonly is1904: boolean
  readonly rowCharsMax: number
}

async function* readWorkbook(
  zip: ZipFile,
  limits: UploadLimits,
  types: ReadonlySet<string>,
): AsyncGenerator<readonly SourceRow[]> {
  const { sheets, is1904 } = await readSheets(zip)
  const book: Book = {
    zip,
    strings: await readStrings(zip, limits.xlsx.sharedStringsBytesMax),
    dates: await readDateStyles(zip),
    is1904,
    rowCharsMax: limits.rowCharsMax,
  }
  // Sheets that are named after a type are those rows; otherwise the first sheet has them all.
  const named = sheets.filter((sheet) => types.has(sheet.name))
  let lines = 0
  for (const sheet of named.length > 0 ? named : sheets.slice(0, 1)) {
    let last = lines
    try {
      for await (const rows of readSheet(book, sheet, named.length > 0 ? sheet.name : undefined, lines)) {
        last = rows.at(-1)?.line ?? last
        if (rows.length > 0) yield rows
      }
    } catch (error) {
      if (!(error instanceof Malformed)) throw error
      throw new Malformed(error.code, error.line, `The sheet '${sheet.name.slice(0, 100)}': ${error.message}`)
    }
    lines = last
  }
}

async function readSheets(zip: ZipFile): Promise<{ sheets: Sheet[]; is1904: boolean }> {
  const targets = new Map<string, string>()
  for await (const xml of elements(zip.read('xl/_rels/workbook.xml.rels'), 'Relationship'))
    targets.set(attribute(xml, 'Id') ?? '', attribute(xml, 'Target') ?? '')
  const sheets: Sheet[] = []
  for await (const xml of elements(zip.read('xl/workbook.xml'), 'sheet')) {
    const target = targets.get(attribute(xml, 'id') ?? '')
    if (target !== undefined)
      sheets.push({
        name: unescapeXml(attribute(xml, 'name') ?? ''),
        path: target.startsWith('/') ? target.slice(1) : `xl/${target}`,
      })
  }
  if (sheets.length === 0) throw new Malformed('xlsx', 0, 'The workbook has no sheet.')
  let is1904 = false
  for await (const xml of elements(zip.read('xl/workbook.xml'), 'workbookPr'))
    is1904 = ['1', 'true'].includes(attribute(xml, 'date1904') ?? '')
  return { sheets, is1904 }
}

/** Texts that cells refer to by number. They must all be in memory, so they have a limit of their own. */
async function readStrings(zip: ZipFile, bytesMax: number): Promise<string[]> {
  if (!zip.has('xl/sharedStrings.xml')) return []
  const strings: string[] = []
  let bytes = 0
  for await (const xml of elements(zip.read('xl/sharedStrings.xml'), 'si')) {
    const text = richText(xml)
    bytes += text.length + 20
    if (bytes > bytesMax)
      throw new Malformed(
        'too-large',
        0,
        `The texts of the workbook need more than ${bytesMax} bytes of memory. Save it as CSV, or split it.`,
      )
    strings.push(text)
  }
  return strings
}

/** Without the phonetic runs, which say how a text is read aloud. */
function richText(xml: string): string {
  return elementText(xml.includes('<rPh') ? xml.replace(/<rPh\b[\s\S]*?<\/rPh>/g, '') : xml, 't')
}

/** Number formats 14 to 22 and 45 to 47 are dates or times; own formats are if they have a letter of a date outside quotes and brackets. */
async function readDateStyles(zip: ZipFile): Promise<boolean[]> {
  if (!zip.has('xl/styles.xml')) return []
  const own = new Set<number>()
  for await (const xml of elements(zip.read('xl/styles.xml'), 'numFmt')) {
    const code = unescapeXml(attribute(xml, 'formatCode') ?? '').replace(/"[^"]*"|\[[^\]]*\]|\\./g, '')
    if (/[ymdhs]/i.test(code)) own.add(Number(attribute(xml, 'numFmtId')))
  }
  const dates: boolean[] = []
  for await (const list of elements(zip.read('xl/styles.xml'), 'cellXfs')) {
    for (const [xf] of list.matchAll(/<xf\b[^>]*>/g)) {
      const id = Number(attribute(xf, 'numFmtId') ?? 0)
      dates.push((id >= 14 && id <= 22) || (id >= 45 && id <= 47) || own.has(id))
    }
  }
  return dates
}

async function* readSheet(
  book: Book,
  sheet: Sheet,
  type: string | undefined,
  offset: number,
): AsyncGenerator<readonly SourceRow[]> {
  let header: Header | undefined
  let rows: SourceRow[] = []
  let chars = 0
  let number = 0
  for await (const xml of elements(book.zip.read(sheet.path), 'row')) {
    number = rowNumber(attribute(xml, 'r'), number, offset)
    const cells = readCells(book, xml, offset + number)
    if (cells.every((cell) => cell === undefined || cell === '')) continue
    if (header === undefined) {
      header = new Header(cells, offset + number, type)
      continue
    }
    rows.push(header.row(offset + number, cells, type === undefined ? undefined : `row ${number} of the sheet '${type}'`))
    chars += xml.length
    if (rows.length < turnRows && chars < turnChars) continue
    yield rows
    rows = []
    chars = 0
  }
  if (header === undefined) throw new Malformed('empty', offset, 'It is empty: it has no header.')
  yield rows
}

/** Rows may leave numbers out and may leave out their own number, but none comes twice or before another. */
function rowNumber(given: string | undefined, last: number, offset: number): number {
  if (given === undefined) return last + 1
  const number = /^\d{1,8}$/.test(given) ? Number(given) : 0
  if (number > last && number <= rowNumberMax) return number
  throw new Malformed(
    'xlsx',
    offset + last,
    `Behind row ${last} comes a row numbered ${given.slice(0, 20)}. Save the workbook anew.`,
  )
}

const cellPattern = /<c\b([^>]*?)(?:\/>|>([\s\S]*?)<\/c>)/g

function readCells(book: Book, xml: string, line: number): unknown[] {
  const cells: unknown[] = []
  let chars = 0
  for (const [, attributes = '', inner = ''] of xml.matchAll(cellPattern)) {
    const place = columnOf(attribute(`<c ${attributes}>`, 'r')) ?? cells.length
    if (place >= cellsMax) throw new Malformed('xlsx', line, `A row has more than ${cellsMax} cells.`)
    while (cells.length < place) cells.push(undefined)
    const cell = cellValue(book, attributes, inner, line)
    cells[place] = cell
    if (typeof cell === 'string') chars += cell.length
    if (chars > book.rowCharsMax) throw new Malformed('row-too-long', line, `A row has more than ${book.rowCharsMax} characters.`)
  }
  return cells
}

function cellValue(book: Book, attributes: string, inner: string, line: number): unknown {
  const kind = attribute(`<c ${attributes}>`, 't')
  if (kind === 'inlineStr') return richText(inner)
  const text = elementText(inner, 'v')
  if (text === '') return undefined
  if (kind === 's') {
    const shared = book.strings[Number(text)]
    if (shared === undefined)
      throw new Malformed('xlsx', line, `A cell refers to text ${text.slice(0, 20)}, which the workbook does not have.`)
    return shared
  }
  if (kind === 'b') return text === '1'
  if (kind === 'str' || kind === 'd') return text
  // An error such as #REF! is a text that no column but a text one accepts.
  if (kind === 'e') return text
  const style = attribute(`<c ${attributes}>`, 's')
  if (style !== undefined && book.dates[Number(style)]) return serialDate(text, book.is1904)
  return numberMark + shortened(text)
}

/**
 * A number of a workbook is a double, of which Excel writes 17 digits and shows 15: 19.99 is written as 19.989999999999998. A whole number is
 * written as it is.
 */
function shortened(text: string): string {
  if (text.length <= 15 || !/[.eE]/.test(text)) return text
  const number = Number(text)
  return Number.isFinite(number) ? String(Number(number.toPrecision(15))) : text
}

/** A day is a number in a workbook: days since the end of 1899, with a 29 February 1900 that never was; or since 1904. */
function serialDate(text: string, is1904: boolean): unknown {
  const serial = Number(text)
  if (!Number.isFinite(serial) || serial < 0 || serial > 2_958_465) return text
  const days = is1904 ? serial + 1462 : serial < 60 ? serial + 1 : serial
  const at = new Date(Math.round((days - 25_569) * 86_400_000))
  return at.toISOString()
}

function columnOf(reference: string | undefined): number | undefined {
  const letters = reference === undefined ? null : /^[A-Z]{1,3}/.exec(reference)
  if (letters === null) return undefined
  let column = 0
  for (const letter of letters[0]) column = column * 26 + letter.charCodeAt(0) - 64
  return column - 1
}
