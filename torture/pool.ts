// A pool that outlives its connections: faults break them at any moment, also while somebody has one in hand.

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
