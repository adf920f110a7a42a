// Rows as JSON: NDJSON, one object a line; or JSON, one array of objects. Both as streams, and without losing a digit of any number.

import { Malformed } from './bytes.ts'
import { parseJson } from './json-text.ts'
import { type RowFault, type SourceRow, shown } from './rows.ts'

export interface JsonLimits {
  readonly rowCharsMax: number
}

export async function* readNdjson(texts: AsyncIterable<string>, limits: JsonLimits): AsyncGenerator<ObjectRow[]> {
  let rest = ''
  let line = 0
  let isEmpty = true
  const take = (text: string) => {
    line++
    if (text.trim() === '') return undefined
    isEmpty = false
    return objectRow(line, text)
  }
  for await (const text of texts) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    if (rest.length > limits.rowCharsMax)
      throw new Malformed('row-too-long', line + 1, `The line that begins here has more than ${limits.rowCharsMax} characters.`)
    const rows = lines.map(take).filter((row) => row !== undefined)
    if (rows.length > 0) yield rows
  }
  const last = take(rest)
  if (last !== undefined) yield [last]
  // What a pipe leaves that broke before its first byte must not pass for a file that says that there are no records.
  if (isEmpty) throw new Malformed('empty', 1, 'The file is empty. To say that there are no records, send the JSON array [].')
}

/** Splits one array into the texts of its elements; each is then read as a line of NDJSON would be. The line is its place in the array. */
export async function* readJson(texts: AsyncIterable<string>, limits: JsonLimits): AsyncGenerator<ObjectRow[]> {
  const splitter = new ArraySplitter(limits.rowCharsMax)
  for await (const text of texts) {
    const rows = splitter.push(text)
    if (rows.length > 0) yield rows
  }
  splitter.end()
}

class ArraySplitter {
  readonly #charsMax: number
  #rest = ''
  #scanned = 0
  #depth = 0
  #isInString = false
  #state: 'before' | 'first' | 'value' | 'between' | 'after' = 'before'
  #index = 0

  constructor(charsMax: number) {
    this.#charsMax = charsMax
  }

  push(chunk: string): ObjectRow[] {
    const text = this.#rest + chunk
    const rows: ObjectRow[] = []
    let start = 0
    let at = this.#scanned
    for (; at < text.length; at++) {
      const code = text.charCodeAt(at)
      if (this.#state === 'value') {
        if (!this.#closes(code, text, at)) continue
        rows.push(objectRow(++this.#index, text.slice(start, at + 1)))
        this.#state = 'between'
        start = at + 1
        continue
      }
      if (code === 32 || code === 10 || code === 13 || code === 9) start = at + 1
      else start = this.#between(code, at)
    }
    this.#rest = text.slice(start)
    this.#scanned = text.length - start
    if (this.#rest.length > this.#charsMax)
      throw new Malformed(
        'row-too-long',
        this.#index + 1,
        `Element ${this.#index + 1} has more than ${this.#charsMax} characters.`,
      )
    return rows
  }

  /** Whether this character ends the element. */
  #closes(code: number, text: string, at: number): boolean {
    if (this.#isInString) {
      if (code === 34 && !isEscaped(text, at)) this.#isInString = false
    } else if (code === 34) this.#isInString = true
    else if (code === 123 || code === 91) this.#depth++
    else if (code === 125 || code === 93) return --this.#depth === 0
    return false
  }

  /** Anything but space outside an element; gives where the next text begins. */
  #between(code: number, at: number): number {
    const state = this.#state
    if (state === 'before' && code === 91) this.#state = 'first'
    else if ((state === 'first' || state === 'between') && code === 93 && this.#mayEnd) this.#state = 'after'
    else if (state === 'between' && code === 44 && this.#mayEnd) this.#mayEnd = false
    else if ((state === 'first' || (state === 'between' && !this.#mayEnd)) && code === 123) {
      this.#state = 'value'
      this.#mayEnd = true
      this.#depth = 1
      return at
    } else
      throw new Malformed(
        'json',
        this.#index + 1,
        `Expected one array of objects; found '${String.fromCharCode(code)}' after element ${this.#index}.`,
      )
    return at + 1
  }

  #mayEnd = true

  end(): void {
    if (this.#state !== 'after')
      throw new Malformed(
        'json',
        this.#index + 1,
        `The array ends in the middle, after element ${this.#index}: the file was cut short.`,
      )
  }
}

function isEscaped(text: string, at: number): boolean {
  let backslashes = 0
  for (let index = at - 1; index >= 0 && text.charCodeAt(index) === 92; index--) backslashes++
  return backslashes % 2 === 1
}

function objectRow(line: number, text: string): ObjectRow {
  let value: unknown
  try {
    value = parseJson(text)
  } catch (error) {
    throw new Malformed(
      'json',
      line,
      `This is not JSON: ${error instanceof Error ? error.message.slice(0, 200) : 'it cannot be read'}.`,
    )
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return new ObjectRow(line, {}, { code: 'object', reason: 'it must be an object', column: null, value: shown(text) })
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
      if (!known.has(name) && value !== null && value !== '') found.push(name)
    }
    return found
  }
}
