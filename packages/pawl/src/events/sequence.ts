// The sequencer's tick. Any process may run it, as often as it likes: whoever has the row works, the others are told so and go on.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Db } from '../db/db.ts'
import type { DatabaseOptions } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { probe } from '../kernel/probe.ts'
import { longConnection } from './long-connection.ts'
import { type FreshEvents, freshEvents } from './read-log.ts'

const rebaseStatement = statement(import.meta.url, 'rebase')
const sequenceStatement = statement(import.meta.url, 'sequence')

/** A tick of so many events takes about a tenth of a second. More of them get their positions at once, without a limit of time. */
const tickEventsMax = 20_000
const rebasePollMs = 200

export interface Tick {
  /** 'busy': somebody else is at it. */
  readonly outcome: 'sequenced' | 'idle' | 'busy' | 'rebased'
  /** How many events got a position. */
  readonly sequenced: number
  /** The last position that was given, as far as this tick knows. */
  readonly head: number
  readonly generation: number
  /** What got a position, where that is little. */
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
 * Gives positions to what became visible. `connection` must be able to write; `database` is used when there is more than a tick may take, and when
 * the cluster is another one.
 */
export async function sequence(connection: Db, database: DatabaseOptions, options: { eventsMax?: number } = {}): Promise<Tick> {
  if (probe.on) await probe.hit('events.sequence.before')
  const row = await tick(connection, options.eventsMax ?? tickEventsMax)
  if (row.outcome === 'foreign')
    return rebase(database, { outcome: 'busy', sequenced: 0, head: Number(row.head), generation: row.generation })
  const { outcome, sequenced, generation, ...rest } = row.outcome === 'large' ? await sequenceAll(database) : row
  const head = Number(rest.head)
  const fresh = rest.events === null ? undefined : freshEvents(rest.events, head, generation)
  if (probe.on) await probe.hit('events.sequence.after', row)
  // Another process may have met the same, or rebases.
  return { outcome: outcome === 'large' || outcome === 'foreign' ? 'busy' : outcome, sequenced, head, generation, fresh }
}

async function tick(connection: Db, limit: number | null): Promise<Row> {
  const [row] = await connection.run<Row>(sequenceStatement, { limit })
  return row!
}

async function sequenceAll(database: DatabaseOptions): Promise<Row> {
  const connection = longConnection(database, 'sequencer')
  try {
    return await tick(connection, null)
  } finally {
    await connection.close()
  }
}

/** It reads every event that is kept, so while somebody is at it nobody asks again at once. */
async function rebase(database: DatabaseOptions, busy: Tick): Promise<Tick> {
  const connection = longConnection(database, 'rebase')
  try {
    const [row] = await connection.run<{ sequenced: number; head: string | null; generation: number }>(rebaseStatement)
    if (probe.on) await probe.hit('events.rebase.after', row)
    const { sequenced, head, generation } = row!
    if (head === null) {
      await sleep(rebasePollMs)
      return busy
    }
    return { outcome: 'rebased', sequenced, head: Number(head), generation }
  } finally {
    await connection.close()
  }
}
