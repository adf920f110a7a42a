// The pages of a sink's log. Acks bounds them: a page is read when at most half of the window is unfinished.

import { type LogRead, readLog } from '../../events/read-log.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import { type HeldCursor, logBounds, passEvents, passEveryMs, placeAt } from '../cursor.ts'
import type { Host } from '../part.ts'
import type { Acks } from './acks.ts'

/** Unfinished characters, beside one page. */
const windowChars = 16_000_000
const pageMax = 500

export class SinkPages {
  readonly #cursor: HeldCursor
  readonly #acks: Acks
  readonly #host: Host
  readonly #window: number
  #hasMore = true
  /** Of the log, when the last page was read. */
  #generation: number | undefined
  #passedMs = monotonicMs()

  /** `window`: the maximum number of unfinished events. It bounds memory, the ranges in the row, and what a crash repeats. */
  constructor(cursor: HeldCursor, acks: Acks, host: Host, window: number) {
    this.#cursor = cursor
    this.#acks = acks
    this.#host = host
    this.#window = window
  }

  async begin(): Promise<void> {
    const { generation } = await logBounds(this.#host.engine)
    const { logGeneration } = this.#cursor.place
    this.#generation = generation
    if (logGeneration !== null && logGeneration !== generation) this.#acks.forgetBefore()
  }

  grown(): void {
    this.#hasMore = true
  }

  get hasMore(): boolean {
    return this.#hasMore
  }

  get hasRoom(): boolean {
    return this.#acks.open <= this.#window / 2 && this.#acks.openChars <= windowChars / 2
  }

  /** No page: a restored server may have lost events that were read, so positions that were passed may be new events. */
  async next(): Promise<LogRead | undefined> {
    const page = await this.#read(Math.min(pageMax, this.#window - this.#acks.open))
    if (page.generation !== this.#generation && this.#acks.lookedTo > 0) return undefined
    this.#generation = page.generation
    return page
  }

  /** The row passes events of other channels, tenants and shards once a second, not at every page. */
  async passOver(): Promise<void> {
    const { unpassed, lookedTo } = this.#acks
    if (unpassed === 0 || (unpassed < passEvents && monotonicMs() - this.#passedMs < passEveryMs)) return
    const place = await placeAt(this.#host, lookedTo, this.#generation)
    if (place !== undefined) this.#acks.pass(place)
    this.#passedMs = monotonicMs()
  }

  /** A wake-up during the read may be about events after this page, so the flag is cleared first. */
  async #read(limit: number): Promise<LogRead> {
    this.#hasMore = false
    try {
      const page = await readLog(this.#host.engine, { after: this.#acks.lookedTo, limit, ...this.#cursor.filter })
      if (page.next < page.head) this.#hasMore = true
      return page
    } catch (error) {
      this.#hasMore = true
      throw error
    }
  }
}
