// Readers of the event table, the wrong ones included. Each polls and remembers what it was given, so that a test can say what it lost,
// repeated or swapped.

import { Connection, type DatabaseOptions } from '../../src/db/driver.ts'
import { readLog } from '../../src/events/read-log.ts'
import { sequence } from '../../src/events/sequence.ts'
import { until } from './database.ts'

export interface ReadEvent {
  readonly key: string
  readonly version: number
  readonly n: number
}

export interface Reader {
  readonly seen: ReadEvent[]
  poll(): Promise<void>
  close(): Promise<void>
}

/** The log: gives positions, then reads them. Throws at a hole. */
export class LogReader implements Reader {
  readonly seen: ReadEvent[] = []
  readonly positions: number[] = []
  readonly #database: DatabaseOptions
  readonly #connection: Connection
  readonly #pageMax: number
  #after = 0

  constructor(database: DatabaseOptions, pageMax = 100) {
    this.#database = database
    this.#pageMax = pageMax
    this.#connection = new Connection(database, 'log reader')
  }

  async poll(eventsMax?: number): Promise<void> {
    await sequence(this.#connection, this.#database, eventsMax === undefined ? {} : { eventsMax })
    await this.read()
  }

  /** Until there is nothing left to do. */
  async catchUp(): Promise<void> {
    while ((await sequence(this.#connection, this.#database)).outcome === 'busy');
    await this.read()
  }

  async read(): Promise<void> {
    for (;;) {
      const { events, next } = await readLog(this.#connection, { after: this.#after, limit: this.#pageMax })
      this.seen.push(...events.map(({ data }) => data as ReadEvent))
      this.positions.push(...events.map(({ position }) => position))
      if (next === this.#after) return
      this.#after = next
    }
  }

  close(): Promise<void> {
    return this.#connection.close()
  }
}

/** What many home-made outboxes do: everything above the largest number seen. */
export class MaxIdReader implements Reader {
  readonly seen: ReadEvent[] = []
  readonly #connection: Connection
  #after = '0'

  constructor(database: DatabaseOptions) {
    this.#connection = new Connection(database, 'max reader')
  }

  async poll(): Promise<void> {
    const rows = await this.#connection.query<{ seq: string; payload: ReadEvent }>(
      `select seq::text, payload from pawl.event where seq > ${this.#after} order by event.seq`,
    )
    this.seen.push(...rows.map(({ payload }) => payload))
    this.#after = rows.at(-1)?.seq ?? this.#after
  }

  close(): Promise<void> {
    return this.#connection.close()
  }
}

/** The popular cure: only transactions below the oldest one in progress, ordered by transaction. */
export class XminReader implements Reader {
  readonly seen: ReadEvent[] = []
  readonly #connection: Connection
  #after: readonly [xid: string, seq: string] = ['0', '0']

  constructor(database: DatabaseOptions) {
    this.#connection = new Connection(database, 'xmin reader')
  }

  async poll(): Promise<void> {
    const rows = await this.#connection.query<{ xid: string; seq: string; payload: ReadEvent }>(
      `select xid::text, seq::text, payload from pawl.event
       where (xid, seq) > ('${this.#after[0]}'::xid8, ${this.#after[1]}) and xid < pg_snapshot_xmin(pg_current_snapshot())
       order by event.xid, event.seq`,
    )
    this.seen.push(...rows.map(({ payload }) => payload))
    const last = rows.at(-1)
    if (last !== undefined) this.#after = [last.xid, last.seq]
  }

  /** Its horizon is the whole server's: another database's transaction holds it up too, and another test file's may be long. */
  async catchUp(events: number): Promise<void> {
    const look = async () => {
      await this.poll()
      return this.seen.length >= events
    }
    await until('the reader below xmin was let on', look, 120_000)
  }

  close(): Promise<void> {
    return this.#connection.close()
  }
}

export interface Faults {
  readonly lost: number
  readonly repeated: number
  /** Events of one key that came before an earlier one of the same key. */
  readonly swapped: number
}

/** What a reader was given, against what was committed. */
export function faultsOf(seen: readonly ReadEvent[], committed: readonly ReadEvent[]): Faults {
  const numbers = new Set(seen.map(({ n }) => n))
  const last = new Map<string, number>()
  let swapped = 0
  for (const { key, version } of seen) {
    if (version < (last.get(key) ?? 0)) swapped++
    last.set(key, Math.max(version, last.get(key) ?? 0))
  }
  return { lost: committed.filter(({ n }) => !numbers.has(n)).length, repeated: seen.length - numbers.size, swapped }
}

export const noFaults: Faults = { lost: 0, repeated: 0, swapped: 0 }
