// Finds out which jobs that this process holds are no longer its own: cancelled, timed out by a sweep, or taken over.

import type { Connection } from '../db/driver.ts'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { LoopWatch } from '../kernel/failures.ts'
import { type HeldJob, leaseLost } from './held.ts'
import type { Slots } from './slots.ts'

const lostStatement = statement(import.meta.url, 'lost')

interface LostRow {
  tenant: string
  id: string
  fence: string
  outcome: string | null
  reason: string | null
}

export interface LostJobsOptions {
  readonly engine: Connection
  readonly everyMs: number
  readonly slots: Slots
  readonly onLost: (held: HeldJob, reason: string) => void
  readonly loop: LoopWatch
}

export class LostJobs {
  readonly #options: LostJobsOptions
  #lastLookMs = 0
  /** Behind a connection that stalls one look waits, not one more every half second. */
  #looking: Promise<void> | undefined
  #isAskedAgain = false

  constructor(options: LostJobsOptions) {
    this.#options = options
  }

  tick(nowMs: number): void {
    if (this.#looking === undefined && nowMs - this.#lastLookMs > this.#options.everyMs) void this.look()
  }

  /** What was lost after a look was sent is found by the next one, which follows at once. */
  look(): Promise<void> {
    if (this.#looking !== undefined) this.#isAskedAgain = true
    this.#looking ??= this.#lookAll().finally(() => {
      this.#looking = undefined
    })
    return this.#looking
  }

  async #lookAll(): Promise<void> {
    do {
      this.#isAskedAgain = false
      await this.#lookOnce()
    } while (this.#isAskedAgain)
  }

  async #lookOnce(): Promise<void> {
    const { engine, slots, loop } = this.#options
    this.#lastLookMs = monotonicMs()
    const mine = slots.heldJobs()
    if (mine.length === 0) return
    try {
      const rows = await engine.run<LostRow>(lostStatement, {
        tenants: textsLiteral(mine.map((held) => held.tenant)),
        ids: numbersLiteral(mine.map((held) => held.id)),
        fences: numbersLiteral(mine.map((held) => held.fence)),
      })
      for (const row of rows) this.#lose(row)
      loop.succeeded()
    } catch (error) {
      loop.failed(error)
    }
  }

  #lose(row: LostRow): void {
    // A job that its own transaction settled is gone too, and its handler may still be about to return.
    if (row.outcome === 'done') return
    const held = this.#options.slots.loseOne(row, (lost) =>
      row.outcome === 'cancelled'
        ? new PawlError('PAWL_CANCELLED', `Job ${lost.id} was cancelled${row.reason ? `: ${row.reason}` : ''}.`)
        : leaseLost(lost.row),
    )
    if (held !== undefined) this.#options.onLost(held, row.outcome ?? 'taken over')
  }
}
