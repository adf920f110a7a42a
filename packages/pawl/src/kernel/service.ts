// A loop: a round every so often, or when it is woken, until its signal fires. An error is told and the round tried again after a backoff.

import type { LoopWatch } from './failures.ts'
import { engineBackoffMs } from './retry.ts'
import { Wakeup } from './signal.ts'

export interface ServiceOptions {
  /** One round. Returns the milliseconds until the next one; 0: at once. */
  readonly round: () => Promise<number>
  readonly signal: AbortSignal
  readonly loop: LoopWatch
  /** Milliseconds after the n-th error in a row. */
  readonly backoffMs?: (error: unknown, failed: number) => number
}

export class Service {
  readonly #options: ServiceOptions
  readonly #wakeup = new Wakeup()
  #round: Promise<number> | undefined

  constructor(options: ServiceOptions) {
    this.#options = options
  }

  /** The next round begins now, or right after the one in progress. */
  wake(): void {
    this.#wakeup.fire()
  }

  /** One round, not beside another: what a test calls in place of waiting. Rejects with its error. */
  runOnce(): Promise<number> {
    const { round } = this.#options
    this.#round = this.#round === undefined ? round() : this.#round.then(round, round)
    return this.#round
  }

  async run(): Promise<void> {
    const { signal, loop, backoffMs = engineBackoffMs } = this.#options
    const wake = () => this.wake()
    signal.addEventListener('abort', wake, { once: true })
    for (let failed = 0; !signal.aborted; ) {
      let waitMs: number
      try {
        waitMs = await this.runOnce()
        failed = 0
        loop.succeeded()
      } catch (error) {
        loop.failed(error)
        waitMs = backoffMs(error, ++failed)
      }
      if (waitMs > 0 && !signal.aborted) await this.#wakeup.wait(waitMs)
    }
    signal.removeEventListener('abort', wake)
  }
}
