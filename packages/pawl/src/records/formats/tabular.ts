// Rows of cells under a header: CSV and sheets of a workbook.

import { asText, dateText } from '../rows/columns.ts'
import { type RowFault, type SourceRow, shown } from '../rows/reader.ts'
import { InvalidFile } from './bytes.ts'

/** Of a header. */
export const columnsMax = 5000

/** Throws InvalidFile when no row under this header could be one of the set. */
export type HeaderCheck = (header: Header, line: number) => void

export class Header {
  readonly names: readonly string[]
  /** Where columns without a name are. */
  readonly nameless: readonly number[]
  readonly index: ReadonlyMap<string, number>
  /** For each set of known columns, where the others are. */
  readonly #others = new WeakMap<ReadonlyMap<string, unknown>, readonly (readonly [name: string, index: number])[]>()
  readonly #places = new WeakMap<readonly { readonly name: string }[], readonly number[]>()
  readonly type: string | undefined

  constructor(cells: readonly unknown[], line: number, type?: string) {
    this.names = cells.map((cell) => nameOf(cell, line))
    this.type = type
    if (cells.length > columnsMax)
      throw new InvalidFile(
        'too-many-columns',
        line,
        `The header has ${cells.length} columns; the limit is ${columnsMax}. Split the file.`,
      )
    for (const name of this.names) assertName(name, line)
    this.nameless = this.names.flatMap((name, at) => (name === '' ? [at] : []))
    const index = new Map<string, number>()
    for (const [at, name] of this.names.entries()) {
      if (name === '') continue
      if (index.has(name)) throw new InvalidFile('header', line, `The header has the column '${name.slice(0, 100)}' twice.`)
      index.set(name, at)
    }
    if (index.size === 0) throw new InvalidFile('header', line, 'The header names no column.')
    this.index = index
  }

  row(line: number, cells: readonly unknown[], place?: string): TabularRow {
    return new TabularRow(this, line, cells, place)
  }

  placesOf(columns: readonly { readonly name: string }[]): readonly number[] {
    let places = this.#places.get(columns)
    if (places === undefined) {
      places = columns.map(({ name }) => this.index.get(name) ?? -1)
      this.#places.set(columns, places)
    }
    return places
  }

  othersThan(known: ReadonlyMap<string, unknown>): readonly (readonly [name: string, index: number])[] {
    let others = this.#others.get(known)
    if (others === undefined) {
      others = [...this.index].filter(([name]) => !known.has(name))
      this.#others.set(known, others)
    }
    return others
  }
}

export class TabularRow implements SourceRow {
  readonly line: number
  readonly place: string | undefined
  readonly isTabular = true
  readonly #header: Header
  readonly #cells: readonly unknown[]

  constructor(header: Header, line: number, cells: readonly unknown[], place: string | undefined) {
    this.#header = header
    this.line = line
    this.place = place
    this.#cells = cells
  }

  get type(): string | undefined {
    return this.#header.type
  }

  get fault(): RowFault | undefined {
    const { names, nameless } = this.#header
    const place = nameless.find((index) => !isEmpty(this.#cells[index]))
    if (place !== undefined) {
      const reason = `cell ${place + 1} has a value, but the header has no name for its column`
      return { code: 'cells', reason, column: null, value: shown(this.#cells[place]) }
    }
    if (this.#cells.length <= names.length) return undefined
    const extra = this.#cells.slice(names.length).findIndex((cell) => cell !== '' && cell !== undefined && cell !== null)
    if (extra < 0) return undefined
    const reason = `the row has ${this.#cells.length} cells, but the header names ${names.length} columns`
    return { code: 'cells', reason, column: null, value: shown(this.#cells[names.length + extra]) }
  }

  get(column: string): unknown {
    const index = this.#header.index.get(column)
    return index === undefined ? undefined : this.#cells[index]
  }

  values(columns: readonly { readonly name: string }[]): readonly unknown[] {
    const places = this.#header.placesOf(columns)
    return places.map((place) => this.#cells[place])
  }

  others(known: ReadonlyMap<string, unknown>): readonly string[] {
    const others = this.#header.othersThan(known)
    if (others.length === 0) return none
    return others.flatMap(([name, index]) => (isEmpty(this.#cells[index]) ? [] : [name]))
  }
}

const none: readonly string[] = []

/** A name that cannot be one shows that the file is not the text that it was taken for. */
function assertName(name: string, line: number): void {
  if (name.includes('\u0000'))
    throw new InvalidFile(
      'header',
      line,
      'The header contains NUL characters: the file may be UTF-16. Save it as UTF-8 and upload it again.',
    )
  if (/\r(?!\n)/.test(name))
    throw new InvalidFile(
      'header',
      line,
      'The header contains a carriage return: lines must end with LF or CRLF. Save the file with these line endings and upload it again.',
    )
}

/** A year may be a number in a workbook's header, and a month a date. */
function nameOf(cell: unknown, line: number): string {
  if (cell === undefined || cell === null) return ''
  if (cell instanceof Error) throw new InvalidFile('header', line, `A cell of the header ${cell.message}.`)
  return (cell instanceof Date ? dateText(cell) : (asText(cell) ?? String(cell))).trim()
}

function isEmpty(cell: unknown): boolean {
  return cell === undefined || cell === null || (typeof cell === 'string' && cell.trim() === '')
}
