// Workbooks as programs write them: by exceljs, and by openpyxl where it can be had.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import ExcelJS from 'exceljs'
import { fromBufferPromise } from 'yauzl'
import type { DebianProgram } from './debian.ts'
import { zip } from './xlsx.ts'

/** A cell for either writer. Moments are in UTC, without a zone. */
export type BookCell =
  | string
  | number
  | boolean
  | null
  | { readonly value: number | boolean | string; readonly format: string }
  | { readonly date: string; readonly format: string }
  | { readonly time: string; readonly format: string }
  | { readonly hours: number; readonly format: string }

export interface Book {
  readonly sheets: readonly { readonly name: string; readonly rows: readonly (readonly BookCell[])[] }[]
  readonly is1904?: boolean
}

export type WriteBook = (book: Book) => Promise<Buffer>

export const byExceljs: WriteBook = async ({ sheets, is1904 = false }) => {
  const book = new ExcelJS.Workbook()
  book.properties.date1904 = is1904
  for (const { name, rows } of sheets) {
    const sheet = book.addWorksheet(name)
    for (const [index, row] of rows.entries())
      for (const [column, cell] of row.entries()) {
        const target = sheet.getCell(index + 1, column + 1)
        target.value = exceljsValue(cell)
        if (typeof cell === 'object' && cell !== null) target.numFmt = cell.format
      }
  }
  return Buffer.from(await book.xlsx.writeBuffer())
}

function exceljsValue(cell: BookCell): ExcelJS.CellValue {
  if (typeof cell === 'string' && cell.startsWith('=')) return { formula: cell.slice(1) } as ExcelJS.CellFormulaValue
  if (typeof cell === 'string' && /^#[A-Z/0!]+$/.test(cell)) return { error: cell } as ExcelJS.CellErrorValue
  if (typeof cell !== 'object' || cell === null) return cell
  if ('date' in cell) return new Date(`${cell.date}Z`)
  if ('hours' in cell) return cell.hours / 24
  if ('time' in cell) return (Date.parse(`1970-01-01T${cell.time}Z`) / 86_400_000) as number
  return cell.value
}

export function byOpenpyxl(openpyxl: DebianProgram): WriteBook {
  const script = fileURLToPath(new URL('./write-workbook.py', import.meta.url))
  return async (book) => {
    if (!openpyxl.ok) throw new Error(openpyxl.missing)
    const child = spawn('python3', [script], { env: { ...process.env, ...openpyxl.env }, stdio: ['pipe', 'pipe', 'inherit'] })
    const written: Buffer[] = []
    child.stdout.on('data', (chunk: Buffer) => written.push(chunk))
    child.stdin.end(JSON.stringify(book))
    const [code] = (await once(child, 'close')) as [number | null]
    if (code !== 0) throw new Error(`openpyxl ended with ${code}.`)
    return Buffer.concat(written)
  }
}

/** The same workbook with one of its parts changed. */
export async function rewritten(book: Buffer, path: string, change: (xml: string) => string): Promise<Buffer> {
  const files: Record<string, Buffer> = {}
  const opened = await fromBufferPromise(book)
  for await (const entry of opened.eachEntry()) {
    if (entry.fileName.endsWith('/')) continue
    const chunks: Buffer[] = []
    for await (const chunk of await opened.openReadStreamPromise(entry)) chunks.push(chunk as Buffer)
    files[entry.fileName] = Buffer.concat(chunks)
  }
  const xml = files[path]!.toString()
  const changed = change(xml)
  if (changed === xml) throw new Error(`Nothing of ${path} was changed.`)
  return zip({ ...files, [path]: Buffer.from(changed) })
}
