// A process that was cut off from the database for a second or two looks like a dead one: its incarnation is closed, its jobs are taken over,
// and a crash is counted for each. When it comes back it says that it lives, so that no number of such cuts makes a healthy job dead.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Connection } from '../db/driver.ts'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import type { Holder } from '../kernel/lease.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import type { HeldJob } from './held.ts'

const excuseStatement = statement(import.meta.url, 'excuse')

/** About half a minute: a job that is locked for longer keeps its crash. */
const triesMax = 30

export interface ExcuseOptions {
  readonly connection: Connection
  /** Those that the process works. */
  readonly queues: readonly string[]
  readonly signal: AbortSignal
  readonly onTrouble: (error: unknown) => void
}

export type JobKey = Pick<HeldJob, 'tenant' | 'id' | 'fence'>

/** For the jobs that a lost incarnation held, known here or not, also while nobody has taken them over yet. */
export async function excuse(holder: Holder, held: readonly JobKey[], options: ExcuseOptions): Promise<void> {
  const { connection, queues, signal, onTrouble } = options
  let left = held
  for (let tried = 1; tried <= triesMax && !signal.aborted; tried++) {
    try {
      left = await connection.run<JobKey>(excuseStatement, {
        worker: holder.id,
        nonce: holder.nonce,
        queues: textsLiteral(queues),
        tenants: textsLiteral(left.map(({ tenant }) => tenant)),
        ids: numbersLiteral(left.map(({ id }) => id)),
        fences: numbersLiteral(left.map(({ fence }) => fence)),
      })
      if (left.length === 0) return
    } catch (error) {
      onTrouble(error)
    }
    await sleep(engineBackoffMs(undefined, tried), undefined, { signal }).catch(() => undefined)
  }
}
