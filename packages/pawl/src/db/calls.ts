// What a handler does with a transaction of ours: the calls that are not answered yet, and statements that would end it.

import { setImmediate as turn } from 'node:timers/promises'
import { caught, PawlError } from '../errors.ts'

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
    // It is refused and logged. Its promise may have no handler, and must not end the process.
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

// ---- statements that would end it

// A transaction of ours in a handler's hands is ours to end. What a handler sends is refused where its text says that it would end it; what
// no text says, such as a function of another language that does it, the commit finds out (packet.ts).

/** Where a statement may begin: most have none of these words there. */
const mayEnd = /(?:^|[;/\n])\s*(?:commit|rollback|abort|end|prepare)\b/i

/** Strings, names in quotes and comments. */
const opaque =
  /\b[eE]'[^'\\]*(?:(?:\\[\s\S]|'')[^'\\]*)*'|'[^']*'|"[^"]*"|\$([A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*|)\$[\s\S]*?\$\1\$|--[^\n]*|\/\*[\s\S]*?\*\//g

const endsIt = /(?:^|;)\s*((?:commit|end|abort|prepare\s+transaction)\b|rollback\b(?!\s+(?:(?:work|transaction)\s+)?to\b))/i

/** The words with which this text would end its transaction. A body of `begin atomic ... end` is not looked into. */
export function endOf(text: string): string | undefined {
  if (!mayEnd.test(text)) return undefined
  const plain = text.replace(opaque, ' ')
  return /\bbegin\s+atomic\b/i.test(plain) ? undefined : endsIt.exec(plain)?.[1]
}

export function txEnded(what: string, cause?: unknown): PawlError {
  return new PawlError(
    'PAWL_TX_ENDED',
    `${what}. Only Pawl may end it: return to commit, throw to roll back, use savepoints to undo a part. Pawl has settled nothing.`,
    { cause },
  )
}

export function refusedEnd(words: string): PawlError {
  return txEnded(`A handler sent '${words.toLowerCase().replace(/\s+/g, ' ')}' through its transaction`)
}
