// The rows of a sheet, in turns. A row or cell that comes before its predecessor, or twice, is refused: programs would not agree on its value.

import type { SourceRow } from '../../rows/reader.ts'
import { InvalidFile } from '../bytes.ts'
import { Header, type HeaderCheck } from '../tabular.ts'
import { type CellContext, cellValue } from './cells.ts'
import type { Sheet } from './workbook.ts'
import { type Attributes, type Shape, walkXml } from './xml.ts'
import type { Parts } from './zip.ts'

const cellsMax = 16_384
/** More rows than any program has in one sheet. */
const rowNumberMax = 16_777_216
/** Rows that are passed on at once, or fewer if they are long. */
const turnRows = 500
const turnChars = 1_000_000

export interface SheetOptions {
  /** What the rows are, where the sheet is named after it. */
  readonly type: string | undefined
  /** The last line of the sheets before it. */
  readonly offset: number
  readonly rowCharsMax: number
  readonly partCharsMax: number
  readonly checkHeader: HeaderCheck
}

export async function* readSheet(
  parts: Parts,
  sheet: Sheet,
  context: CellContext,
  options: SheetOptions,
): AsyncGenerator<readonly SourceRow[]> {
  const rows = new SheetRows(context, options)
  for await (const _chunk of walkXml(parts.read(sheet.path), sheet.path, { worksheet: rows.shape }, options.partCharsMax))
    if (rows.isTurn) yield rows.take()
  rows.assertWhole()
  yield rows.take()
}

class SheetRows {
  readonly #context: CellContext
  readonly #options: SheetOptions
  #header: Header | undefined
  #rows: SourceRow[] = []
  #chars = 0
  readonly #row: RowCells
  #hasData = false

  constructor(context: CellContext, options: SheetOptions) {
    this.#context = context
    this.#options = options
    this.#row = new RowCells(options)
  }

  get shape(): Shape {
    const row = this.#row
    const inline: Shape = { text: (text) => row.addInline(text) }
    const cell: Shape = {
      open: (attributes) => row.openCell(attributes),
      inside: {
        v: { text: (text) => row.addValue(text) },
        f: { open: () => row.openFormula(), text: (text) => row.addFormula(text) },
        // Runs of rich text, but not `rPh`, which says how the text is read aloud.
        is: { inside: { t: inline, r: { inside: { t: inline } } } },
      },
      close: () => row.closeCell(this.#context),
    }
    const rows: Shape = { open: (attributes) => row.open(attributes), inside: { c: cell }, close: () => this.#take() }
    return { inside: { sheetData: { open: () => this.#openData(), inside: { row: rows } } } }
  }

  get isTurn(): boolean {
    return this.#rows.length >= turnRows || this.#chars >= turnChars
  }

  take(): readonly SourceRow[] {
    const rows = this.#rows
    this.#rows = []
    this.#chars = 0
    return rows
  }

  assertWhole(): void {
    if (!this.#hasData) throw new InvalidFile('xlsx', this.#options.offset, 'It has no <sheetData>.')
    if (this.#header === undefined) throw new InvalidFile('empty', this.#options.offset, 'It is empty: it has no header.')
  }

  #openData(): void {
    if (this.#hasData) throw new InvalidFile('xlsx', this.#row.line, 'It has <sheetData> twice.')
    this.#hasData = true
  }

  #take(): void {
    const { cells, line, number, chars } = this.#row
    const { type, checkHeader } = this.#options
    if (cells.every((cell) => cell === undefined || cell === '')) return
    if (this.#header === undefined) {
      this.#header = new Header(cells, line, type)
      checkHeader(this.#header, line)
      return
    }
    this.#rows.push(this.#header.row(line, cells, type === undefined ? undefined : `row ${number} of the sheet '${type}'`))
    this.#chars += chars
  }
}

/** The row that is being read. */
class RowCells {
  readonly #options: SheetOptions
  number = 0
  cells: unknown[] = []
  chars = 0
  #cell: { attributes: Attributes; place: number; value: string; inline: string; formula: string | undefined } = {
    attributes: {},
    place: 0,
    value: '',
    inline: '',
    formula: undefined,
  }

  constructor(options: SheetOptions) {
    this.#options = options
  }

  get line(): number {
    return this.#options.offset + this.number
  }

  /** Rows may leave numbers out and may leave out their own number. */
  open({ r }: Attributes): void {
    const number = r === undefined ? this.number + 1 : /^\d{1,8}$/.test(r) ? Number(r) : 0
    if (number <= this.number || number > rowNumberMax)
      throw this.#malformed(`Row ${(r ?? String(number)).slice(0, 20)} follows row ${this.number}.`)
    this.number = number
    this.cells = []
    this.chars = 0
  }

  openCell(attributes: Attributes): void {
    const place = attributes.r === undefined ? this.cells.length : columnOf(attributes.r)
    if (place === undefined || place < this.cells.length)
      throw this.#malformed(`Cell '${attributes.r!.slice(0, 20)}' cannot follow cell ${this.cells.length} of row ${this.number}.`)
    if (place >= cellsMax) throw this.#malformed(`A row has more than ${cellsMax} cells.`)
    this.#cell = { attributes, place, value: '', inline: '', formula: undefined }
  }

  addValue(text: string): void {
    this.#cell.value += text
  }

  addInline(text: string): void {
    this.#cell.inline += text
  }

  openFormula(): void {
    this.#cell.formula = ''
  }

  addFormula(text: string): void {
    this.#cell.formula += text
  }

  closeCell(context: CellContext): void {
    const { attributes, place, value, inline, formula } = this.#cell
    const cell = cellValue({ type: attributes.t, style: attributes.s, value, inline, formula }, context, this.line)
    while (this.cells.length < place) this.cells.push(undefined)
    this.cells.push(cell)
    this.chars += typeof cell === 'string' ? cell.length : value.length
    const { rowCharsMax } = this.#options
    if (this.chars > rowCharsMax)
      throw new InvalidFile('row-too-long', this.line, `A row has more than ${rowCharsMax} characters.`)
  }

  #malformed(reason: string): InvalidFile {
    return new InvalidFile('xlsx', this.line, `${reason} Re-save the workbook.`)
  }
}

/** Of 'AB12', from 0; undefined where it is no reference. */
function columnOf(reference: string): number | undefined {
  const letters = /^([A-Z]{1,3})\d*$/.exec(reference)?.[1]
  if (letters === undefined) return undefined
  let column = 0
  for (const letter of letters) column = column * 26 + letter.charCodeAt(0) - 64
  return column - 1
}
