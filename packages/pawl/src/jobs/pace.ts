// How fast the handlers of this process end, by the mean run time of each kind: how many jobs will start soon.

import { monotonicMs } from '../kernel/clock.ts'
import type { Attempt } from './attempt.ts'
import type { DefinedKind } from './kinds.ts'

/** A worker holds what it will start within this time, and no more: what it cannot start, another could. */
export const prefetchMs = 500
/** No job counts as shorter. */
const shortestMs = 0.05
/** A job is long after this time and this many times the mean of its kind. A stall of the server or of this process is shorter. */
const longMs = 250
const longTimes = 4
/** What the last job counts in the mean. A worker of 20 slots that stalls for once ends 20 jobs at once. */
const newShare = 0.03

export class Pace {
  /** Mean run time by kind, and of what ended last, in milliseconds. */
  readonly #meanMs = new Map<DefinedKind, number>()
  #meanOfAllMs = Number.POSITIVE_INFINITY
  /** What was expected to start at the last tick. */
  #expected = 0

  ended({ definition, startedMs }: Attempt): void {
    const ranMs = monotonicMs() - startedMs
    const blend = (meanMs: number) => (Number.isFinite(meanMs) ? meanMs + (ranMs - meanMs) * newShare : ranMs)
    this.#meanMs.set(definition, blend(this.#meanMs.get(definition) ?? Number.POSITIVE_INFINITY))
    this.#meanOfAllMs = blend(this.#meanOfAllMs)
  }

  /**
   * How many jobs start within half a second: each slot takes the next one after the mean run time of its kind (Little's law). A slot in a long job
   * takes none.
   */
  startsSoon({ free, holders }: { readonly free: number; readonly holders: Iterable<Attempt> }): number {
    const nowMs = monotonicMs()
    let perMs = free / Math.max(shortestMs, this.#meanOfAllMs)
    for (const { definition, startedMs } of holders) {
      const meanMs = this.#meanMs.get(definition) ?? Number.POSITIVE_INFINITY
      const isLong = nowMs - startedMs > Math.max(longMs, longTimes * meanMs)
      if (!isLong) perMs += 1 / Math.max(shortestMs, meanMs)
    }
    return Math.floor(perMs * prefetchMs)
  }

  /** Twice as many as at this tick or the last: what is expected changes with every end, and a stall of all handlers at once is over soon. */
  startsMax(expected: number): number {
    const most = 2 * Math.max(expected, this.#expected)
    this.#expected = expected
    return most
  }
}
