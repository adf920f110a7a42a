// How reads are timed, the same for Pawl and for the plain table.

import { now } from '../../harness/machine/clock.ts'
import { median } from '../../harness/report/stats.ts'

export const pageRows = 100
export const pageReads = 200
export const wholeReads = 5

/** The median time of so many calls, one after the other. */
export async function times(count: number, call: (n: number) => Promise<unknown>): Promise<number> {
  const taken: number[] = []
  for (let n = 0; n < count; n++) {
    const from = now()
    await call(n)
    taken.push(now() - from)
  }
  return median(taken)
}

/** Which of the places is read next: all over the table, and never two neighbours in a row. */
export function scattered<Place>(places: readonly Place[], n: number): Place {
  return places[(n * 37) % places.length]!
}
