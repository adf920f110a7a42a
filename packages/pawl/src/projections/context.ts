// What a handler gets besides its events and its transaction.

import { PawlError } from '../errors.ts'
import type { Defined } from './definition.ts'
import { tableOf } from './tables.ts'
import type { ProjectionContext } from './types.ts'

export class HandlerContext implements ProjectionContext {
  readonly generation: number
  readonly isLive: boolean
  readonly #definition: Defined
  #controller: AbortController | undefined
  #reason: unknown
  /** Set while a handler may run. */
  timer: NodeJS.Timeout | undefined

  constructor(definition: Defined, isLive: boolean) {
    this.#definition = definition
    this.generation = definition.generation
    this.isLive = isLive
  }

  // Handlers take it apart, so it is given out bound.
  get table(): ProjectionContext['table'] {
    return (name) => {
      if (!this.#definition.tables.some((table) => table.name === name))
        throw new PawlError(
          'PAWL_CONFIG',
          `'${name}' is not a declared table of '${this.#definition.name}'. Add it to tables, with its key and columns.`,
        )
      return tableOf(name, this.generation, this.isLive)
    }
  }

  /** Made when it is asked for: most handlers do not. */
  get signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.#reason !== undefined) this.#controller.abort(this.#reason)
    return this.#controller.signal
  }

  abort(reason: unknown): void {
    this.#reason = reason
    this.#controller?.abort(reason)
  }
}

/** Runs the work for at most so long, counted anew by each `context.timer.refresh()`; then the context's signal fires and this rejects, whatever the work does. */
export async function withTimeout<T>(
  context: HandlerContext,
  limits: { readonly timeoutMs: number; readonly lost: AbortSignal; readonly what: string },
  work: () => Promise<T>,
): Promise<T> {
  const { timeoutMs, lost, what } = limits
  if (lost.aborted) throw lost.reason
  let onLost!: () => void
  const over = new Promise<never>((_resolve, reject) => {
    const end = (reason: unknown) => {
      context.abort(reason)
      reject(reason)
    }
    context.timer = setTimeout(
      () => end(new PawlError('PAWL_TIMED_OUT', `The handler of ${what} took longer than ${timeoutMs} ms.`)),
      timeoutMs,
    )
    onLost = () => end(lost.reason)
    lost.addEventListener('abort', onLost, { once: true })
  })
  try {
    return await Promise.race([work(), over])
  } finally {
    clearTimeout(context.timer)
    // A handler that goes on after its time must not set it again.
    context.timer = undefined
    lost.removeEventListener('abort', onLost)
  }
}
