// Connections of an application: a pool that outlives its connections, which faults break at any moment, and transactions on it.

import { createPawl, type Logger, type Pawl, PawlError, silentLogger } from 'pawl'
import pg from 'pg'
import type { History } from './history.ts'

export function hardyPool(options: { url: string; name: string; max: number }): pg.Pool {
  const { url: connectionString, name: application_name, max } = options
  const pool = new pg.Pool({ connectionString, application_name, max, query_timeout: 5000, connectionTimeoutMillis: 5000 })
  pool.on('error', () => undefined)
  pool.on('connect', (client) => client.on('error', () => undefined))
  return pool
}

export interface CallerOptions {
  readonly url: string
  readonly name: string
  readonly max: number
  readonly history: History
  readonly logger?: Logger
  readonly queryTimeoutMs?: number
}

/** An application: Pawl, a pool of its own beside it, and the history in which its calls are written down. */
export class Caller {
  readonly pawl: Pawl
  readonly pool: pg.Pool
  readonly history: History

  constructor({ url, name, max, history, logger = silentLogger, queryTimeoutMs = 10_000 }: CallerOptions) {
    this.pawl = createPawl({
      databaseUrl: url,
      applicationName: name,
      logger,
      tuning: { connectTimeoutMs: 5000, queryTimeoutMs },
    })
    this.pool = hardyPool({ url, name: `${name} own`, max })
    this.history = history
  }

  async close(): Promise<void> {
    await Promise.all([this.pawl.close(), this.pool.end()])
  }
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
    isEnding = end !== rollBack
    await end(client)
    client.release()
    return answer
  } catch (error) {
    // Whatever state it is in, its transaction ends with its connection.
    client.release(true)
    throw isEnding ? new PawlError('PAWL_COMMIT_UNKNOWN', String(error), { cause: error }) : error
  }
}

export async function rollBack(client: pg.PoolClient): Promise<never> {
  await client.query('rollback')
  throw new Error('rolled back as planned')
}
