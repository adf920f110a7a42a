// Columns: what a cell must be, and the one canonical value that it becomes. Every rule is compiled once per upload; a cell costs one call.

import { refused } from '../../kernel/options.ts'
import type { Column, ColumnType } from '../types.ts'
import { canonicalDecimal, comparedWith, decimalScale } from './decimal.ts'
import { canonicalJson, ExactNumber, isUnsafe, numberText, parseJson, Unstorable, unsafeReason } from './json-text.ts'

/** Why a cell is not valid. */
export interface CellFault {
  readonly code: string
  readonly reason: string
}

/** The canonical JSON text of the cell; undefined when it is empty; a fault otherwise. */
export type Coerce = (value: unknown) => string | undefined | CellFault

export const columnTypes: readonly ColumnType[] = ['text', 'number', 'integer', 'boolean', 'date', 'timestamp', 'json']
const rules: Readonly<Record<ColumnType, readonly string[]>> = {
  text: ['oneOf', 'pattern', 'charsMax', 'trim'],
  number: ['min', 'max', 'scale'],
  integer: ['min', 'max'],
  boolean: [],
  date: ['format'],
  timestamp: [],
  json: [],
}
const cellCharsMax = 100_000

/** The sign between the whole digits of a number and the others. */
export type Decimal = '.' | ','

export function isNumeric({ type }: Column): boolean {
  return type === 'number' || type === 'integer'
}

export function isFault(value: string | undefined | CellFault): value is CellFault {
  return typeof value === 'object'
}

/** A rule that no check enforces would let in the values that it excludes. */
export function assertUsed(call: string, path: string, column: Column): void {
  const used = rules[column.type]
  for (const name of Object.keys(column)) {
    if (name === 'type' || name === 'required' || used.includes(name) || column[name as keyof Column] === undefined) continue
    throw refused(
      call,
      `${path}: a column of type '${column.type}' has no option '${name}'. Leave it out, or check it in the type's schema`,
    )
  }
}

export function compileColumn(column: Column): Coerce {
  return compile(column, coercions[column.type](column))
}

/** Only the canonical form, without the rules: for a value that is searched for. */
export function compileForm({ type, trim, format }: Column): Coerce {
  return compileColumn({ type, ...(trim !== undefined && { trim }), ...(format !== undefined && { format }) })
}

/** For a cell of a table, which has a string where JSON has a value. A workbook has dates where a CSV has strings. */
export function compileCell(column: Column, decimal: Decimal = '.'): Coerce {
  if (column.type === 'json') return compile(column, coerceJsonText)
  if (isNumeric(column)) return compile(column, numberCoercion(column, decimal))
  if (column.type !== 'text') return compileColumn(column)
  const coerce = textCoercion(column)
  return compile(column, (value) => coerce(value instanceof Date ? dateText(value) : value))
}

function compile(column: Column, coerce: Coerce): Coerce {
  const isRequired = column.required === true
  return (value) => {
    if (value === null || value === undefined || value === '')
      return isRequired ? fault('required', 'must have a value') : undefined
    if (value instanceof Error) return fault('cell', value.message)
    const text = coerce(value)
    return text === undefined && isRequired ? fault('required', 'must have a value') : text
  }
}

const coercions: Readonly<Record<ColumnType, (column: Column) => Coerce>> = {
  text: textCoercion,
  number: (column) => numberCoercion(column),
  integer: (column) => numberCoercion(column),
  boolean: () => coerceBoolean,
  date: dateCoercion,
  timestamp: () => coerceTimestamp,
  json: () => coerceJson,
}

const special = /["\\\u0000-\u001f\ud800-\udfff]/

function textCoercion(column: Column): Coerce {
  const { oneOf, trim = true, charsMax = cellCharsMax } = column
  const pattern = column.pattern === undefined ? undefined : new RegExp(column.pattern)
  const allowed = oneOf === undefined ? undefined : new Set(oneOf)
  return (value) => {
    let text = asText(value)
    if (text === undefined) return fault('text', isUnsafe(value) ? unsafeReason : 'must be a string')
    if (trim && hasSpaceAround(text)) text = text.trim()
    if (text === '') return undefined
    if (text.length > charsMax) return fault('too-long', `must have at most ${charsMax} characters, got ${text.length}`)
    // One test finds that a string is plain; almost every cell needs no other.
    const isSpecial = special.test(text)
    const flaw = isSpecial ? textFlaw(text) : undefined
    if (flaw !== undefined) return flaw
    if (allowed !== undefined && !allowed.has(text)) return fault('one-of', `must be one of ${oneOf!.join(', ').slice(0, 200)}`)
    if (pattern !== undefined && !matches(pattern, text)) return fault('pattern', `must match ${pattern.source.slice(0, 100)}`)
    return isSpecial ? JSON.stringify(text) : `"${text}"`
  }
}

/** With the flags g and y a pattern continues after its last match, which was in another row. */
function matches(pattern: RegExp, text: string): boolean {
  pattern.lastIndex = 0
  return pattern.test(text)
}

/** Or a character beyond ASCII there, which trim() must check. */
function hasSpaceAround(text: string): boolean {
  const [first, last] = [text.charCodeAt(0), text.charCodeAt(text.length - 1)]
  return first <= 32 || last <= 32 || first > 126 || last > 126
}

function textFlaw(text: string): CellFault | undefined {
  if (text.includes('\u0000')) return fault('nul', 'contains a NUL character, which PostgreSQL cannot store')
  return text.isWellFormed() ? undefined : fault('surrogate', 'contains half a surrogate pair, which is not valid Unicode')
}

/** A string cell may come as a number or boolean from JSON or a spreadsheet. */
export function asText(value: unknown): string | undefined {
  if (typeof value === 'string') return value
  const number = numberText(value)
  if (number !== undefined) return number
  if (value instanceof ExactNumber) return value.text
  return typeof value === 'boolean' ? String(value) : undefined
}

/** A date of a workbook, as a CSV has it. At midnight it is a day: the workbook does not tell the two apart. */
export function dateText(value: Date): string {
  const text = value.toISOString()
  return text.endsWith('T00:00:00.000Z') ? text.slice(0, -14) : text
}

function numberCoercion(column: Column, decimal: Decimal = '.'): Coerce {
  const min = boundOf(column.min)
  const max = boundOf(column.max)
  const scale = column.type === 'integer' ? 0 : column.scale
  const word = column.type === 'integer' ? 'an integer' : decimal === ',' ? 'a number such as 1234,5' : 'a number'
  const parse = decimal === ',' ? commaDecimal : canonicalDecimal
  return (value) => {
    if (typeof value === 'string' && value.trim() === '') return undefined
    const text = typeof value === 'string' ? parse(value) : numberText(value)
    if (text === undefined) return fault('number', isUnsafe(value) ? unsafeReason : `must be ${word}`)
    if (scale !== undefined && decimalScale(text) > scale)
      return fault('scale', scale === 0 ? 'must be an integer' : `must have at most ${scale} decimal places`)
    if (min !== undefined && min.compare(text) < 0) return fault('min', `must be at least ${min.text}`)
    if (max !== undefined && max.compare(text) > 0) return fault('max', `must be at most ${max.text}`)
    return `"${text}"`
  }
}

/** A point is refused: 1.500 is 1500 where a comma is the decimal sign. */
function commaDecimal(text: string): string | undefined {
  return text.includes('.') ? undefined : canonicalDecimal(text.replace(',', '.'))
}

function boundOf(given: Column['min']): { text: string; compare(text: string): number } | undefined {
  if (given === undefined) return undefined
  // It was checked when the column was declared.
  const text = canonicalDecimal(String(given))!
  return { text, compare: comparedWith(text) }
}

const booleans: ReadonlyMap<string, string> = new Map([
  ...['true', 'yes', 'y', '1'].map((word) => [word, 'true'] as const),
  ...['false', 'no', 'n', '0'].map((word) => [word, 'false'] as const),
])

function coerceBoolean(value: unknown): string | undefined | CellFault {
  const text = asText(value)?.trim().toLowerCase()
  if (text === '') return undefined
  return (text === undefined ? undefined : booleans.get(text)) ?? fault('boolean', 'must be true or false')
}

const isoDate = /^(\d{4})-(\d{2})-(\d{2})(?:T00:00:00(?:\.0+)?Z?)?$/

function coerceDate(value: unknown): string | undefined | CellFault {
  const text = (value instanceof Date && !Number.isNaN(value.getTime()) ? value.toISOString() : asText(value))?.trim()
  if (text === '') return undefined
  const match = text === undefined ? null : isoDate.exec(text)
  if (match === null) return fault('date', 'must be a date such as 2026-01-31')
  const isReal = isDay(Number(match[1]), Number(match[2]), Number(match[3]))
  return isReal ? `"${match[1]}-${match[2]}-${match[3]}"` : fault('date', 'is a date that does not exist')
}

/** The parts of a format in their order, and the expression that reads them. A day or month may have one digit. */
export function dateParts(format: string): { readonly names: readonly string[]; readonly pattern: RegExp } | undefined {
  const found = /^(dd|mm|yyyy)([/. -])(dd|mm|yyyy)\2(dd|mm|yyyy)$/i.exec(format)
  if (found === null) return undefined
  const names = [found[1]!, found[3]!, found[4]!].map((name) => name.toLowerCase())
  if (new Set(names).size < 3) return undefined
  const digits = names.map((name) => (name === 'yyyy' ? '(\\d{4})' : '(\\d{1,2})'))
  return { names, pattern: new RegExp(`^${digits.join(`\\${found[2]}`)}$`) }
}

function dateCoercion({ format }: Column): Coerce {
  if (format === undefined) return coerceDate
  const { names, pattern } = dateParts(format)!
  const example = format.toLowerCase().replace('dd', '31').replace('mm', '01').replace('yyyy', '2026')
  const [yearAt, monthAt, dayAt] = ['yyyy', 'mm', 'dd'].map((name) => names.indexOf(name) + 1)
  return (value) => {
    const match = typeof value === 'string' ? pattern.exec(value.trim()) : null
    if (match !== null)
      return coerceDate(`${match[yearAt!]}-${match[monthAt!]!.padStart(2, '0')}-${match[dayAt!]!.padStart(2, '0')}`)
    const iso = coerceDate(value)
    return isFault(iso) && typeof value === 'string' && !isoDate.test(value.trim())
      ? fault('date', `must be a date such as ${example} or 2026-01-31`)
      : iso
  }
}

function isDay(year: number, month: number, day: number): boolean {
  return month >= 1 && month <= 12 && day >= 1 && day <= daysOf(year, month)
}

function daysOf(year: number, month: number): number {
  if (month !== 2) return [4, 6, 9, 11].includes(month) ? 30 : 31
  return (year % 4 === 0 && year % 100 !== 0) || year % 400 === 0 ? 29 : 28
}

const isoTimestamp = /^(\d{4})-(\d{2})-(\d{2})[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})$/
/** How most programs write it, and how we do: it is the canonical text but for the milliseconds. */
const utcTimestamp = /T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{3})?Z$/

/** To the millisecond, in UTC: two spellings of one moment are one value. */
function coerceTimestamp(value: unknown): string | undefined | CellFault {
  const text = (value instanceof Date && !Number.isNaN(value.getTime()) ? value.toISOString() : asText(value))?.trim()
  if (text === '') return undefined
  const match = text === undefined ? null : isoTimestamp.exec(text)
  if (match === null) return fault('timestamp', 'must be a timestamp with a time zone, such as 2026-01-31T10:00:00Z')
  // Date would make the 2nd of March out of the 30th of February.
  if (!isDay(Number(match[1]), Number(match[2]), Number(match[3]))) return fault('timestamp', 'is a date that does not exist')
  const utc = utcTimestamp.exec(text!)
  if (utc !== null) return utc[1] === undefined ? `"${text!.slice(0, -1)}.000Z"` : `"${text}"`
  const at = new Date(text!.replace(' ', 'T'))
  return Number.isNaN(at.getTime()) ? fault('timestamp', 'is a time that does not exist') : `"${at.toISOString()}"`
}

function coerceJson(value: unknown): string | CellFault {
  try {
    return canonicalJson(value)
  } catch (error) {
    if (error instanceof Unstorable) return fault('json', error.message)
    throw error
  }
}

function coerceJsonText(value: unknown): string | undefined | CellFault {
  if (typeof value !== 'string') return coerceJson(value instanceof Date ? dateText(value) : value)
  if (value.trim() === '') return undefined
  try {
    const parsed = parseJson(value)
    return parsed === null ? undefined : coerceJson(parsed)
  } catch (error) {
    if (error instanceof SyntaxError) return fault('json', 'must be JSON, such as {"a": 1} or "a string" in quotes')
    throw error
  }
}

function fault(code: string, reason: string): CellFault {
  return { code, reason }
}
