// The sequencer's tick. Any process may run it at any time: the one that locks the row works, the others get 'busy' and continue.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Db } from '../db/db.ts'
import type { Connection, DatabaseOptions } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { probe } from '../kernel/probe.ts'
import { onLongConnection } from './long-connection.ts'
import { type FreshEvents, freshEvents } from './read-log.ts'

const rebaseStatement = statement(import.meta.url, 'rebase')
const sequenceStatement = statement(import.meta.url, 'sequence')

/** A tick of this size takes about 0.1 s. A larger window runs on a connection without a statement timeout. */
const tickEventsMax = 20_000
const rebasePollMs = 200

export interface Tick {
  /** 'busy': another process ticks. */
  readonly outcome: 'sequenced' | 'idle' | 'busy' | 'rebased'
  /** The number of events that got a position. */
  readonly sequenced: number
  /** The last position, as far as this tick knows. */
  readonly head: number
  readonly generation: number
  /** The events that got a position, if they are few. */
  readonly fresh?: FreshEvents | undefined
}

interface Row {
  readonly outcome: 'sequenced' | 'idle' | 'busy' | 'large' | 'foreign'
  readonly sequenced: number
  readonly head: string
  readonly generation: number
  readonly events: string | null
}

/**
 * Gives a position to each event that became visible. `connection` must be able to write; `database` is used for a window that is too large for one
 * tick, and after a move to another cluster.
 */
export async function sequence(connection: Db, database: DatabaseOptions, options: { eventsMax?: number } = {}): Promise<Tick> {
  if (probe.on) await probe.hit('events.sequence.before')
  const row = await tick(connection, options.eventsMax ?? tickEventsMax)
  if (row.outcome === 'foreign') {
    const busy: Tick = { outcome: 'busy', sequenced: 0, head: Number(row.head), generation: row.generation }
    return onLongConnection(database, 'rebase', (long) => rebase(long, busy))
  }
  const isLarge = row.outcome === 'large'
  const ticked = isLarge ? await onLongConnection(database, 'sequencer', (long) => tick(long, null)) : row
  const { outcome, sequenced, generation, events } = ticked
  const head = Number(ticked.head)
  const fresh = events === null ? undefined : freshEvents(events, head, generation)
  if (probe.on) await probe.hit('events.sequence.after', row)
  // Another process is at the same large tick, or rebases.
  return { outcome: outcome === 'large' || outcome === 'foreign' ? 'busy' : outcome, sequenced, head, generation, fresh }
}

async function tick(connection: Db, limit: number | null): Promise<Row> {
  const [row] = await connection.run<Row>(sequenceStatement, { limit })
  return row!
}

/** A rebase reads every event that is kept, so a process that finds one in progress waits before it asks again. */
async function rebase(connection: Connection, busy: Tick): Promise<Tick> {
  const [row] = await connection.run<{ sequenced: number; head: string | null; generation: number }>(rebaseStatement)
  if (probe.on) await probe.hit('events.rebase.after', row)
  const { sequenced, head, generation } = row!
  if (head !== null) return { outcome: 'rebased', sequenced, head: Number(head), generation }
  await sleep(rebasePollMs)
  return busy
}
