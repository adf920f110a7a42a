// A scope's records as a stream: NDJSON or CSV, all of one commit, a page in memory at a time.

import { PawlError } from '../errors.ts'
import type { RecordsCore } from './core.ts'
import { listRecords, type ReadPlace } from './reads.ts'
import type { At, RecordVersion } from './types.ts'

export interface ExportOptions {
  readonly format: 'csv' | 'ndjson'
  readonly type?: string
  readonly at?: At
}

const pageRows = 1000

export async function* exportRecords(core: RecordsCore, place: ReadPlace, options: ExportOptions): AsyncGenerator<string> {
  const write = options.format === 'csv' ? csvWriter(place, options.type) : ndjsonWriter(place)
  if (write.header !== '') yield write.header
  let after: string | undefined
  do {
    const page = await listRecords(core, place, {
      limit: pageRows,
      ...(options.type === undefined ? {} : { type: options.type }),
      ...(options.at === undefined ? {} : { at: options.at }),
      ...(after === undefined ? {} : { after }),
    })
    let text = ''
    for (const item of page.items) text += write.row(item)
    if (text !== '') yield text
    after = page.next
  } while (after !== undefined)
}

interface Writer {
  readonly header: string
  row(item: RecordVersion): string
}

/** What it writes can be uploaded again: the same columns, and the type where there are several. */
function ndjsonWriter({ set }: ReadPlace): Writer {
  const isTyped = set.types.size > 1
  return {
    header: '',
    row: (item) => `${JSON.stringify(isTyped ? { [set.typeColumn]: item.type, ...item.data } : (item.data ?? {}))}\n`,
  }
}

function csvWriter({ set }: ReadPlace, type: string | undefined): Writer {
  const types = type === undefined ? [...set.types.values()] : [set.types.get(type)]
  if (types.includes(undefined)) throw new PawlError('PAWL_NOT_FOUND', `The record set '${set.name}' has no type '${type}'.`)
  const columns = [...new Set(types.flatMap((each) => each!.columns.map((column) => column.name)))]
  const isTyped = set.types.size > 1
  const names = isTyped ? [set.typeColumn, ...columns] : columns
  return {
    header: `${names.map(csvCell).join(',')}\r\n`,
    row: (item) => {
      const cells = columns.map((name) => csvCell(cellText(item.data?.[name])))
      return `${(isTyped ? [csvCell(item.type), ...cells] : cells).join(',')}\r\n`
    },
  }
}

function cellText(value: unknown): string {
  if (value === undefined || value === null) return ''
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function csvCell(text: string): string {
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}
