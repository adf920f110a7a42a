// The errors that a command can end with: what is wrong, what to do next, and the exit code.

import { type ErrorCode, isPawlError, type PawlError } from 'pawl'
import { classify, describeError } from 'pawl/admin'
import { EmbeddedError } from '../embedded/index.ts'
import type { Terminal } from './terminal.ts'

export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  notFound: 3,
  conflict: 4,
  unavailable: 5,
  faultsFound: 6,
  timedOut: 7,
  interrupted: 130,
} as const

/** A mistake in how the command was called. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
  readonly next: string

  constructor(message: string, next: string) {
    super(message)
    this.next = next
  }
}

/** The failure of a child process, as the child would have reported it. */
export class ChildFailure extends Error {
  override readonly name = 'ChildFailure'
  readonly failure: Failure

  constructor(failure: Failure) {
    super(failure.what)
    this.failure = failure
  }
}

export interface Failure {
  readonly code: string
  readonly what: string
  readonly next: string
  readonly exit: number
}

type NextByCode = Partial<Readonly<Record<ErrorCode, string>>>

/** A noun has its own for errors about its items. */
const nextByCode: NextByCode = {
  PAWL_NOT_FOUND: 'check the id; add --tenant if it belongs to a tenant',
  PAWL_WRONG_STATE: 'nothing was changed; check its state first',
  PAWL_CONFIG: 'correct that option; --help lists the flags of the command',
  PAWL_SCHEMA_DRIFT: 'pawl doctor',
  PAWL_SCHEMA_MISSING: 'pawl migrate',
  PAWL_UNAVAILABLE: "check the URL with 'psql <url>', or start a database with 'pawl dev'",
}

interface Refusal {
  readonly code: string
  readonly what: (message: string) => string
  readonly next: string
  readonly exit: number
}

function unusable(what: Refusal['what'], next: string): Refusal {
  return { code: 'PAWL_UNAVAILABLE', what, next, exit: exitCodes.unavailable }
}

const login = unusable((message) => `The database refused the login: ${message}.`, 'check the user and password in the URL')
const schema: Refusal = {
  code: 'PAWL_SCHEMA_MISSING',
  what: () => "Pawl's schema is missing from this database or older than this release.",
  next: 'pawl migrate',
  exit: exitCodes.faultsFound,
}

/** PostgreSQL's own refusals, by SQLSTATE, before any statement of Pawl's runs. */
const refusals: Readonly<Record<string, Refusal>> = {
  '28000': login,
  '28P01': login,
  '3D000': unusable((message) => `The database does not exist: ${message}.`, 'createdb <name>, or correct the URL'),
  '25006': unusable(() => 'The database is read-only: this is a standby, or its disk is full.', 'point the URL at the primary'),
  '3F000': schema,
  '42P01': schema,
  '42703': schema,
  '42883': schema,
  '42501': {
    code: 'NO_RIGHTS',
    what: (message) => `The database role has no permission for this: ${message}.`,
    next: 'pawl doctor: it prints the missing grants',
    exit: exitCodes.failed,
  },
}

export function failureOf(error: unknown, next: NextByCode = {}): Failure {
  if (error instanceof ChildFailure) return error.failure
  if (error instanceof UsageError) return { code: 'USAGE', what: error.message, next: error.next, exit: exitCodes.usage }
  if (isPawlError(error, 'PAWL_UNAVAILABLE') && refusalOf(error.cause) !== undefined) return failureOf(error.cause)
  if (isPawlError(error))
    return { code: error.code, what: asCommand(error.message), next: nextOf(error, next), exit: error.exitCode }
  if (error instanceof EmbeddedError) {
    return {
      code: `EMBEDDED_${error.code.toUpperCase()}`,
      what: error.message,
      next: 'or use another database: pawl dev --database-url <url>',
      exit: error.code === 'bad_option' ? exitCodes.usage : exitCodes.unavailable,
    }
  }
  const refusal = refusalOf(error)
  if (refusal !== undefined) return { ...refusal, what: refusal.what((error as Error).message) }
  if (classify(error) === 'connection') {
    // Where a name has several addresses, the error of all of them together has a code and no words.
    const { message, code } = error as Error & { code?: unknown }
    return {
      code: 'PAWL_UNAVAILABLE',
      what: `The database cannot be reached (${message || String(code)}).`,
      next: nextByCode.PAWL_UNAVAILABLE!,
      exit: exitCodes.unavailable,
    }
  }
  return {
    code: 'UNEXPECTED',
    what: error instanceof Error ? error.message : String(error),
    next: 'run it again with -v for details',
    exit: exitCodes.failed,
  }
}

/** What a message of the library advises to call, as it is typed. */
function asCommand(message: string): string {
  return message.replace(/\bbatches\.rerun\('?(\w+)'?\)/g, "'pawl batches rerun $1'")
}

function refusalOf(error: unknown): Refusal | undefined {
  return refusals[String((error as { code?: unknown } | null | undefined)?.code)]
}

function nextOf({ code, message, details }: PawlError, next: NextByCode): string {
  // migrate() adds the SQL that this role may not run.
  if (details.sql !== undefined) return 'pawl migrate --sql > pawl.sql, and run that file as a role that may create the schema'
  // A pooler refuses session settings, which Pawl sends unless --pooler is given; psql sends none.
  if (/unsupported startup parameter/.test(message))
    return 'the URL is of a pooler: add --pooler transaction (or PAWL_POOLER=transaction), best with --direct-url'
  return next[code] ?? nextByCode[code] ?? 'pawl doctor'
}

/** Prints the error for a person, or as one line of JSON where JSON was asked for, and returns the exit code. */
export function reportFailure(terminal: Terminal, error: unknown, next?: NextByCode): number {
  const failure = failureOf(error, next)
  if (terminal.output !== 'table') {
    terminal.complain(JSON.stringify({ error: { ...failure, ...(terminal.isVerbose ? { stack: describeError(error) } : {}) } }))
    return failure.exit
  }
  terminal.complain(
    terminal
      .alignedPairs(
        [
          ['error', failure.what, 'red'],
          ['next', failure.next],
          ['code', `${failure.code} (exit ${failure.exit})`],
        ],
        'stderr',
      )
      .join('\n'),
  )
  if (terminal.isVerbose) terminal.complain(`\n${describeError(error)}`)
  return failure.exit
}
