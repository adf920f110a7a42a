// Enqueues as a user does, in a transaction of its own or without one, and writes down what it asked for and what it was answered.

import { createPawl, isPawlError, type Logger, type Pawl, silentLogger } from 'pawl'
import type pg from 'pg'
import type { History } from '../history.ts'
import { hardyPool } from '../pool.ts'
import { defineKinds, type Payload } from './kinds.ts'

/** `own`: in a transaction of the caller's. `plain`: without one. */
export type Way = 'own' | 'plain'

export interface Batch {
  readonly key: string
  readonly kind: string
  readonly payloads: readonly Payload[]
}

export class Enqueuer {
  readonly pawl: Pawl
  readonly #history: History
  readonly #pool: pg.Pool

  constructor(options: { url: string; name: string; history: History; logger?: Logger }) {
    const { url, name, history, logger = silentLogger } = options
    this.#history = history
    this.pawl = createPawl({
      databaseUrl: url,
      applicationName: name,
      logger,
      connectTimeoutMs: 5000,
      queryTimeoutMs: 5000,
    })
    defineKinds(this.pawl)
    this.#pool = hardyPool({ url, name: `${name} own`, max: 4 })
  }

  async close(): Promise<void> {
    await this.pawl.close()
    await this.#pool.end()
  }

  enqueue(way: Way, batch: Batch): Promise<readonly string[]> {
    return way === 'own' ? this.enqueueOwn(batch) : this.enqueuePlain(batch)
  }

  /** In a transaction of its own. What happened to it can be told by its key. Gives the ids that are certainly there. */
  async enqueueOwn(batch: Batch, isRolledBack = false): Promise<readonly string[]> {
    const end = this.#begin('own', batch)
    let client: pg.PoolClient | undefined
    let isCommitting = false
    try {
      client = await this.#pool.connect()
      await client.query('begin')
      await client.query('insert into torture.produced values ($1)', [batch.key])
      const { ids } = await this.pawl.jobs.enqueueMany(batch.kind, batch.payloads, { tx: client })
      isCommitting = !isRolledBack
      await client.query(isRolledBack ? 'rollback' : 'commit')
      client.release()
      end(isRolledBack ? 'fail' : 'ok', { ids })
      return isRolledBack ? [] : ids
    } catch (error) {
      client?.release(true)
      end(isCommitting ? 'info' : 'fail', { error: String(error) })
      return []
    }
  }

  /** Without a transaction. A lost answer leaves it open whether the jobs are there, and Pawl says so. */
  async enqueuePlain(batch: Batch): Promise<readonly string[]> {
    const end = this.#begin('plain', batch)
    try {
      const { ids } = await this.pawl.jobs.enqueueMany(batch.kind, batch.payloads)
      end('ok', { ids })
      return ids
    } catch (error) {
      end(isPawlError(error, 'PAWL_COMMIT_UNKNOWN') ? 'info' : 'fail', { error: String(error) })
      return []
    }
  }

  #begin(via: Way, { key, kind, payloads }: Batch): (ph: 'ok' | 'fail' | 'info', more: Record<string, unknown>) => void {
    const asked = { batch: key, kind, keys: payloads.map((payload) => payload.key), via }
    this.#history.write('enqueue', { ph: 'invoke', ...asked })
    return (ph, more) => this.#history.write('enqueue', { ph, ...asked, ...more })
  }
}
