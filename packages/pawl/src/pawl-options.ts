// The options of createPawl, resolved once into a frozen value with every field filled.

import { type Config, durabilities, guarded, type Logger, type PawlOptions, stderrLogger } from './config.ts'
import type { DatabaseOptions } from './db/driver.ts'
import {
  type CallerPool,
  isCloneable,
  isPool,
  loginOfPool,
  loginOfUrl,
  type Password,
  parameterProblem,
  type Ssl,
} from './db/login.ts'
import {
  integer,
  type Option,
  oneOf,
  option,
  type Resolved,
  refused,
  required,
  resolve,
  type TableOf,
  text,
  tuning,
} from './kernel/options.ts'

const pawlTuningTable = {
  connectTimeoutMs: integer({ from: 10, to: 600_000, default: 10_000, doc: 'How long a connection may take to open.' }),
  queryTimeoutMs: integer({
    from: 10,
    to: 3_600_000,
    default: 30_000,
    doc: 'A connection that has not answered for this long counts as dead.',
  }),
  callerConnectionsMax: integer({
    from: 1,
    to: 1000,
    otherwise: '10',
    doc: 'The maximum number of connections for calls without { tx }. Cannot be combined with pool.',
  }),
} satisfies TableOf<NonNullable<PawlOptions['tuning']>>

export const pawlTable = {
  databaseUrl: { ...url('The URL of the database. Not needed with pool.'), otherwise: 'the options of the pool' },
  directUrl: url("The same database without the pooler, for LISTEN and liveness, when `pooler` is 'transaction'."),
  pooler: oneOf(['none', 'transaction'], {
    default: 'none',
    doc: "'transaction' if databaseUrl is of a pgbouncer in transaction mode.",
  }),
  ssl: option<Ssl>(
    "true, false or an object of Node's TLS options without functions",
    { doc: 'TLS options, for URLs without them.', otherwise: 'as the URL says' },
    (given) => typeof given === 'boolean' || (typeof given === 'object' && given !== null && isCloneable(given)),
  ),
  password: {
    ...option<Password>(
      'a string, or a function that returns one',
      { doc: 'The password, for URLs without one. A function is called for each new connection.', otherwise: 'that of the URL' },
      (given) => (typeof given === 'string' && given !== '') || typeof given === 'function',
    ),
    isSecret: true,
  },
  pool: option<CallerPool>(
    "a Pool of the pg that Pawl uses itself ('npm ls pg' shows whether there are two)",
    { doc: 'Your own Pool, for calls without { tx }.', otherwise: 'a pool of tuning.callerConnectionsMax' },
    isPool,
  ),
  durability: oneOf(durabilities, {
    default: 'durable',
    doc: "The durability of commits in Pawl's own transactions.",
  }),
  logger: option<Logger>(
    'an object with the functions debug, info, warn and error',
    {
      doc: 'A logger that takes fields, then a message, as pino does.',
      otherwise: 'warnings and errors as lines of JSON on stderr',
    },
    isLogger,
  ),
  applicationName: text({ to: 50, default: 'pawl', doc: 'The application_name of connections, shown in pg_stat_activity.' }),
  payloadBytesMax: integer({
    from: 2,
    to: 16_000_000,
    default: 1_048_576,
    doc: 'The maximum size of a payload, a result or the data of an event, in bytes.',
  }),
  tuning: tuning(pawlTuningTable),
} satisfies TableOf<PawlOptions>

export interface AlertsOptions {
  /** '*': of all tenants. `pawl.for('acme').alerts()` lists those of one. */
  readonly tenant?: '*'
}

export const alertsTable = {
  tenant: oneOf(['*'], { otherwise: 'the alerts of the empty tenant', doc: "'*' lists the alerts of all tenants." }),
} satisfies TableOf<AlertsOptions>

/** The empty one is the tenant of `pawl` itself. */
export const tenantName = required(text({ to: 100, doc: 'The name of a tenant.' }))

const callerConnections = 10

export function resolveConfig(given: PawlOptions): Config {
  const options = resolve('createPawl', pawlTable, given)
  assertOneWay(options)
  const { databaseUrl, directUrl, pooler, pool } = options
  const database: DatabaseOptions = {
    url: databaseUrl,
    login: databaseUrl === undefined ? loginOfPool(pool!) : loginOfUrl(databaseUrl, options),
    pooler,
    connectTimeoutMs: options.tuning.connectTimeoutMs,
    queryTimeoutMs: options.tuning.queryTimeoutMs,
    applicationName: options.applicationName,
  }
  return Object.freeze({
    database,
    direct:
      directUrl === undefined
        ? database
        : { ...database, url: directUrl, login: loginOfUrl(directUrl, options), pooler: 'none' as const },
    hasSession: pooler === 'none' || directUrl !== undefined,
    durability: options.durability,
    logger: guarded(options.logger ?? stderrLogger),
    callerConnectionsMax: options.tuning.callerConnectionsMax ?? callerConnections,
    pool,
    payloadBytesMax: options.payloadBytesMax,
  })
}

/** Of two answers to one question one would be ignored. */
function assertOneWay(options: Resolved<typeof pawlTable>): void {
  const { databaseUrl, directUrl, pooler, pool, ssl, password } = options
  const no = (problem: string) => refused('createPawl', problem)
  if (databaseUrl === undefined && pool === undefined)
    throw no(`databaseUrl must be ${pawlTable.databaseUrl.expects}, got undefined; or give pool, a Pool of pg`)
  if (pool !== undefined && options.tuning.callerConnectionsMax !== undefined)
    throw no('tuning.callerConnectionsMax cannot be combined with pool: set max on your pool instead')
  if (directUrl !== undefined && pooler === 'none')
    throw no("directUrl needs pooler: 'transaction'; without a pooler, databaseUrl is already direct")
  if (databaseUrl === undefined) assertPoolTells(pool!, ssl, password)
  for (const [name, given] of Object.entries({ databaseUrl, directUrl })) {
    const problem = given === undefined ? undefined : parameterProblem(given)
    if (problem !== undefined) throw refused('createPawl', `${name} ${problem}`, { option: name })
  }
  const urls = [databaseUrl, directUrl].filter((each) => each !== undefined)
  if (password !== undefined && urls.some((each) => /^\w+:\/\/[^/@]*:[^/@]+@|[?&]password=/.test(each)))
    throw no('give the password in the URL or as password, not both')
  if (ssl !== undefined && urls.some((each) => /[?&]ssl(mode|cert|key|rootcert)?=/.test(each)))
    throw no('give TLS options in the URL (such as sslmode) or as ssl, not both')
}

/** The engine opens its own connections, one of them in a thread, with what the pool was made with. */
function assertPoolTells(pool: CallerPool, ssl: unknown, password: unknown): void {
  const made = pool.options as { readonly stream?: unknown; readonly ssl?: unknown }
  if (ssl !== undefined || password !== undefined)
    throw refused('createPawl', 'ssl and password cannot be combined with pool: set them on your pool instead')
  if (made.stream !== undefined || !isCloneable(made.ssl))
    throw refused(
      'createPawl',
      'the pool has a stream, or functions in its ssl options, so Pawl cannot open its own connections like it: give databaseUrl too',
    )
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
