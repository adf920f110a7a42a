// The options of createPawl, resolved once into a frozen value with every field filled.

import { type Config, durabilities, type Logger, type PawlOptions, stderrLogger } from './config.ts'
import type { DatabaseOptions } from './db/driver.ts'
import type { MigrateOptions } from './db/migrate.ts'
import {
  callback,
  integer,
  type Option,
  oneOf,
  option,
  refused,
  required,
  resolve,
  signal,
  type TableOf,
  text,
} from './kernel/options.ts'

export const pawlTable = {
  databaseUrl: required(url('The database.')),
  directUrl: url("The same database without the pooler, for LISTEN and liveness, when `pooler` is 'transaction'."),
  pooler: oneOf(['none', 'transaction'], { default: 'none', doc: "'transaction' behind pgbouncer in transaction mode." }),
  durability: oneOf(durabilities, {
    default: 'durable',
    doc: "How far a commit of Pawl's own transactions must have gone before it is answered.",
  }),
  logger: option<Logger>(
    'an object with the functions debug, info, warn and error',
    {
      doc: 'Takes fields, then a message, as pino does.',
      otherwise: 'warnings and errors as lines of JSON on stderr',
    },
    isLogger,
  ),
  applicationName: text({ to: 50, default: 'pawl', doc: 'Shown in pg_stat_activity.' }),
  connectTimeoutMs: integer({ from: 10, to: 600_000, default: 10_000, doc: 'How long a connection may take to open.' }),
  queryTimeoutMs: integer({
    from: 10,
    to: 3_600_000,
    default: 30_000,
    doc: 'A connection without an answer for this long counts as dead.',
  }),
  callerConnectionsMax: integer({
    from: 1,
    to: 1000,
    default: 10,
    doc: "Connections for calls without a transaction of the caller's own.",
  }),
  payloadBytesMax: integer({
    from: 2,
    to: 16_000_000,
    default: 1_048_576,
    doc: 'The largest payload, result or data of an event.',
  }),
  payloadDepthMax: integer({ from: 1, to: 1000, default: 64, doc: 'The deepest nesting of a payload.' }),
} satisfies TableOf<PawlOptions>

export const migrateTable = {
  onStep: callback<NonNullable<MigrateOptions['onStep']>>({ doc: 'Called before each step.' }),
  onWait: callback<NonNullable<MigrateOptions['onWait']>>({ doc: 'Called once, when another process migrates.' }),
  signal: signal({ doc: 'Ends the wait for another process; a step that has begun is finished.' }),
} satisfies TableOf<MigrateOptions>

export interface AlertsOptions {
  /** '*': of all tenants. `pawl.for('acme').alerts()` lists those of one. */
  readonly tenant?: '*'
}

export const alertsTable = {
  tenant: oneOf(['*'], { otherwise: 'those of the empty tenant', doc: 'The alerts of all tenants.' }),
} satisfies TableOf<AlertsOptions>

/** The empty one is the tenant of `pawl` itself. */
export const tenantName = required(text({ to: 100, doc: 'The name of a tenant.' }))

export function resolveConfig(given: PawlOptions): Config {
  const options = resolve('createPawl', pawlTable, given)
  const { databaseUrl, directUrl, pooler } = options
  if (directUrl !== undefined && pooler === 'none')
    throw refused('createPawl', "directUrl is for pooler: 'transaction'; without a pooler databaseUrl is the direct one")
  const database: DatabaseOptions = {
    url: databaseUrl,
    pooler,
    connectTimeoutMs: options.connectTimeoutMs,
    queryTimeoutMs: options.queryTimeoutMs,
    applicationName: options.applicationName,
  }
  return Object.freeze({
    database,
    direct: { ...database, url: directUrl ?? databaseUrl, pooler: directUrl === undefined ? pooler : 'none' },
    hasSession: pooler === 'none' || directUrl !== undefined,
    durability: options.durability,
    logger: options.logger ?? stderrLogger,
    callerConnectionsMax: options.callerConnectionsMax,
    payloadBytesMax: options.payloadBytesMax,
    payloadDepthMax: options.payloadDepthMax,
  })
}

/** It may have a password in it, also where it is not a URL at all. */
function url(doc: string): Option<string | undefined> {
  const expects = 'a URL such as postgres://user:password@host:5432/database'
  const isUrl = (given: unknown) => typeof given === 'string' && /^postgres(ql)?:\/\//.test(given)
  return { ...option<string>(expects, { doc }, isUrl), isSecret: true }
}

function isLogger(given: unknown): boolean {
  const logger = given as Readonly<Record<string, unknown>> | null
  return typeof given === 'object' && ['debug', 'info', 'warn', 'error'].every((level) => typeof logger?.[level] === 'function')
}
