// pawl/records/xlsx: workbooks of Excel and of programs like it. A record set that is given this format takes uploads of format 'xlsx'. It
// needs saxes and yauzl, which the rest of Pawl does not.

import { resolve } from '../../../kernel/options.ts'
import type { SourceRow } from '../../rows/reader.ts'
import type { FileFormat, UploadedFile } from '../../types.ts'
import { InvalidFile, isInvalidFile } from '../bytes.ts'
import { type XlsxLimits, type XlsxOptions, xlsxTable } from './options.ts'
import { readSheet } from './sheet.ts'
import { spool } from './spool.ts'
import { readWorkbook, type Sheet } from './workbook.ts'
import { Parts } from './zip.ts'

export type { XlsxOptions } from './options.ts'

/** For `formats` of a record set: `formats: [xlsx()]`. */
export function xlsx(options: XlsxOptions = {}): FileFormat {
  const { fileBytesMax, tuning: limits } = resolve('xlsx', xlsxTable, options)
  return {
    name: 'xlsx',
    limit: { name: 'fileBytesMax of xlsx()', bytesMax: fileBytesMax },
    read: (file) => readXlsx(file, limits),
  }
}

async function* readXlsx(given: UploadedFile, limits: XlsxLimits): AsyncGenerator<readonly SourceRow[]> {
  const file = await spool(given.chunks)
  try {
    yield* readRows(await Parts.open(file, limits), given, limits)
  } finally {
    await file.close()
  }
}

/** Sheets that are named after a type are its rows; without such a sheet the first one has all rows. Others are reported as ignored. */
async function* readRows(parts: Parts, given: UploadedFile, limits: XlsxLimits): AsyncGenerator<readonly SourceRow[]> {
  const { rowCharsMax, checkHeader } = given
  // The second term is the longest cell of Excel (32,767 characters) with each of them escaped.
  const partCharsMax = 2 * rowCharsMax + 400_000
  const book = await readWorkbook(parts, { ...limits, partCharsMax })
  const named = book.sheets.filter(({ name }) => given.types.has(name))
  const sheets = named.length > 0 ? named : book.sheets.slice(0, 1)
  const read = new Set(sheets)
  for (const sheet of book.sheets) if (!read.has(sheet)) given.ignore(sheet.name)
  let offset = 0
  for (const sheet of sheets) {
    const type = named.length > 0 ? sheet.name : undefined
    try {
      for await (const rows of readSheet(parts, sheet, book, { type, offset, rowCharsMax, partCharsMax, checkHeader })) {
        offset = rows.at(-1)?.line ?? offset
        if (rows.length > 0) yield rows
      }
    } catch (error) {
      throw isInvalidFile(error) ? inSheet(sheet, error) : error
    }
  }
}

function inSheet({ name }: Sheet, { code, line, message }: InvalidFile): InvalidFile {
  return new InvalidFile(code, line, `The sheet '${name.slice(0, 100)}': ${message}`)
}
