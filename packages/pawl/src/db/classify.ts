// The one place that says what a database error means. Everything that retries asks here.

import { isPawlError, PawlError } from '../errors.ts'

export type ErrorClass =
  /** Our own whole transaction may run again: nothing of it was applied. */
  | 'transient'
  /** The connection broke. If a commit was in progress, it is not known whether it happened. */
  | 'connection'
  /** A prepared statement is gone or its plan is stale: prepare it again and run it again. */
  | 'replan'
  /** The server cannot write now (disk full, read-only primary): wait longer, tell someone, go on by itself. */
  | 'unwritable'
  /** The fence was not the current one. */
  | 'fenced'
  /** The statement or its data is wrong; trying again gives the same answer. */
  | 'permanent'
  /** It did not come from the database. */
  | 'foreign'

const byState: Readonly<Record<string, ErrorClass>> = {
  '0A000': 'replan', // "cached plan must not change result type"
  '25006': 'unwritable', // read-only transaction: the primary became a standby
  '25P03': 'connection', // idle in transaction session timeout
  '25P04': 'connection', // transaction timeout
  '26000': 'replan', // prepared statement does not exist
  '40001': 'transient',
  '40003': 'connection', // statement completion unknown
  '40P01': 'transient',
  '42P05': 'replan', // prepared statement exists already
  '53100': 'unwritable', // disk full
  '53200': 'transient', // out of memory
  '53300': 'connection', // too many connections
  '53400': 'unwritable',
  '55P03': 'transient', // lock not available
  '57014': 'transient', // statement timeout or cancel
  '57P01': 'connection',
  '57P02': 'connection',
  '57P03': 'connection', // starting up or shutting down
  '57P05': 'connection', // idle session timeout
  PW001: 'fenced',
}

const connectionCodes = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'EAI_AGAIN',
])

// node-postgres reports these without any code.
const connectionMessages =
  /connection terminated|connection ended|client was closed|not queryable|timeout exceeded when trying to connect|timeout expired|query read timeout|connection is closed|socket hang up|terminating connection|client has encountered a connection error|cannot use a pool after calling end/i

export function sqlState(error: unknown, depth = 3): string | undefined {
  if (typeof error !== 'object' || error === null || depth === 0) return undefined
  const { code, cause, driverError, meta } = error as { code?: unknown; cause?: unknown; driverError?: unknown; meta?: unknown }
  if (isSqlState(code)) return code
  // Drizzle keeps the driver's error as the cause, TypeORM as driverError, Prisma its code in meta.
  return sqlState(cause, depth - 1) ?? sqlState(driverError, depth - 1) ?? sqlState(meta, depth - 1)
}

/** EPIPE has five letters too, and Prisma's own codes are P1000 and up; PostgreSQL's P class has a zero there. */
function isSqlState(code: unknown): code is string {
  return typeof code === 'string' && /^(?!P[1-9])[0-9A-Z]{5}$/.test(code) && !connectionCodes.has(code)
}

export function classify(error: unknown): ErrorClass {
  if (isPawlError(error)) return classifyPawl(error.code)
  const state = sqlState(error)
  if (state !== undefined) {
    // 0A000 is also the code of features that do not exist; only the cached-plan message asks for a new plan.
    if (state === '0A000' && !/cached plan/.test(String((error as Error).message))) return 'permanent'
    return byState[state] ?? (state.startsWith('08') ? 'connection' : 'permanent')
  }
  const code = (error as { code?: unknown } | null)?.code
  if (typeof code === 'string' && connectionCodes.has(code)) return 'connection'
  if (error instanceof Error && connectionMessages.test(error.message)) return 'connection'
  return 'foreign'
}

function classifyPawl(code: string): ErrorClass {
  if (code === 'PAWL_LEASE_LOST') return 'fenced'
  if (code === 'PAWL_UNAVAILABLE') return 'connection'
  if (code === 'PAWL_ROLLED_BACK') return 'transient'
  return 'foreign'
}

const own = new WeakSet<object>()

/** Marks an error as one that a connection of Pawl's answered with. */
export function markOwn(error: unknown): unknown {
  if (typeof error === 'object' && error !== null) own.add(error)
  return error
}

/** Whether it came from a connection of Pawl's, however a handler or its library has wrapped it. The same code from anywhere else is a handler's failure. */
export function isOwn(error: unknown, depth = 5): boolean {
  if (typeof error !== 'object' || error === null || depth === 0) return false
  const { cause, driverError } = error as { cause?: unknown; driverError?: unknown }
  return own.has(error) || isOwn(cause, depth - 1) || isOwn(driverError, depth - 1)
}

const schemaStates: readonly (string | undefined)[] = ['3F000', '42704', '42883', '42P01']

/** For an error of one of our own statements: PAWL_SCHEMA_MISSING when the database lacks what it names, otherwise the error itself. */
export function schemaMissing(error: unknown): unknown {
  if (!schemaStates.includes(sqlState(error)) || !(error instanceof Error) || !/\bpawl\b/.test(error.message)) return error
  return new PawlError(
    'PAWL_SCHEMA_MISSING',
    `Pawl's schema is missing from this database or older than this release (${error.message.slice(-200)}). Run 'pawl migrate', or call pawl.migrate().`,
    { cause: error },
  )
}

/** For an error of a connection of ours. A database that cannot be reached, a lock or a missing schema is said in one sentence, with the driver's error as its cause. */
export function unavailable(error: unknown): unknown {
  if (isPawlError(error)) return error
  if (sqlState(error) === '55P03')
    return noAnswer(
      'The call waited too long for a lock that another transaction holds, so nothing was stored. End that transaction (pg_stat_activity shows it), then call again.',
      error,
    )
  return classify(error) === 'connection' ? unreachable(error) : schemaMissing(error)
}

/** PAWL_UNAVAILABLE, as an error of a connection of ours. */
export function noAnswer(message: string, cause: unknown): unknown {
  return markOwn(new PawlError('PAWL_UNAVAILABLE', message, { cause }))
}

/**
 * For a connection that could not be opened, whatever the reason: a refused login says nothing about the statement that waits for it, so it is
 * waited for as for a server that is away.
 */
export function unreachable(error: unknown): unknown {
  if (isPawlError(error)) return error
  const message = error instanceof Error ? error.message || String((error as { code?: string }).code) : String(error)
  return noAnswer(
    `The database cannot be reached (${message}). Check that it is running and that the URL, user and password are correct.`,
    error,
  )
}

/** Whether our own whole transaction may be run again as it is. */
export function isRetryable(error: unknown): boolean {
  const kind = classify(error)
  return kind === 'transient' || kind === 'connection' || kind === 'replan' || kind === 'unwritable'
}

/** What the `conflicts` counter counts. */
export function isConflict(error: unknown): boolean {
  const state = sqlState(error)
  return state === '40001' || state === '40P01' || state === '55P03'
}
