// LISTEN on a session of its own. Notifications are hints: each new session asks for a catch-up, and a heartbeat finds a connection that died
// without an error. The session also holds the worker's liveness lock.

import type { Db } from './db.ts'
import { Connection, type DatabaseOptions } from './driver.ts'

export interface ListenOptions {
  readonly database: DatabaseOptions
  readonly channels: readonly string[]
  readonly heartbeatMs: number
  /** Ends the session. */
  readonly signal: AbortSignal
  readonly onNotify: (channel: string, payload: string) => void
  /** The session listens; notifications before this were missed. */
  readonly onListening: () => void
  /** Called on the new session, and again with each heartbeat until it returns true. */
  readonly onSession: (session: Db) => Promise<boolean>
}

/** One session. Resolves when it is lost or ended. */
export async function listen(options: ListenOptions): Promise<void> {
  const { database, channels, heartbeatMs, signal, onNotify, onListening, onSession } = options
  const connection = new Connection({ ...database, queryTimeoutMs: Math.min(database.queryTimeoutMs, heartbeatMs) }, 'listen')
  let lose!: () => void
  const lost = new Promise<void>((resolve) => {
    lose = resolve
  })
  const end = () => {
    lose()
    void connection.close()
  }
  signal.addEventListener('abort', end, { once: true })
  let heartbeat: NodeJS.Timeout | undefined
  try {
    const client = await connection.client()
    client.on('notification', (message) => onNotify(message.channel, message.payload ?? ''))
    client.on('error', lose)
    client.on('end', lose)
    for (const channel of channels) await client.query(`listen ${channel}`)
    onListening()
    let isAccepted = await onSession(connection)
    const beat = async () => {
      await client.query('select 1')
      if (!isAccepted) isAccepted = await onSession(connection)
    }
    heartbeat = setInterval(() => void beat().catch(lose), heartbeatMs)
    await lost
  } finally {
    signal.removeEventListener('abort', end)
    clearInterval(heartbeat)
    await connection.close()
  }
}
