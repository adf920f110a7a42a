// Reads by number and stops at a gap: whoever drew that number may still commit. A gap that stays for longer than the timeout counts as rolled
// back. Every gap's clock runs from the moment it was first seen, so many gaps cost no more than one.

import { Connection, type DatabaseOptions } from '../../../packages/pawl/src/db/driver.ts'
import type { ReadEvent, Reader } from '../../../packages/pawl/test/support/log-readers.ts'
import { now } from '../../harness/machine/clock.ts'

/** Akka and Axon wait for 10 s, Marten for 3. Less is quicker, and loses what takes longer. */
export const gapTimeoutMs = 1_000

export class GapWaitReader implements Reader {
  readonly seen: ReadEvent[] = []
  readonly #connection: Connection
  readonly #gapSince = new Map<number, number>()
  #after = 0

  constructor(database: DatabaseOptions) {
    this.#connection = new Connection(database, 'gap reader')
  }

  async poll(): Promise<void> {
    const rows = await this.#connection.query<{ seq: string; payload: ReadEvent }>(
      `select seq::text, payload from pawl.event where seq > ${this.#after} order by event.seq`,
    )
    const at = now()
    let [expected, isHeld] = [this.#after + 1, false]
    for (const { seq, payload } of rows) {
      for (; expected < Number(seq); expected++) {
        const since = this.#gapSince.get(expected) ?? at
        this.#gapSince.set(expected, since)
        isHeld ||= at - since < gapTimeoutMs
      }
      expected++
      if (isHeld) continue
      this.seen.push(payload)
      this.#after = Number(seq)
    }
    for (const gap of this.#gapSince.keys()) if (gap <= this.#after) this.#gapSince.delete(gap)
  }

  close(): Promise<void> {
    return this.#connection.close()
  }
}
