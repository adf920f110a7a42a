// One class of error, one table of codes. The table gives each code its HTTP status and CLI exit code, and docs/reference/errors.md
// lists the same codes; a test compares the two. Callers switch on `code`, never on the message.

import { types } from 'node:util'

export const errorTable = {
  PAWL_CANCELLED: { status: 409, exit: 4, retryable: false },
  PAWL_COMMIT_UNKNOWN: { status: 503, exit: 5, retryable: false },
  PAWL_CONFIG: { status: 500, exit: 2, retryable: false },
  PAWL_DOCUMENT_INVALID: { status: 422, exit: 1, retryable: false },
  PAWL_INVALID_PAYLOAD: { status: 422, exit: 1, retryable: false },
  PAWL_KEY_IMMUTABLE: { status: 400, exit: 1, retryable: false },
  PAWL_KEY_RENAMED: { status: 409, exit: 4, retryable: false },
  PAWL_KEY_TAKEN: { status: 409, exit: 4, retryable: false },
  PAWL_KIND_DEFINED_TWICE: { status: 500, exit: 2, retryable: false },
  PAWL_LEASE_LOST: { status: 409, exit: 4, retryable: false },
  PAWL_LOG_GAP: { status: 410, exit: 4, retryable: false },
  PAWL_MODEL_CHANGED: { status: 409, exit: 4, retryable: false },
  PAWL_NOT_FOUND: { status: 404, exit: 3, retryable: false },
  PAWL_NO_STANDBY: { status: 503, exit: 5, retryable: false },
  PAWL_PARKED: { status: 409, exit: 4, retryable: false },
  PAWL_PRECONDITION_FAILED: { status: 412, exit: 4, retryable: false },
  PAWL_RECORD_INVALID: { status: 422, exit: 1, retryable: false },
  PAWL_REFERENCED: { status: 409, exit: 4, retryable: false },
  PAWL_REFERENCE_UNRESOLVED: { status: 409, exit: 4, retryable: false },
  PAWL_REVISION_CONFLICT: { status: 409, exit: 4, retryable: false },
  PAWL_ROLLED_BACK: { status: 500, exit: 1, retryable: true },
  PAWL_ROWS_EXPECTED: { status: 409, exit: 4, retryable: false },
  PAWL_SCHEMA_DRIFT: { status: 500, exit: 6, retryable: false },
  PAWL_SCHEMA_MISSING: { status: 500, exit: 6, retryable: false },
  PAWL_SCOPE_ATTRIBUTES: { status: 409, exit: 4, retryable: false },
  PAWL_SCOPE_BUSY: { status: 409, exit: 4, retryable: true },
  PAWL_SOURCE_GAP: { status: 409, exit: 4, retryable: false },
  PAWL_STALE_WRITE: { status: 409, exit: 4, retryable: false },
  PAWL_STOPPED: { status: 503, exit: 5, retryable: false },
  PAWL_SUPERSEDED: { status: 409, exit: 4, retryable: false },
  PAWL_TIMED_OUT: { status: 504, exit: 7, retryable: true },
  PAWL_TRACK_BUSY: { status: 409, exit: 4, retryable: true },
  PAWL_TX_ENDED: { status: 500, exit: 1, retryable: false },
  PAWL_TX_REQUIRED: { status: 500, exit: 1, retryable: false },
  PAWL_TX_UNSUPPORTED: { status: 500, exit: 2, retryable: false },
  PAWL_UNAVAILABLE: { status: 503, exit: 5, retryable: true },
  PAWL_UNIFIED: { status: 409, exit: 4, retryable: false },
  PAWL_UPLOAD_FAILED: { status: 502, exit: 5, retryable: true },
  PAWL_WRONG_STATE: { status: 409, exit: 4, retryable: false },
} as const

export type ErrorCode = keyof typeof errorTable

export class PawlError extends Error {
  override readonly name = 'PawlError'
  readonly code: ErrorCode
  readonly details: Readonly<Record<string, unknown>>

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; details?: Readonly<Record<string, unknown>> } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = code
    this.details = options.details ?? {}
  }

  get status(): number {
    return errorTable[this.code].status
  }

  get exitCode(): number {
    return errorTable[this.code].exit
  }
}

/** Also of another copy of Pawl: a bundle has one of its own. */
export function isPawlError(error: unknown, code?: ErrorCode): error is PawlError {
  if (!(error instanceof Error) || error.name !== 'PawlError') return false
  const found = (error as PawlError).code
  return Object.hasOwn(errorTable, found) && (code === undefined || found === code)
}

/** For a promise that is handed out: its awaiter gets the error, and without one the error does not end the process. */
export function caught<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined)
  return promise
}

/** Thrown by a handler for an error that no retry mends: the job is dead at once, with this as its error. */
export class NonRetryable extends Error {
  override readonly name = 'NonRetryable'
}

/** For logs and stored errors: the message and where it came from, without control characters, bounded. */
export function describeError(error: unknown, charsMax = 4000, causesMax = 5): string {
  // A chain of causes may be a circle.
  const hasCause = causesMax > 0 && error instanceof Error && error.cause !== undefined
  const cause = hasCause ? `\ncaused by ${describeError(error.cause, 1000, causesMax - 1)}` : ''
  return storable(textOf(error) + cause).slice(0, charsMax)
}

/** Text that the database takes: a message may quote anything, also a NUL or half a character. */
export function storable(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, ' ').toWellFormed()
}

/** A value in a message: bounded, and without asking the value itself for its text. */
export function shown(value: unknown): string {
  if (typeof value === 'string')
    return value.length <= 50 ? `'${storable(value)}'` : `'${storable(value.slice(0, 50))}...' (${[...value].length} characters)`
  if (typeof value === 'bigint') return `${value}n`
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? 'an invalid Date' : value.toISOString()
  if (Array.isArray(value)) return value.length === 0 ? 'an empty array' : 'an array'
  if (types.isPromise(value)) return 'a promise (await it)'
  if (typeof value === 'object' && value !== null)
    return isPlain(value) ? 'an object' : `an instance of ${storable(classOf(value).slice(0, 50))}`
  return typeof value === 'function' || typeof value === 'symbol' ? `a ${typeof value}` : String(value)
}

/** The prototype of a plain object has none itself, in any realm. */
export function isPlain(value: object): boolean {
  const prototype = Object.getPrototypeOf(value) as object | null
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

export function classOf(value: object): string {
  const name: unknown = (value.constructor as { name?: unknown } | undefined)?.name
  return typeof name === 'string' && name !== '' && name !== 'Object' ? name : Object.prototype.toString.call(value).slice(8, -1)
}

/** Anything may be thrown, also what has no text. */
function textOf(error: unknown): string {
  try {
    if (error instanceof Error) return String(error.stack ?? `${error.name}: ${error.message}`)
    const text = String(error)
    return text === '[object Object]' ? `a thrown object: ${JSON.stringify(error)}` : text
  } catch {
    return `a thrown ${typeof error} that cannot be converted to a string`
  }
}
