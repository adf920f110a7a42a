// Rows as JSON: NDJSON, one object a line; or JSON, one array of objects. Both as streams, and without losing a digit of any number.

import { parseJson } from '../rows/json-text.ts'
import { type RowFault, type SourceRow, shown } from '../rows/reader.ts'
import { InvalidFile, untilInvalid } from './bytes.ts'

export interface JsonLimits {
  readonly rowCharsMax: number
}

export async function* readNdjson(texts: AsyncIterable<string>, limits: JsonLimits): AsyncGenerator<ObjectRow[]> {
  const splitter = new LineSplitter(limits.rowCharsMax)
  for await (const text of texts) yield* untilInvalid<ObjectRow>((rows) => splitter.push(text, rows))
  yield* untilInvalid<ObjectRow>((rows) => splitter.end(rows))
}

class LineSplitter {
  readonly #charsMax: number
  /** The beginning of a line. It is joined once, when the line has ended. */
  #rest: string[] = []
  #restChars = 0
  #line = 0
  #isEmpty = true

  constructor(charsMax: number) {
    this.#charsMax = charsMax
  }

  push(text: string, rows: ObjectRow[]): void {
    let start = 0
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', start)) {
      this.#take(this.#whole(text.slice(start, end)), rows)
      start = end + 1
    }
    if (start < text.length) {
      this.#rest.push(text.slice(start))
      this.#restChars += text.length - start
    }
    // The last character may be the CR of the line's end.
    if (this.#restChars > this.#charsMax + 1) throw this.#tooLong(this.#line + 1)
  }

  end(rows: ObjectRow[]): void {
    this.#take(this.#whole(''), rows)
    // What a pipe leaves that broke before its first byte must not pass for a file that says that there are no records.
    if (this.#isEmpty) throw new InvalidFile('empty', 1, 'The file is empty. To submit no records, send the JSON array [].')
  }

  #whole(end: string): string {
    if (this.#restChars === 0) return end
    const line = this.#rest.join('') + end
    this.#rest = []
    this.#restChars = 0
    return line
  }

  #take(text: string, rows: ObjectRow[]): void {
    this.#line++
    const chars = text.endsWith('\r') ? text.length - 1 : text.length
    if (chars > this.#charsMax) throw this.#tooLong(this.#line)
    if (text.trim() === '') return
    this.#isEmpty = false
    rows.push(objectRow(this.#line, text))
  }

  #tooLong(line: number): InvalidFile {
    return new InvalidFile('row-too-long', line, `The line has more than ${this.#charsMax} characters.`)
  }
}

/** Splits one array into the strings of its elements; each is then read as a line of NDJSON. Its line is its index in the array. */
export async function* readJson(texts: AsyncIterable<string>, limits: JsonLimits): AsyncGenerator<ObjectRow[]> {
  const splitter = new ArraySplitter(limits.rowCharsMax)
  for await (const text of texts) yield* untilInvalid<ObjectRow>((rows) => splitter.push(text, rows))
  splitter.end()
}

class ArraySplitter {
  readonly #charsMax: number
  /** The beginning of an element. It is joined once, when the element has ended. */
  #rest: string[] = []
  #restChars = 0
  readonly #element = new ElementScanner()
  #state: 'before' | 'first' | 'element' | 'after-element' | 'after-comma' | 'after' = 'before'
  #index = 0

  constructor(charsMax: number) {
    this.#charsMax = charsMax
  }

  push(text: string, rows: ObjectRow[]): void {
    let start = 0
    for (let at = 0; at < text.length; at++) {
      const code = text.charCodeAt(at)
      if (this.#state === 'element') {
        if (!this.#element.endsWith(code)) continue
        rows.push(this.#take(text.slice(start, at + 1)))
        this.#state = 'after-element'
      } else if (code !== 32 && code !== 10 && code !== 13 && code !== 9) {
        this.#between(code)
        start = at
      }
    }
    if (this.#state === 'element') this.#keep(text.slice(start))
  }

  #keep(rest: string): void {
    this.#rest.push(rest)
    this.#restChars += rest.length
    if (this.#restChars > this.#charsMax) throw this.#tooLong()
  }

  #take(end: string): ObjectRow {
    if (this.#restChars + end.length > this.#charsMax) throw this.#tooLong()
    const text = this.#rest.join('') + end
    this.#rest = []
    this.#restChars = 0
    return objectRow(++this.#index, text)
  }

  /** Anything but space outside an element. */
  #between(code: number): void {
    const state = this.#state
    if (state === 'before' && code === 91) this.#state = 'first'
    else if ((state === 'first' || state === 'after-element') && code === 93) this.#state = 'after'
    else if (state === 'after-element' && code === 44) this.#state = 'after-comma'
    else if ((state === 'first' || state === 'after-comma') && code === 123) {
      this.#state = 'element'
      this.#element.begin()
    } else
      throw new InvalidFile(
        'json',
        this.#index + 1,
        `Expected an array of objects, got '${String.fromCharCode(code)}' after element ${this.#index}.`,
      )
  }

  end(): void {
    if (this.#state !== 'after')
      throw new InvalidFile('json', this.#index + 1, `The array is incomplete: the file ends after element ${this.#index}.`)
  }

  #tooLong(): InvalidFile {
    const number = this.#index + 1
    return new InvalidFile('row-too-long', number, `Element ${number} has more than ${this.#charsMax} characters.`)
  }
}

/** Finds the end of an object, one character after another, wherever the chunks end. */
class ElementScanner {
  #depth = 0
  #isInString = false
  #isEscaped = false

  /** Its first brace has come. */
  begin(): void {
    this.#depth = 1
  }

  endsWith(code: number): boolean {
    if (this.#isInString) {
      if (this.#isEscaped) this.#isEscaped = false
      else if (code === 92) this.#isEscaped = true
      else if (code === 34) this.#isInString = false
    } else if (code === 34) this.#isInString = true
    else if (code === 123 || code === 91) this.#depth++
    else if (code === 125 || code === 93) return --this.#depth === 0
    return false
  }
}

function objectRow(line: number, text: string): ObjectRow {
  let value: unknown
  try {
    value = parseJson(text)
  } catch (error) {
    throw new InvalidFile(
      'json',
      line,
      `Invalid JSON: ${error instanceof Error ? error.message.slice(0, 200) : 'it cannot be read'}.`,
    )
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return new ObjectRow(line, {}, { code: 'object', reason: 'the row must be an object', column: null, value: shown(text) })
  return new ObjectRow(line, value as Record<string, unknown>, undefined)
}

export class ObjectRow implements SourceRow {
  readonly line: number
  readonly fault: RowFault | undefined
  readonly type = undefined
  readonly #value: Readonly<Record<string, unknown>>

  constructor(line: number, value: Readonly<Record<string, unknown>>, fault?: RowFault) {
    this.line = line
    this.#value = value
    this.fault = fault
  }

  get(column: string): unknown {
    return Object.hasOwn(this.#value, column) ? this.#value[column] : undefined
  }

  values(columns: readonly { readonly name: string }[]): readonly unknown[] {
    return columns.map(({ name }) => this.get(name))
  }

  others(known: ReadonlyMap<string, unknown>): readonly string[] {
    const found: string[] = []
    for (const name of Object.keys(this.#value)) {
      const value = this.#value[name]
      if (!known.has(name) && value !== undefined && value !== null && value !== '') found.push(name)
    }
    return found
  }
}
