// LISTEN on a connection of its own. Notifications are hints: after every reconnect the listener asks for a catch-up, and a heartbeat on
// the same session notices a connection that died without a word. The session also carries the worker's liveness lock.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Db } from './db.ts'
import { Connection, type DatabaseOptions } from './driver.ts'

export interface ListenOptions {
  readonly database: DatabaseOptions
  readonly channels: readonly string[]
  readonly onNotify: (channel: string, payload: string) => void
  /** Called after each (re)connect: what was notified meanwhile is gone, so look for yourself. */
  readonly onConnect: () => void
  /** Runs on the session once it listens; takes the liveness lock. False: refused, so it runs again with the next heartbeat. */
  readonly onSession?: (session: Db) => Promise<boolean>
  readonly heartbeatMs: number
  readonly backoffMs: (error: unknown, failed: number) => number
  readonly onError?: (error: unknown) => void
}

export class Listener {
  readonly #options: ListenOptions
  #connection: Connection | undefined
  #running: Promise<void> | undefined
  #stop = new AbortController()
  #lostConnection: (() => void) | undefined
  #isListening = false

  constructor(options: ListenOptions) {
    this.#options = options
  }

  get isListening(): boolean {
    return this.#isListening
  }

  start(): void {
    this.#running ??= this.#loop()
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    this.#lostConnection?.()
    await this.#connection?.close()
    await this.#running
  }

  /** Drops the session and makes a new one: a new incarnation needs another liveness lock. */
  renew(): void {
    this.#lostConnection?.()
  }

  async #loop(): Promise<void> {
    const { signal } = this.#stop
    for (let failed = 0; !signal.aborted; ) {
      try {
        await this.#session()
        failed = 0
      } catch (error) {
        if (signal.aborted) return
        this.#options.onError?.(error)
        failed++
        await sleep(this.#options.backoffMs(error, failed), undefined, { signal }).catch(() => undefined)
      }
    }
  }

  /** One connected session, until it is lost. */
  async #session(): Promise<void> {
    const { database, channels, onNotify, onConnect, onSession, heartbeatMs } = this.#options
    const connection = new Connection({ ...database, queryTimeoutMs: Math.min(database.queryTimeoutMs, heartbeatMs) }, 'listen')
    this.#connection = connection
    // Each session has its own end: a late word from the last one's connection must not end this one.
    let lose!: () => void
    const lost = new Promise<void>((resolve) => {
      lose = resolve
    })
    this.#lostConnection = lose
    let heartbeat: NodeJS.Timeout | undefined
    try {
      const client = await connection.client()
      client.on('notification', (message) => onNotify(message.channel, message.payload ?? ''))
      client.on('error', lose)
      client.on('end', lose)
      for (const channel of channels) await client.query(`listen ${channel}`)
      this.#isListening = true
      onConnect()
      const take = async () => (await onSession?.(connection)) ?? true
      let isTaken = await take()
      const beat = async () => {
        await client.query('select 1')
        if (!isTaken) isTaken = await take()
      }
      heartbeat = setInterval(() => void beat().catch(lose), heartbeatMs)
      await lost
    } finally {
      this.#isListening = false
      clearInterval(heartbeat)
      await connection.close()
    }
  }
}
