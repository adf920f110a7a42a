// CSV by RFC 4180, as a stream: quotes, doubled quotes, line breaks inside quotes, CRLF or LF, and a header that names the columns. A row
// without a quote is split by the engine's own split; only rows with one are walked.

import { Malformed } from './bytes.ts'
import { Header, type TabularRow } from './tabular.ts'

export interface CsvLimits {
  readonly rowCharsMax: number
}

/** Rows in the chunks that arrive, so that nobody waits for a promise per row. */
export async function* readCsv(texts: AsyncIterable<string>, limits: CsvLimits): AsyncGenerator<TabularRow[]> {
  const scanner = new CsvScanner(limits.rowCharsMax)
  let header: Header | undefined
  for await (const text of texts) {
    const rows = scanner.push(text)
    if (rows.length === 0) continue
    const first = header === undefined ? 1 : 0
    header ??= new Header(rows[0]!.cells, rows[0]!.line)
    yield rowsOf(header, rows, first)
  }
  const rows = scanner.end()
  if (rows.length > 0) {
    const first = header === undefined ? 1 : 0
    header ??= new Header(rows[0]!.cells, rows[0]!.line)
    yield rowsOf(header, rows, first)
  }
  if (header === undefined) throw new Malformed('empty', 1, 'The file is empty: it has no header.')
}

function rowsOf(header: Header, rows: readonly CsvRow[], first: number): TabularRow[] {
  const found: TabularRow[] = []
  for (let index = first; index < rows.length; index++) found.push(header.row(rows[index]!.line, rows[index]!.cells))
  return found
}

interface CsvRow {
  readonly line: number
  readonly cells: string[]
}

class CsvScanner {
  readonly #rowCharsMax: number
  #rest = ''
  #line = 1

  constructor(rowCharsMax: number) {
    this.#rowCharsMax = rowCharsMax
  }

  push(text: string): CsvRow[] {
    return this.#scan(this.#rest + text, false)
  }

  end(): CsvRow[] {
    return this.#rest === '' ? [] : this.#scan(this.#rest, true)
  }

  #scan(text: string, isEnd: boolean): CsvRow[] {
    const rows: CsvRow[] = []
    let at = 0
    // Looked for again only behind the last one: most files have few, and some have none.
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
      const end = newline < 0 ? text.length : newline
      this.#add(rows, text.slice(at, text.charCodeAt(end - 1) === 13 && end > at ? end - 1 : end).split(','))
      this.#line++
      at = end + 1
    }
    this.#rest = at >= text.length ? '' : text.slice(at)
    if (this.#rest.length > this.#rowCharsMax) throw this.#tooLong()
    return rows
  }

  /** Walks one row that has a quote. Gives where the next begins, or undefined when the row's end has not come yet. */
  #quoted(text: string, start: number, isEnd: boolean, rows: CsvRow[]): number | undefined {
    const cells: string[] = []
    let lines = 1
    let at = start
    for (;;) {
      if (text[at] === '"') {
        const cell = this.#quotedCell(text, at, isEnd)
        if (cell === undefined) return undefined
        cells.push(cell.value)
        lines += cell.lines
        at = cell.end
      } else {
        const end = nextBreak(text, at)
        const value = text.slice(at, end)
        const bare = value.endsWith('\r') && text[end] !== ',' ? value.slice(0, -1) : value
        if (bare.includes('"'))
          throw new Malformed('quote', this.#line, `A cell that is not quoted has a quote in it: ${bare.slice(0, 40)}`)
        cells.push(bare)
        at = end
      }
      if (text[at] === ',') {
        at++
        continue
      }
      if (at >= text.length && !isEnd) return undefined
      this.#add(rows, cells)
      this.#line += lines
      return text[at] === '\r' ? at + 2 : at + 1
    }
  }

  #quotedCell(text: string, start: number, isEnd: boolean): { value: string; end: number; lines: number } | undefined {
    let at = start + 1
    let value = ''
    for (;;) {
      const quote = text.indexOf('"', at)
      if (quote < 0) {
        if (text.length - start > this.#rowCharsMax) throw this.#tooLong()
        if (!isEnd) return undefined
        throw new Malformed('quote', this.#line, 'A quoted cell of this row never ends: its closing quote is missing.')
      }
      value += text.slice(at, quote)
      if (text[quote + 1] === '"') {
        value += '"'
        at = quote + 2
        continue
      }
      // The character behind it decides, so it must have come.
      if (quote + 1 >= text.length && !isEnd) return undefined
      if (text[quote + 1] === '\r' && quote + 2 >= text.length && !isEnd) return undefined
      const follows = text[quote + 1]
      if (
        follows !== undefined &&
        follows !== ',' &&
        follows !== '\n' &&
        !(follows === '\r' && (text[quote + 2] ?? '\n') === '\n')
      )
        throw new Malformed(
          'quote',
          this.#line,
          `A closing quote is followed by '${follows}' and not by a comma or the end of the row.`,
        )
      return { value, end: quote + 1, lines: count(value, '\n') }
    }
  }

  /** A row of nothing, or of nothing but commas, says nothing, and many programs end a file with some. */
  #add(rows: CsvRow[], cells: string[]): void {
    if (cells.some((cell) => cell !== '')) rows.push({ line: this.#line, cells })
  }

  #tooLong(): Malformed {
    return new Malformed(
      'row-too-long',
      this.#line,
      `The row that begins here has more than ${this.#rowCharsMax} characters; a closing quote may be missing.`,
    )
  }
}

function nextBreak(text: string, at: number): number {
  for (let index = at; index < text.length; index++) {
    const code = text.charCodeAt(index)
    if (code === 44 || code === 10) return index
  }
  return text.length
}

function count(text: string, what: string): number {
  let found = 0
  for (let at = text.indexOf(what); at >= 0; at = text.indexOf(what, at + 1)) found++
  return found
}
