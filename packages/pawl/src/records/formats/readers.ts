// Which reader a format has.

import { PawlError, shown } from '../../errors.ts'
import { refused } from '../../kernel/options.ts'
import type { SourceRow } from '../rows/reader.ts'
import type { DefinedSet } from '../sets.ts'
import type { Body, FileFormat, Format, UploadOptions } from '../types.ts'
import { InvalidFile, type UploadBytes } from './bytes.ts'
import { readCsv } from './csv.ts'
import { readJson, readNdjson } from './json.ts'
import type { HeaderCheck } from './tabular.ts'

/** Before anything is written: that the set reads this format, and that the options belong to it. */
export function assertReadable(set: DefinedSet, options: UploadOptions): void {
  if (options.format === 'xlsx' && formatOf(set, options.format) === undefined) throw noXlsx(set)
  assertCsvOptions('upload', options)
}

/** A path given as the content would be a file with one column and no rows. */
export function assertBody(set: DefinedSet, body: Body, options: UploadOptions): void {
  if (typeof body === 'string') {
    if (isContent(set, body, options)) return
    const fix = 'For a file pass a stream: createReadStream(path)'
    throw refused('upload', `a string body must be the content of the file, got ${shown(body)}. ${fix}`)
  }
  const isBody = typeof body === 'object' && body !== null && (Symbol.asyncIterator in body || Symbol.iterator in body)
  if (!isBody) throw refused('upload', `body must be a stream, string, Buffer or Uint8Array, got ${shown(body)}`)
}

function isContent(set: DefinedSet, text: string, { format, delimiter = ',' }: UploadOptions): boolean {
  if (format === 'xlsx') return false
  if (text.trim() === '' || text.includes('\n')) return true
  if (format !== 'csv') return /^\s*[[{]/.test(text)
  const names = text.split(delimiter).map((cell) => cell.replaceAll('"', '').trim())
  return names.some((name) => [...set.types.values()].some(({ byName }) => byName.has(name)))
}

export function assertCsvOptions(call: string, options: Pick<UploadOptions, 'format' | 'delimiter' | 'decimal'>): void {
  for (const name of ['delimiter', 'decimal'] as const)
    if (options[name] !== undefined && options.format !== 'csv')
      throw refused(call, `${name} is only for format 'csv', got format '${options.format}'`)
}

export function limitOf(set: DefinedSet, format: Format): { readonly name: string; readonly bytesMax: number } {
  return formatOf(set, format)?.limit ?? { name: 'limits.bytesMax of the record set', bytesMax: set.limits.bytesMax }
}

export function sourceRows(
  set: DefinedSet,
  bytes: UploadBytes,
  { format, delimiter }: UploadOptions,
  ignore: (sheet: string) => void,
): AsyncIterable<readonly SourceRow[]> {
  const { rowCharsMax } = set.limits
  const checkHeader = headerCheck(set, format)
  switch (format) {
    case 'csv':
      return readCsv(bytes.text(), { rowCharsMax, delimiter, checkHeader })
    case 'ndjson':
      return readNdjson(bytes.text(), { rowCharsMax })
    case 'json':
      return readJson(bytes.text(), { rowCharsMax })
    case 'xlsx':
      return formatOf(set, format)!.read({
        chunks: bytes.chunks(),
        rowCharsMax,
        types: new Set(set.types.keys()),
        ignore,
        checkHeader,
      })
  }
}

/** A table without a key column and without rows would say that there are no records, and delete them all where `missing` is 'tombstone'. */
function headerCheck(set: DefinedSet, format: Format): HeaderCheck {
  return ({ index, type }, line) => {
    const types = type === undefined ? [...set.types.values()] : [set.types.get(type)!]
    const needed = types.map(({ key }) => (type === undefined && set.types.size > 1 ? [set.typeColumn, ...key] : key))
    if (needed.some((columns) => columns.every((name) => index.has(name)))) return
    const expected = needed.map((columns) => columns.map((name) => `'${name}'`).join(', ')).join(' or ')
    const found = [...index.keys()].join(', ')
    const other = format === 'csv' && index.size === 1 ? otherDelimiter(found, needed) : undefined
    const fix = other === undefined ? '' : ` Was the file written with another delimiter? Give delimiter: '${other}'.`
    throw new InvalidFile('header', line, `The header must have the column(s) ${expected}, got '${found.slice(0, 200)}'.${fix}`)
  }
}

/** The one that would make the needed columns of a header that was read as a single column. */
function otherDelimiter(header: string, needed: readonly (readonly string[])[]): string | undefined {
  const found = [',', ';', '\t', '|'].find((each) => {
    const names = new Set(header.split(each).map((name) => name.trim()))
    return needed.some((columns) => columns.every((name) => names.has(name)))
  })
  return found === '\t' ? '\\t' : found
}

function formatOf(set: DefinedSet, format: Format): FileFormat | undefined {
  return set.formats.find(({ name }) => name === format)
}

function noXlsx(set: DefinedSet): PawlError {
  return new PawlError(
    'PAWL_CONFIG',
    `upload: the record set '${set.name}' does not accept 'xlsx'. Run npm install saxes yauzl, and pass formats: [xlsx()] to records.define('${set.name}'), with import { xlsx } from 'pawl/records/xlsx'.`,
    { details: { call: 'upload', option: 'format', set: set.name } },
  )
}
