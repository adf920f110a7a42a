// The record set of the example: summary logs of reprocessors, with three types of waste record for each registration of an organisation.

import type { Column, ColumnType, Pawl, RecordSet } from 'pawl'
import { xlsx } from 'pawl/records/xlsx'

type Columns = Readonly<Record<string, ColumnType | Column>>

const tonnage: Column = { type: 'number', min: 0, max: 100_000, scale: 3 }
const code: Column = { type: 'text', pattern: /^\d{2} \d{2} \d{2}$/ }

/** What every row has, of whatever type. */
const shared: Columns = {
  rowId: 'integer',
  dateOfLoad: { type: 'date', required: true },
  material: { type: 'text', required: true, oneOf: ['paper', 'glass', 'plastic', 'steel', 'wood', 'aluminium'] },
  ewcCode: code,
  description: 'text',
  grossWeight: tonnage,
  tareWeight: tonnage,
  palletWeight: tonnage,
  netWeight: { ...tonnage, required: true },
  weighbridgeTicket: 'text',
  carrierName: 'text',
  carrierRegistration: 'text',
  vehicle: 'text',
  isHazardous: 'boolean',
  recyclableProportion: { type: 'number', min: 0, max: 1 },
  notes: 'text',
}

export function defineWasteRecords(pawl: Pawl): RecordSet {
  return pawl.records.define('waste-records', {
    scope: ['organisation', 'registration'],
    attributes: ['accreditation'],
    typeColumn: 'recordType',
    // A row that was submitted once may not be left out of a later log.
    missing: 'reject',
    // Besides CSV, NDJSON and JSON.
    formats: [xlsx()],
    types: {
      received: {
        key: 'rowId',
        columns: { ...shared, supplierName: 'text', supplierPostcode: 'text', supplierReference: 'text' },
      },
      processed: { key: 'rowId', columns: { ...shared, process: 'text', outputProduct: 'text', lossWeight: tonnage } },
      sentOn: { key: 'rowId', columns: { ...shared, destinationName: 'text', destinationPostcode: 'text', isExport: 'boolean' } },
    },
    classify: ({ data }) => (data.isHazardous === true ? 'excluded' : 'included'),
    tuning: { chunkRows: 1000 },
  })
}

const materials = ['paper', 'glass', 'plastic', 'steel', 'wood', 'aluminium']
const types = ['received', 'processed', 'sentOn']

export interface LogOptions {
  /** Every n-th row has its weight corrected. */
  readonly correct?: number
  /** This row has a day that does not exist. */
  readonly spoil?: number
  readonly notes?: string
}

export interface LogRow {
  readonly recordType: string
  readonly [column: string]: string | number
}

/** Rows as a spreadsheet would have them: the same every time. */
export function* logRows(rows: number, options: LogOptions = {}): Generator<LogRow> {
  for (let row = 0; row < rows; row++) {
    const gross = 20 + (row % 700) / 100
    const isCorrected = options.correct !== undefined && row % options.correct === 0
    yield {
      recordType: types[row % 3]!,
      rowId: 10_000 + row,
      dateOfLoad:
        row === options.spoil
          ? '2026-13-01'
          : `2026-${String((row % 12) + 1).padStart(2, '0')}-${String((row % 28) + 1).padStart(2, '0')}`,
      material: materials[row % 6]!,
      ewcCode: '15 01 01',
      description: `Load ${row} of mixed packaging, "as collected"`,
      grossWeight: gross.toFixed(3),
      tareWeight: '7.250',
      palletWeight: 0.125,
      netWeight: (gross - 7.375 - (isCorrected ? 0.1 : 0)).toFixed(3),
      weighbridgeTicket: `WB-${row}`,
      carrierName: `Carrier ${row % 40}`,
      carrierRegistration: `CBDU${100_000 + (row % 40)}`,
      vehicle: `AB${row % 100} CDE`,
      isHazardous: row % 50 === 0 ? 'yes' : 'no',
      recyclableProportion: 0.98,
      ...(options.notes === undefined ? {} : { notes: options.notes }),
    }
  }
}

/** The same as NDJSON. */
export function* summaryLog(rows: number, options: LogOptions = {}): Generator<string> {
  for (const row of logRows(rows, options)) yield `${JSON.stringify(row)}\n`
}
