// One call of a sink's function: what the function gets besides its event, and how long it may take.

import { PawlError } from '../../errors.ts'
import type { SinkContext } from '../types.ts'

export class SinkCall implements SinkContext {
  readonly idempotencyKey: string
  readonly attempt: number
  #controller: AbortController | undefined
  #reason: unknown
  #reject: ((reason: unknown) => void) | undefined

  constructor(idempotencyKey: string, attempt: number) {
    this.idempotencyKey = idempotencyKey
    this.attempt = attempt
  }

  /** Made when it is asked for: most functions do not. */
  get signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.#reason !== undefined) this.#controller.abort(this.#reason)
    return this.#controller.signal
  }

  abort(reason: unknown): void {
    this.#reason = reason
    this.#controller?.abort(reason)
    this.#reject?.(reason)
  }

  /** Waits for the function, and not longer than it may take. */
  async race(answer: PromiseLike<unknown>, sink: string, timeoutMs: number): Promise<void> {
    const over = new Promise<never>((_resolve, reject) => {
      this.#reject = reject
    })
    const timer = setTimeout(
      () => this.abort(new PawlError('PAWL_TIMED_OUT', `The handler of sink '${sink}' took longer than ${timeoutMs} ms.`)),
      timeoutMs,
    )
    try {
      await Promise.race([answer, over])
    } finally {
      clearTimeout(timer)
    }
  }
}
