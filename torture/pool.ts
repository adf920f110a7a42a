// Connections of an application: a pool that outlives its connections, which faults break at any moment, and transactions on it.

import { PawlError } from 'pawl'
import pg from 'pg'

export function hardyPool(options: { url: string; name: string; max: number }): pg.Pool {
  const pool = new pg.Pool({
    connectionString: options.url,
    max: options.max,
    application_name: options.name,
    query_timeout: 5000,
    connectionTimeoutMillis: 5000,
  })
  pool.on('error', () => undefined)
  pool.on('connect', (client) => client.on('error', () => undefined))
  return pool
}

/** Runs `work` in a transaction. An error of the commit is PAWL_COMMIT_UNKNOWN; a planned rollback is an error too. */
export async function inTransaction<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
  end: (client: pg.PoolClient) => Promise<unknown> = (client) => client.query('commit'),
): Promise<T> {
  const client = await pool.connect()
  let isEnding = false
  try {
    await client.query('begin')
    const answer = await work(client)
    isEnding = true
    await end(client)
    client.release()
    return answer
  } catch (error) {
    // Whatever state it is in, its transaction ends with its connection.
    client.release(true)
    throw isEnding && !(error instanceof RolledBack)
      ? new PawlError('PAWL_COMMIT_UNKNOWN', String(error), { cause: error })
      : error
  }
}

class RolledBack extends Error {}

export async function rollBack(client: pg.PoolClient): Promise<never> {
  await client.query('rollback').catch(() => undefined)
  throw new RolledBack('rolled back as planned')
}
