// What one Pawl is configured with, resolved once by createPawl (pawl-options.ts), and how it logs.

import { hostname } from 'node:os'
import type { DatabaseOptions } from './db/driver.ts'
import type { CallerPool, Password, Ssl } from './db/login.ts'

export type Durability = 'relaxed' | 'durable' | 'replicated'
export const durabilities: readonly Durability[] = ['relaxed', 'durable', 'replicated']

export interface LogFields {
  readonly [name: string]: unknown
}

/** The shape of pino and of most others: fields first, then a message. */
export interface Logger {
  debug(fields: LogFields, message: string): void
  info(fields: LogFields, message: string): void
  warn(fields: LogFields, message: string): void
  error(fields: LogFields, message: string): void
}

export interface PawlOptions {
  /** postgres://user:password@host:port/database. Needed without `pool`. */
  readonly databaseUrl?: string | undefined
  /**
   * Your own Pool of pg, for calls without a transaction; Pawl never ends it. The engine's own connections use `databaseUrl`, or are opened with
   * what the pool was made with.
   */
  readonly pool?: CallerPool
  /** The same database without the pooler, for LISTEN and liveness, when `pooler` is 'transaction'. */
  readonly directUrl?: string | undefined
  /** 'transaction' behind pgbouncer in transaction mode. */
  readonly pooler?: 'none' | 'transaction'
  /** TLS: true, or options of Node's tls without functions. For URLs that say nothing about it. */
  readonly ssl?: Ssl
  /** For URLs without one. A function is called for each new connection: for tokens that expire. */
  readonly password?: Password
  /** How far a commit of Pawl's own transactions must have gone before it is answered. */
  readonly durability?: Durability
  readonly logger?: Logger
  /** Shown in pg_stat_activity. */
  readonly applicationName?: string
  /** The maximum size of a payload, a result or the data of an event. Default 1 MB. */
  readonly payloadBytesMax?: number
  readonly tuning?: PawlTuning
}

/** Settings that are rarely needed. */
interface PawlTuning {
  /** How long a connection may take to open. Default 10 s. */
  readonly connectTimeoutMs?: number
  /** A connection that has not answered for this long counts as dead. Default 30 s. */
  readonly queryTimeoutMs?: number
  /** The maximum number of connections for calls without { tx }. Default 10. Not with `pool`. */
  readonly callerConnectionsMax?: number
}

export interface Config {
  readonly database: DatabaseOptions
  readonly direct: DatabaseOptions
  readonly hasSession: boolean
  readonly durability: Durability
  readonly logger: Logger
  readonly callerConnectionsMax: number
  /** The application's, for calls without a transaction. */
  readonly pool: CallerPool | undefined
  readonly payloadBytesMax: number
}

export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} }

/** One line of JSON each on stderr. Pawl itself logs at `info` only what a handler says with `context.log`. */
export const stderrLogger: Logger = {
  debug() {},
  info: (fields, message) => line('info', fields, message),
  warn: (fields, message) => line('warn', fields, message),
  error: (fields, message) => line('error', fields, message),
}

/** A logger that throws ends no loop and fails no attempt: it is asked to warn instead, and if it cannot, Node does, once. */
export function guarded(logger: Logger): Logger {
  let hasFailed = false
  const failed = (error: unknown) => {
    if (!hasFailed) process.emitWarning(`The logger of Pawl throws, and what it should log is lost: ${String(error)}`)
    hasFailed = true
  }
  const guard = (level: keyof Logger) => (fields: LogFields, message: string) => {
    try {
      logger[level](fields, message)
    } catch (error) {
      if (level === 'warn') return failed(error)
      try {
        logger.warn({ error: String(error) }, `a log line could not be written: ${message}`)
      } catch {
        failed(error)
      }
    }
  }
  return { debug: guard('debug'), info: guard('info'), warn: guard('warn'), error: guard('error') }
}

function line(level: string, fields: LogFields, message: string): void {
  process.stderr.write(`${jsonOf({ level, host: hostname(), pid: process.pid, message, ...fields })}\n`)
}

/** A handler may log anything: a BigInt is written as its digits. */
function jsonOf(fields: LogFields): string {
  return JSON.stringify(fields, (_name, value: unknown) => (typeof value === 'bigint' ? String(value) : value))
}

/** A claim that a server crash forgets would give its fence number out again, so claims are never less than durable. */
export function atLeastDurable(durability: Durability): Durability {
  return durability === 'relaxed' ? 'durable' : durability
}
