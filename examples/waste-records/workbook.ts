// A summary log as the workbook that people fill in: a sheet for each type of record, with dates, numbers and booleans as Excel has them.

import ExcelJS from 'exceljs'
import { type LogOptions, type LogRow, logRows } from './summary-logs.ts'

export async function summaryWorkbook(rows: number, options: LogOptions): Promise<Buffer> {
  const book = new ExcelJS.Workbook()
  book.addWorksheet('Notes').addRow(['Fill in one row for each load.'])
  const sheets = new Map<string, ExcelJS.Worksheet>()
  for (const row of logRows(rows, options)) {
    const { recordType, ...cells } = row
    const sheet = sheets.get(recordType) ?? newSheet(book, recordType, Object.keys(cells))
    sheets.set(recordType, sheet)
    sheet.addRow(excelCells(cells as LogRow))
  }
  return Buffer.from(await book.xlsx.writeBuffer())
}

function newSheet(book: ExcelJS.Workbook, name: string, columns: readonly string[]): ExcelJS.Worksheet {
  const sheet = book.addWorksheet(name)
  sheet.columns = columns.map((column) => ({
    header: column,
    key: column,
    ...(column === 'dateOfLoad' ? { style: { numFmt: 'dd/mm/yyyy' } } : {}),
  }))
  return sheet
}

function excelCells(row: LogRow): Record<string, ExcelJS.CellValue> {
  const cells = Object.entries(row).map(([column, value]): [string, ExcelJS.CellValue] => {
    if (column === 'dateOfLoad') return [column, new Date(`${value}T00:00:00Z`)]
    if (column === 'isHazardous') return [column, value === 'yes']
    return [column, column.endsWith('Weight') ? Number(value) : value]
  })
  return Object.fromEntries(cells)
}
