// One interface for a transaction of any library: (text, values) => {rows}. Inside a caller's transaction every parameter is cast in
// SQL and only text, integers and json come back, because their client may parse types in its own way. A handle that is no transaction is
// refused: by what its library says of it, else by the server.

import { types } from 'node:util'
import { PawlError } from '../errors.ts'
import { schemaMissing, sqlState } from './classify.ts'

/** On a `Tx` that is known to be a transaction: our own, and those that `toTx` and `drizzleTx` returned. */
export const checked: unique symbol = Symbol('pawl.checked')

/** On a `Tx` through which nothing is added: returns why, and the transaction fails, also if the call is not awaited. */
export const refusal: unique symbol = Symbol('pawl.refusal')

export interface Tx {
  query<Row = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<{ rows: Row[] }>
  readonly [checked]?: true
  readonly [refusal]?: (() => PawlError) | undefined
}

/** A client of pg after `begin`, TypeORM's manager or query runner inside a transaction, a `Tx`, or an object of your own. */
interface QueryHandle {
  query(text: string, values: unknown[]): unknown
  /** A pool and a TypeORM data source have these. */
  readonly totalCount?: never
  readonly createQueryRunner?: never
}

/** What postgres.js hands to `sql.begin(...)`, or a reserved connection after `begin`. */
type PostgresJsHandle = { unsafe(text: string, values: never[]): unknown } & (
  | { savepoint(work: never): unknown }
  | { release(): void }
)

interface KyselyHandle {
  executeQuery(query: never): unknown
  readonly isTransaction: true
}

interface KnexHandle {
  raw(text: string, values: never): unknown
  isCompleted(): boolean
}

/** The client of an interactive transaction; only the root client can connect. */
interface PrismaHandle {
  $queryRawUnsafe(text: string, ...values: unknown[]): unknown
  readonly $connect?: never
}

/** What `{ tx }` accepts: a transaction of pg, postgres.js, Kysely, Knex, TypeORM or Prisma, or a `Tx`. Drizzle: `drizzleTx(tx, sql)`. */
export type AnyTx = QueryHandle | PostgresJsHandle | KyselyHandle | KnexHandle | PrismaHandle

type Callable = (...args: readonly unknown[]) => Promise<unknown>
type Shape = Readonly<Record<string, unknown>>

/** A `Tx` that may prepare a statement of ours under its name. */
interface CheckedTx extends Tx {
  query<Row = Record<string, unknown>>(text: string, values?: readonly unknown[], name?: string): Promise<{ rows: Row[] }>
}

/** 'read': nothing is added through it, so a projection's transaction serves too. */
export function toTx(tx: AnyTx, use: 'read' | 'write' = 'write'): CheckedTx {
  // postgres.js and Knex hand their transactions over as functions.
  if ((typeof tx !== 'object' || tx === null) && typeof tx !== 'function') throw unsupported(`tx is ${String(tx)}`, known)
  const refuse = use === 'write' ? (tx as Tx)[refusal] : undefined
  if (refuse !== undefined) throw refuse()
  if ((tx as Tx)[checked] === true) return tx as Tx
  if (types.isPromise(tx)) throw unsupported('tx is a promise', 'Await it: { tx: await ... }.')
  const given = tx as unknown as Shape
  if (isFunction(given.unsafe)) return postgresJsTx(given)
  if (isFunction(given.$queryRawUnsafe)) return prismaTx(given)
  if (isFunction(given.executeQuery)) return kyselyTx(given)
  if (isFunction(given.raw) && given.client !== undefined) return knexTx(given)
  if (isFunction(given.getRepository)) return typeormTx(given, given.queryRunner as Shape | undefined)
  if (typeof given.isTransactionActive === 'boolean' && isFunction(given.query)) return typeormTx(given, given)
  if (isFunction(given.query)) return queryTx(given)
  if (isFunction(given.execute))
    throw unsupported('tx looks like a Drizzle transaction', 'Pass { tx: drizzleTx(tx, sql) }, with `sql` from drizzle-orm.')
  throw unsupported('tx is not a transaction that Pawl supports', known)
}

const known =
  'Pass an open transaction of pg, postgres.js, Kysely, Knex, TypeORM or Prisma, drizzleTx(tx, sql), or { query(text, values) }.'

/** For the transaction of a projection. */
export function folding(name: string): PawlError {
  return unsupported(
    `tx belongs to the projection '${name}', which only writes its tables: a rebuild would append or enqueue again`,
    `Move the call to pawl.projections.react('<name>', { on: { ... } }), whose handler gets a tx for it.`,
  )
}

function unsupported(what: string, fix: string): PawlError {
  return new PawlError('PAWL_TX_UNSUPPORTED', `${what}. ${fix}`)
}

/** For Drizzle, which needs its own `sql` to run a string: `enqueue(kind, payload, { tx: drizzleTx(tx, sql) })`. */
export function drizzleTx(
  tx: { execute(query: never): unknown },
  sql: { raw(text: string): unknown; join(parts: never): unknown; param(value: never): unknown },
): Tx {
  if (!isFunction((tx as unknown as Shape).rollback))
    throw unsupported(
      'tx is a Drizzle database outside a transaction',
      'Pass the tx argument of db.transaction(async (tx) => ...).',
    )
  return rowsTx(async (text, values) => {
    const parts: unknown[] = []
    for (const [index, piece] of text.split(/\$(\d+)/).entries()) {
      parts.push(index % 2 === 0 ? sql.raw(piece) : sql.param(values[Number(piece) - 1] as never))
    }
    return tx.execute(sql.join(parts as never) as never)
  })
}

type Run = (text: string, values: readonly unknown[], name?: string) => Promise<unknown>

/** pg answers {rows}; TypeORM's query() and postgres.js answer the rows themselves. */
function rowsTx(run: Run, assertBegun?: () => Promise<void> | void): CheckedTx {
  return {
    [checked]: true,
    async query<Row>(text: string, values: readonly unknown[] = [], name?: string) {
      const asking = assertBegun?.()
      if (asking !== undefined) await asking
      const answer = await run(...asTexts(text, values), name).catch((error: unknown) => {
        throw schemaMissing(error)
      })
      if (Array.isArray(answer)) return { rows: [...answer] as Row[] }
      return { rows: ((answer as { rows?: Row[] } | undefined)?.rows ?? []) as Row[] }
    },
  }
}

// The one statement without effects that the server refuses outside a transaction block. now() = statement_timestamp() cannot tell:
// in the extended protocol the two differ in a transaction of one statement too.
const assertBegunSql = 'lock table pg_catalog.pg_am in access share mode'

/** Asks the server, once, before the first statement: for handles that cannot tell whether `begin` was called. */
function askingServer(run: Run): () => Promise<void> | void {
  let isBegun = false
  const ask = async () => {
    try {
      await run(assertBegunSql, [])
    } catch (error) {
      if (sqlState(error) !== '25P01') throw error
      throw notBegun()
    }
    isBegun = true
  }
  return () => (isBegun ? undefined : ask())
}

function notBegun(): PawlError {
  return unsupported(
    'tx is not inside a transaction, so what Pawl writes would stay even if you roll back',
    'Call begin on this connection first, or leave tx out.',
  )
}

/**
 * Every parameter travels as text and is cast by the server: told that a parameter is json, postgres.js would write our JSON text as JSON once
 * more, and Prisma refuses a string where the server expects a number.
 */
function asTexts(text: string, values: readonly unknown[]): [text: string, values: readonly unknown[]] {
  const isScalar = (value: unknown) =>
    typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean' || value === null
  const casts = text.replace(/\$(\d+)::(?!text\b)/g, (match, index: string) =>
    isScalar(values[Number(index) - 1]) ? `$${index}::text::` : match,
  )
  if (casts === text) return [text, values]
  return [casts, values.map((value) => (typeof value === 'number' || typeof value === 'boolean' ? String(value) : value))]
}

function queryTx(given: Shape): CheckedTx {
  if (typeof given.totalCount === 'number')
    throw unsupported(
      'tx is a pool, which may run each statement on a different connection',
      'Pass the client on which you called begin: const client = await pool.connect().',
    )
  const run: Run = (text, values, name) =>
    call(given, 'query', name !== undefined && isPreparing(given) ? [{ name, text, values }] : [text, [...values]])
  const ask = askingServer(run)
  return rowsTx(run, () => {
    if (!isFunction(given.getTransactionStatus)) return ask()
    if (!isBegunHere(given)) throw notBegun()
  })
}

/**
 * A pg client whose session has prepared a statement by name: no pooler stands before it that would lose ours. Parsing ours at each call costs
 * the server 35 µs, a third of a small transaction.
 */
function isPreparing({ connection }: Shape): boolean {
  const prepared = (connection as { readonly parsedStatements?: object } | undefined)?.parsedStatements
  for (const _name in prepared) return true
  return false
}

const begins = /^\s*(begin|start\s+transaction)\b/i
const ends = /^\s*(commit|end|abort|prepare\s+transaction|rollback(?!\s+((work|transaction)\s+)?to\b))\b/i

/**
 * A pg client knows its status as of the last answer; what it has sent since comes first. To ask the server would be wrong here: with
 * begin, our statement and commit sent at once, the answer would come after the commit.
 */
function isBegunHere(client: Shape): boolean {
  const { _activeQuery: active, _sentQueryQueue: sent = [], _queryQueue: queued = [] } = client
  for (const query of [active, ...(sent as unknown[]), ...(queued as unknown[])].reverse()) {
    const text = String((query as { text?: unknown } | null | undefined)?.text ?? '')
    if (begins.test(text)) return true
    if (ends.test(text)) return false
  }
  const status = (client.getTransactionStatus as () => unknown)()
  return status === 'T' || status === 'E'
}

function postgresJsTx(given: Shape): CheckedTx {
  const run: Run = (text, values) => call(given, 'unsafe', [text, values])
  if (isFunction(given.savepoint)) return rowsTx(run)
  if (isFunction(given.release)) return rowsTx(run, askingServer(run))
  throw unsupported('tx is the sql of postgres.js outside a transaction', 'Pass the tx argument of sql.begin(async (tx) => ...).')
}

function prismaTx(given: Shape): CheckedTx {
  if (isFunction(given.$connect))
    throw unsupported(
      "tx is Prisma's client outside a transaction",
      'Pass the tx argument of prisma.$transaction(async (tx) => ...).',
    )
  return rowsTx((text, values) => call(given, '$queryRawUnsafe', [text, ...values]))
}

function typeormTx(given: Shape, runner: Shape | undefined): CheckedTx {
  return rowsTx(
    (text, values) => call(given, 'query', [text, [...values]]),
    () => {
      if (runner?.isTransactionActive === true) return
      throw unsupported(
        'tx is a TypeORM data source, manager or query runner outside a transaction',
        'Pass the manager argument of dataSource.transaction(async (manager) => ...), or a query runner after startTransaction().',
      )
    },
  )
}

function kyselyTx(given: Shape): CheckedTx {
  return rowsTx(
    (sql, parameters) =>
      call(given, 'executeQuery', [
        { sql, parameters, query: { kind: 'RawNode', sqlFragments: [sql], parameters: [] }, queryId: { queryId: 'pawl' } },
      ]),
    () => {
      if (given.isTransaction === true && given.isCommitted !== true && given.isRolledBack !== true) return
      throw unsupported(
        'tx is a Kysely instance outside a transaction, or a transaction that has ended',
        'Pass the tx argument of db.transaction().execute(async (tx) => ...).',
      )
    },
  )
}

/** Knex reads `?` as a placeholder, so ours are rewritten and literal ones escaped. */
function knexTx(given: Shape): CheckedTx {
  const assertBegun = () => {
    if (given.isTransaction === true && !(isFunction(given.isCompleted) && (given.isCompleted as () => unknown)())) return
    throw unsupported(
      'tx is a Knex instance outside a transaction, or a transaction that has ended',
      'Pass the tx argument of knex.transaction(async (tx) => ...).',
    )
  }
  return rowsTx((text, values) => {
    const ordered: unknown[] = []
    const rewritten = text.replace(/\?|\$(\d+)/g, (match, index: string | undefined) => {
      if (index === undefined) return `\\${match}`
      ordered.push(values[Number(index) - 1])
      return '?'
    })
    return call(given, 'raw', [rewritten, ordered])
  }, assertBegun)
}

function isFunction(value: unknown): value is Callable {
  return typeof value === 'function'
}

function call(given: Shape, method: string, args: readonly unknown[]): Promise<unknown> {
  return (given[method] as Callable).apply(given, args as unknown[])
}
