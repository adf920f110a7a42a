// What a cell holds: a string, a number as Excel shows it, a boolean, a date, or an Error that says why it cannot be read, with what a person
// sees in the cell as its cause. Columns make values of them as they do of a CSV's strings.

import { canonicalDecimal, decimalDigitsMax } from '../../rows/decimal.ts'
import { isUnsafe } from '../../rows/json-text.ts'
import { InvalidFile } from '../bytes.ts'
import type { NumberKind } from './number-formats.ts'

export interface RawCell {
  /** The attribute t: how its value is to be read. */
  readonly type: string | undefined
  /** The attribute s: the index of its style. */
  readonly style: string | undefined
  readonly value: string
  readonly inline: string
  readonly formula: string | undefined
}

export interface CellContext {
  readonly strings: readonly string[]
  /** What a number means, by the index of the cell's style. */
  readonly kinds: readonly NumberKind[]
  readonly is1904: boolean
}

export function cellValue(cell: RawCell, context: CellContext, line: number): unknown {
  switch (cell.type) {
    case 's':
      return cell.value === '' ? undefined : sharedString(cell.value, context.strings, line)
    case 'inlineStr':
      return unescaped(cell.inline)
    case 'str':
      return unescaped(cell.value)
    case 'b':
      return booleanOf(cell.value, line)
    case 'e':
      return new Error(`has the spreadsheet error ${cell.value.slice(0, 40)}`, { cause: cell.value })
    case 'd':
      return isoValue(cell.value.trim())
    case undefined:
    case 'n':
      return numberOf(cell, context)
    default:
      throw new InvalidFile('xlsx', line, `A cell has the unknown type '${cell.type.slice(0, 40)}'.`)
  }
}

function sharedString(value: string, strings: readonly string[], line: number): string {
  const shared = /^\s*\d{1,9}\s*$/.test(value) ? strings[Number(value)] : undefined
  if (shared !== undefined) return shared
  throw new InvalidFile('xlsx', line, `A cell refers to string ${value.slice(0, 20)}, which the workbook does not have.`)
}

const escapedCode = /_x([\da-fA-F]{4})_/g

/** Characters that XML cannot have are written as `_x000D_`, and an underscore that would read as one of them as `_x005F_`. */
export function unescaped(text: string): string {
  if (!text.includes('_x')) return text
  return text.replace(escapedCode, (_whole, code: string) => String.fromCharCode(Number.parseInt(code, 16)))
}

function booleanOf(value: string, line: number): boolean | undefined {
  const text = value.trim()
  if (text === '') return undefined
  if (text === '1' || text === 'true') return true
  if (text === '0' || text === 'false') return false
  throw new InvalidFile('xlsx', line, `A boolean cell must be 0, 1, true or false, got '${text.slice(0, 20)}'.`)
}

function numberOf({ value, style, formula }: RawCell, { kinds, is1904 }: CellContext): unknown {
  const text = value.trim()
  if (text === '') return formula === undefined ? undefined : unsaved(formula)
  const number = exactNumber(text)
  if (number === undefined) return new Error('has a number that cannot be read', { cause: text })
  const kind = style === undefined ? 'number' : (kinds[Number(style)] ?? 'number')
  return kind === 'number' ? number : momentOf(Number(number), kind, is1904)
}

function unsaved(formula: string): Error {
  const reason = 'has a formula whose result was not saved: open the workbook in a spreadsheet program and save it'
  return new Error(reason, { cause: `=${formula}` })
}

/**
 * A number of a workbook is a double, of which Excel writes 17 digits and shows 15: 19.99 is written as 19.989999999999998. A whole number is
 * taken as it is written.
 */
function exactNumber(text: string): number | bigint | undefined {
  if (text.length > decimalDigitsMax) return undefined
  if (/^-?\d+$/.test(text)) return text.length <= 15 ? Number(text) : BigInt(text)
  if (!/^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/.test(text)) return undefined
  const number = Number(text)
  if (!Number.isFinite(number)) return undefined
  const shown = text.length <= 15 ? number : Number(number.toPrecision(15))
  return isUnsafe(shown) ? BigInt(canonicalDecimal(String(shown))!) : shown
}

const dayMs = 86_400_000
/** The day after 9999-12-31. */
const serialEnd = 2_958_466

/** A moment is a number of days since the end of 1899, with a 29 February 1900 that never was; or since 1904. */
function momentOf(serial: number, kind: NumberKind, is1904: boolean): unknown {
  const ms = Math.round(serial * dayMs)
  if (kind === 'duration') return serial < 0 ? `-${clockText(-ms)}` : clockText(ms)
  const days = is1904 ? serial + 1462 : serial
  // Excel shows no date either.
  if (serial < 0 || days >= serialEnd) return serial
  // There is no day 0: what is below 1 is a time of day.
  if (serial < 1 && (kind === 'time' || !is1904)) return clockText(ms)
  if (Math.floor(days) === 60) return '1900-02-29'
  return new Date(Math.round((days - (days < 60 ? 25_568 : 25_569)) * dayMs))
}

/** 'HH:MM:SS', with milliseconds where there are any. */
function clockText(ms: number): string {
  const two = (value: number) => String(value).padStart(2, '0')
  const [hours, minutes, seconds] = [ms / 3_600_000, (ms / 60_000) % 60, (ms / 1000) % 60].map(Math.floor)
  const rest = ms % 1000 === 0 ? '' : `.${String(ms % 1000).padStart(3, '0')}`
  return `${two(hours!)}:${two(minutes!)}:${two(seconds!)}${rest}`
}

const isoMoment = /^(\d{4}-\d{2}-\d{2})(?:T(\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)(Z|[+-]\d{2}:\d{2})?)?$/

/** Of a workbook that writes dates as ISO 8601. A moment without a zone is taken as every moment of a workbook is: in UTC. */
function isoValue(text: string): string | Date | undefined {
  const [, day, time = '00:00', zone = 'Z'] = isoMoment.exec(text) ?? []
  if (day === undefined) return text === '' ? undefined : text.replace(/^T/, '')
  const at = new Date(`${day}T${time}${zone}`)
  const isReal = !Number.isNaN(at.getTime()) && new Date(`${day}T00:00Z`).toISOString().startsWith(day)
  return isReal ? at : text
}
