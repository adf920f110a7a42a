// Where a scan of an index starts. A stranger's old snapshot may keep thousands of dead entries at the front of an index. So when a scan
// from the beginning was slow, twice in a row, the next ones start where the last one ended, and only one in some seconds at the beginning.

import { monotonicMs } from '../kernel/clock.ts'

const slowDefaultMs = 5
const beginning = '-infinity'

export class ScanStart {
  readonly #slowMs: number
  #reached = beginning
  #slowScans = 0
  #fullScanMs = 0

  constructor(slowMs = slowDefaultMs) {
    this.#slowMs = slowMs
  }

  /** Scans from there, and is told where the scan ended: a time of the database as text. */
  async scan<Answer extends { readonly reached: string } | undefined>(
    work: (after: string) => Promise<Answer>,
    fullScanEveryMs: number,
  ): Promise<Answer> {
    const startedMs = monotonicMs()
    const isFull = this.#slowScans < 2 || startedMs >= this.#fullScanMs
    const answer = await work(isFull ? beginning : this.#reached)
    if (answer === undefined) return answer
    if (isFull) {
      this.#slowScans = monotonicMs() - startedMs > this.#slowMs ? this.#slowScans + 1 : 0
      this.#fullScanMs = startedMs + fullScanEveryMs
    }
    this.#reached = answer.reached
    return answer
  }
}
