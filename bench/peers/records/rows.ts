// The rows of the benchmark: loads of waste with 30 fields, about 900 bytes as JSON, the same every time. An edition of a row differs from
// another in three of its fields.

import { readFileSync } from 'node:fs'
import type { RecordSetOptions } from 'pawl'

const materials = ['paper', 'glass', 'plastic', 'steel', 'wood', 'aluminium']
const weight = { type: 'number', min: 0, max: 100_000, scale: 3 } as const
const postcode = { type: 'text', pattern: /^[A-Z]{2}\d{1,2} \d[A-Z]{2}$/ } as const

/** Every kind of rule that columns can have is among them. */
export const loads: RecordSetOptions = {
  scope: ['registration'],
  types: {
    load: {
      key: 'rowId',
      columns: {
        rowId: 'text',
        dateOfLoad: { type: 'date', required: true },
        material: { type: 'text', required: true, oneOf: materials },
        ewcCode: { type: 'text', pattern: /^\d{2} \d{2} \d{2}$/ },
        description: { type: 'text', charsMax: 500 },
        grossWeight: weight,
        tareWeight: weight,
        palletWeight: weight,
        netWeight: { ...weight, required: true },
        weighbridgeTicket: 'text',
        carrierName: 'text',
        carrierRegistration: 'text',
        vehicle: 'text',
        isHazardous: 'boolean',
        recyclableProportion: { type: 'number', min: 0, max: 1 },
        supplierName: 'text',
        supplierAddress: 'text',
        supplierPostcode: postcode,
        supplierPhone: 'text',
        supplierEmail: 'text',
        supplierReference: 'integer',
        siteName: 'text',
        process: 'text',
        outputProduct: 'text',
        lossWeight: weight,
        destinationName: 'text',
        destinationPostcode: postcode,
        isExport: 'boolean',
        receivedAt: 'timestamp',
        notes: 'text',
      },
    },
  },
}

export const columns = Object.keys(loads.types.load!.columns)

export interface Content {
  readonly rows: number
  readonly edition: number
  /** Every so many rows are of this edition, the others of the first. */
  readonly changeEvery: number
}

/** The cells of a row in the order of the columns, each as its canonical text. */
function cells(row: number, edition: number): string[] {
  const gross = 20_000 + (row % 7_000)
  const day = `2026-${two(1 + (row % 12))}-${two(1 + (row % 28))}`
  return [
    `row-${String(row).padStart(7, '0')}`,
    day,
    materials[row % materials.length]!,
    `15 01 ${two(1 + (row % 11))}`,
    `Load ${row} of mixed packaging; as collected on round ${row % 90}`,
    thousandths(gross),
    '7.25',
    '0.125',
    thousandths(gross - 7_375 - edition),
    `WB-${row}-${edition}`,
    `Carrier ${row % 40} Limited`,
    `CBDU${100_000 + (row % 40)}`,
    `AB${10 + (row % 90)} CDE`,
    row % 50 === 0 ? 'true' : 'false',
    '0.98',
    `Supplier ${row % 300} and Sons`,
    `${1 + (row % 200)} Station Road`,
    `LS${1 + (row % 28)} 4AB`,
    `0113 496 ${1_000 + (row % 9_000)}`,
    `office${row % 300}@example.com`,
    String(500_000 + (row % 300)),
    `Yard ${row % 12}`,
    'mechanical sorting',
    'bales',
    thousandths(row % 900),
    `Mill ${row % 25}`,
    'HU12 8ZZ',
    row % 7 === 0 ? 'true' : 'false',
    `${day}T${two(row % 24)}:${two(row % 60)}:00.000Z`,
    `checked ${edition} times`,
  ]
}

const two = (value: number) => String(value).padStart(2, '0')

/** A whole number of thousandths as a decimal without zeros at its end. */
function thousandths(value: number): string {
  return String(value / 1_000)
}

const booleans = new Set(['isHazardous', 'isExport'])

export function editionOf({ edition, changeEvery }: Content, row: number): number {
  return row % changeEvery === 0 ? edition : 1
}

/** As a CSV file, some hundred rows at a time. */
export function* csvOf(content: Content): Generator<string> {
  yield `${columns.join(',')}\n`
  for (let from = 0; from < content.rows; from += 500) {
    let text = ''
    for (let row = from; row < Math.min(from + 500, content.rows); row++)
      text += `${cells(row, editionOf(content, row)).join(',')}\n`
    yield text
  }
}

/** The key of a row and its data as JSON: what a table of records has. */
export function* jsonOf(csv: string): Generator<{ readonly key: string; readonly data: string }> {
  const [, ...lines] = readFileSync(csv, 'utf8').trimEnd().split('\n')
  for (const line of lines) {
    const values = line.split(',')
    const fields = columns.map((column, index) => [column, booleans.has(column) ? values[index] === 'true' : values[index]!])
    yield { key: values[0]!, data: JSON.stringify(Object.fromEntries(fields)) }
  }
}
