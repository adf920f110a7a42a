// What a handler has called with its transaction and not been answered yet. The commit waits for it: a forgotten `await` must not lose a
// follow-up job, nor let half of a handler's statements commit.

import { setImmediate as turn } from 'node:timers/promises'
import { caught } from '../errors.ts'

/** On a transaction of ours that a handler has in its hands. */
export const calls: unique symbol = Symbol('pawl.calls')

export class Calls {
  #open = 0
  #whenNone: (() => void) | undefined
  readonly #tracked = new Set<Promise<unknown>>()
  /** Called for what comes after the end of the transaction. */
  onLate: (() => void) | undefined
  #isOver = false

  /** A statement was sent. */
  begin(): void {
    this.#open++
  }

  end(): void {
    if (--this.#open === 0) this.#whenNone?.()
  }

  /** A call of ours that sends its statements later. */
  track<T>(call: () => Promise<T>): Promise<T> {
    const tracked = this.#track(call, () => this.#tracked.delete(tracked))
    // It is refused and logged. Nobody may be there to catch it, and it must not end the process.
    if (this.#isOver) return caught(tracked)
    this.#tracked.add(tracked)
    return tracked
  }

  async #track<T>(call: () => Promise<T>, forget: () => void): Promise<T> {
    this.begin()
    try {
      return await call()
    } finally {
      forget()
      this.end()
    }
  }

  get areOpen(): boolean {
    return this.#open > 0
  }

  /** For when the handler has returned. Rejects with the error of a call that it did not wait for. */
  async quiet(): Promise<void> {
    let failed: { readonly error: unknown } | undefined
    while (this.#open > 0) {
      for (const call of this.#tracked)
        call.catch((error: unknown) => {
          failed ??= { error }
        })
      await new Promise<void>((resolve) => {
        this.#whenNone = resolve
      })
      // An answer may be what the next statement waited for.
      await turn()
    }
    if (failed !== undefined) throw failed.error
  }

  get isOver(): boolean {
    return this.#isOver
  }

  /** The transaction has ended. What is open now fails, and its handler may have left without it. */
  over(): void {
    this.#isOver = true
    for (const call of this.#tracked) void caught(call)
  }

  late(): void {
    this.onLate?.()
  }
}

/** Runs a call that was given a transaction: one of ours counts it until it is answered. */
export function callIn<T>(tx: unknown, call: () => Promise<T>): Promise<T> {
  const counted = (tx as { readonly [calls]?: Calls } | null | undefined)?.[calls]
  return counted === undefined ? call() : counted.track(call)
}
