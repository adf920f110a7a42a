// Typed events. Nothing is built for an event that nobody listens to, and a listener that throws harms nobody else.

export class Events<Map extends object> {
  readonly #listeners = new globalThis.Map<keyof Map, Set<(event: never) => void>>()
  readonly #onError: (error: unknown) => void

  constructor(onError: (error: unknown) => void) {
    this.#onError = onError
  }

  on<Name extends keyof Map>(name: Name, listener: (event: Map[Name]) => void): () => void {
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
