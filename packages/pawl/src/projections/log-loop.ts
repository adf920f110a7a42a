// Works through the log for one cursor of a log or state projection: reads a page, applies it in one fenced transaction, goes on. A page
// that fails is applied event by event; an event whose attempts are used up parks its key. Replays of parked keys run between pages.

import { setTimeout as sleep } from 'node:timers/promises'
import { isConflict } from '../db/classify.ts'
import type { Connection } from '../db/driver.ts'
import { describeError, isPawlError } from '../errors.ts'
import { type LogRead, readLog } from '../events/read-log.ts'
import type { LogEvent } from '../events/types.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { LoopWatch } from '../kernel/failures.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { Wakeup } from '../kernel/signal.ts'
import { solitude } from '../kernel/solitude.ts'
import { Applier } from './applier.ts'
import { cursorStatements, type HeldCursor, placeOf, type Standstill } from './cursor.ts'
import { type DefinedLog, type DefinedState, retryDelayMs } from './definition.ts'
import { type FencedEnd, messageOf } from './fenced.ts'
import { whenUnlocked } from './left-behind.ts'
import { assertSameLog, filterOf, latch, passEvents, passEveryMs, placeAt } from './log-place.ts'
import { Replay } from './replay.ts'
import type { World } from './world.ts'

/** A conflict is nobody's fault, until it happens so often in a row that it is. */
const conflictsMax = 10
const standstillPollMs = 50

export class LogLoop {
  readonly cursor: HeldCursor
  readonly #definition: DefinedLog | DefinedState
  readonly #world: World
  readonly #loop: LoopWatch
  readonly #applier: Applier
  readonly #replay: Replay
  readonly #wakeup = new Wakeup()
  readonly #stop = new AbortController()
  /** So many events are applied one by one. */
  #careful: number
  #suspect: boolean
  #conflicts = 0
  #lookedTo: number
  /** Of the log, when the last page was read. */
  #generation: number | undefined
  #passedMs = monotonicMs()
  /** Pages that are on their way, in order. */
  #ahead: { readonly after: number; readonly read: Promise<LogRead>; readonly isGuess?: boolean }[] = []
  #isWaiting = false
  #movedMs = monotonicMs()
  #standstill: Standstill | undefined

  constructor(cursor: HeldCursor, definition: DefinedLog | DefinedState, world: World) {
    this.cursor = cursor
    this.#definition = definition
    this.#world = world
    this.#loop = world.loop(`projection ${definition.name}`)
    this.#applier = new Applier(cursor, definition, world)
    this.#replay = new Replay(cursor, this.#applier, world)
    this.#lookedTo = cursor.place.position
    // Whoever held it before died at this place: the next events may be why, so each is tried alone.
    this.#careful = cursor.crashes > 0 ? definition.batchMax : 0
    this.#suspect = cursor.isSuspect
  }

  /** There may be something to do. */
  wake(): void {
    this.#wakeup.fire()
  }

  changed(): void {
    this.#movedMs = Number.NEGATIVE_INFINITY
    this.#wakeup.fire()
  }

  /** While it waits for the log to grow: what is read here is there when it wakes. */
  readAhead(connection: Connection): void {
    if (!this.#isWaiting || this.#standstill !== undefined || solitude.isClosed()) return
    const after = this.#after()
    const read = this.#read(after, connection)
    read.catch(() => undefined)
    this.#ahead = [{ after, read, isGuess: true }]
  }

  stop(): void {
    this.#stop.abort()
    this.#wakeup.fire()
  }

  /** Ends when it is stopped, or rejects with PAWL_LEASE_LOST. */
  async run(): Promise<void> {
    const onLost = () => this.#wakeup.fire()
    this.cursor.signal.addEventListener('abort', onLost, { once: true })
    let isChecked = false
    for (let failed = 0; !this.#isOver(); ) {
      try {
        if (!isChecked) await this.#begin()
        isChecked = true
        const hasMore = await this.#turn()
        failed = 0
        if (this.#conflicts === 0) this.#loop.succeeded()
        if (!hasMore && !this.#isOver()) await this.#wait()
      } catch (error) {
        if (isPawlError(error, 'PAWL_LEASE_LOST')) throw error
        if (isPawlError(error, 'PAWL_LOG_GAP')) await this.#latch(error.message)
        else this.#loop.failed(error)
        isChecked = false
        this.#forgetPages()
        await this.#pause(engineBackoffMs(error, ++failed))
      }
    }
    this.cursor.signal.removeEventListener('abort', onLost)
    if (this.cursor.signal.aborted) throw this.cursor.signal.reason
  }

  #isOver(): boolean {
    return this.#stop.signal.aborted || this.cursor.signal.aborted
  }

  async #wait(): Promise<void> {
    this.#isWaiting = true
    await this.#wakeup.wait(this.#waitMs())
    this.#isWaiting = false
  }

  #waitMs(): number {
    if (this.#standstill !== undefined) return this.#standstill.isHeld ? standstillPollMs : 500
    return this.#replay.mayHaveParked || this.#lookedTo > this.cursor.place.position ? 500 : this.#world.idleLookMs()
  }

  async #begin(): Promise<void> {
    await this.#applier.begin()
    this.#replay.begin(this.#applier.hasParked)
    if (!(await assertSameLog(this.#world, this.cursor))) await this.#stand()
  }

  /** One step forward; says whether there is more to do at once. */
  async #turn(): Promise<boolean> {
    if (solitude.isClosed()) return false
    if (this.#standstill !== undefined && !(await this.#mayGoOn())) return false
    const hasReplayed = await this.#replay.step()
    if (this.#isAtLimit()) return hasReplayed
    const page = await this.#page()
    if (page.head < this.cursor.place.position) {
      await this.#latch(`The cursor is at position ${this.cursor.place.position}, but the log ends at ${page.head}.`)
      return false
    }
    if (page.events.length > 0) await this.#applyAll(page.events)
    else if (await this.#isElsewhere()) return true
    else await this.#passOver(page)
    return hasReplayed || page.next < page.head || page.events.length > 0
  }

  // ---- reading

  async #page(): Promise<LogRead> {
    const after = this.#after()
    if (this.#ahead[0]?.after !== after) this.#ahead = []
    const ahead = this.#ahead.shift()
    let page = await (ahead?.read ?? this.#read(after))
    // A guess that found nothing may have been too early.
    if (ahead?.isGuess && page.events.length === 0) page = await this.#read(after)
    // The server lost a tail of the log, and it has grown again: positions that were looked at may be new events.
    if (page.generation !== (this.#generation ?? page.generation) && after > this.cursor.place.position) {
      this.#forgetPages()
      page = await this.#read(this.#after())
    }
    this.#generation = page.generation
    this.#readOn(page)
    return page
  }

  /**
   * The next page is fetched while this one is applied, and the one behind it while that one is taken apart. Where that one begins is a guess:
   * the log is dense, so behind a full page the next one is most likely full too, unless there is a filter.
   */
  #readOn({ events, next, head }: LogRead): void {
    if (this.#ahead[0]?.after !== next) this.#ahead = []
    const { batchMax } = this.#definition
    const isFiltered = Object.keys(filterOf(this.cursor)).length > 0
    const starts = isFiltered || events.length < batchMax ? [next] : [next, next + batchMax]
    for (const after of starts.slice(this.#ahead.length)) {
      if (after >= head) return
      const read = this.#read(after)
      read.catch(() => undefined)
      this.#ahead.push({ after, read })
    }
  }

  #after(): number {
    return Math.max(this.#lookedTo, this.cursor.place.position)
  }

  #read(after: number, connection = this.#world.reader): Promise<LogRead> {
    return readLog(connection, { after, limit: this.#definition.batchMax, ...filterOf(this.cursor) })
  }

  #forgetPages(): void {
    this.#ahead = []
    this.#lookedTo = this.cursor.place.position
  }

  /** Nothing of ours up to here. The row follows now and then, not at every look. */
  async #passOver(page: LogRead): Promise<void> {
    this.#lookedTo = page.next
    const limitAt = this.#standstill?.limitAt
    const to = Math.min(page.next, limitAt ?? page.next)
    const passed = to - this.cursor.place.position
    // Somebody may wait for it to come to the limit.
    const isSoon = limitAt === undefined && passed < passEvents && monotonicMs() - this.#passedMs < passEveryMs
    if (passed <= 0 || isSoon) return
    const place = await placeAt(this.#world, to, this.#generation)
    if (place !== undefined) await this.#take(await this.#applier.apply([], place))
    this.#passedMs = monotonicMs()
  }

  // ---- applying

  async #applyAll(events: readonly LogEvent[]): Promise<void> {
    let rest = events
    while (rest.length > 0 && !this.#isOver()) {
      if (!(await this.#isSameLog(rest[0]!))) return
      const count = this.#countOf(rest)
      if (count === 0) return this.#passToLimit()
      const chunk = rest.slice(0, count)
      const isApplied = await this.#applyChunk(chunk)
      if (isApplied === undefined) return
      if (!isApplied) continue
      this.#careful = Math.max(0, this.#careful - count)
      this.#conflicts = 0
      rest = rest.slice(count)
    }
    this.#passedMs = monotonicMs()
  }

  /** How many of them go into one transaction: those on one side of where effects begin, and not beyond a limit. */
  #countOf(events: readonly LogEvent[]): number {
    if (this.#careful > 0 || this.#suspect) return this.#isBeyond(events[0]!) ? 0 : 1
    const border = this.cursor.effectsAfter
    const isEffective = isAbove(events[0]!, border)
    const end = events.findIndex((event) => this.#isBeyond(event) || isAbove(event, border) !== isEffective)
    return end < 0 ? events.length : end
  }

  /** The next event is beyond the limit: nothing of ours is before it, so the cursor may stand at it. */
  async #passToLimit(): Promise<void> {
    const limitAt = this.#standstill?.limitAt
    const place = limitAt === undefined || this.#isAtLimit() ? undefined : await placeAt(this.#world, limitAt, this.#generation)
    if (place !== undefined) await this.#take(await this.#applier.apply([], place))
    this.#forgetPages()
  }

  #isBeyond(event: LogEvent): boolean {
    const limitAt = this.#standstill?.limitAt
    return limitAt !== undefined && event.position > limitAt
  }

  #isAtLimit(): boolean {
    const limitAt = this.#standstill?.limitAt
    return limitAt !== undefined && this.cursor.place.position >= limitAt
  }

  /** true: applied. false: the same again. undefined: the cursor is elsewhere or stands still; read anew. */
  async #applyChunk(chunk: readonly LogEvent[]): Promise<boolean | undefined> {
    const first = chunk[0]!
    if (this.#suspect && this.#applier.isHandled(first)) {
      this.#suspect = false
      const reason = `The process died ${this.cursor.crashes} times while it applied event ${first.position} (${first.type}).`
      return this.#take(await this.#applier.park(first, { reason, error: undefined, attempts: this.cursor.crashes }))
    }
    this.#suspect = false
    const end = await solitude.run(() => this.#try(chunk))
    if (end === undefined) {
      this.#forgetPages()
      return undefined
    }
    const isFailure = end.type === 'failed' || (end.type === 'again' && isConflict(end.error) && this.#conflicts >= conflictsMax)
    if (!isFailure) return this.#take(end)
    this.#conflicts = 0
    if (chunk.length > 1) {
      this.#careful = chunk.length
      return false
    }
    return this.#failed(first, end.error)
  }

  async #try(chunk: readonly LogEvent[]): Promise<FencedEnd> {
    if (this.cursor.isUntried && this.#applier.isHandled(chunk[0]!)) await this.cursor.tryAlone(this.#world.engine)
    return this.#applier.apply(chunk, placeOf(chunk.at(-1)!))
  }

  async #take(end: FencedEnd): Promise<boolean | undefined> {
    switch (end.type) {
      case 'committed':
        if (probe.on) await probe.hit('projections.batch.committed', this.cursor)
        this.#lookedTo = Math.max(this.#lookedTo, this.cursor.place.position)
        return true
      case 'standstill':
        this.#standstill = end.standstill
        this.#forgetPages()
        return undefined
      case 'again':
        return this.#again(end.error)
      case 'failed':
        throw end.error
    }
  }

  async #again(error: unknown): Promise<false> {
    this.#conflicts++
    this.#loop.failed(error)
    await this.#pause(engineBackoffMs(error, this.#conflicts))
    return false
  }

  async #failed(event: LogEvent, error: unknown): Promise<boolean | undefined> {
    if (probe.on) await probe.hit('projections.fail.before', event)
    const values = { ...this.cursor.fencedKey, from_position: this.cursor.place.position, error: describeError(error) }
    const over = AbortSignal.any([this.#stop.signal, this.cursor.signal])
    const [row] = await whenUnlocked(this.#world, over, (tx) => tx.run<{ attempts: number }>(cursorStatements.fail, values))
    if (row === undefined) {
      await this.#stand()
      return undefined
    }
    const retryInMs = retryDelayMs(this.#definition, row.attempts, error, this.#world.onTrouble)
    const { name } = this.#definition
    const { key, position } = event
    this.#world.events.emit('projection.failed', { name, key, position, attempt: row.attempts, error, retryInMs })
    if (retryInMs === undefined) {
      const reason = `Event ${position} (${event.type}) failed ${row.attempts} time(s): ${messageOf(error)}`
      return this.#take(await this.#applier.park(event, { reason, error, attempts: row.attempts }))
    }
    await this.#pause(retryInMs)
    return false
  }

  // ---- standing still

  /** Something stopped it. An operator may have let it go on from an earlier place by now: nothing of what was looked at is taken for passed. */
  async #stand(): Promise<void> {
    this.#standstill = await this.cursor.reload(this.#world.engine)
    this.#forgetPages()
  }

  /** A person may have resumed it from another place while it had nothing to do. */
  async #isElsewhere(): Promise<boolean> {
    if (monotonicMs() - this.#movedMs < this.#world.idleLookMs()) return false
    this.#movedMs = monotonicMs()
    const [row] = await this.#world.engine.run<{ position: string }>(cursorStatements.state, this.cursor.fencedKey)
    if (row !== undefined && Number(row.position) === this.cursor.place.position) return false
    await this.#stand()
    return true
  }

  /** Paused, held for a comparison, beside the live one, or moved by an operator: looks at the row again. */
  async #mayGoOn(): Promise<boolean> {
    this.#standstill = await this.cursor.reload(this.#world.engine)
    const { state, limitAt, isHeld, isMoved } = this.#standstill
    if (isMoved) this.#forgetPages()
    if (state !== 'running') return false
    if (limitAt === undefined) this.#standstill = undefined
    return !isHeld || !this.#isAtLimit()
  }

  /** A log of another generation: is the event at our place still the one that we passed? */
  async #isSameLog(next: LogEvent): Promise<boolean> {
    const { logGeneration } = this.cursor.place
    if (logGeneration === null || logGeneration === next.generation) return true
    if (await assertSameLog(this.#world, this.cursor)) {
      this.cursor.place = { ...this.cursor.place, logGeneration: next.generation }
      return true
    }
    await this.#stand()
    return false
  }

  async #latch(reason: string): Promise<void> {
    await latch(this.#world, this.cursor, reason)
    await this.#stand()
  }

  async #pause(delayMs: number): Promise<void> {
    const signal = AbortSignal.any([this.#stop.signal, this.cursor.signal])
    await sleep(delayMs, undefined, { signal }).catch(() => undefined)
  }
}

function isAbove(event: LogEvent, border: number | undefined): boolean {
  return border !== undefined && event.position > border
}
