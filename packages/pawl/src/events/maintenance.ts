// The slow chores of the event log: partitions for the days ahead, and retention. Any number of processes may run them at once.

import type { Connection, DatabaseOptions, StatementWatch } from '../db/driver.ts'
import { isLasting, type LoopWatch } from '../kernel/alerts.ts'
import { integer } from '../kernel/options.ts'
import { extendPartitions } from '../kernel/partitions.ts'
import { Service } from '../kernel/service.ts'
import { onLongConnection } from './long-connection.ts'
import { retain } from './retention.ts'

const firstMs = 10_000
const everyMs = 15 * 60_000

export const keepTable = {
  keepDays: integer({ from: 1, to: 36_500, default: 7, doc: 'The minimum number of days to keep events.' }),
}

interface EventMaintenanceOptions {
  readonly database: DatabaseOptions
  readonly keepDays: number
  readonly signal: AbortSignal
  readonly watch?: StatementWatch
  readonly loop: LoopWatch
}

/** Its first round does nothing: a process that starts has more urgent work. */
export function eventMaintenance(options: EventMaintenanceOptions): Service {
  let rounds = 0
  return new Service({
    round: async () => {
      if (rounds++ === 0) return firstMs
      await maintainOnce(options)
      return everyMs
    },
    signal: options.signal,
    loop: options.loop,
    // Repeated soon, so that its alert comes soon and stays until it succeeds.
    backoffMs: (error) => (isLasting(error) ? firstMs : everyMs),
  })
}

async function maintainOnce({ database, keepDays, signal, watch }: EventMaintenanceOptions): Promise<void> {
  const maintain = async (connection: Connection) => {
    // A stop does not wait for a removal that waits for another session's lock; the next process finishes it.
    const cut = () => void connection.close()
    signal.addEventListener('abort', cut, { once: true })
    try {
      await extendPartitions(connection)
      await retain(connection, { keepDays })
    } catch (error) {
      if (!signal.aborted) throw error
    } finally {
      signal.removeEventListener('abort', cut)
    }
  }
  await onLongConnection(database, 'event maintenance', maintain, watch)
}
