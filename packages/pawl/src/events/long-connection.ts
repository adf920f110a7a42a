// For acts that read everything that is kept: no limit of time, and the planner may read tables from end to end.

import type { Config } from '../config.ts'
import { unavailable } from '../db/classify.ts'
import { Connection, type DatabaseOptions, type StatementWatch } from '../db/driver.ts'

const hourMs = 3_600_000

export function longConnection(database: DatabaseOptions, purpose: string, watch?: StatementWatch): Connection {
  const settings = ['statement_timeout=0', 'enable_seqscan=on', 'enable_hashjoin=on', 'enable_mergejoin=on']
  return new Connection({ ...database, queryTimeoutMs: hourMs }, purpose, { settings, watch })
}

export async function onLongConnection<T>(
  config: Config,
  purpose: string,
  work: (connection: Connection) => Promise<T>,
): Promise<T> {
  const connection = longConnection(config.direct, purpose)
  try {
    return await work(connection)
  } catch (error) {
    throw unavailable(error)
  } finally {
    await connection.close()
  }
}
