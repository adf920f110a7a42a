// Typed events. An event without a listener costs nothing, and a listener that throws does not reach the others.

import { callback, check, oneOf, required } from './options.ts'

/** One line of doc for each event: the names that can be listened to, and the reference. */
export type EventTable<Map> = Readonly<Record<keyof Map & string, string>>

const listenerOption = required(callback({ doc: 'Called with each event.' }))

export class Events<Map extends object> {
  readonly #listeners = new globalThis.Map<keyof Map, Set<(event: never) => void>>()
  readonly #names: readonly string[]
  readonly #onError: (error: unknown) => void

  constructor(table: EventTable<Map>, onError: (error: unknown) => void) {
    this.#names = Object.keys(table)
    this.#onError = onError
  }

  on<Name extends keyof Map>(name: Name, listener: (event: Map[Name]) => void): () => void {
    check('on', 'event', required(oneOf(this.#names, { doc: 'The name of an event.' })), name)
    check('on', 'listener', listenerOption, listener)
    let listeners = this.#listeners.get(name)
    if (listeners === undefined) {
      listeners = new Set()
      this.#listeners.set(name, listeners)
    }
    listeners.add(listener as (event: never) => void)
    return () => {
      listeners.delete(listener as (event: never) => void)
    }
  }

  has(name: keyof Map): boolean {
    return (this.#listeners.get(name)?.size ?? 0) > 0
  }

  emit<Name extends keyof Map>(name: Name, event: Map[Name]): void {
    for (const listener of this.#listeners.get(name) ?? []) {
      try {
        listener(event as never)
      } catch (error) {
        this.#onError(error)
      }
    }
  }
}
