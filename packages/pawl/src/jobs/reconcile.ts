// Compares what this process holds with what the database says it holds. Jobs that are held here and are not ours any more were cancelled,
// timed out by a sweep, or taken over. (The other side, jobs that a claim without an answer brought, is release-unknown in fetcher.ts.)

import { setTimeout as sleep } from 'node:timers/promises'
import type { Db } from '../db/db.ts'
import { statement, textsLiteral } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import type { LoopWatch } from '../kernel/alerts.ts'
import type { Holder } from '../kernel/lease.ts'
import type { Process } from '../kernel/process.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { Service } from '../kernel/service.ts'
import { type Attempt, type JobKey, keysOf, leaseLost } from './attempt.ts'
import type { Outcomes } from './outcomes.ts'
import type { Slots } from './slots.ts'

const fatesStatement = statement(import.meta.url, 'fates')
const excuseStatement = statement(import.meta.url, 'excuse')

/** How often the fate of one attempt is asked for while the database cannot answer. */
const askedMax = 20
/** About half a minute: a job that is locked for longer keeps its crash. */
const excuseTriesMax = 30

interface Gone extends JobKey {
  /** Null: it did not finish under this fence. */
  readonly outcome: 'done' | 'cancelled' | null
  readonly reason: string | null
}

/** Those that are no longer held under their fence, and what became of them. */
export async function goneOf<Held extends JobKey>(
  db: Db,
  held: readonly Held[],
): Promise<(Omit<Gone, keyof JobKey> & { held: Held })[]> {
  const rows = await db.run<Gone>(fatesStatement, keysOf(held))
  if (rows.length === 0) return []
  const byKey = new Map(held.map((each) => [keyOf(each), each]))
  return rows.map((row) => ({ held: byKey.get(keyOf(row))!, outcome: row.outcome, reason: row.reason }))
}

function keyOf({ tenant, id, fence }: JobKey): string {
  return `${id} ${fence} ${tenant}`
}

/** What became of one attempt's job, after a commit without an answer or a refused fence. Asks up to `askedMax` times for an answer. */
export async function fateOf(attempt: Attempt): Promise<'held' | 'done' | 'lost'> {
  const { process } = attempt.runtime
  for (let tried = 1; ; tried++) {
    try {
      const [gone] = await goneOf(process.engine, [attempt])
      return gone === undefined ? 'held' : gone.outcome === 'done' ? 'done' : 'lost'
    } catch (error) {
      process.trouble(error)
      if (tried >= askedMax) throw error
      await sleep(engineBackoffMs(error, tried))
    }
  }
}

export interface ReconcilerOptions {
  readonly process: Pick<Process, 'engine'>
  readonly everyMs: number
  readonly slots: Pick<Slots, 'heldJobs' | 'loseOne'>
  readonly outcomes: Pick<Outcomes, 'lost'>
  readonly signal: AbortSignal
  readonly loop: LoopWatch
}

/** Compares at an interval, and at once when woken. A job that is lost after a comparison was sent is found by the one that follows the wake-up. */
export function reconciler({ process, everyMs, slots, outcomes, signal, loop }: ReconcilerOptions): Service {
  const round = async (): Promise<number> => {
    const held = slots.heldJobs()
    const gone = held.length === 0 ? [] : await goneOf(process.engine, held)
    for (const { held: attempt, outcome, reason } of gone) {
      // Settled by its handler's own transaction: gone too, but not lost. The handler may still be about to return.
      if (outcome === 'done') continue
      const isCancelled = outcome === 'cancelled'
      const why = isCancelled
        ? new PawlError('PAWL_CANCELLED', `Job ${attempt.id} was cancelled${reason ? `: ${reason}` : ''}.`)
        : leaseLost(attempt.row)
      if (slots.loseOne(attempt, why)) outcomes.lost(attempt, isCancelled ? 'cancelled' : 'taken over')
    }
    return everyMs
  }
  return new Service({ round, signal, loop })
}

/**
 * A process that was cut off from the database for a second or two is taken for a dead one: its incarnation is closed, its jobs are taken over,
 * and a crash is counted for each. When it comes back it excuses those crashes, so that no number of cuts makes a healthy job dead. For the
 * jobs that the lost incarnation held, known here or not, also before another process takes them over.
 */
export async function excuse(
  process: Pick<Process, 'engine' | 'signal' | 'trouble'>,
  holder: Holder,
  queues: readonly string[],
  held: readonly JobKey[],
): Promise<void> {
  let left = held
  for (let tried = 1; tried <= excuseTriesMax && !process.signal.aborted; tried++) {
    try {
      const values = { worker: holder.id, nonce: holder.nonce, queues: textsLiteral(queues), ...keysOf(left) }
      left = await process.engine.run<JobKey>(excuseStatement, values)
      if (left.length === 0) return
    } catch (error) {
      process.trouble(error)
    }
    await sleep(engineBackoffMs(undefined, tried), undefined, { signal: process.signal }).catch(() => undefined)
  }
}
