// The slow chores of the event log: room for the days ahead, and retention. Any number of processes may do them at once.

import { setTimeout as sleep } from 'node:timers/promises'
import type { DatabaseOptions, StatementWatch } from '../db/driver.ts'
import type { LoopWatch } from '../kernel/failures.ts'
import { extendPartitions } from '../kernel/partitions.ts'
import { longConnection } from './long-connection.ts'
import { retain } from './retention.ts'

const firstMs = 10_000
const everyMs = 15 * 60_000

export const keepDaysDefault = 7

export interface EventMaintenanceOptions {
  readonly database: DatabaseOptions
  readonly keepDays: number
  readonly signal: AbortSignal
  readonly watch?: StatementWatch
  readonly loop: LoopWatch
}

/** Until the signal fires. */
export async function maintainEvents(options: EventMaintenanceOptions): Promise<void> {
  const { database, keepDays, signal, watch, loop } = options
  for (let waitMs = firstMs; ; waitMs = everyMs) {
    await sleep(waitMs, undefined, { signal }).catch(() => undefined)
    if (signal.aborted) return
    const connection = longConnection(database, 'event maintenance', watch)
    // Whoever stops does not wait for a removal that waits for a stranger; the next process finishes it.
    const cut = () => void connection.close()
    signal.addEventListener('abort', cut, { once: true })
    try {
      await extendPartitions(connection)
      await retain(connection, { keepDays })
      loop.succeeded()
    } catch (error) {
      if (!signal.aborted) loop.failed(error)
    } finally {
      signal.removeEventListener('abort', cut)
      await connection.close()
    }
  }
}
