// The record sets of a storm. A row is its key and a mark; the mark names who wrote it, so one look at a scope says which submissions it is
// made of.

import type { Format, Pawl, RecordSetOptions } from 'pawl'

export const chunkRows = 15
/** How many keys a place has; a file names most of them, so it is applied in several chunks. */
export const keysMax = 80
/** More than one batch of an upload. */
export const bulkRows = 2600

const common = {
  scope: ['place'],
  types: { item: { key: 'rowId', columns: { rowId: 'text', mark: { type: 'text', required: true }, size: 'integer' } } },
  chunkRows,
  // A doomed row that looks like a deadlock is given up soon; whatever the faults of a storm do to one submission is not.
  retry: { attempts: 4, initialMs: 10, maxMs: 100 },
} as const satisfies RecordSetOptions

export const sets = {
  kept: { ...common, missing: 'keep', events: 'submission' },
  whole: { ...common, missing: 'tombstone', events: 'record' },
  bulk: { ...common, missing: 'keep', events: 'submission', chunkRows: 900 },
} as const satisfies Record<string, RecordSetOptions>

export type SetName = keyof typeof sets

/** A scope: one place of a set. */
export interface Place {
  readonly set: SetName
  readonly place: string
}

/** Several submitters race for each of these. */
export const places: readonly Place[] = [
  { set: 'kept', place: 'a' },
  { set: 'kept', place: 'b' },
  { set: 'kept', place: 'f' },
  { set: 'whole', place: 'c' },
  { set: 'whole', place: 'e' },
]
export const bulkPlace: Place = { set: 'bulk', place: 'd' }

export const nameOfPlace = ({ set, place }: Place): string => `${set}/${place}`

export function defineSets(pawl: Pawl): void {
  for (const [name, options] of Object.entries(sets)) pawl.records.define(name, options)
}

/** A row of a file, or null: a record that is deleted. */
export type Marked = readonly [key: string, mark: string | null]

/** The database refuses rows with such a mark until they are mended: for good, or as if it were a deadlock. */
export const isDoomed = (mark: string | null): boolean => mark !== null && /[!?]$/.test(mark)

export const dataOf = (key: string, mark: string) => ({ rowId: key, mark, size: String(mark.length) })

export const keyOf = (index: number): string => `k${String(index).padStart(4, '0')}`

/** The file; a bad one has a cell that is no number. */
export function* fileOf(rows: readonly Marked[], format: Format, isBad = false): Generator<string> {
  const records = rows.map(([key, mark], index) => ({
    ...dataOf(key, mark!),
    ...(isBad && index === rows.length - 1 ? { size: 'many' } : {}),
  }))
  if (format === 'json') {
    yield JSON.stringify(records)
    return
  }
  if (format === 'csv') yield 'rowId,mark,size\n'
  for (let from = 0; from < records.length; from += 50) {
    yield records
      .slice(from, from + 50)
      .map((record) => (format === 'csv' ? `${record.rowId},${record.mark},${record.size}\n` : `${JSON.stringify(record)}\n`))
      .join('')
  }
}
