// The sequencer's tick. Any process may run it, as often as it likes: whoever has the row works, the others are told so and go on.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Connection, DatabaseOptions } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { probe } from '../kernel/probe.ts'
import { longConnection } from './long-connection.ts'

const sequenceStatement = statement(import.meta.url, 'sequence')

/** A tick of so many events takes about a tenth of a second. */
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
  /** There is more to do at once. */
  readonly hasMore: boolean
}

interface Row {
  readonly outcome: 'sequenced' | 'idle' | 'busy' | 'foreign'
  readonly sequenced: number
  readonly head: string
  readonly generation: number
  readonly has_more: boolean
}

/** Gives positions to what became visible. `connection` must be able to write; `database` is used only when the cluster is another one. */
export async function sequence(
  connection: Pick<Connection, 'run'>,
  database: DatabaseOptions,
  options: { eventsMax?: number } = {},
): Promise<Tick> {
  if (probe.on) await probe.hit('events.sequence.before')
  const [row] = await connection.run<Row>(sequenceStatement, { limit: options.eventsMax ?? tickEventsMax })
  const { outcome, sequenced, head, generation, has_more } = row!
  if (outcome === 'foreign')
    return rebase(database, { outcome: 'busy', sequenced: 0, head: Number(head), generation, hasMore: false })
  if (probe.on) await probe.hit('events.sequence.after', row)
  return { outcome, sequenced, head: Number(head), generation, hasMore: has_more }
}

/** It reads every event that is kept, so while somebody is at it nobody asks again at once. */
async function rebase(database: DatabaseOptions, busy: Tick): Promise<Tick> {
  const connection = longConnection(database, 'rebase')
  try {
    const [row] = await connection.query<{ sequenced: number; head: string | null; generation: number }>(
      'select r.sequenced, r.head, r.generation from pawl.rebase_events() r',
    )
    if (probe.on) await probe.hit('events.rebase.after', row)
    const { sequenced, head, generation } = row!
    if (head === null) {
      await sleep(rebasePollMs)
      return busy
    }
    return { outcome: 'rebased', sequenced, head: Number(head), generation, hasMore: false }
  } finally {
    await connection.close()
  }
}
