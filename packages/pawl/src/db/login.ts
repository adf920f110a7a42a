// How a connection says where the database is and who asks: by a URL, by a URL with a password function or TLS options, or by what a pool of
// the application was made with.

import type { ConnectionOptions } from 'node:tls'
import pg from 'pg'
import { shown } from '../errors.ts'
import { noAnswer } from './classify.ts'

export type Password = string | (() => string | Promise<string>)
export type Ssl = boolean | ConnectionOptions

/** A Pool of pg, as far as its type must be known. */
export interface CallerPool {
  connect(): Promise<unknown>
  readonly totalCount: number
  readonly options: object
}

/** As pg takes it. */
export interface Login {
  readonly connectionString?: string
  readonly host?: string
  readonly port?: number
  readonly user?: string
  readonly database?: string
  readonly password?: Password
  readonly ssl?: Ssl
  readonly options?: string
}

/** Only the pg that we use ourselves: its clients are read ahead of their answers, which older ones cannot. */
export function isPool(given: unknown): boolean {
  return given instanceof pg.Pool
}

/** pg reads the digits that these begin with: of 5s it makes 5 milliseconds. */
const urlTimeouts = ['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout']
const timeoutMsMax = 2_147_483_647
/** What pg reads of a URL's parameters. */
const urlParameters = [
  ...`host port user password ssl sslmode sslcert sslkey sslrootcert sslnegotiation uselibpqcompat
  enableChannelBinding options application_name fallback_application_name client_encoding`.split(/\s+/),
  ...urlTimeouts,
]
/** Hosts and other clients write these into the URLs that they give out; pg ignores them, and so does Pawl. */
const foreignParameters = `channel_binding connect_timeout connection_limit gssencmode keepalives keepalives_count keepalives_idle
  keepalives_interval load_balance_hosts pgbouncer pool pool_timeout prepare prepareThreshold
  prepared_statements schema socket_timeout sslaccept sslsni statement_cache_size supa target_session_attrs
  workaround`.split(/\s+/)
const sslModes = ['disable', 'prefer', 'require', 'verify-ca', 'verify-full', 'no-verify']
const sslValues = ['true', '1', '0', 'no-verify']

/** pg ignores a parameter that it does not know and all but the last of one name, and connects without TLS where sslmode is misspelt. */
export function parameterProblem(url: string): string | undefined {
  const [, query = ''] = /\?([^#]*)/.exec(url) ?? []
  const parameters = new URLSearchParams(query)
  for (const [name, value] of parameters) {
    if (foreignParameters.includes(name)) continue
    // What follows the question mark may be half a password.
    if (!/^\w{1,40}$/.test(name)) return 'has a parameter whose name is not a word. Write a question mark in a password as %3F'
    if (!urlParameters.includes(name))
      return `has the parameter '${name}', which pg does not know. It knows ${urlParameters.join(', ')}`
    if (parameters.getAll(name).length > 1) return `has the parameter '${name}' more than once. Give it once`
    if (urlTimeouts.includes(name) && !(/^\d+$/.test(value) && Number(value) <= timeoutMsMax))
      return `has ${name}=${shown(value)}. Give a number of milliseconds from 0 to ${timeoutMsMax}, such as ${name}=5000 for 5 seconds`
    if (name === 'sslmode' && !sslModes.includes(value)) return `has sslmode=${shown(value)}. Use one of ${sslModes.join(', ')}`
    if (name === 'ssl' && !sslValues.includes(value))
      return `has ssl=${shown(value)}. Use one of ${sslValues.join(', ')}, or sslmode=disable for a connection without TLS`
  }
  return undefined
}

/** Undefined where the URL says everything. */
export function loginOfUrl(
  url: string,
  { ssl, password }: { readonly ssl: Ssl | undefined; readonly password: Password | undefined },
): Login | undefined {
  if (password === undefined) return ssl === undefined ? undefined : { connectionString: url, ssl }
  // pg takes the password of a URL, also where it has none.
  const { connectionParameters } = new pg.Client({ connectionString: url, ...(ssl !== undefined && { ssl }) }) as unknown as {
    connectionParameters: Login
  }
  return { ...connectionParameters, password: asked(password) }
}

const poolFields = [
  'connectionString',
  'host',
  'port',
  'user',
  'database',
  'password',
  'ssl',
  'sslnegotiation',
  'enableChannelBinding',
  'client_encoding',
  'options',
] as const

export function loginOfPool(pool: CallerPool): Login {
  const given = pool.options as Readonly<Record<string, unknown>>
  const fields = poolFields.filter((name) => given[name] !== undefined).map((name) => [name, given[name]])
  const login = Object.fromEntries(fields) as Login
  return login.password === undefined ? login : { ...login, password: asked(login.password) }
}

/** A function that fails is a database that cannot be reached: what waits for it tries again. */
function asked(password: Password): Password {
  if (typeof password === 'string') return password
  return async function (this: unknown) {
    try {
      const answer = await password()
      if (typeof answer === 'string') return answer
      throw new Error(`it returned ${answer === null ? 'null' : `a value of type ${typeof answer}`}, not a string`)
    } catch (error) {
      // pg calls this as a method of its client. A pool of it forgets the client and leaves its socket open, for a minute.
      const client = this as { readonly connection?: { readonly stream?: { destroy(): void } } } | undefined
      client?.connection?.stream?.destroy()
      const why = error instanceof Error ? error.message : String(error)
      throw noAnswer(`The password function failed: ${why}.`, error)
    }
  }
}

/** TLS options must reach the keeper's thread, and functions cannot. */
export function isCloneable(ssl: unknown): boolean {
  try {
    structuredClone(ssl)
    return true
  } catch {
    return false
  }
}

/** For a thread: without a password function, and with the private key, which pg leaves out of a copy of the options. */
export function cloneable(login: Login): Login {
  const { password, ssl, ...rest } = login
  return {
    ...rest,
    ...(typeof password === 'string' && { password }),
    ...(ssl !== undefined && { ssl: typeof ssl === 'object' && ssl.key !== undefined ? { ...ssl, key: ssl.key } : ssl }),
  }
}
