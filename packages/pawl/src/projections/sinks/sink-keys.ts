// The queues of a sink's keys: of each key one event at a time, in order; several keys at once. A key whose event failed waits for its next
// attempt while the others go on.

import type { LogEvent } from '../../events/types.ts'
import { type EventKey, keyOf } from '../applier.ts'

export interface Queued {
  readonly event: LogEvent
  /** It is the replay of a parked event. */
  readonly isParked: boolean
  attempt: number
}

interface Key {
  readonly name: string
  readonly queue: Queued[]
  isBusy: boolean
}

export class SinkKeys {
  readonly #keys = new Map<string, Key>()
  /** Keys that have an event to start, in the order in which they got it. */
  readonly #ready: Key[] = []

  add(event: LogEvent, isParked = false): void {
    const name = keyOf(event)
    let key = this.#keys.get(name)
    if (key === undefined) {
      key = { name, queue: [], isBusy: false }
      this.#keys.set(name, key)
    }
    key.queue.push({ event, isParked, attempt: 0 })
    if (!key.isBusy && key.queue.length === 1) this.#ready.push(key)
  }

  get hasReady(): boolean {
    return this.#ready.length > 0
  }

  get next(): Queued | undefined {
    return this.#ready[0]?.queue[0]
  }

  /** The next event to work on; its key is busy until `done` or `retry`. */
  take(): Queued | undefined {
    const key = this.#ready.shift()
    if (key === undefined) return undefined
    key.isBusy = true
    const queued = key.queue[0]!
    queued.attempt++
    return queued
  }

  /** Its event ended, and the next of its key may start. */
  done(queued: Queued): void {
    const key = this.#keys.get(keyOf(queued.event))!
    key.queue.shift()
    key.isBusy = false
    if (key.queue.length > 0) this.#ready.push(key)
    else this.#keys.delete(key.name)
  }

  /** The same event again. */
  retry(queued: Queued): void {
    const key = this.#keys.get(keyOf(queued.event))!
    key.isBusy = false
    this.#ready.push(key)
  }

  /** Everything of a key, which is to be parked. */
  remove(queued: Queued): Queued[] {
    const key = this.#keys.get(keyOf(queued.event))!
    this.#keys.delete(key.name)
    return key.queue
  }

  has(event: EventKey): boolean {
    return this.#keys.has(keyOf(event))
  }
}
