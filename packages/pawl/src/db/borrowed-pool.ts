// The application's own pool, for calls without a transaction. Its sessions are the application's: nothing of ours stays in them, so
// statements bring their settings as they do behind a transaction pooler. What the driver knows of a client is ours only while we have it.

import type { Pool as PgPool } from 'pg'
import { PawlError } from '../errors.ts'
import { noteBreak, type Pool, type PoolClient, settingQuery, unreachable } from './driver.ts'
import type { CallerPool } from './login.ts'
import { ownTypes } from './result-types.ts'

/** Of a client of pg, what its types leave out. */
interface Driver {
  pipeline: boolean
  _types: unknown
}

export function borrowPool(given: CallerPool, queryTimeoutMs: number): Pool {
  const pool = given as PgPool
  let isClosed = false
  const connect = async (): Promise<PoolClient> => {
    if (isClosed) throw stopped('This Pawl is closed. Call close() after the last call, or create a new Pawl.')
    if (pool.ending) throw stopped('The pool passed to createPawl has ended. End it after the last call to Pawl.')
    const client = await pool.connect().catch((error: unknown) => {
      throw unreachable(error)
    })
    return borrowed(client)
  }
  return {
    connect,
    query: settingQuery({ connect } as Pool, queryTimeoutMs),
    get ended() {
      return isClosed
    },
    // It is the application's to end.
    end: async () => {
      isClosed = true
    },
  } as unknown as Pool
}

function stopped(message: string): PawlError {
  return new PawlError('PAWL_STOPPED', message)
}

/** Until it is released the client sends ahead of the answers, as our own do, and reads them as ours do. */
function borrowed(client: PoolClient): PoolClient {
  const driver = client as unknown as Driver
  const { pipeline, _types } = driver
  const release = client.release
  const broke = (error: unknown) => noteBreak(client, error)
  Object.assign(driver, { pipeline: true, _types: ownTypes })
  // The pool listens only while it is idle. One that breaks between two queries would end the process.
  client.on('error', broke)
  client.release = (error) => {
    Object.assign(driver, { pipeline, _types })
    client.off('error', broke)
    release.call(client, error)
  }
  return client
}
