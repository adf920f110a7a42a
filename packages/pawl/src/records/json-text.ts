// JSON in and out without losing a digit. Reading: a number that a double would round is kept as its source text. Writing: one canonical
// text per value, with keys in order and every number as the text of its decimal, so that equal content has an equal hash.

import { hash as digest } from 'node:crypto'
import { canonicalDecimal } from './decimal.ts'

/** Marks a text that was a number in its source. JSON cannot have this character unescaped, so no honest text begins with it. */
export const numberMark = '\u0001'

// A run of fewer than 16 digits and points has at most 15 digits, which a double gives back exactly; an exponent may do anything.
const mayRound = /[\d.]{16}|\d[eE]/
const token = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g

/** JSON.parse, but numbers that a double cannot hold arrive as marked texts. Throws SyntaxError as JSON.parse does. */
export function parseJson(text: string): unknown {
  if (!mayRound.test(text)) return JSON.parse(text)
  JSON.parse(text)
  return JSON.parse(
    text.replace(token, (found) => (found.charCodeAt(0) === 34 || !mayRound.test(found) ? found : `"\\u0001${found}"`)),
  )
}

/** The decimal that a parsed value means if it was a number, canonical; undefined if it was none. */
export function numberText(value: unknown): string | undefined {
  if (typeof value === 'number') return canonicalDecimal(String(value))
  if (typeof value === 'bigint') return String(value)
  if (typeof value === 'string' && value.startsWith(numberMark)) return canonicalDecimal(value.slice(1))
  return undefined
}

const needsEscape = /["\\\u0000-\u001f\ud800-\udfff]/

/** A text as JSON. Almost every cell takes the first way. */
export function jsonString(text: string): string {
  return needsEscape.test(text) ? JSON.stringify(text) : `"${text}"`
}

/** A value that cannot be stored; the message says why. */
export class Unstorable extends Error {
  override readonly name = 'Unstorable'
}

/** The canonical text of any value of a row. Fields that are null or absent are left out: they are the same thing. */
export function canonicalJson(value: unknown, depthLeft = 32): string {
  if (typeof value === 'string') return value.startsWith(numberMark) ? canonicalNumber(value) : storableString(value)
  if (typeof value === 'number' || typeof value === 'bigint') return canonicalNumber(value)
  if (typeof value === 'boolean') return String(value)
  if (value === null || value === undefined) return 'null'
  if (typeof value !== 'object') throw new Unstorable(`a ${typeof value} cannot be stored`)
  if (depthLeft === 0) throw new Unstorable('it is nested too deeply')
  if (value instanceof Date) return storableString(value.toISOString())
  if (Array.isArray(value)) return `[${value.map((item) => canonicalJson(item, depthLeft - 1)).join(',')}]`
  const fields = Object.keys(value)
    .sort()
    .flatMap((name) => {
      const field = (value as Record<string, unknown>)[name]
      if (field === null || field === undefined) return []
      return [`${storableString(name)}:${canonicalJson(field, depthLeft - 1)}`]
    })
  return `{${fields.join(',')}}`
}

function canonicalNumber(value: string | number | bigint): string {
  const text = numberText(value)
  if (text === undefined) throw new Unstorable('it has a number that is not finite or has too many digits')
  return `"${text}"`
}

/** What PostgreSQL cannot store is refused here, with words. */
function storableString(text: string): string {
  if (text.includes('\u0000')) throw new Unstorable('it contains a NUL character, which PostgreSQL cannot store')
  if (!text.isWellFormed()) throw new Unstorable('it contains half of a surrogate pair, which is not valid Unicode')
  return jsonString(text)
}

/** 128 bits of SHA-256 over the canonical content, as a UUID's digits. */
export function contentHash(data: string, classification: string | null): string {
  return digest('sha256', classification === null ? data : `${data}\u0000${classification}`, 'hex').slice(0, 32)
}
