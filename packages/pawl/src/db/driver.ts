// The driver seam: only this folder imports pg. It makes the engine's own connections (pipelined, each for one purpose, reconnecting)
// and the pools for handlers and callers, all with client-side timeouts and keepalive, because a half-open connection gives no error.

// Types by their names: with a default import the declarations would not compile where CommonJS has no synthetic default.
import type { Client, ClientConfig, PoolClient } from 'pg'
import pg from 'pg'
import type { Durability } from '../config.ts'
import { PawlError } from '../errors.ts'
import { classify, sqlState, unreachable } from './classify.ts'
import { type ClientBase, noteBreak, openClients, type QueryConfig, type QueryResult, socketOf } from './client.ts'
import type { Db } from './db.ts'
import type { CallerPool, Login } from './login.ts'
import { ownPathSetting, ownPathSql, ownTypes } from './own-session.ts'
import { begin } from './packet.ts'
import { bind, type Statement, StatementNames, type Values } from './statement.ts'
import { Transaction, type TransactionOptions } from './transaction.ts'

type Pooler = 'none' | 'transaction'

export interface DatabaseOptions {
  readonly url?: string | undefined
  /** Where a URL does not say it all. */
  readonly login?: Login | undefined
  /** 'transaction' behind pgbouncer in transaction mode: unnamed statements, no session state, polling instead of LISTEN. */
  readonly pooler: Pooler
  readonly connectTimeoutMs: number
  /** A connection that has not answered a query for this long counts as dead. 0: any time. */
  readonly queryTimeoutMs: number
  readonly applicationName: string
}

// The server, too, must notice a client that went without a word, or its open transaction keeps a job's row locked for hours.
const keepaliveSettings = ['tcp_keepalives_idle=10', 'tcp_keepalives_interval=5', 'tcp_keepalives_count=3']

const isolationSetting = 'default_transaction_isolation=read\\ committed'

// Session settings of the engine's own connections. The planner switches keep every statement on its index even when the statistics were
// taken on an empty table; the rest undoes what a role or database may have set.
const engineSettings = [
  'synchronous_commit=on',
  isolationSetting,
  'enable_seqscan=off',
  'enable_hashjoin=off',
  'enable_mergejoin=off',
  'jit=off',
  'statement_timeout=60000',
  'idle_in_transaction_session_timeout=0',
  'idle_session_timeout=0',
  'plan_cache_mode=force_generic_plan',
  'TimeZone=UTC',
  'DateStyle=ISO',
  ownPathSetting,
]

function clientConfig(options: DatabaseOptions, purpose: string, settings: readonly string[]): ClientConfig {
  const { own, name = options.applicationName, ...login } = withoutOptions(options)
  return {
    ...login,
    application_name: sessionName(name, purpose),
    connectionTimeoutMillis: options.connectTimeoutMs,
    query_timeout: options.queryTimeoutMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    pipeline: true,
    ...(options.pooler === 'none'
      ? { options: [...own, ...[...keepaliveSettings, ...settings].map((setting) => `-c ${setting}`)].join(' ') }
      : {}),
  }
}

const sessionNameBytesMax = 63

/** PostgreSQL cuts a longer name at its end, where the purpose is. */
function sessionName(applicationName: string, purpose: string): string {
  const bytesLeft = sessionNameBytesMax - Buffer.byteLength(purpose) - 1
  return `${Buffer.from(applicationName)
    .subarray(0, bytesLeft)
    .toString()
    .replace(/\ufffd/g, '')} ${purpose}`
}

interface BareLogin extends ClientConfig {
  readonly own: readonly string[]
  readonly name?: string
}

/**
 * pg would let the `options` and the name of a URL replace ours. Options go before ours instead: where both name a setting, the server takes the
 * last; a transaction pooler gets them as they are, and none of ours. The name becomes the first part of the sessions' names: by the second
 * they are found.
 */
function withoutOptions({ url, login, pooler }: DatabaseOptions): BareLogin {
  const { options, connectionString = '', ...rest } = login ?? { connectionString: url }
  const at = connectionString.indexOf('?')
  const parameters = new URLSearchParams(at < 0 ? '' : connectionString.slice(at))
  const name = parameters.get('application_name') ?? undefined
  parameters.delete('application_name')
  const isOurs = pooler !== 'transaction'
  const own = isOurs ? [...(options === undefined ? [] : [options]), ...parameters.getAll('options')] : []
  if (isOurs) parameters.delete('options')
  const bare = at < 0 ? connectionString : `${connectionString.slice(0, at)}?${parameters}`
  return {
    ...rest,
    ...(!isOurs && options !== undefined && { options }),
    ...(bare !== '' && { connectionString: bare }),
    ...(name !== undefined && { name }),
    own,
  } as never
}

/** Hears how the statements of an engine connection end. */
export interface StatementWatch {
  succeeded(statement: string): void
  failed(statement: string, error: unknown, connection: Connection): void
  /** A stale plan was dropped and the statement sent again. */
  repeated(): void
}

interface ConnectionExtra {
  readonly settings?: readonly string[]
  readonly watch?: StatementWatch | undefined
  readonly durability?: Durability
  /** How long a statement waits for a lock, where that is not the 5 seconds of the others. */
  readonly lockTimeoutMs?: number
}

const lockTimeoutSql = (lockTimeoutMs: number) => `set local lock_timeout = ${lockTimeoutMs}`

/**
 * A statement that the client gives up would go on waiting at the server, one more session for each. A quarter of the time for an answer: the
 * five tries of a call take little longer than that.
 */
const callerLockMs = (answerMs: number) => Math.floor(answerMs / 4)

/** An engine connection. It connects on first use and again after a failure; what was in flight when it broke is rejected. */
export class Connection implements Db {
  readonly #options: DatabaseOptions
  readonly #purpose: string
  readonly #settings: readonly string[]
  readonly #durability: Durability | undefined
  readonly #lockTimeoutMs: number
  readonly #watch: StatementWatch | undefined
  #client: Client | undefined
  #connecting: Promise<Client> | undefined
  #isClosed = false

  constructor(options: DatabaseOptions, purpose: string, extra: ConnectionExtra = {}) {
    const { durability, lockTimeoutMs = 5000, settings = [] } = extra
    this.#options = options
    this.#watch = extra.watch
    this.#purpose = purpose
    this.#settings = [...engineSettings, ...durabilitySettings(durability), `lock_timeout=${lockTimeoutMs}`, ...settings]
    this.#durability = durability
    this.#lockTimeoutMs = lockTimeoutMs
  }

  async run<Row>(statement: Statement, values: Values = {}): Promise<Row[]> {
    try {
      const client = await this.client()
      const rows = await this.#send<Row>(client, statement, values).catch((error: unknown) => {
        if (classify(error) !== 'replan') throw error
        return this.#repeat<Row>(client, statement, values)
      })
      this.#watch?.succeeded(statement.name)
      return rows
    } catch (error) {
      this.#watch?.failed(statement.name, error, this)
      throw error
    }
  }

  async #send<Row>(client: Client, statement: Statement, values: Values): Promise<Row[]> {
    const query = { text: statement.text, values: bind(statement, values) }
    const result =
      this.#options.pooler === 'none'
        ? await client.query({ ...query, name: statement.preparedName })
        : await runWith(client, query, this.#lockTimeoutMs, this.#durability)
    return result.rows as Row[]
  }

  /** A session keeps a stale plan under its name. The statement failed as a whole, so it is sent once more on a fresh session. */
  async #repeat<Row>(stale: Client, statement: Statement, values: Values): Promise<Row[]> {
    if (this.#client === stale) this.#client = undefined
    // The driver answers what is in flight on it before it says goodbye.
    void this.#end(stale)
    this.#watch?.repeated()
    return this.#send<Row>(await this.client(), statement, values)
  }

  /** For DDL and migrations. */
  async query<Row>(text: string): Promise<Row[]> {
    const client = await this.client()
    return (await client.query(text)).rows as Row[]
  }

  /** The connected client, for what needs a session: LISTEN and the liveness lock. */
  async client(): Promise<Client> {
    return this.#live() ?? (await this.#connect())
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.disconnect()
  }

  /** Ends the session; the next statement makes another. */
  async disconnect(): Promise<void> {
    const client = this.#client ?? (await this.#connecting?.catch(() => undefined))
    this.#client = undefined
    if (client !== undefined) await this.#end(client)
  }

  /** A half-open connection never answers the goodbye; after the time that every other answer gets it is cut. */
  async #end(client: Client): Promise<void> {
    const timer = setTimeout(() => socketOf(client)?.destroy(), this.#options.queryTimeoutMs)
    await client.end().catch(() => undefined)
    clearTimeout(timer)
  }

  /** A client whose query timed out is destroyed before pg says so; it must not get the next statement. */
  #live(): Client | undefined {
    return this.#client !== undefined && socketOf(this.#client)?.destroyed ? undefined : this.#client
  }

  #connect(): Promise<Client> {
    if (this.#isClosed) return Promise.reject(new PawlError('PAWL_STOPPED', `The ${this.#purpose} connection is closed.`))
    this.#connecting ??= this.#open().finally(() => {
      this.#connecting = undefined
    })
    return this.#connecting
  }

  async #open(): Promise<Client> {
    const client = new pg.Client({ ...clientConfig(this.#options, this.#purpose, this.#settings), types: ownTypes })
    // pg emits 'error' on a broken idle connection, sometimes twice; without a listener that would end the process.
    client.on('error', () => this.#drop(client))
    client.on('end', () => this.#drop(client))
    try {
      await client.connect()
    } catch (error) {
      openClients.delete(client)
      client.end().catch(() => undefined)
      throw unreachable(error)
    }
    openClients.add(client)
    if (this.#isClosed) {
      await client.end().catch(() => undefined)
      throw new PawlError('PAWL_STOPPED', `The ${this.#purpose} connection is closed.`)
    }
    this.#client = client
    return client
  }

  #drop(client: Client): void {
    openClients.delete(client)
    if (this.#client === client) this.#client = undefined
  }
}

function durabilitySettings(durability: Durability | undefined): string[] {
  if (durability === 'relaxed') return ['synchronous_commit=off']
  return durability === 'replicated' ? ['synchronous_commit=remote_apply'] : []
}

const durabilitySql = 'select pawl.set_durability($1::text, true)'

/** Undoes what a role or a database may have set: what is acknowledged is on disk. A higher level stays. */
const durableSql = (isLocal: boolean) => `select pg_catalog.set_config('synchronous_commit', 'on', ${isLocal})
  where pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.=) any ('{off,local,remote_write}'::pg_catalog.text[])`

/** Where the session is not ours (a transaction pooler, the application's pool) each statement brings its settings, in the same packet. */
async function runWith(
  client: ClientBase,
  query: QueryConfig,
  lockTimeoutMs: number,
  durability: Durability = 'durable',
): Promise<QueryResult> {
  const first = `${begin}; ${ownPathSql}; ${lockTimeoutSql(lockTimeoutMs)}`
  const [begun, set, result, committed] = await Promise.allSettled([
    client.query(durability === 'durable' ? `${first}; ${durableSql(true)}` : first),
    durability !== 'durable' ? client.query(durabilitySql, [durability]) : undefined,
    client.query(query),
    client.query('commit'),
  ])
  for (const step of [begun, set, result, committed]) if (step.status === 'rejected') throw step.reason
  return (result as PromiseFulfilledResult<QueryResult>).value
}

type Connected = (error: unknown, client: PoolClient | undefined) => void

/** Where a pool's clients come from: a pool of ours, or the application's. */
interface Clients {
  connect(connected: Connected): void
  end(): Promise<void>
}

interface PoolOptions {
  /** Of sessions of ours. Undefined: nothing may be prepared under a name. */
  readonly names?: StatementNames | undefined
  /** Whether each statement and transaction of ours must bring its settings. */
  readonly bringsSettings: boolean
  readonly queryTimeoutMs: number
}

/** Sessions for handlers or callers. */
export class Pool implements Db {
  readonly #clients: Clients
  readonly #options: PoolOptions
  #isEnded = false

  constructor(clients: Clients, options: PoolOptions) {
    this.#clients = clients
    this.#options = options
  }

  get names(): StatementNames | undefined {
    return this.#options.names
  }

  get isEnded(): boolean {
    return this.#isEnded
  }

  // Here and below with callbacks: each promise more is expensive while a process uses AsyncLocalStorage.
  connect(): Promise<PoolClient> {
    return new Promise((resolve, reject) => {
      this.take((error, client) => (error ? reject(error) : resolve(client!)))
    })
  }

  /** The error of a client that cannot be had is told from the error of a statement. */
  take(connected: Connected): void {
    // pg's own error would read like a lost connection, which is retried, or like a write whose answer is lost.
    if (this.#isEnded)
      return connected(stopped('This Pawl is closed. Call close() after the last call, or create a new Pawl.'), undefined)
    this.#clients.connect((error, client) => connected(error ? unreachable(error) : undefined, client))
  }

  async run<Row>(statement: Statement, values: Values = {}): Promise<Row[]> {
    const { bringsSettings, queryTimeoutMs } = this.#options
    const bound = bind(statement, values)
    if (!bringsSettings) return (await this.#send(statement, bound)).rows as Row[]
    const client = await this.connect()
    const query: QueryConfig = { text: statement.text, values: bound, types: ownTypes, query_timeout: queryTimeoutMs }
    try {
      const { rows } = await runWith(client, query, callerLockMs(queryTimeoutMs))
      client.release()
      return rows as Row[]
    } catch (error) {
      client.release(isBroken(error))
      throw error
    }
  }

  /** A stale plan is dropped, and the statement, which failed as a whole, is sent once more under a new name. */
  #send(statement: Statement, values: unknown[], isRepeated = false): Promise<QueryResult> {
    return new Promise((resolve, reject) => {
      this.take((failed, client) => {
        if (client === undefined) return reject(failed)
        const { names } = this
        const query = { text: statement.text, values, types: ownTypes, name: names?.prepared(statement) } as QueryConfig
        client.query(query, (error: unknown, result: QueryResult) => {
          client.release(error ? isBroken(error) : false)
          if (!error) return resolve(result)
          if (isRepeated || names === undefined || classify(error) !== 'replan') return reject(error)
          names.forget()
          resolve(this.#send(statement, values, true))
        })
      })
    })
  }

  async transaction<Answer>(
    work: (tx: Transaction) => Promise<Answer>,
    { settings, ...options }: Omit<TransactionOptions, 'names'> = {},
  ): Promise<Answer> {
    const { names, bringsSettings, queryTimeoutMs } = this.#options
    const { statementMs } = options
    const all = [
      ...(bringsSettings ? [ownPathSql, durableSql(true)] : []),
      ...(bringsSettings || statementMs !== undefined ? [lockTimeoutSql(callerLockMs(statementMs ?? queryTimeoutMs))] : []),
      ...(settings === undefined ? [] : [settings]),
    ].join('; ')
    const tx = new Transaction(await this.connect(), { ...options, names, settings: all === '' ? undefined : all })
    return tx.perform(work)
  }

  async end(): Promise<void> {
    if (this.#isEnded) return
    this.#isEnded = true
    await this.#clients.end()
  }
}

interface Waiting {
  readonly part: { taken: number }
  readonly connected: Connected
}

/**
 * One pool of sessions for several parts of a process, given out in the order of asking. A part of several leaves one session to the others, so
 * that handlers of one can wait for handlers of another.
 */
export class SharedPool {
  readonly #pool: Pool
  readonly #max: number
  readonly #waiting: Waiting[] = []
  #parts = 0
  #taken = 0

  constructor(pool: Pool, max: number) {
    this.#pool = pool
    this.#max = max
  }

  /** A pool of one part. Ending it leaves the sessions to the others. */
  part(): Pool {
    this.#parts++
    const part = { taken: 0 }
    const connect = (connected: Connected) => {
      this.#waiting.push({ part, connected })
      this.#next()
    }
    return new Pool(
      { connect, end: async () => undefined },
      { names: this.#pool.names, bringsSettings: false, queryTimeoutMs: 0 },
    )
  }

  async end(): Promise<void> {
    await this.#pool.end()
  }

  #next(): void {
    const partMax = this.#parts > 1 ? this.#max - 1 : this.#max
    const index = this.#taken < this.#max ? this.#waiting.findIndex(({ part }) => part.taken < partMax) : -1
    if (index < 0) return
    const [{ part, connected }] = this.#waiting.splice(index, 1) as [Waiting]
    const count = (step: 1 | -1) => {
      part.taken += step
      this.#taken += step
    }
    const leave = () => {
      count(-1)
      this.#next()
    }
    count(1)
    this.#pool.take((error, client) => {
      if (client === undefined) leave()
      connected(error, client && releasing(client, leave))
    })
  }
}

/** pg gives a client another `release` each time that it is taken from its pool. */
function releasing(client: PoolClient, released: () => void): PoolClient {
  const release = client.release
  client.release = (error) => {
    release.call(client, error)
    released()
  }
  return client
}

/** Whether the session cannot be used after this error. */
function isBroken(error: unknown): boolean {
  return sqlState(error) === undefined || ['connection', 'replan'].includes(classify(error))
}

function stopped(message: string): PawlError {
  return new PawlError('PAWL_STOPPED', message)
}

/** 'own': only statements of ours run on it. 'users': a handler's do too, and find the user's tables by the user's search path. */
type PoolPath = 'own' | 'users'

/** A pool of ours. It has pipelined clients too, so that begin travels with the first statement. */
export function createPool(options: DatabaseOptions, purpose: string, connectionsMax: number, path: PoolPath = 'users'): Pool {
  const isOwn = path === 'own'
  const { queryTimeoutMs } = options
  const lockTimeout = `lock_timeout=${callerLockMs(queryTimeoutMs)}`
  const pool = new pg.Pool({
    ...clientConfig(options, purpose, isOwn ? ['jit=off', isolationSetting, lockTimeout, ownPathSetting] : ['jit=off']),
    ...(isOwn && { types: ownTypes }),
    max: connectionsMax,
    idleTimeoutMillis: 30_000,
    allowExitOnIdle: true,
  })
  pool.on('connect', (client) => {
    openClients.add(client)
    // The pool listens only while a client is idle. One that breaks between two queries of its user would end the process.
    client.on('error', (error) => noteBreak(client, error))
    if (options.pooler === 'none') client.query(durableSql(false), () => undefined)
  })
  pool.on('remove', (client) => {
    openClients.delete(client)
  })
  pool.on('error', () => undefined)
  const isNamed = options.pooler === 'none'
  return new Pool(pool, { names: isNamed ? new StatementNames() : undefined, bringsSettings: isOwn && !isNamed, queryTimeoutMs })
}

/**
 * The application's own pool, for calls without a transaction. Its sessions are the application's, and so nothing of ours stays in them: statements
 * bring their settings as they do behind a transaction pooler.
 */
export function borrowPool(given: CallerPool, queryTimeoutMs: number): Pool {
  const pool = given as pg.Pool
  const connect = (connected: Connected) => {
    if (pool.ending)
      return connected(stopped('The pool passed to createPawl has ended. End it after the last call to Pawl.'), undefined)
    pool.connect((error, client) => connected(error, client && borrowed(client)))
  }
  // The pool is the application's to end.
  return new Pool({ connect, end: async () => undefined }, { bringsSettings: true, queryTimeoutMs })
}

/** Until it is released the client sends ahead of the answers, as our own do, and reads them as ours do. */
function borrowed(client: PoolClient): PoolClient {
  // What the types of pg leave out.
  const driver = client as unknown as { pipeline: boolean; _types: unknown }
  const { pipeline, _types } = driver
  const release = client.release
  const broke = (error: unknown) => noteBreak(client, error)
  Object.assign(driver, { pipeline: true, _types: ownTypes })
  client.on('error', broke)
  client.release = (error) => {
    Object.assign(driver, { pipeline, _types })
    client.off('error', broke)
    release.call(client, error)
  }
  return client
}
