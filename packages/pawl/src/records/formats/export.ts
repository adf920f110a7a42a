// A scope's records as a stream: NDJSON or CSV, all of one commit, a page in memory at a time. What it writes can be uploaded again.

import { PawlError } from '../../errors.ts'
import type { RecordPage } from '../reads.ts'
import { type Decimal, isNumeric } from '../rows/columns.ts'
import { type DefinedSet, type DefinedType, mayHaveOtherColumns } from '../sets.ts'
import type { At, Column, RecordData, RecordVersion, UploadOptions } from '../types.ts'
import { columnsMax } from './tabular.ts'

export interface ExportOptions extends Pick<UploadOptions, 'delimiter' | 'decimal'> {
  readonly format: 'csv' | 'ndjson'
  readonly type?: string
  readonly at?: At
}

export async function* exportRecords(
  set: DefinedSet,
  pagesAt: (at: At | undefined) => AsyncIterable<RecordPage>,
  options: ExportOptions,
): AsyncGenerator<string> {
  const types = typesOf(set, options.type)
  const isCsv = options.format === 'csv'
  const { columns, at } = isCsv ? await csvColumns(set, pagesAt, options, types) : { columns: [], at: options.at }
  const isTyped = set.types.size > 1
  const line = csvLine(options.delimiter ?? ',')
  const row = isCsv ? csvRow(set, columns, isTyped, line, options.decimal) : ndjsonRow(set, isTyped)
  if (isCsv) yield line(isTyped ? [set.typeColumn, ...columns] : columns)
  for await (const page of pagesAt(at)) {
    let text = ''
    for (const item of page.items) {
      const data = dataOf(set, item)
      if (data !== undefined) text += row(item.type, data)
    }
    if (text !== '') yield text
  }
}

function typesOf(set: DefinedSet, type: string | undefined): DefinedType[] {
  if (type === undefined) return [...set.types.values()]
  const found = set.types.get(type)
  if (found === undefined)
    throw new PawlError('PAWL_NOT_FOUND', `The record set '${set.name}' has no type '${type.slice(0, 100)}'.`)
  return [found]
}

/** Records of types that the set does not have any more could not be uploaded again. Of an erased record only the key is left. It is written where a file without it would be refused, and left out elsewhere. */
function dataOf(set: DefinedSet, item: RecordVersion): RecordData | undefined {
  const type = set.types.get(item.type)
  if (type === undefined) return undefined
  if (item.data !== null) return item.data
  if (set.missing !== 'reject') return undefined
  const parts = type.key.length === 1 ? [item.key] : (JSON.parse(item.key) as string[])
  return Object.fromEntries(type.key.map((column, index) => [column, parts[index]]))
}

function ndjsonRow(set: DefinedSet, isTyped: boolean): (type: string, data: RecordData) => string {
  return (type, data) => `${JSON.stringify(isTyped ? { [set.typeColumn]: type, ...data } : data)}\n`
}

function csvRow(
  set: DefinedSet,
  columns: readonly string[],
  isTyped: boolean,
  line: Line,
  decimal: Decimal = '.',
): (type: string, data: RecordData) => string {
  return (type, data) => {
    const declared = set.types.get(type)?.byName
    const cells = columns.map((name) => cellText(data[name], declared?.get(name)?.column, decimal))
    return line(isTyped ? [type, ...cells] : cells)
  }
}

/**
 * The declared columns, and those that records have besides. The header comes first, so where there may be some all records are read
 * twice, as of the same commit.
 */
async function csvColumns(
  set: DefinedSet,
  pagesAt: (at: At | undefined) => AsyncIterable<RecordPage>,
  options: ExportOptions,
  types: readonly DefinedType[],
): Promise<{ columns: string[]; at: At | undefined }> {
  const columns = new Set(types.flatMap((type) => type.names))
  if (!mayHaveOtherColumns(set, types)) return { columns: [...columns], at: options.at }
  const isDeclared = new Set(columns)
  let { at } = options
  for await (const { items, number } of pagesAt(options.at)) {
    if (number !== undefined) at = { number }
    for (const item of items) {
      for (const [name, value] of Object.entries(item.data ?? {})) {
        if (isDeclared.has(name)) continue
        if (set.unknownColumns === 'keep' && !isCell(name, value))
          throw notCsv(`the field '${name.slice(0, 100)}' of the ${item.type} '${item.key.slice(0, 100)}' does not fit in a cell`)
        if (columns.add(name).size > columnsMax) throw notCsv(`there are more than ${columnsMax} columns`)
      }
    }
  }
  return { columns: [...columns], at }
}

/** Whether a column that is not declared would be read as it was. */
function isCell(name: string, value: unknown): boolean {
  return name !== '' && name === name.trim() && !/\r(?!\n)/.test(name) && typeof value === 'string'
}

function notCsv(why: string): PawlError {
  return new PawlError('PAWL_CONFIG', `These records cannot be written as CSV: ${why}. Export them as ndjson.`)
}

function cellText(value: unknown, column: Column | undefined, decimal: Decimal): string {
  if (value === undefined || value === null) return ''
  if (typeof value !== 'string' || column?.type === 'json') return JSON.stringify(value)
  return column !== undefined && isNumeric(column) ? value.replace('.', decimal) : value
}

type Line = (cells: readonly string[]) => string

function csvLine(delimiter: string): Line {
  const cell = (text: string) =>
    text.includes(delimiter) || /["\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
  return (cells) => `${cells.map(cell).join(delimiter)}\r\n`
}
