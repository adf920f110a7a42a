// What may be stored as JSON. Everything PostgreSQL or a careless reader would stumble over is refused at the door, naming the path.

import { PawlError } from '../errors.ts'

export interface PayloadLimits {
  readonly bytesMax: number
  readonly depthMax: number
}

/** The value as JSON text, or a PAWL_INVALID_PAYLOAD that says where and why. `what` names it in the message. */
export function toJson(value: unknown, what: string, limits: PayloadLimits): string {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw invalid(what, '', `cannot be written as JSON (${error instanceof Error ? error.message : String(error)})`)
  }
  if (text === undefined) throw invalid(what, '', 'is undefined or a function; use null or an object')
  if (text.length * 3 > limits.bytesMax && Buffer.byteLength(text) > limits.bytesMax) {
    throw invalid(what, '', `is larger than ${limits.bytesMax} bytes; store it elsewhere and pass a reference`)
  }
  // JSON.stringify writes NUL and lone surrogates as \u escapes, and both are rare: only then is the value walked to find them.
  if (text.includes('\\u') || text.includes('__proto__') || mayBeDeep(text, limits.depthMax)) {
    findFault(JSON.parse(text), what, '', limits.depthMax)
  }
  return text
}

/** The same for what is read back: plain SQL may have stored it without asking us. */
export function assertSafe(value: unknown, what: string, limits: PayloadLimits): void {
  if (!isSafe(value, limits.depthMax)) findFault(value, what, '', limits.depthMax)
}

/** The quick look that every run of a job pays for; only a fault is worth finding out where. */
function isSafe(value: unknown, depthLeft: number): boolean {
  if (typeof value === 'string') return value.isWellFormed() && !value.includes('\u0000')
  if (typeof value !== 'object' || value === null) return true
  if (depthLeft === 0) return false
  for (const key of Object.keys(value)) {
    if (key === '__proto__' || !isSafe(key, 1) || !isSafe((value as Record<string, unknown>)[key], depthLeft - 1)) return false
  }
  return true
}

function mayBeDeep(text: string, depthMax: number): boolean {
  // What is opened is closed, so a text has at least twice as many characters as it is deep.
  if (text.length <= 2 * depthMax) return false
  let open = 0
  for (let index = 0; index < text.length && open <= depthMax; index++) {
    const code = text.charCodeAt(index)
    if (code === 123 || code === 91) open++
  }
  return open > depthMax
}

function findFault(value: unknown, what: string, path: string, depthLeft: number): void {
  if (typeof value === 'string') return findTextFault(value, what, path)
  if (typeof value !== 'object' || value === null) return
  if (depthLeft === 0) throw invalid(what, path.slice(0, 200), 'is nested too deeply')
  for (const key of Object.keys(value)) {
    const inner = Array.isArray(value) ? `${path}[${key}]` : `${path}.${key}`
    if (key === '__proto__') throw invalid(what, inner, 'is a key that would change an object that copies it')
    findTextFault(key, what, inner)
    findFault((value as Record<string, unknown>)[key], what, inner, depthLeft - 1)
  }
}

function findTextFault(text: string, what: string, path: string): void {
  if (text.includes('\u0000')) throw invalid(what, path, 'contains a NUL character, which PostgreSQL cannot store')
  if (!text.isWellFormed()) throw invalid(what, path, 'contains half of a surrogate pair, which is not valid Unicode')
}

export function invalid(what: string, path: string, reason: string): PawlError {
  // The message may end in a log or in last_error, so it is bounded and can be stored.
  const where = path
    .slice(0, 200)
    .replace(/[\u0000-\u001f]/g, ' ')
    .toWellFormed()
  return new PawlError('PAWL_INVALID_PAYLOAD', `${what}${where} ${reason}.`, { details: { path: path.slice(0, 200), reason } })
}
