// JSON in and out without losing a digit. Reading: a number that a double would round is kept as its source text. Writing: one canonical
// text per value, with keys in order, so that equal content has an equal hash. A number that is the value of a field is the text of its decimal;
// in a json column, and inside an object or array, a number stays a number unless JavaScript would round it.

import { hash as digest } from 'node:crypto'
import { jsonOf, lossOf } from '../../kernel/payload.ts'
import { canonicalDecimal } from './decimal.ts'

/** A number as its source wrote it, where a double would round it. No text of a file can be one. */
export class ExactNumber {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }

  toJSON(): string {
    return this.text
  }
}

// A run of fewer than 16 digits and points has at most 15 digits, which a double gives back exactly; an exponent may do anything.
const mayRound = /[\d.]{16}|\d[eE]/

/** JSON.parse, but a number that a double would round is an ExactNumber. Throws SyntaxError as JSON.parse does. */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(text)
  return mayRound.test(text) && hasRoundedNumber(text) ? parseExactly(text) : value
}

/** Long digits are more often in strings, in ids for example, than in numbers. */
function hasRoundedNumber(text: string): boolean {
  for (let at = 0; ; ) {
    const quote = text.indexOf('"', at)
    if (mayRound.test(text.slice(at, quote < 0 ? text.length : quote))) return true
    if (quote < 0) return false
    at = endOfString(text, quote)
  }
}

/** The index after the closing quote of the string that begins here. */
export function endOfString(text: string, start: number): number {
  for (let quote = text.indexOf('"', start + 1); ; quote = text.indexOf('"', quote + 1)) {
    let backslashes = 0
    while (text.charCodeAt(quote - 1 - backslashes) === 92) backslashes++
    if (backslashes % 2 === 0) return quote + 1
  }
}

const token = /[\s,:]*(?:([[{])|([\]}])|(-?\d[\d.eE+-]*)|(true|false|null)|(?="))/y

/** Of a string that JSON.parse has accepted. A stack of its own, because a row may be nested as deep as it is long. */
function parseExactly(text: string): unknown {
  const document = new Container([])
  const open = [document]
  token.lastIndex = 0
  while (open.length > 1 || document.isEmpty) {
    const [, opening, closing, number, word] = token.exec(text)!
    const parent = open.at(-1)!
    if (opening !== undefined) open.push(parent.add(new Container(opening === '[' ? [] : {})))
    else if (closing !== undefined) open.pop()
    else if (number !== undefined) parent.add(mayRound.test(number) ? new ExactNumber(number) : Number(number))
    else if (word !== undefined) parent.add(JSON.parse(word))
    else {
      const start = token.lastIndex
      token.lastIndex = endOfString(text, start)
      parent.add(JSON.parse(text.slice(start, token.lastIndex)))
    }
  }
  return (document.value as unknown[])[0]
}

/** An array or object that is being filled. */
class Container {
  readonly value: unknown[] | object
  #name: string | undefined

  constructor(value: unknown[] | object) {
    this.value = value
  }

  get isEmpty(): boolean {
    return Object.keys(this.value).length === 0
  }

  /** The next item, the next name, or the value of the last name. */
  add<Item>(item: Item): Item {
    const value = item instanceof Container ? item.value : item
    if (Array.isArray(this.value)) this.value.push(value)
    else if (this.#name === undefined) this.#name = item as string
    else {
      // By assignment '__proto__' would not become a field.
      Object.defineProperty(this.value, this.#name, { value, writable: true, enumerable: true, configurable: true })
      this.#name = undefined
    }
    return item
  }
}

/** An integer above 2^53 - 1, which may be a rounded one. A file's is an ExactNumber, so this one comes from JavaScript. */
export function isUnsafe(value: unknown): boolean {
  return Number.isInteger(value) && !Number.isSafeInteger(value)
}

export const unsafeReason = 'is an integer that a JavaScript number may have rounded; give it as a string or a bigint'

/** The decimal that a parsed value means if it was a number, canonical; undefined if it was none. */
export function numberText(value: unknown): string | undefined {
  if (typeof value === 'number') return isUnsafe(value) ? undefined : canonicalDecimal(String(value))
  if (typeof value === 'bigint') return String(value)
  return value instanceof ExactNumber ? canonicalDecimal(value.text) : undefined
}

const needsEscape = /["\\\u0000-\u001f\ud800-\udfff]/

/** A string as JSON. Almost every cell takes the first way. */
export function jsonString(text: string): string {
  return needsEscape.test(text) ? JSON.stringify(text) : `"${text}"`
}

/** A value that cannot be stored; the message says why. */
export class Unstorable extends Error {
  override readonly name = 'Unstorable'
}

const depthMax = 32

/** The canonical text of a row. `jsonFields` are its columns of type json. Fields that are null or absent are left out: they are the same thing. */
export function canonicalRow(row: object, jsonFields?: ReadonlySet<string>): string {
  const plain = plainOf(row)
  if (typeof plain !== 'object' || plain === null || plain !== row) return canonicalJson(plain)
  return objectText(plain, (field, name) => (jsonFields?.has(name) ? canonical(field, depthMax - 1) : canonicalField(field)))
}

/** Of a field whose column is not of type json: a number becomes a string. */
export function canonicalField(value: unknown): string {
  const plain = isInstance(value) ? plainOf(value) : value
  return isNumber(plain) ? canonicalNumber(plain) : canonical(plain, depthMax - 1)
}

/** Of a json column: numbers stay numbers. */
export function canonicalJson(value: unknown): string {
  return canonical(value, depthMax)
}

function canonical(value: unknown, depthLeft: number): string {
  if (typeof value === 'string') return storableString(value)
  if (isNumber(value)) return jsonNumber(value)
  if (typeof value === 'boolean') return String(value)
  if (value === null || value === undefined) return 'null'
  if (typeof value !== 'object') throw new Unstorable(`contains a ${typeof value}, which JSON cannot represent`)
  if (value instanceof Error) throw new Unstorable(value.message)
  if (depthLeft === 0) throw new Unstorable('is nested too deeply')
  if (value instanceof Date) return canonicalDate(value)
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item, depthLeft - 1)).join(',')}]`
  const plain = plainOf(value)
  return plain === value ? objectText(value, (field) => canonical(field, depthLeft - 1)) : canonical(plain, depthLeft - 1)
}

function objectText(value: object, text: (field: unknown, name: string) => string): string {
  const fields = Object.keys(value)
    .sort()
    .flatMap((name) => {
      const field = (value as Record<string, unknown>)[name]
      return field === null || field === undefined ? [] : [`${storableString(name)}:${text(field, name)}`]
    })
  return `{${fields.join(',')}}`
}

function isNumber(value: unknown): value is number | bigint | ExactNumber {
  return typeof value === 'number' || typeof value === 'bigint' || value instanceof ExactNumber
}

/** An object that may be something else as JSON. */
function isInstance(value: unknown): value is object {
  return (
    typeof value === 'object' &&
    value !== null &&
    !(value instanceof ExactNumber || value instanceof Date || value instanceof Error)
  )
}

/** What JSON would read in place of an object that is not plain. One of which it would keep nothing is refused, as a job's payload is. */
function plainOf(value: object): unknown {
  const prototype: unknown = Object.getPrototypeOf(value)
  if (prototype === Object.prototype || prototype === null) return value
  const plain = jsonOf(value)
  const loss = plain === value ? lossOf(value) : undefined
  if (loss !== undefined) throw new Unstorable(`contains a value that ${loss}`)
  return plain
}

function canonicalDate(value: Date): string {
  if (Number.isNaN(value.getTime())) throw new Unstorable('contains an invalid date')
  return `"${value.toISOString()}"`
}

function canonicalNumber(value: number | bigint | ExactNumber): string {
  if (isUnsafe(value)) throw new Unstorable(`contains ${value}, which ${unsafeReason}`)
  const text = numberText(value)
  if (text === undefined) throw new Unstorable('contains a number that is not finite or has too many digits')
  return `"${text}"`
}

/** A number where a double is exact, so that JSON.parse gives it back; the text of its digits elsewhere. */
function jsonNumber(value: number | bigint | ExactNumber): string {
  const text = canonicalNumber(value)
  const double = Number(text.slice(1, -1))
  return !isUnsafe(double) && numberText(double) === text.slice(1, -1) ? String(double) : text
}

/** What PostgreSQL cannot store is refused here, with words. */
function storableString(text: string): string {
  if (text.includes('\u0000')) throw new Unstorable('contains a NUL character, which PostgreSQL cannot store')
  if (!text.isWellFormed()) throw new Unstorable('contains half a surrogate pair, which is not valid Unicode')
  return jsonString(text)
}

/** 128 bits of SHA-256 over the canonical content, as a UUID's digits. */
export function contentHash(data: string, classification: string | null): string {
  return digest('sha256', classification === null ? data : `${data}\u0000${classification}`, 'hex').slice(0, 32)
}
