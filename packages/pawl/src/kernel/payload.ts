// What may be stored as JSON. Whatever JSON would change or drop in silence, and whatever PostgreSQL cannot store, is refused with its path.

import { types } from 'node:util'
import { classOf, isPawlError, isPlain, PawlError } from '../errors.ts'

export interface PayloadLimits {
  readonly bytesMax: number
}

/** Of arrays and objects within each other. */
export const depthMax = 64
const tooDeep = `is nested more than ${depthMax} levels deep`
const prototypeKey = 'is a key that would change the prototype of a copy; rename it'

/** The value as JSON text, or a PAWL_INVALID_PAYLOAD that says where and why. `what` names it in the message. */
export function toJson(value: unknown, what: string, limits: PayloadLimits): string {
  const text = stringify(value, what, limits)
  if (text.length * 3 > limits.bytesMax && Buffer.byteLength(text) > limits.bytesMax) throw tooLarge(what, limits)
  // JSON.stringify writes NUL and lone surrogates as \u escapes, and both are rare: only then are the strings searched.
  if (text.includes('\\u')) findFault(JSON.parse(text), what, '', depthMax)
  return text
}

function stringify(value: unknown, what: string, limits: PayloadLimits): string {
  try {
    // Each value is at least one byte, so the walk over values that are shared many times ends too.
    if (!isStorable(value, depthMax, { left: limits.bytesMax })) search(value, what, limits)
    return JSON.stringify(value)
  } catch (error) {
    if (isPawlError(error)) throw error
    throw invalid(what, '', `cannot be written as JSON (${error instanceof Error ? error.message : String(error)})`)
  }
}

/** The error of one of many, with its index. */
export function atIndex(error: unknown, index: number): unknown {
  if (!isPawlError(error, 'PAWL_INVALID_PAYLOAD')) return error
  return new PawlError('PAWL_INVALID_PAYLOAD', `${error.message} It is at index ${index} of the call.`, {
    cause: error,
    details: { ...error.details, index },
  })
}

/** The one walk that every stored value pays for. false: perhaps not; the search decides, and finds where. */
function isStorable(value: unknown, depthLeft: number, values: { left: number }): boolean {
  if (values.left-- === 0) return false
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return true
    case 'number':
      return Number.isFinite(value)
    case 'object':
      break
    default:
      return false
  }
  if (value === null) return true
  if (depthLeft === 0) return false
  if (Array.isArray(value)) return isStorableArray(value, depthLeft - 1, values)
  if (value instanceof Date) return !Number.isNaN(value.getTime())
  const prototype: unknown = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null) return false
  for (const key in value) {
    const inner = (value as Record<string, unknown>)[key]
    if (inner === undefined) continue
    if (key === '__proto__' || !isStorable(inner, depthLeft - 1, values)) return false
  }
  return true
}

function isStorableArray(list: readonly unknown[], depthLeft: number, values: { left: number }): boolean {
  if (typeof (list as { toJSON?: unknown }).toJSON === 'function') return false
  // By index: every() would pass over holes.
  for (let index = 0; index < list.length; index++) if (!isStorable(list[index], depthLeft, values)) return false
  // Without holes, a key more than its length is a named property. It costs as much as writing the array as JSON.
  return Object.keys(list).length === list.length
}

/** Throws for the first value that JSON would change or drop. */
function search(root: unknown, what: string, limits: PayloadLimits): void {
  let left = limits.bytesMax
  const visit = (given: unknown, path: string, ancestors: readonly object[], key: string): void => {
    if (left-- === 0) throw tooLarge(what, limits)
    const value = jsonOf(given, key)
    const loss = types.isDate(given) && Number.isNaN(given.getTime()) ? 'is an invalid date' : lossOf(value)
    if (loss !== undefined) throw invalid(what, path, loss)
    if (typeof value !== 'object' || value === null) return
    if (ancestors.includes(value)) throw invalid(what, path, 'contains itself (a cycle), which JSON cannot represent')
    if (ancestors.length === depthMax) throw invalid(what, path, tooDeep)
    const inside = [...ancestors, value]
    if (Array.isArray(value)) {
      for (const [index, inner] of value.entries()) visit(inner, `${path}[${index}]`, inside, String(index))
      const named = Object.keys(value)[value.length]
      if (named !== undefined)
        throw invalid(what, `${path}.${named}`, 'is a named property of an array, which JSON would drop; pass an object')
      return
    }
    for (const [name, inner] of Object.entries(value)) {
      // As JSON.stringify has it: a field that is undefined is not there.
      if (inner === undefined) continue
      if (name === '__proto__') throw invalid(what, `${path}.${name}`, prototypeKey)
      visit(inner, `${path}.${name}`, inside, name)
    }
  }
  visit(root, '', [], '')
}

/** What JSON.stringify reads in its place. */
export function jsonOf(value: unknown, key = ''): unknown {
  if (value === null || value === undefined) return value
  const { toJSON } = value as { toJSON?: unknown }
  if (typeof toJSON === 'function') return toJSON.call(value, key) as unknown
  return types.isBoxedPrimitive(value) ? value.valueOf() : value
}

/** Why JSON would not give this back, apart from what it contains. */
export function lossOf(value: unknown): string | undefined {
  if (value === undefined) return 'is undefined, which JSON cannot represent; pass null'
  if (typeof value === 'number' && !Number.isFinite(value))
    return `is ${value}, which JSON cannot represent; pass null or a string`
  if (typeof value === 'bigint') return 'is a BigInt, which JSON cannot represent; pass it as a string'
  if (typeof value === 'function' || typeof value === 'symbol')
    return `is a ${typeof value}, which JSON cannot represent; leave it out`
  if (typeof value !== 'object' || value === null) return undefined
  if (types.isPromise(value) || typeof (value as { then?: unknown }).then === 'function')
    return 'is a promise; await it and pass its result'
  if (isOpaque(value)) return `is ${withArticle(classOf(value))}, whose content JSON would lose; pass a plain object or an array`
  return undefined
}

function isOpaque(value: object): boolean {
  return (
    types.isMap(value) ||
    types.isSet(value) ||
    types.isWeakMap(value) ||
    types.isWeakSet(value) ||
    types.isRegExp(value) ||
    types.isAnyArrayBuffer(value) ||
    ArrayBuffer.isView(value) ||
    types.isNativeError(value) ||
    value instanceof Error ||
    hidesAll(value)
  )
}

function withArticle(noun: string): string {
  return `${/^[aeio]/i.test(noun) ? 'an' : 'a'} ${noun}`
}

/** An instance of a class with nothing that JSON.stringify reads: its state is in private fields, or in the platform. */
function hidesAll(value: object): boolean {
  return !Array.isArray(value) && Object.keys(value).length === 0 && !isPlain(value)
}

function tooLarge(what: string, { bytesMax }: PayloadLimits): PawlError {
  return invalid(what, '', `is larger than ${bytesMax} bytes; store it elsewhere and pass a reference`)
}

/** Reads what is stored, by the same rules: plain SQL may have stored it without asking us. */
export function fromJson(text: string, what: string): unknown {
  const value: unknown = JSON.parse(mayHaveLongNumber.test(text) ? markInexact(text) : text)
  if (!isSafe(value, depthMax)) findFault(value, what, '', depthMax)
  return value
}

/** Fewer than 16 digits are always exact. As jsonb writes it, a number is never next to a quote: ids in strings do not count. */
const mayHaveLongNumber = /(?<!["\d.])[\d.]{16}/
const stringOrNumber = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.]*/g
/** No stored string can have a NUL. */
const inexact = '\u0000inexact'

/** As jsonb writes it, with integers that JSON.parse would change as marked strings. A fraction may be rounded, as everywhere. */
function markInexact(text: string): string {
  return text.replace(stringOrNumber, (token) => (token.startsWith('"') || isExact(token) ? token : `"\\u0000inexact${token}"`))
}

function isExact(token: string): boolean {
  const value = Number(token)
  if (!Number.isFinite(value)) return false
  const whole = token.replace(/\.0*$/, '')
  return whole.includes('.') || digitsOf(value) === whole
}

/** All digits of an integer: 1e+21 is a one with 21 zeros. */
function digitsOf(value: number): string {
  const [mantissa = '', exponent = '0'] = String(value).split('e')
  const [whole = '', fraction = ''] = mantissa.split('.')
  return whole + fraction.padEnd(Number(exponent), '0')
}

/** The quick check that every run of a job pays for. The path of a fault is searched only if there is one. */
function isSafe(value: unknown, depthLeft: number): boolean {
  if (typeof value === 'string') return value.isWellFormed() && !value.includes('\u0000')
  if (typeof value !== 'object' || value === null) return true
  if (depthLeft === 0) return false
  for (const key of Object.keys(value)) {
    if (key === '__proto__' || !isSafe(key, 1) || !isSafe((value as Record<string, unknown>)[key], depthLeft - 1)) return false
  }
  return true
}

function findFault(value: unknown, what: string, path: string, depthLeft: number): void {
  if (typeof value === 'string') return findTextFault(value, what, path)
  if (typeof value !== 'object' || value === null) return
  if (depthLeft === 0) throw invalid(what, path, tooDeep)
  for (const key of Object.keys(value)) {
    const inner = Array.isArray(value) ? `${path}[${key}]` : `${path}.${key}`
    if (key === '__proto__') throw invalid(what, inner, prototypeKey)
    findTextFault(key, what, inner)
    findFault((value as Record<string, unknown>)[key], what, inner, depthLeft - 1)
  }
}

function findTextFault(text: string, what: string, path: string): void {
  if (text.startsWith(inexact)) {
    const number = text.slice(inexact.length)
    const shown = number.length > 40 ? `${number.slice(0, 20)}... (${number.length} characters)` : number
    throw invalid(what, path, `is ${shown}, which a JavaScript number cannot represent exactly; store it as a string`)
  }
  if (text.includes('\u0000')) throw invalid(what, path, 'contains a NUL character, which PostgreSQL cannot store')
  if (!text.isWellFormed()) throw invalid(what, path, 'contains half a surrogate pair, which is not valid Unicode')
}

/** `separator`: ': ' before a sentence that is not ours, such as a schema's. */
export function invalid(what: string, path: string, reason: string, separator = ' '): PawlError {
  // The message may end in a log or in last_error, so it is bounded and can be stored.
  const where = path
    .slice(0, 200)
    .replace(/[\u0000-\u001f]/g, ' ')
    .toWellFormed()
  return new PawlError('PAWL_INVALID_PAYLOAD', `${what}${where}${separator}${reason}.`, {
    details: { path: path.slice(0, 200), reason },
  })
}
