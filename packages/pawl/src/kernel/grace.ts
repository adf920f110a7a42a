// How long a stop waits for handlers. Every further call of stop() may shorten it, and none makes it longer.

import { monotonicMs } from './clock.ts'

export class Grace {
  readonly #over = new AbortController()
  #endsMs = Number.POSITIVE_INFINITY
  #timer: NodeJS.Timeout | undefined

  /** Fires when it is over. */
  get over(): AbortSignal {
    return this.#over.signal
  }

  /** Ends it after this time, or when the signal fires. */
  shorten(graceMs: number, signal: AbortSignal | undefined): void {
    const endsMs = monotonicMs() + graceMs
    if (signal?.aborted || graceMs === 0) return this.end()
    signal?.addEventListener('abort', () => this.end(), { once: true, signal: this.over })
    if (endsMs >= this.#endsMs || this.over.aborted) return
    this.#endsMs = endsMs
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.end(), graceMs)
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#over.abort()
  }
}
