// What a sink writes under its fence: its position, the keys that it parks with their events, and the parked events that it has replayed. One write
// at a time, each complete, so that the events of a parked key keep the order of the log.

import { sqlState } from '../../db/classify.ts'
import type { Transaction } from '../../db/transaction.ts'
import { describeError } from '../../errors.ts'
import type { LogEvent } from '../../events/types.ts'
import { type EventKey, keyOf, type ParkReason, parkEvents, parkedKey, parkedStatements, parkKey, reparkKey } from '../applier.ts'
import { cursorStatements, type HeldCursor, type Place } from '../cursor.ts'
import { openTx } from '../fenced.ts'
import type { Host } from '../part.ts'
import type { CursorState } from '../types.ts'
import type { Acks } from './acks.ts'

interface Parking extends ParkReason {
  /** The event that failed and the later ones of its key, in order. */
  readonly events: readonly LogEvent[]
}

/** What is to be written besides the position. */
interface News {
  readonly parks: Parking[]
  readonly behind: LogEvent[]
  readonly replayed: LogEvent[]
  readonly free: EventKey[]
  readonly reparks: { readonly event: LogEvent; readonly error: unknown }[]
}

/** What the status says of the event that has failed longest and will be retried. */
interface Failure {
  readonly attempts: number
  readonly error: string | null
}

interface Target {
  readonly place: Place
  readonly done: string
  readonly failure: Failure
}

/** What the row has, by the last answer. */
interface Stored {
  readonly progress: string
  readonly failure: Failure
  /** Of `Acks`, when it was written. */
  readonly version: number
}

interface SinkStoreListeners {
  readonly onState: (state: CursorState) => void
  readonly onFreed: (events: readonly LogEvent[]) => void
  /** The cursor is where none of our writes had put it. */
  readonly onMoved: () => void
}

const noFailure: Failure = { attempts: 0, error: null }
const nothing = (): News => ({ parks: [], behind: [], replayed: [], free: [], reparks: [] })

export class SinkStore {
  readonly #cursor: HeldCursor
  readonly #acks: Acks
  readonly #host: Host
  readonly #listeners: SinkStoreListeners
  readonly #parked = new Set<string>()
  /** Keys whose replayed event was stored since the last list of what is to be replayed was asked for. */
  readonly #ended = new Set<string>()
  /** By position, in the order of their first failures. */
  readonly #failing = new Map<number, Failure>()
  #news = nothing()
  #writing: News | undefined
  #tail: Promise<void> = Promise.resolve()
  #stored: Stored
  /** Where writes without an answer would have moved the cursor. */
  readonly #unanswered = new Set<string>()
  #isAbandoned = false

  constructor(cursor: HeldCursor, acks: Acks, host: Host, listeners: SinkStoreListeners) {
    this.#cursor = cursor
    this.#acks = acks
    this.#host = host
    this.#listeners = listeners
    this.#stored = { progress: progressOf(acks.at()), failure: noFailure, version: 0 }
  }

  async begin(): Promise<void> {
    for (const key of await this.#parkedKeys()) this.#parked.add(key)
  }

  get hasParked(): boolean {
    return this.#parked.size > 0
  }

  get isIdle(): boolean {
    return this.#writing === undefined
  }

  get hasNews(): boolean {
    return hasContent(this.#news) || this.#acks.version !== this.#stored.version
  }

  isParked(event: EventKey): boolean {
    return this.#parked.has(keyOf(event))
  }

  /** Before a list of what is to be replayed is asked for. */
  forgetEnded(): void {
    this.#ended.clear()
  }

  /** Whether the end of this key's replayed event is not stored yet, or not in the last list of what is to be replayed. */
  isStoring(key: EventKey): boolean {
    const name = keyOf(key)
    if (this.#ended.has(name)) return true
    return [this.#news, this.#writing ?? nothing()].some(
      ({ replayed, free, reparks }) =>
        replayed.some((event) => keyOf(event) === name) ||
        free.some((each) => keyOf(each) === name) ||
        reparks.some(({ event }) => keyOf(event) === name),
    )
  }

  park(parking: Parking): void {
    this.#parked.add(keyOf(parking.events[0]!))
    this.#news.parks.push(parking)
  }

  parkBehind(event: LogEvent): void {
    this.#news.behind.push(event)
  }

  unparked(event: LogEvent): void {
    this.#news.replayed.push(event)
  }

  free(key: EventKey): void {
    this.#news.free.push(key)
  }

  reparked(event: LogEvent, error: unknown): void {
    this.#news.reparks.push({ event, error })
  }

  /** The event will be retried; until it has ended, the status has its error. */
  failed({ position }: LogEvent, attempts: number, error: unknown): void {
    this.#failing.set(position, { attempts, error: describeError(error) })
    this.#acks.version++
  }

  ended({ position }: LogEvent): void {
    this.#failing.delete(position)
  }

  /** Stores everything up to now. After a failure it is all there to be stored again: each part may be written twice. */
  flush(): Promise<void> {
    const flushed = this.#tail.then(() => this.#write())
    this.#tail = flushed.catch(() => undefined)
    return flushed
  }

  /** Nothing is written any more, also of what is asked for already: the cursor is elsewhere, and what was done here is not about that place. */
  abandon(): void {
    this.#isAbandoned = true
  }

  async #write(): Promise<void> {
    if (this.#isAbandoned || !this.hasNews) return
    const news = this.#news
    const { version } = this.#acks
    this.#news = nothing()
    this.#writing = news
    try {
      const waiting = [...news.parks.flatMap(({ events }) => events), ...news.behind]
      const [failure = noFailure] = this.#failing.values()
      const target = { ...this.#acks.at(new Set(waiting.map(({ position }) => position))), failure }
      // Until its answer says otherwise.
      this.#unanswered.add(nameOf(target.place))
      if (hasContent(news)) await this.#writeAll(news, target)
      else if (progressOf(target) !== this.#stored.progress) await this.#writePlace(target)
      else if (failure !== this.#stored.failure) await this.#writeFailure(target)
      this.#unanswered.clear()
      for (const key of [...news.replayed, ...news.free, ...news.reparks.map(({ event }) => event)]) this.#ended.add(keyOf(key))
      for (const { position } of waiting) this.#acks.finish(position)
      this.#acks.stored(target.place)
      this.#stored = { progress: progressOf(target), failure, version: version + waiting.length }
      if (news.replayed.length > 0 || news.free.length > 0) await this.#lookFreed([...news.replayed, ...news.free])
    } catch (error) {
      this.#news = merge(news, this.#news)
      // An operator skipped the last event of a parked key: the key is free, and its later events are handled.
      if (sqlState(error) === '23503') await this.#lookFreed(this.#news.behind)
      throw error
    } finally {
      this.#writing = undefined
    }
  }

  /** Not a flush: that would forget the crashes at this place, although nothing is finished. */
  async #writeFailure({ place, failure }: Target): Promise<void> {
    const values = { ...this.#cursor.fencedKey, from_position: this.#cursor.place.position, ...failure }
    const rows = await this.#host.engine.run(cursorStatements.fail, values)
    if (rows.length === 0) await this.#moved(undefined, place)
  }

  async #writePlace(target: Target): Promise<void> {
    const [row] = await this.#host.engine.run<{ state: CursorState }>(cursorStatements.flush, this.#flushValues(target))
    await this.#moved(row, target.place)
  }

  async #writeAll(news: News, target: Target): Promise<void> {
    const tx = await openTx(this.#host)
    try {
      const [row] = await tx.run<{ state: CursorState }>(cursorStatements.flush, this.#flushValues(target))
      if (row === undefined) {
        await tx.rollback()
        return await this.#moved(row, target.place)
      }
      await this.#writeNews(tx, news)
      await tx.commit()
      await this.#moved(row, target.place)
    } catch (error) {
      await tx.rollback()
      throw error
    } finally {
      tx.release()
    }
  }

  async #writeNews(tx: Transaction, { parks, behind, replayed, free, reparks }: News): Promise<void> {
    const cursor = this.#cursor
    for (const { events, ...why } of parks) await parkKey(tx, cursor, events, why)
    // Before anything is freed: a key that has these is not.
    if (behind.length > 0) await parkEvents(tx, cursor, behind)
    for (const event of replayed) await tx.run(parkedStatements.take, { ...parkedKey(cursor, event), position: event.position })
    for (const each of [...replayed, ...free]) await tx.run(parkedStatements.free, parkedKey(cursor, each))
    for (const { event, error } of reparks) await reparkKey(tx, cursor, event, error)
  }

  #flushValues({ place, done, failure }: Target) {
    return { ...this.#cursor.moveTo(place), done, ...failure }
  }

  async #moved(row: { state: CursorState } | undefined, place: Place): Promise<void> {
    if (row !== undefined) {
      this.#cursor.place = place
      this.#listeners.onState(row.state)
      return
    }
    // Lost, which this throws; or an earlier write whose answer was lost had happened, and the next one starts from where it is. Anywhere else
    // an operator has put it, or a server that had not got what we wrote: then what we have read may be another log.
    const { isMoved } = await this.#cursor.reload(this.#host.engine)
    if (isMoved && !this.#unanswered.has(nameOf(this.#cursor.place))) this.#listeners.onMoved()
    throw new Error(`The cursor of ${this.#cursor} is at another position; finished events are stored again from there.`)
  }

  /** Finds the keys that are no longer parked; the events that came for them are handled now. */
  async #lookFreed(keys: readonly EventKey[]): Promise<void> {
    const parked = new Set(await this.#parkedKeys())
    for (const key of keys) {
      const name = keyOf(key)
      if (parked.has(name) || !this.#parked.delete(name)) continue
      this.#host.events.emit('projection.unparked', { name: this.#cursor.definition.name, key: key.key })
      const freed = this.#news.behind.filter((event) => keyOf(event) === name)
      this.#news = { ...this.#news, behind: this.#news.behind.filter((event) => keyOf(event) !== name) }
      this.#listeners.onFreed(freed)
    }
  }

  async #parkedKeys(): Promise<string[]> {
    return (await this.#host.engine.run<EventKey>(parkedStatements.keys, this.#cursor.key)).map(keyOf)
  }
}

function hasContent(news: News): boolean {
  return Object.values(news).some((part: readonly unknown[]) => part.length > 0)
}

function merge(first: News, second: News): News {
  return {
    parks: [...first.parks, ...second.parks],
    behind: [...first.behind, ...second.behind],
    replayed: [...first.replayed, ...second.replayed],
    free: [...first.free, ...second.free],
    reparks: [...first.reparks, ...second.reparks],
  }
}

function nameOf({ position, eventId }: Place): string {
  return `${position} ${eventId}`
}

function progressOf({ place, done }: { place: Place; done: string }): string {
  return `${place.position} ${done}`
}
