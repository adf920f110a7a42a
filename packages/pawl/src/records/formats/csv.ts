// CSV by RFC 4180, as a stream: quotes, doubled quotes, line breaks inside quotes, CRLF or LF, and a header that names the columns. A row
// without a quote is split by the engine's own split; only rows with one are walked.

import { InvalidFile, untilInvalid } from './bytes.ts'
import { Header, type HeaderCheck, type TabularRow } from './tabular.ts'

export interface CsvOptions {
  readonly rowCharsMax: number
  /** One character. Default ','. */
  readonly delimiter?: string | undefined
  readonly checkHeader?: HeaderCheck
}

/** Rows in the chunks that arrive: a promise per row would cost more than its cells. */
export async function* readCsv(texts: AsyncIterable<string>, options: CsvOptions): AsyncGenerator<TabularRow[]> {
  let header: Header | undefined
  for await (const rows of readCells(texts, options)) {
    const first = header === undefined ? 1 : 0
    header ??= headerOf(rows[0]!, options.checkHeader)
    yield rowsOf(header, rows, first)
  }
  if (header === undefined) throw new InvalidFile('empty', 1, 'The file is empty: it has no header.')
}

/** The same without a header: the cells of each row that has any. */
export async function* readCells(
  texts: AsyncIterable<string>,
  { rowCharsMax, delimiter = ',' }: CsvOptions,
): AsyncGenerator<readonly CsvRow[]> {
  const scanner = new CsvScanner(rowCharsMax, delimiter)
  for await (const text of texts) yield* untilInvalid<CsvRow>((rows) => scanner.push(text, rows))
  yield* untilInvalid<CsvRow>((rows) => scanner.end(rows))
}

function headerOf({ cells, line }: CsvRow, check: HeaderCheck | undefined): Header {
  const header = new Header(cells, line)
  check?.(header, line)
  return header
}

function rowsOf(header: Header, rows: readonly CsvRow[], first: number): TabularRow[] {
  const found: TabularRow[] = []
  for (let index = first; index < rows.length; index++) found.push(header.row(rows[index]!.line, rows[index]!.cells))
  return found
}

export interface CsvRow {
  readonly line: number
  readonly cells: string[]
}

class CsvScanner {
  readonly #rowCharsMax: number
  readonly #delimiter: string
  readonly #delimiterCode: number
  /** Begins with a row whose end has not come. */
  #rest: string[] = []
  #restChars = 0
  /** The rest is scanned again when it has this many characters. */
  #scanChars = 0
  #line = 1

  constructor(rowCharsMax: number, delimiter: string) {
    this.#rowCharsMax = rowCharsMax
    this.#delimiter = delimiter
    this.#delimiterCode = delimiter.charCodeAt(0)
  }

  push(text: string, rows: CsvRow[]): void {
    this.#rest.push(text)
    this.#restChars += text.length
    if (this.#restChars >= this.#scanChars) this.#scan(this.#rest.join(''), false, rows)
  }

  end(rows: CsvRow[]): void {
    if (this.#restChars > 0) this.#scan(this.#rest.join(''), true, rows)
  }

  #scan(text: string, isEnd: boolean, rows: CsvRow[]): void {
    let at = 0
    // Searched again only after the last one: most files have few, and some have none.
    let quote = text.indexOf('"')
    while (at < text.length) {
      const newline = text.indexOf('\n', at)
      if (quote >= 0 && quote < at) quote = text.indexOf('"', at)
      if (quote >= 0 && (newline < 0 || quote < newline)) {
        const next = this.#quoted(text, at, isEnd, rows)
        if (next === undefined) break
        at = next
        continue
      }
      if (newline < 0 && !isEnd) break
      const lineEnd = newline < 0 ? text.length : newline
      const end = text.charCodeAt(lineEnd - 1) === 13 && lineEnd > at ? lineEnd - 1 : lineEnd
      if (end - at > this.#rowCharsMax) throw this.#tooLong()
      this.#add(rows, text.slice(at, end).split(this.#delimiter))
      this.#line++
      at = lineEnd + 1
    }
    this.#keep(text.slice(at))
  }

  /** Scanning an open row again only when it has doubled makes a row that trickles in cost linear time. */
  #keep(rest: string): void {
    // The last character may be the CR of the row's end.
    if (rest.length > this.#rowCharsMax + 1) throw this.#tooLong()
    this.#rest = rest === '' ? [] : [rest]
    this.#restChars = rest.length
    this.#scanChars = rest.length * 2
  }

  /** Walks one row that has a quote. Returns where the next begins, or undefined when the row's end has not come yet. */
  #quoted(text: string, start: number, isEnd: boolean, rows: CsvRow[]): number | undefined {
    const cells: string[] = []
    let lines = 1
    let at = start
    for (;;) {
      if (text[at] === '"') {
        const cell = this.#quotedCell(text, start, at, isEnd)
        if (cell === undefined) return undefined
        cells.push(cell.value)
        lines += cell.lines
        at = cell.end
      } else {
        const end = this.#nextBreak(text, at)
        const value = text.slice(at, end)
        const bare = value.endsWith('\r') && text[end] !== this.#delimiter ? value.slice(0, -1) : value
        const quote = bare.indexOf('"')
        if (quote >= 0) {
          const reason = `An unquoted cell contains a quote: ${bare.slice(0, 40)}`
          throw this.#wrongQuote(at + quote - start, reason)
        }
        cells.push(bare)
        at = end
      }
      if (text[at] === this.#delimiter) {
        at++
        continue
      }
      if (at >= text.length && !isEnd) return undefined
      if (endOfRow(text, at) - start > this.#rowCharsMax) throw this.#tooLong()
      this.#add(rows, cells)
      this.#line += lines
      return text[at] === '\r' ? at + 2 : at + 1
    }
  }

  #quotedCell(
    text: string,
    rowStart: number,
    start: number,
    isEnd: boolean,
  ): { value: string; end: number; lines: number } | undefined {
    let at = start + 1
    let value = ''
    for (;;) {
      const quote = text.indexOf('"', at)
      if (quote < 0) {
        if (!isEnd) return undefined
        const reason = 'A quoted cell of this row has no closing quote.'
        throw this.#wrongQuote(text.length - rowStart, reason)
      }
      value += text.slice(at, quote)
      if (text[quote + 1] === '"') {
        value += '"'
        at = quote + 2
        continue
      }
      // The character after it decides, so it must have come.
      if (quote + 1 >= text.length && !isEnd) return undefined
      if (text[quote + 1] === '\r' && quote + 2 >= text.length && !isEnd) return undefined
      const follows = text[quote + 1]
      const isClosed =
        follows === undefined ||
        follows === this.#delimiter ||
        follows === '\n' ||
        (follows === '\r' && (text[quote + 2] ?? '\n') === '\n')
      if (!isClosed) {
        const reason = `A closing quote must be followed by the delimiter or the end of the row, got '${follows}'.`
        throw this.#wrongQuote(quote + 1 - rowStart, reason)
      }
      return { value, end: quote + 1, lines: count(value, '\n') }
    }
  }

  #nextBreak(text: string, at: number): number {
    for (let index = at; index < text.length; index++) {
      const code = text.charCodeAt(index)
      if (code === this.#delimiterCode || code === 10) return index
    }
    return text.length
  }

  /** A row of nothing, or of nothing but delimiters, says nothing, and many programs end a file with some. */
  #add(rows: CsvRow[], cells: string[]): void {
    if (cells.some((cell) => cell !== '')) rows.push({ line: this.#line, cells })
  }

  /** `chars` of the row come before it: past the limit the row is too long, however the chunks were cut. */
  #wrongQuote(chars: number, reason: string): InvalidFile {
    return chars > this.#rowCharsMax ? this.#tooLong() : new InvalidFile('quote', this.#line, reason)
  }

  #tooLong(): InvalidFile {
    return new InvalidFile(
      'row-too-long',
      this.#line,
      `The row that starts here has more than ${this.#rowCharsMax} characters; a closing quote may be missing.`,
    )
  }
}

/** Where a row ends whose last cell ends here: before the CR of its line break, if it has one. */
function endOfRow(text: string, at: number): number {
  return at > 0 && text[at] !== '\r' && text[at - 1] === '\r' ? at - 1 : at
}

function count(text: string, what: string): number {
  let found = 0
  for (let at = text.indexOf(what); at >= 0; at = text.indexOf(what, at + 1)) found++
  return found
}
