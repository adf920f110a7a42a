// Connections for work that reads everything that is kept: statements without a time limit, and plans that may scan whole tables.

import type { Config } from '../config.ts'
import { unavailable } from '../db/classify.ts'
import { Connection, type DatabaseOptions, type StatementWatch } from '../db/driver.ts'

const hourMs = 3_600_000
const settings = ['statement_timeout=0', 'enable_seqscan=on', 'enable_hashjoin=on', 'enable_mergejoin=on']

export async function onLongConnection<T>(
  database: DatabaseOptions,
  purpose: string,
  work: (connection: Connection) => Promise<T>,
  watch?: StatementWatch,
): Promise<T> {
  const connection = new Connection({ ...database, queryTimeoutMs: hourMs }, purpose, { settings, watch })
  try {
    return await work(connection)
  } finally {
    await connection.close()
  }
}

/** The same for a call of the application. */
export function callOnLongConnection<T>({ direct }: Config, purpose: string, work: (db: Connection) => Promise<T>): Promise<T> {
  return onLongConnection(direct, purpose, work).catch((error: unknown) => {
    throw unavailable(error)
  })
}
