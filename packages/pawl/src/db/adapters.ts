// One interface for a transaction, whoever began it: (text, values) => {rows}. Inside a caller's transaction every parameter is cast in
// SQL and only text, integers and json come back, because their client may parse types in its own way.

import { PawlError } from '../errors.ts'

/** 'suppressed': a replay that must not reach the outside again; events and jobs that are added through it are not. */
export type Effects = 'allowed' | 'suppressed'

export interface Tx {
  query<Row = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<{ rows: Row[] }>
  /** Absent: allowed. */
  readonly effects?: Effects
}

export function areEffectsSuppressed(tx: AnyTx | undefined): boolean {
  return (tx as Tx | undefined)?.effects === 'suppressed'
}

/** What `{ tx }` accepts: a client of pg, postgres.js, Kysely, Knex, TypeORM or Prisma inside a transaction, or a `Tx`. Drizzle: `drizzleTx(tx, sql)`. */
export type AnyTx = object

type Callable = (...args: readonly unknown[]) => Promise<unknown>
type Shape = Readonly<Record<string, unknown>>

export function toTx(tx: AnyTx): Tx {
  // postgres.js hands its transaction over as a function.
  const given = tx as Shape
  if (isFunction(given.unsafe)) return rowsTx((text, values) => call(given, 'unsafe', [text, values]))
  if (isFunction(given.$queryRawUnsafe)) return rowsTx((text, values) => call(given, '$queryRawUnsafe', [text, ...values]))
  if (isFunction(given.executeQuery)) return kyselyTx(given)
  if (isFunction(given.raw) && given.client !== undefined) return knexTx(given)
  if (isFunction(given.query)) return queryTx(given)
  if (isFunction(given.execute)) {
    throw new PawlError(
      'PAWL_TX_UNSUPPORTED',
      "This looks like a Drizzle transaction. Pass { tx: drizzleTx(tx, sql) }, with drizzle's own `sql`.",
    )
  }
  throw new PawlError(
    'PAWL_TX_UNSUPPORTED',
    'This is not a transaction that Pawl knows. Pass a client of pg, postgres.js, Kysely, Knex, TypeORM or Prisma, drizzleTx(tx, sql), or { query(text, values) }.',
  )
}

/** For Drizzle, which needs its own `sql` to run a text: `enqueue(kind, payload, { tx: drizzleTx(tx, sql) })`. */
export function drizzleTx(
  tx: { execute(query: never): unknown },
  sql: { raw(text: string): unknown; join(parts: never): unknown; param(value: never): unknown },
): Tx {
  return rowsTx(async (text, values) => {
    const parts: unknown[] = []
    for (const [index, piece] of text.split(/\$(\d+)/).entries()) {
      parts.push(index % 2 === 0 ? sql.raw(piece) : sql.param(values[Number(piece) - 1] as never))
    }
    return tx.execute(sql.join(parts as never) as never)
  })
}

/** pg answers {rows}; TypeORM's query() and postgres.js answer the rows themselves. */
function rowsTx(run: (text: string, values: readonly unknown[]) => Promise<unknown>): Tx {
  return {
    async query<Row>(text: string, values: readonly unknown[] = []) {
      const answer = await run(...asTexts(text, values))
      if (Array.isArray(answer)) return { rows: [...answer] as Row[] }
      return { rows: ((answer as { rows?: Row[] } | undefined)?.rows ?? []) as Row[] }
    },
  }
}

/**
 * Every parameter travels as text and is cast by the server: told that a parameter is json, postgres.js would write our JSON text as JSON once
 * more, and Prisma refuses a text where the server expects a number.
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

function queryTx(given: Shape): Tx {
  return rowsTx((text, values) => call(given, 'query', [text, [...values]]))
}

function kyselyTx(given: Shape): Tx {
  return rowsTx((sql, parameters) =>
    call(given, 'executeQuery', [
      { sql, parameters, query: { kind: 'RawNode', sqlFragments: [sql], parameters: [] }, queryId: { queryId: 'pawl' } },
    ]),
  )
}

/** Knex reads `?` as a placeholder, so ours are rewritten and literal ones escaped. */
function knexTx(given: Shape): Tx {
  return rowsTx((text, values) => {
    const ordered: unknown[] = []
    const rewritten = text.replace(/\?|\$(\d+)/g, (match, index: string | undefined) => {
      if (index === undefined) return `\\${match}`
      ordered.push(values[Number(index) - 1])
      return '?'
    })
    return call(given, 'raw', [rewritten, ordered])
  })
}

function isFunction(value: unknown): value is Callable {
  return typeof value === 'function'
}

function call(given: Shape, method: string, args: readonly unknown[]): Promise<unknown> {
  return (given[method] as Callable).apply(given, args as unknown[])
}
