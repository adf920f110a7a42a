// The driver seam: only this folder imports pg. It makes the engine's own connections (pipelined, each for one purpose, reconnecting)
// and the pools for handlers and callers, all with client-side timeouts and keepalive, because a half-open connection gives no error.

import { connect } from 'node:net'
// Types by their names: with a default import the declarations would not compile where CommonJS has no synthetic default.
import type {
  Client,
  ClientConfig,
  Pool as PgPool,
  PoolClient as PgPoolClient,
  QueryConfig as PgQueryConfig,
  QueryResult as PgQueryResult,
} from 'pg'
import pg from 'pg'
import type { Durability } from '../config.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { classify, markOwn, schemaMissing } from './classify.ts'
import type { Login } from './login.ts'
import { ownPathSetting, ownPathSql } from './own-path.ts'
import { ownTypes } from './result-types.ts'
import { bind, type Parameter, type Statement } from './statement.ts'

export type Pooler = 'none' | 'transaction'

export interface DatabaseOptions {
  readonly url?: string | undefined
  /** Where a URL does not say it all. */
  readonly login?: Login | undefined
  /** 'transaction' behind pgbouncer in transaction mode: unnamed statements, no session state, polling instead of LISTEN. */
  readonly pooler: Pooler
  readonly connectTimeoutMs: number
  /** A query without an answer for so long means a dead connection. 0: any time. */
  readonly queryTimeoutMs: number
  readonly applicationName: string
}

// The server, too, must notice a client that went without a word, or its open transaction keeps a job's row locked for hours.
const keepaliveSettings = ['tcp_keepalives_idle=10', 'tcp_keepalives_interval=5', 'tcp_keepalives_count=3']

// Session settings of the engine's own connections. The planner switches keep every statement on its index even when the statistics were
// taken on an empty table; the rest undoes what a role or database may have set.
const engineSettings = [
  'synchronous_commit=on',
  'default_transaction_isolation=read\\ committed',
  'enable_seqscan=off',
  'enable_hashjoin=off',
  'enable_mergejoin=off',
  'jit=off',
  'lock_timeout=5000',
  'statement_timeout=60000',
  'idle_in_transaction_session_timeout=0',
  'idle_session_timeout=0',
  'plan_cache_mode=force_generic_plan',
  'TimeZone=UTC',
  'DateStyle=ISO',
  ownPathSetting,
]

function clientConfig(options: DatabaseOptions, purpose: string, settings: readonly string[]): ClientConfig {
  const { own, ...login } = withoutOptions(options)
  return {
    ...login,
    application_name: sessionName(options.applicationName, purpose),
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

/**
 * pg would let the `options` of a URL replace ours. They go before ours instead: where both name a setting, the server takes the last. A
 * transaction pooler gets them as they are, and none of ours.
 */
function withoutOptions({ url, login, pooler }: DatabaseOptions): ClientConfig & { readonly own: readonly string[] } {
  const { options, connectionString = '', ...rest } = login ?? { connectionString: url }
  if (pooler === 'transaction') return { ...(login ?? { connectionString: url }), own: [] } as never
  const at = connectionString.indexOf('?')
  const parameters = new URLSearchParams(at < 0 ? '' : connectionString.slice(at))
  const own = [...(options === undefined ? [] : [options]), ...parameters.getAll('options')]
  parameters.delete('options')
  const bare = at < 0 ? connectionString : `${connectionString.slice(0, at)}?${parameters}`
  return { ...rest, ...(bare !== '' && { connectionString: bare }), own } as never
}

const openClients = new Set<pg.Client>()

/** For fault injection in tests: cuts every connection of this process as a network would. */
export function resetConnections(): number {
  const cut = [...openClients]
  for (const client of cut) socketOf(client)?.destroy()
  return cut.length
}

interface SessionSocket {
  readonly destroyed: boolean
  /** None of a Unix socket. */
  readonly remoteAddress?: string | undefined
  destroy(): void
}

function socketOf(client: pg.Client): SessionSocket | undefined {
  return (client as unknown as { connection?: { stream?: SessionSocket } }).connection?.stream
}

/** Hears how the statements of an engine connection end. */
export interface StatementWatch {
  succeeded(statement: string): void
  failed(statement: string, error: unknown, connection: Connection): void
  /** A stale plan was dropped and the statement sent again. */
  repeated(): void
}

export interface ConnectionExtra {
  readonly settings?: readonly string[]
  readonly watch?: StatementWatch | undefined
  readonly durability?: Durability
  /** How long a statement waits for a lock, where that is not the 5 seconds of the others. */
  readonly lockTimeoutMs?: number
}

/** A process that is paused between two statements of a transaction must not keep its row locks from all others. */
const idleSql = 'set local idle_in_transaction_session_timeout = 2000'

/** An engine connection. It connects on first use and again after a failure; what was in flight when it broke is rejected. */
export class Connection {
  readonly #options: DatabaseOptions
  readonly #purpose: string
  readonly #settings: readonly string[]
  readonly #durability: Durability | undefined
  readonly #lockTimeoutMs: number | undefined
  readonly #watch: StatementWatch | undefined
  #client: pg.Client | undefined
  #connecting: Promise<pg.Client> | undefined
  #isClosed = false

  constructor(options: DatabaseOptions, purpose: string, extra: ConnectionExtra = {}) {
    const { durability, lockTimeoutMs, settings = [] } = extra
    this.#options = options
    this.#watch = extra.watch
    this.#purpose = purpose
    const lockTimeout = lockTimeoutMs === undefined ? [] : [`lock_timeout=${lockTimeoutMs}`]
    this.#settings = [...engineSettings, ...durabilitySettings(durability), ...lockTimeout, ...settings]
    this.#durability = durability
    this.#lockTimeoutMs = lockTimeoutMs
  }

  /** Runs one statement, a transaction of its own, and gives its rows. */
  async run<Row>(statement: Statement, values: Readonly<Record<string, Parameter>> = {}): Promise<Row[]> {
    try {
      const client = this.#live() ?? (await this.#connect())
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

  async #send<Row>(client: pg.Client, statement: Statement, values: Readonly<Record<string, Parameter>>): Promise<Row[]> {
    const query = { text: statement.text, values: bind(statement, values) as unknown[] }
    const result =
      this.#options.pooler === 'none'
        ? await client.query({ ...query, name: statement.preparedName })
        : await runWith(client, query, this.#durability, this.#lockTimeoutMs)
    return result.rows as Row[]
  }

  /** A session keeps a stale plan under its name. The statement failed as a whole, so it is sent once more on a fresh session. */
  async #repeat<Row>(stale: pg.Client, statement: Statement, values: Readonly<Record<string, Parameter>>): Promise<Row[]> {
    if (this.#client === stale) this.#client = undefined
    // The driver answers what is in flight on it before it says goodbye.
    void this.#end(stale)
    this.#watch?.repeated()
    return this.#send<Row>(this.#live() ?? (await this.#connect()), statement, values)
  }

  /** Several statements in one transaction, on one session: if that breaks, none of them happened. Nobody else may use it meanwhile. */
  async transaction<Answer>(
    work: (run: <Row>(statement: Statement, values: Readonly<Record<string, Parameter>>) => Promise<Row[]>) => Promise<Answer>,
  ): Promise<Answer> {
    const client = this.#live() ?? (await this.#connect())
    await client.query(`begin isolation level read committed; ${ownPathSql}; ${idleSql}`)
    let last = ''
    try {
      const answer = await work(async <Row>(statement: Statement, values: Readonly<Record<string, Parameter>>) => {
        last = statement.name
        const { rows } = await client.query(statement.text, bind(statement, values) as unknown[])
        this.#watch?.succeeded(last)
        return rows as Row[]
      })
      await client.query('commit')
      return answer
    } catch (error) {
      await client.query('rollback').catch(() => undefined)
      this.#watch?.failed(last, error, this)
      throw error
    }
  }

  async query<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
    const client = this.#live() ?? (await this.#connect())
    const result = await client.query(text, values.length > 0 ? [...values] : undefined)
    return result.rows as Row[]
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
  async #end(client: pg.Client): Promise<void> {
    const timer = setTimeout(() => socketOf(client)?.destroy(), this.#options.queryTimeoutMs)
    await client.end().catch(() => undefined)
    clearTimeout(timer)
  }

  /** A client whose query timed out is destroyed before pg says so; it must not get the next statement. */
  #live(): pg.Client | undefined {
    return this.#client !== undefined && socketOf(this.#client)?.destroyed ? undefined : this.#client
  }

  #connect(): Promise<pg.Client> {
    if (this.#isClosed) return Promise.reject(new PawlError('PAWL_STOPPED', `The ${this.#purpose} connection is closed.`))
    this.#connecting ??= this.#open().finally(() => {
      this.#connecting = undefined
    })
    return this.#connecting
  }

  async #open(): Promise<pg.Client> {
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

  #drop(client: pg.Client): void {
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
  client: Pick<pg.Client, 'query'>,
  query: pg.QueryConfig,
  durability: Durability = 'durable',
  lockTimeoutMs?: number,
): Promise<pg.QueryResult> {
  const lockTimeout = lockTimeoutMs === undefined ? '' : `; set local lock_timeout = ${lockTimeoutMs}`
  const begin = `begin; ${ownPathSql}${lockTimeout}`
  const [begun, set, result, committed] = await Promise.allSettled([
    client.query(durability === 'durable' ? `${begin}; ${durableSql(true)}` : begin),
    durability !== 'durable' ? client.query(durabilitySql, [durability]) : undefined,
    client.query(query),
    client.query('commit'),
  ])
  for (const step of [begun, set, result, committed]) if (step.status === 'rejected') throw step.reason
  return (result as PromiseFulfilledResult<pg.QueryResult>).value
}

/** Holds back what is written to this client until the given function is called, so that several statements leave in one packet. */
export function cork(client: object): () => void {
  const stream = (client as { connection?: { stream?: { cork?(): void; uncork?(): void } } }).connection?.stream
  stream?.cork?.()
  return () => stream?.uncork?.()
}

/** How long the wish to cancel a statement may be on its way. */
const cancelMs = 1000
const cancelCode = 80_877_102

/** What pg knows of a client that its types leave out. */
interface Session {
  readonly host: string
  readonly port: number
  readonly processID: number | null
  readonly secretKey: number | null
  readonly _activeQuery: unknown
  readonly _sentQueryQueue: readonly unknown[]
  readonly _queryQueue: readonly unknown[]
}

/** Whether the server says that this session is in no transaction, as of the last answer. */
export function isIdle(client: PoolClient): boolean {
  return (client as unknown as { getTransactionStatus?(): string | null }).getTransactionStatus?.() === 'I'
}

export function sessionIdOf(client: PoolClient): number | null {
  return (client as unknown as Session).processID
}

/** Cuts a pooled client's connection and gives its place in the pool back: a statement that does not end is not waited for. */
export function discard(client: PoolClient): void {
  const session = client as unknown as Session
  const socket = socketOf(client as unknown as pg.Client)
  const isBusy = session._activeQuery != null || session._sentQueryQueue.length > 0 || session._queryQueue.length > 0
  // A server that waits for a lock does not see that its client is gone. Asked before the cut: a pooler forgets who is gone.
  if (isBusy && socket !== undefined && !socket.destroyed) cancel(session, socket, () => socket.destroy())
  else socket?.destroy()
  client.release(true)
}

/** Asks the server, once and without an answer, to end what this session does. */
function cancel({ host, port, processID, secretKey }: Session, { remoteAddress }: SessionSocket, done: () => void): void {
  if (processID === null || secretKey === null) return done()
  const request = Buffer.alloc(16)
  request.writeInt32BE(16, 0)
  request.writeInt32BE(cancelCode, 4)
  request.writeInt32BE(processID, 8)
  request.writeInt32BE(secretKey, 12)
  const socket = host.startsWith('/') ? connect(`${host}/.s.PGSQL.${port}`) : connect(port, remoteAddress ?? host)
  const timer = setTimeout(() => socket.destroy(), cancelMs).unref()
  socket.on('error', () => undefined)
  socket.on('close', () => {
    clearTimeout(timer)
    done()
  })
  // The server closes the connection when it has passed the request on.
  socket.unref().resume().write(request)
}

interface CopyWire {
  readonly stream: { readonly writable: boolean; write(bytes: Buffer): unknown }
  endCopyFrom(): void
}

/** A COPY from here. It is a Query of pg's own, which a pipelined client accepts; await it before anything else is sent. */
class CopyIn extends pg.Query {
  readonly #data: Buffer

  constructor(text: string, data: Buffer, callback: (error: Error | null | undefined, result: pg.QueryResult) => void) {
    super(text, undefined, callback as never)
    this.#data = data
  }

  /** One CopyData message with the bytes as they are: what pg itself would send is a copy of them. */
  handleCopyInResponse(wire: CopyWire): void {
    if (!wire.stream.writable) return
    const header = Buffer.from('d\0\0\0\0')
    header.writeUInt32BE(this.#data.length + 4, 1)
    wire.stream.write(header)
    wire.stream.write(this.#data)
    wire.endCopyFrom()
  }
}

/** Runs `copy ... from stdin` with these bytes, and gives how many rows it took. */
export function copyIn(client: PoolClient, text: string, data: Buffer): Promise<number> {
  return new Promise((resolve, reject) => {
    client.query(new CopyIn(text, data, (error, result) => (error ? reject(error) : resolve(result.rowCount ?? 0))))
  })
}

/** For an error of a connection of ours. A database that cannot be reached or lacks Pawl's schema is said in one sentence, with the driver's error as its cause. */
export function unavailable(error: unknown): unknown {
  return classify(error) === 'connection' ? unreachable(error) : schemaMissing(error)
}

/**
 * For a connection that could not be opened, whatever the reason: a refused login says nothing about the statement that waits for it, so it is
 * waited for as for a server that is away.
 */
export function unreachable(error: unknown): unknown {
  if (isPawlError(error)) return error
  const message = error instanceof Error ? error.message || String((error as { code?: string }).code) : String(error)
  return markOwn(
    new PawlError(
      'PAWL_UNAVAILABLE',
      `The database cannot be reached (${message}). Check that it is running and that the URL, user and password are correct.`,
      { cause: error },
    ),
  )
}

export type PoolClient = PgPoolClient
export type QueryResult = PgQueryResult
export type QueryConfig = PgQueryConfig & { query_timeout?: number | undefined }

/** 'own': only statements of ours run on it. 'users': a handler's do too, and find the user's tables by the user's search path. */
export type PoolPath = 'own' | 'users'

/**
 * After end() pg's own error would read like a lost connection, which is retried, or like a write whose answer is lost. And an error of
 * connecting is told from one of a statement.
 */
class ClosablePool extends pg.Pool {
  override connect(): Promise<pg.PoolClient>
  override connect(callback: Parameters<pg.Pool['connect']>[0]): void
  override connect(callback?: Parameters<pg.Pool['connect']>[0]): unknown {
    if (callback === undefined)
      return new Promise((resolve, reject) => {
        this.connect((error, client) => (error ? reject(error) : resolve(client!)))
      })
    if (this.ending) return callback(poolClosed(), undefined, () => undefined)
    super.connect((error, client, done) => callback(error ? (unreachable(error) as Error) : error, client, done))
  }
}

function poolClosed(): PawlError {
  return new PawlError('PAWL_STOPPED', 'This Pawl is closed. Call close() after the last call, or create a new Pawl.')
}

/** A pool for handlers or callers. It has pipelined clients too, so that begin travels with the first statement. */
export function createPool(options: DatabaseOptions, purpose: string, connectionsMax: number, path: PoolPath = 'users'): Pool {
  const pool = new ClosablePool({
    ...clientConfig(options, purpose, path === 'own' ? ['jit=off', ownPathSetting] : ['jit=off']),
    ...(path === 'own' && { types: ownTypes }),
    max: connectionsMax,
    idleTimeoutMillis: 30_000,
    allowExitOnIdle: true,
  })
  pool.on('connect', (client) => {
    openClients.add(client as unknown as pg.Client)
    // The pool listens only while a client is idle. One that breaks between two queries of its user would end the process.
    client.on('error', (error) => noteBreak(client, error))
    if (options.pooler === 'none') client.query(durableSql(false), () => undefined)
  })
  pool.on('remove', (client) => {
    openClients.delete(client as unknown as pg.Client)
  })
  pool.on('error', () => undefined)
  if (path === 'own' && options.pooler === 'transaction') pool.query = settingQuery(pool) as typeof pool.query
  return pool
}

const brokenBy = new WeakMap<object, unknown>()

export function noteBreak(client: object, error: unknown): void {
  if (!brokenBy.has(client)) brokenBy.set(client, error)
}

/** An error of a pooled client, with what the server said when it ended the session between two statements. */
export function withReason(client: PoolClient, error: unknown): unknown {
  const reason = brokenBy.get(client)
  if (reason !== undefined && reason !== error && error instanceof Error) error.cause ??= reason
  return error
}

/** As pool.query, for a statement with parameters, where the session is not ours to set. */
export function settingQuery(
  pool: Pick<Pool, 'connect'>,
  queryTimeoutMs?: number,
): (query: string | PgQueryConfig, values?: unknown[]) => Promise<QueryResult> {
  return async (query, values) => {
    const given: QueryConfig = typeof query === 'string' ? { text: query, values: values ?? [] } : query
    const client = await pool.connect()
    let error: unknown
    try {
      return await runWith(client, queryTimeoutMs === undefined ? given : { ...given, query_timeout: queryTimeoutMs })
    } catch (caught) {
      error = caught
      throw caught
    } finally {
      client.release(error !== undefined && classify(error) === 'connection')
    }
  }
}

export type Pool = PgPool
