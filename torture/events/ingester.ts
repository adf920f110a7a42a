// Takes in what an outside source says: transactions 1, 2, 3 ... of a few events each. It brings them in parts, brings them again, and now and
// then leaves one out to see whether that is noticed. Several processes do so at once.

import { isPawlError, type OutsideEvent, type Pawl } from 'pawl'
import type { History } from '../history.ts'
import type { Random } from '../random.ts'

export const source = 'chain:main'
/** So far ahead that nobody comes there: it must be refused. */
export const tooFar = 100_000

/** What the source says in its transaction. Its number within the key grows, and is not dense. */
export function eventsOf(transaction: number): OutsideEvent[] {
  const count = 1 + (transaction % 4)
  return Array.from({ length: count }, (_, i) => ({
    id: `${transaction}/${i}`,
    type: 'Mined',
    aggregateType: 'block',
    key: source,
    data: { t: transaction, i },
  }))
}

export class Ingester {
  readonly #pawl: Pawl
  readonly #history: History
  #known = 0

  constructor(pawl: Pawl, history: History) {
    this.#pawl = pawl
    this.#history = history
  }

  /**
   * The last transaction again, as a whole, because whoever began it may be dead; then the next one in two parts; sometimes an old one; and
   * sometimes one too far.
   */
  async step(random: Random): Promise<void> {
    const last = this.#known
    if (last > 0 && !(await this.#bring(last, eventsOf(last)))) return
    // Others are further: what they began is brought as a whole first.
    if (this.#known !== last) return
    const events = eventsOf(last + 1)
    const half = Math.ceil(events.length / 2)
    const isWhole = (await this.#bring(last + 1, events.slice(0, half))) && (await this.#bring(last + 1, events.slice(half)))
    if (!isWhole) return
    if (random.chance(0.2) && last > 3) await this.#bring(last - 2, eventsOf(last - 2))
    if (random.chance(0.1)) await this.#bring(last + tooFar, eventsOf(last + tooFar))
  }

  async #bring(transaction: number, events: readonly OutsideEvent[]): Promise<boolean> {
    const asked = { transaction, ids: events.map(({ id }) => id) }
    this.#history.write('ingest', { ph: 'invoke', ...asked })
    try {
      const options = { source, position: transaction, after: transaction - 1 }
      const { outcome, ingested, position } = await this.#pawl.events.ingest(events, options)
      this.#history.write('ingest', { ph: 'ok', ...asked, outcome, ingested })
      this.#known = Math.max(this.#known, Number(position ?? 0))
      return true
    } catch (error) {
      if (isPawlError(error, 'PAWL_SOURCE_GAP')) {
        this.#history.write('ingest', { ph: 'fail', ...asked, gap: true })
        this.#known = Number(error.details.was)
      } else this.#history.write('ingest', { ph: 'info', ...asked, error: String(error) })
      return false
    }
  }
}
