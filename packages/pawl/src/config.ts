// Options are parsed once into a frozen value with every field filled. Unknown names are an error with the nearest known one.

import { hostname } from 'node:os'
import type { DatabaseOptions } from './db/driver.ts'
import { PawlError } from './errors.ts'

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
  /** postgres://user:password@host:port/database */
  readonly databaseUrl: string
  /** The same database without the pooler, for LISTEN and liveness, when `pooler` is 'transaction'. */
  readonly directUrl?: string
  /** 'transaction' behind pgbouncer in transaction mode. */
  readonly pooler?: 'none' | 'transaction'
  /** How far a commit of Pawl's own transactions must have gone before it is answered. */
  readonly durability?: Durability
  readonly logger?: Logger
  /** Shown in pg_stat_activity. */
  readonly applicationName?: string
  readonly connectTimeoutMs?: number
  /** Without an answer for so long a connection counts as dead. */
  readonly queryTimeoutMs?: number
  /** Connections for calls without a transaction of the caller's own. */
  readonly callerConnectionsMax?: number
  readonly payloadBytesMax?: number
  readonly payloadDepthMax?: number
}

export interface Config {
  readonly database: DatabaseOptions
  readonly direct: DatabaseOptions
  readonly hasSession: boolean
  readonly durability: Durability
  readonly logger: Logger
  readonly callerConnectionsMax: number
  readonly payloadBytesMax: number
  readonly payloadDepthMax: number
}

export const defaults = {
  pooler: 'none',
  durability: 'durable',
  applicationName: 'pawl',
  connectTimeoutMs: 10_000,
  queryTimeoutMs: 30_000,
  callerConnectionsMax: 10,
  payloadBytesMax: 1_048_576,
  payloadDepthMax: 64,
} as const

const known = new Set([...Object.keys(defaults), 'databaseUrl', 'directUrl', 'logger'])

export function resolveConfig(options: PawlOptions): Config {
  assertKnown('createPawl', options, known)
  if (typeof options.databaseUrl !== 'string' || !/^postgres(ql)?:\/\//.test(options.databaseUrl)) {
    throw new PawlError('PAWL_CONFIG', 'databaseUrl must be a URL such as postgres://user:password@host:5432/database.')
  }
  const filled = { ...defaults, ...withoutUndefined(options) }
  if (!durabilities.includes(filled.durability)) throw notOneOf('durability', filled.durability, durabilities)
  if (filled.pooler !== 'none' && filled.pooler !== 'transaction')
    throw notOneOf('pooler', filled.pooler, ['none', 'transaction'])
  const database: DatabaseOptions = {
    url: options.databaseUrl,
    pooler: filled.pooler,
    connectTimeoutMs: whole('connectTimeoutMs', filled.connectTimeoutMs, 10, 600_000),
    queryTimeoutMs: whole('queryTimeoutMs', filled.queryTimeoutMs, 10, 3_600_000),
    applicationName: filled.applicationName,
  }
  return Object.freeze({
    database,
    direct: { ...database, url: options.directUrl ?? options.databaseUrl, pooler: options.directUrl ? 'none' : filled.pooler },
    hasSession: filled.pooler === 'none' || options.directUrl !== undefined,
    durability: filled.durability,
    logger: options.logger ?? stderrLogger,
    callerConnectionsMax: whole('callerConnectionsMax', filled.callerConnectionsMax, 1, 1000),
    payloadBytesMax: whole('payloadBytesMax', filled.payloadBytesMax, 2, 16_000_000),
    payloadDepthMax: whole('payloadDepthMax', filled.payloadDepthMax, 1, 1000),
  })
}

export function assertKnown(where: string, options: object, names: ReadonlySet<string>): void {
  for (const name of Object.keys(options)) {
    if (names.has(name)) continue
    const near = [...names].sort((a, b) => distance(a, name) - distance(b, name))[0]
    throw new PawlError('PAWL_CONFIG', `${where} has no option '${name}'. Did you mean '${near}'?`)
  }
}

export function whole(name: string, value: number, min: number, max: number): number {
  if (Number.isInteger(value) && value >= min && value <= max) return value
  throw new PawlError('PAWL_CONFIG', `${name} must be a whole number from ${min} to ${max}; it is ${value}.`)
}

export function between(name: string, value: number, min: number, max: number): number {
  if (value >= min && value <= max) return value
  throw new PawlError('PAWL_CONFIG', `${name} must be a number from ${min} to ${max}; it is ${value}.`)
}

export function notOneOf(name: string, value: unknown, allowed: readonly string[]): PawlError {
  return new PawlError('PAWL_CONFIG', `${name} must be one of ${allowed.join(', ')}; it is ${String(value)}.`)
}

export function withoutUndefined<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined)) as T
}

export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} }

/** One line of JSON each on stderr. Pawl itself logs at `info` only what a handler says with `context.log`. */
export const stderrLogger: Logger = {
  debug() {},
  info: (fields, message) => line('info', fields, message),
  warn: (fields, message) => line('warn', fields, message),
  error: (fields, message) => line('error', fields, message),
}

function line(level: string, fields: LogFields, message: string): void {
  process.stderr.write(`${JSON.stringify({ level, host: hostname(), pid: process.pid, message, ...fields })}\n`)
}

function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      next.push(Math.min(next[j - 1]! + 1, row[j]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)))
    }
    row = next
  }
  return row[b.length]!
}

/** A claim that a server crash forgets would give its fence number out again, so claims are never less than durable. */
export function atLeastDurable(durability: Durability): Durability {
  return durability === 'relaxed' ? 'durable' : durability
}
