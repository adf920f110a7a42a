// What a sink has finished. Events are worked on several at a time and end in any order; the cursor's position is the last event before
// which everything is finished, and what is finished above it is kept as ranges, so that a crash repeats only calls in progress.

import type { LogEvent } from '../../events/types.ts'
import { type Place, placeOf } from '../cursor.ts'

export class Acks {
  /** Events that are not finished, in order, with their sizes. */
  readonly #open = new Map<number, number>()
  /** The size of what is open, as it was read. */
  openChars = 0
  /** Up to here everything was read. */
  lookedTo: number
  /** Events whose ids are known, so that the place is one of them: the place itself, the open ones, and the last before each. */
  #known: Place[]
  /** What an earlier holder had finished above its place. */
  #before: readonly (readonly [from: number, to: number])[]
  /** Changes with everything that there may be to store. */
  version = 0

  constructor(place: Place, done: string) {
    this.#known = [place]
    this.#before = parseRanges(done)
    this.lookedTo = place.position
  }

  get open(): number {
    return this.#open.size
  }

  /** How many places are kept: as many as are open, about, however many are finished above one that is not. */
  get kept(): number {
    return this.#known.length
  }

  /** What the last holder had finished above its place was of a log that is no more, as far as anybody can tell. */
  forgetBefore(): void {
    this.#before = []
  }

  /** Takes what was read; gives the events that are to be worked on. */
  add(events: readonly LogEvent[], lookedTo: number, chars = 0): LogEvent[] {
    const fresh = events.filter(({ position }) => !this.#before.some(([from, to]) => position >= from && position <= to))
    const charsEach = chars / Math.max(1, events.length)
    for (const event of fresh) this.#open.set(event.position, charsEach)
    this.openChars += charsEach * fresh.length
    for (const event of events) this.#known.push(placeOf(event))
    // Not at every page, so that it costs little for each event.
    if (this.#known.length > 3 * this.#open.size + 16) this.#thinOut()
    // A page without an event of ours is not worth a write; `pass` moves the position over such pages now and then.
    if (events.length > 0) this.version++
    this.lookedTo = lookedTo
    return fresh
  }

  /** The number of positions that would be read again after a crash, although none of them is ours. */
  get unpassed(): number {
    return this.#open.size > 0 ? 0 : this.lookedTo - this.#known.at(-1)!.position
  }

  /** Nothing of ours is between the last event that was read and this place, up to which everything was looked at. */
  pass(place: Place): void {
    if (place.position !== this.lookedTo) return
    this.#known.push(place)
    this.version++
  }

  finish(position: number): void {
    this.openChars -= this.#open.get(position) ?? 0
    this.#open.delete(position)
    // Fractions of characters add up to a rounding error.
    if (this.#open.size === 0) this.openChars = 0
    this.version++
  }

  /** The place as if these were finished too, and the ranges above it. */
  at(alsoFinished: ReadonlySet<number> = new Set()): { readonly place: Place; readonly done: string } {
    const open = [...this.#open.keys()].filter((position) => !alsoFinished.has(position))
    const low = (open[0] ?? this.lookedTo + 1) - 1
    const place = this.#known[this.#countUpTo(low) - 1]!
    const ranges: string[] = []
    let from = place.position + 1
    for (const position of [...open, this.lookedTo + 1]) {
      if (position > from) ranges.push(`[${from},${position})`)
      from = position + 1
    }
    // What the last holder had finished and this one has not come to yet.
    for (const [first, last] of this.#before)
      if (last > this.lookedTo) ranges.push(`[${Math.max(first, this.lookedTo + 1)},${last + 1})`)
    return { place, done: `{${ranges.join(',')}}` }
  }

  /** Keeps what can still become the place: open events, the event before each of them, the first and the last. */
  #thinOut(): void {
    const isOpen = (place: Place | undefined) => place === undefined || this.#open.has(place.position)
    this.#known = this.#known.filter((place, n) => n === 0 || isOpen(place) || isOpen(this.#known[n + 1]))
  }

  /** The row says so now. */
  stored(place: Place): void {
    this.#known.splice(0, this.#countUpTo(place.position), place)
  }

  #countUpTo(position: number): number {
    const count = this.#known.findIndex((known) => known.position > position)
    return count < 0 ? this.#known.length : count
  }
}

/** '{[3,5),[9,10)}' as pairs with both ends included. */
function parseRanges(text: string): [from: number, to: number][] {
  return [...text.matchAll(/\[(\d+),(\d+)\)/g)].map(([, from, to]) => [Number(from), Number(to) - 1])
}
