// Every client library whose transaction Pawl can join, opened the same way.

import { drizzle as drizzleNodePostgres } from 'drizzle-orm/node-postgres'
import { drizzle as drizzlePostgresJs } from 'drizzle-orm/postgres-js'
import { sql as drizzleSql } from 'drizzle-orm/sql'
import createKnex from 'knex'
import { Kysely, sql as kyselySql, PostgresDialect } from 'kysely'
import { type AnyTx, drizzleTx } from 'pawl'
import pg from 'pg'
import postgres from 'postgres'
import { DataSource } from 'typeorm'

/** A pool's end does not wait for its sockets: the database may be dropped, and with force, while they close. */
function openPool(url: string): pg.Pool {
  const pool = new pg.Pool({ connectionString: url })
  pool.on('error', () => undefined)
  return pool
}

export interface Inside {
  /** What goes into `{ tx }`. */
  readonly tx: AnyTx
  /** A statement by the library's own means, so that the effect is the user's and not ours. */
  run(text: string): Promise<unknown>
}

export interface Adapter {
  /** Commits when the work resolves and rolls back when it rejects. */
  transaction(work: (inside: Inside) => Promise<void>): Promise<void>
  /** Handles of the same library that are no transaction, by name. */
  readonly outside: Readonly<Record<string, () => unknown>>
  close(): Promise<unknown>
}

async function onClient(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<void>): Promise<void> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    await work(client)
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

/** Prisma's interface over pg: the values spread out, the rows as the answer, and no column of type void, which Prisma cannot read. */
function prismaLike(client: pg.PoolClient | pg.Pool) {
  const voidType = 2278
  return {
    async $queryRawUnsafe(text: string, ...values: unknown[]) {
      const { rows, fields } = await client.query(text, values)
      if (fields.some((field) => field.dataTypeID === voidType)) throw new Error("Failed to deserialize column of type 'void'")
      return rows
    },
  }
}

export const adapters: Readonly<Record<string, (url: string) => Promise<Adapter>>> = {
  pg: async (url) => {
    const pool = openPool(url)
    const idle = new pg.Client({ connectionString: url })
    await idle.connect()
    return {
      transaction: (work) => onClient(pool, (client) => work({ tx: client, run: (text) => client.query(text) })),
      outside: { 'a pool': () => pool, 'a client before begin': () => idle },
      close: () => Promise.all([pool.end(), idle.end()]),
    }
  },
  'postgres.js': async (url) => {
    const sql = postgres(url, { max: 4, onnotice: () => undefined })
    const reserved = await sql.reserve()
    return {
      transaction: async (work) => void (await sql.begin((tx) => work({ tx, run: (text) => tx.unsafe(text) }))),
      outside: { sql: () => sql, 'a reserved connection before begin': () => reserved },
      close: async () => {
        reserved.release()
        await sql.end()
      },
    }
  },
  Kysely: async (url) => {
    const db = new Kysely<Record<never, never>>({
      dialect: new PostgresDialect({ pool: openPool(url) }),
    })
    return {
      transaction: (work) => db.transaction().execute((tx) => work({ tx, run: (text) => kyselySql.raw(text).execute(tx) })),
      outside: { 'a Kysely': () => db },
      close: () => db.destroy(),
    }
  },
  'Drizzle on node-postgres': async (url) => {
    const pool = openPool(url)
    const db = drizzleNodePostgres(pool)
    return {
      transaction: (work) =>
        db.transaction((tx) => work({ tx: drizzleTx(tx, drizzleSql), run: async (text) => tx.execute(drizzleSql.raw(text)) })),
      outside: { 'a database': () => drizzleTx(db, drizzleSql), 'a database by itself': () => db },
      close: () => pool.end(),
    }
  },
  'Drizzle on postgres-js': async (url) => {
    const sql = postgres(url, { max: 4, onnotice: () => undefined })
    const db = drizzlePostgresJs(sql)
    return {
      transaction: (work) =>
        db.transaction((tx) => work({ tx: drizzleTx(tx, drizzleSql), run: async (text) => tx.execute(drizzleSql.raw(text)) })),
      outside: { 'a database': () => drizzleTx(db, drizzleSql), 'a database by itself': () => db },
      close: () => sql.end(),
    }
  },
  Knex: async (url) => {
    const knex = createKnex({ client: 'pg', connection: url })
    return {
      transaction: (work) => knex.transaction((tx) => work({ tx, run: async (text) => tx.raw(text) })),
      outside: { 'a Knex': () => knex },
      close: () => knex.destroy(),
    }
  },
  'TypeORM, by its manager': async (url) => {
    const source = await new DataSource({ type: 'postgres', url }).initialize()
    return {
      transaction: (work) => source.transaction((manager) => work({ tx: manager, run: (text) => manager.query(text) })),
      outside: { 'a data source': () => source, 'its manager': () => source.manager },
      close: () => source.destroy(),
    }
  },
  'TypeORM, by a query runner': async (url) => {
    const source = await new DataSource({ type: 'postgres', url }).initialize()
    return {
      transaction: async (work) => {
        const runner = source.createQueryRunner()
        await runner.startTransaction()
        try {
          await work({ tx: runner, run: (text) => runner.query(text) })
          await runner.commitTransaction()
        } catch (error) {
          await runner.rollbackTransaction()
          throw error
        } finally {
          await runner.release()
        }
      },
      outside: { 'a query runner before it starts': () => source.createQueryRunner() },
      close: () => source.destroy(),
    }
  },
  "Prisma's interface": async (url) => {
    const pool = openPool(url)
    return {
      transaction: (work) => onClient(pool, (client) => work({ tx: prismaLike(client), run: (text) => client.query(text) })),
      outside: { 'the root client': () => ({ ...prismaLike(pool), $connect: async () => undefined }) },
      close: () => pool.end(),
    }
  },
  'plain SQL': async (url) => {
    const pool = openPool(url)
    return {
      transaction: (work) =>
        onClient(pool, (client) =>
          work({
            tx: { query: (text: string, values: unknown[]) => client.query(text, values) },
            run: (text) => client.query(text),
          }),
        ),
      outside: { 'an object over a pool': () => ({ query: (text: string, values: unknown[]) => pool.query(text, values) }) },
      close: () => pool.end(),
    }
  },
}

// Question marks, dollars, quotes and backslashes: each library has its own placeholders, and none may see ours in a value.
export const awkward = {
  text: `what? $1 $$ 'quoted' "double" \\ :name ?? \u{1f600}`,
  list: [1, 2.5, null, true],
  nested: { 'a?b': '$2' },
}
