// Workbooks for tests, written by hand: a zip with the few parts that a reader needs.

import { crc32, deflateRawSync } from 'node:zlib'

export type Cell = string | number | boolean | { readonly date: number } | { readonly inline: string } | undefined

export interface SheetOf {
  readonly name: string
  readonly rows: readonly (readonly Cell[])[]
}

export function workbook(sheets: readonly SheetOf[], more: Readonly<Record<string, Buffer | string>> = {}): Buffer {
  return zip(workbookParts(sheets, more))
}

/** A workbook with one sheet, 'load', whose rows are this XML. */
export function sheetOf(rows: string, more: Readonly<Record<string, Buffer | string>> = {}): Buffer {
  const sheet = `<worksheet><sheetData>${rows}</sheetData></worksheet>`
  return workbook([{ name: 'load', rows: [] }], { 'xl/worksheets/sheet1.xml': sheet, ...more })
}

export function inline(text: string): string {
  return `<c t="inlineStr"><is><t>${text}</t></is></c>`
}

/** Parts that are given replace those of the sheets. */
export function workbookParts(
  sheets: readonly SheetOf[],
  more: Readonly<Record<string, Buffer | string>> = {},
): Record<string, Buffer> {
  const strings: string[] = []
  const files: Record<string, Buffer> = {
    'xl/workbook.xml': text(
      `<workbook xmlns:r="r"><workbookPr/><sheets>${sheets.map(({ name }, index) => `<sheet name="${escapeXml(name)}" sheetId="${index + 1}" r:id="rId${index + 1}"/>`).join('')}</sheets></workbook>`,
    ),
    'xl/_rels/workbook.xml.rels': text(
      `<Relationships>${sheets.map((_sheet, index) => `<Relationship Id="rId${index + 1}" Target="worksheets/sheet${index + 1}.xml"/>`).join('')}</Relationships>`,
    ),
    'xl/styles.xml': text(
      '<styleSheet><numFmts><numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd"/></numFmts><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="164"/></cellXfs></styleSheet>',
    ),
  }
  for (const [index, { rows }] of sheets.entries()) {
    const xml = rows.map(
      (row, place) =>
        `<row r="${place + 1}">${row.map((cell, column) => cellXml(cell, `${letters(column)}${place + 1}`, strings)).join('')}</row>`,
    )
    files[`xl/worksheets/sheet${index + 1}.xml`] = text(`<worksheet><sheetData>${xml.join('')}</sheetData></worksheet>`)
  }
  files['xl/sharedStrings.xml'] = text(
    `<sst>${strings.map((each) => `<si><t xml:space="preserve">${escapeXml(each)}</t></si>`).join('')}</sst>`,
  )
  for (const [name, data] of Object.entries(more)) files[name] = Buffer.from(data as string)
  return files
}

function cellXml(cell: Cell, reference: string, strings: string[]): string {
  if (cell === undefined) return ''
  if (typeof cell === 'string') return `<c r="${reference}" t="s"><v>${strings.push(cell) - 1}</v></c>`
  if (typeof cell === 'number') return `<c r="${reference}"><v>${cell}</v></c>`
  if (typeof cell === 'boolean') return `<c r="${reference}" t="b"><v>${cell ? 1 : 0}</v></c>`
  if ('date' in cell) return `<c r="${reference}" s="1"><v>${cell.date}</v></c>`
  return `<c r="${reference}" t="inlineStr"><is><t>${escapeXml(cell.inline)}</t></is></c>`
}

/** What the zip file says of an entry, and its packed bytes. */
export interface ZipEntry {
  readonly name: string
  readonly flags: number
  readonly crc: number
  readonly unpackedBytes: number
  readonly packed: Buffer
}

/** `change` may lie about entries, or damage, rename or repeat them. */
export function zip(
  files: Readonly<Record<string, Buffer>>,
  change: (entry: ZipEntry) => readonly ZipEntry[] = (entry) => [entry],
): Buffer {
  const parts: Buffer[] = []
  const directory: Buffer[] = []
  let offset = 0
  const entries = Object.entries(files).flatMap(([name, data]) =>
    change({ name, flags: 0, crc: crc32(data), unpackedBytes: data.length, packed: deflateRawSync(data) }),
  )
  for (const { name, flags, crc, unpackedBytes, packed } of entries) {
    const about = Buffer.alloc(22)
    about.writeUInt16LE(flags, 2)
    about.writeUInt16LE(8, 4)
    about.writeUInt32LE(crc, 10)
    about.writeUInt32LE(packed.length, 14)
    about.writeUInt32LE(unpackedBytes, 18)
    const rest = about.subarray(2)
    const lengths = Buffer.alloc(4)
    lengths.writeUInt16LE(Buffer.byteLength(name), 0)
    const local = Buffer.concat([Buffer.from([0x50, 0x4b, 3, 4, 20, 0]), rest, lengths, Buffer.from(name), packed])
    const place = Buffer.alloc(14)
    place.writeUInt32LE(offset, 10)
    directory.push(Buffer.concat([Buffer.from([0x50, 0x4b, 1, 2, 20, 0, 20, 0]), rest, lengths, place, Buffer.from(name)]))
    parts.push(local)
    offset += local.length
  }
  const listing = Buffer.concat(directory)
  const end = Buffer.alloc(22)
  end.writeUInt32LE(0x06054b50, 0)
  end.writeUInt16LE(directory.length, 8)
  end.writeUInt16LE(directory.length, 10)
  end.writeUInt32LE(listing.length, 12)
  end.writeUInt32LE(offset, 16)
  return Buffer.concat([...parts, listing, end])
}

function letters(column: number): string {
  return column < 26
    ? String.fromCharCode(65 + column)
    : letters(Math.floor(column / 26) - 1) + String.fromCharCode(65 + (column % 26))
}

function text(xml: string): Buffer {
  return Buffer.from(`<?xml version="1.0" encoding="UTF-8"?>${xml}`)
}

function escapeXml(value: string): string {
  return value.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;')
}
