// The slow chores of the event log: room for the days ahead, and retention. Any number of processes may do them at once.

import { setTimeout as sleep } from 'node:timers/promises'
import type { DatabaseOptions, StatementWatch } from '../db/driver.ts'
import { isLasting, type LoopWatch } from '../kernel/failures.ts'
import { integer } from '../kernel/options.ts'
import { extendPartitions } from '../kernel/partitions.ts'
import { longConnection } from './long-connection.ts'
import { retain } from './retention.ts'

const firstMsDefault = 10_000
const everyMs = 15 * 60_000

export const keepTable = {
  keepDays: integer({ from: 1, to: 36_500, default: 7, doc: 'The minimum number of days to keep events.' }),
}

export interface EventMaintenanceOptions {
  readonly database: DatabaseOptions
  readonly keepDays: number
  readonly signal: AbortSignal
  readonly watch?: StatementWatch
  readonly loop: LoopWatch
  /** Before the first round; for tests. */
  readonly firstMs?: number
}

/** Until the signal fires. */
export async function maintainEvents(options: EventMaintenanceOptions): Promise<void> {
  const { database, keepDays, signal, watch, loop, firstMs = firstMsDefault } = options
  for (let waitMs = firstMs; ; ) {
    await sleep(waitMs, undefined, { signal }).catch(() => undefined)
    if (signal.aborted) return
    const connection = longConnection(database, 'event maintenance', watch)
    // Whoever stops does not wait for a removal that waits for a stranger; the next process finishes it.
    const cut = () => void connection.close()
    signal.addEventListener('abort', cut, { once: true })
    try {
      await extendPartitions(connection)
      await retain(connection, { keepDays })
      waitMs = everyMs
      loop.succeeded()
    } catch (error) {
      // Repeated soon, so that its alert comes soon and stays until it succeeds.
      waitMs = isLasting(error) ? firstMs : everyMs
      if (!signal.aborted) loop.failed(error)
    } finally {
      signal.removeEventListener('abort', cut)
      await connection.close()
    }
  }
}
