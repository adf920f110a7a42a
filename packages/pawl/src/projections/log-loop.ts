// Works through the log for one cursor of a projection or reaction: reads a page, applies it in one fenced transaction, goes on. A page that
// fails is applied event by event; an event whose attempts are used up parks its key. Replays of parked keys run between pages.

import { isConflict } from '../db/classify.ts'
import type { Connection } from '../db/driver.ts'
import { caught, describeError, isPawlError } from '../errors.ts'
import { type FreshEvents, type LogRead, readFresh, readLog } from '../events/read-log.ts'
import type { LogEvent } from '../events/types.ts'
import type { LoopWatch } from '../kernel/alerts.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { solitude } from '../kernel/handler.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { Wakeup } from '../kernel/service.ts'
import { Applier } from './applier.ts'
import { cursorStatements, type HeldCursor, isLogOf, latch, passEvents, passEveryMs, placeAt, placeOf } from './cursor.ts'
import type { DefinedLog, DefinedState, OwnRefreshes } from './definition.ts'
import { type FencedEnd, messageOf, whenUnlocked } from './fenced.ts'
import type { Host } from './part.ts'

/** A conflict is retried; after this many in a row it counts as the handler's failure. */
const conflictsMax = 10
const heldPollMs = 50

/**
 * 'batch': a page in one transaction. 'one-by-one': to the end of the page, because it failed or a holder died at it. 'park-next': holders died at the
 * next event, which is parked untried. 'stopped': the row is read before anything else happens.
 */
type Mode = 'batch' | 'one-by-one' | 'park-next' | 'stopped'

/** 'left': the page is read again before anything else. */
type Step = 'moved' | 'again' | 'left'

export class LogLoop {
  readonly cursor: HeldCursor
  readonly #definition: DefinedLog | DefinedState
  readonly #host: Host
  readonly #loop: LoopWatch
  readonly #applier: Applier
  readonly #pages: Pages
  readonly #wakeup = new Wakeup()
  readonly #stop = new AbortController()
  #mode: Mode
  /** A comparison of generations lets it move up to here. */
  #limit = Number.POSITIVE_INFINITY
  #conflicts = 0
  #passedMs = monotonicMs()
  /** Of the last read of the row; -Infinity: a person changed it since. */
  #askedMs = monotonicMs()

  constructor(cursor: HeldCursor, definition: DefinedLog | DefinedState, host: Host) {
    this.cursor = cursor
    this.#definition = definition
    this.#host = host
    this.#loop = host.loop(`projection ${definition.name}`)
    this.#applier = new Applier(cursor, definition, host)
    this.#pages = new Pages(cursor, definition, host.engine)
    this.#mode = this.#nextMode()
  }

  wake(fresh?: FreshEvents): void {
    if (fresh !== undefined && this.#wakeup.isWaiting) this.#pages.offer(fresh)
    this.#wakeup.fire()
  }

  changed(): void {
    this.#askedMs = Number.NEGATIVE_INFINITY
    this.#applier.changed()
    this.#wakeup.fire()
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
        if (!hasMore && !this.#isOver()) await this.#wakeup.wait(this.#waitMs())
      } catch (error) {
        if (isPawlError(error, 'PAWL_LEASE_LOST')) throw error
        if (isPawlError(error, 'PAWL_LOG_GAP')) await this.#latch(error.message)
        else this.#loop.failed(error)
        isChecked = false
        this.#pages.forget()
        await this.cursor.pause(engineBackoffMs(error, ++failed), this.#stop.signal)
      }
    }
    this.cursor.signal.removeEventListener('abort', onLost)
    if (this.cursor.signal.aborted) throw this.cursor.signal.reason
  }

  #isOver(): boolean {
    return this.#stop.signal.aborted || this.cursor.signal.aborted
  }

  #waitMs(): number {
    if (this.#mode === 'stopped') return this.#limit === Number.POSITIVE_INFINITY ? this.#host.idlePollMs : heldPollMs
    return Math.min(this.#applier.replayInMs, this.#pages.isAhead ? passEveryMs / 2 : this.#host.idlePollMs)
  }

  async #begin(): Promise<void> {
    await this.#applier.begin()
    if (!(await isLogOf(this.#host, this.cursor))) this.#leave()
  }

  /** One step forward; says whether there is more to do at once. */
  async #turn(): Promise<boolean> {
    if (solitude.isClosed()) return false
    if (this.#askedMs === Number.NEGATIVE_INFINITY && (await this.#isElsewhere())) this.#leave()
    if (this.#mode === 'stopped' && !(await this.#mayGoOn())) return false
    const replayed = await this.#applier.replay()
    if (replayed === 'refused') this.#leave()
    if (this.#mode === 'stopped') return true
    const page = await this.#pages.next()
    const { position } = this.cursor.place
    if (page.head < position) await this.#latch(`The cursor is at position ${position}, but the log ends at ${page.head}.`)
    else if (page.events.length > 0) await this.#applyAll(page)
    else if (this.#isPollDue() && (await this.#isElsewhere())) this.#leave()
    else await this.#passOver(page)
    return this.#isToReload() || replayed === 'replayed' || page.next < page.head
  }

  // ---- applying

  async #applyAll(page: LogRead): Promise<void> {
    for (let rest = page.events; rest.length > 0; ) {
      if (this.#isOver()) return
      if (!(await this.#isSameLog(rest[0]!))) return this.#leave()
      const end = rest.findIndex(({ position }) => position > this.#limit)
      const within = end < 0 ? rest : rest.slice(0, end)
      // Nothing of ours is before the limit, so the cursor may stand at it.
      if (within.length === 0) return this.#passToLimit()
      const chunk = this.#mode === 'batch' ? within : within.slice(0, 1)
      const step = await this.#apply(chunk)
      if (step === 'left') return
      if (step === 'moved') rest = rest.slice(chunk.length)
    }
    this.#pages.finished(page)
    if (this.#mode === 'one-by-one') this.#mode = 'batch'
    this.#passedMs = monotonicMs()
  }

  async #apply(chunk: readonly LogEvent[]): Promise<Step> {
    const first = chunk[0]!
    if (this.#mode === 'park-next') {
      this.#mode = 'one-by-one'
      const { crashes } = this.cursor
      const reason = `The process died ${crashes} times while it applied event ${first.position} (${first.type}).`
      if (this.#applier.isHandled(first))
        return this.#take(await this.#applier.park(first, { reason, error: undefined, attempts: crashes }))
    }
    const end = await solitude.run(() => this.#try(chunk))
    // A deciding run has begun: the page is read again after it.
    if (end === undefined) {
      this.#pages.forget()
      return 'left'
    }
    const isFailure = end.type === 'failed' || (end.type === 'again' && isConflict(end.error) && this.#conflicts >= conflictsMax)
    if (!isFailure) return this.#take(end)
    this.#conflicts = 0
    if (chunk.length === 1) return this.#failed(first, end.error)
    this.#mode = 'one-by-one'
    return 'again'
  }

  async #try(chunk: readonly LogEvent[]): Promise<FencedEnd> {
    if (this.cursor.isUntried && this.#applier.isHandled(chunk[0]!)) await this.cursor.tryAlone(this.#host.engine)
    return this.#applier.apply(chunk, placeOf(chunk.at(-1)!))
  }

  async #take(end: FencedEnd): Promise<Step> {
    switch (end.type) {
      case 'committed':
        if (probe.on) await probe.hit('projections.batch.committed', this.cursor)
        this.#conflicts = 0
        return 'moved'
      case 'refused':
        this.#leave()
        return 'left'
      case 'again':
        this.#loop.failed(end.error)
        await this.cursor.pause(engineBackoffMs(end.error, ++this.#conflicts), this.#stop.signal)
        return 'again'
      case 'failed':
        throw end.error
    }
  }

  async #failed(event: LogEvent, error: unknown): Promise<Step> {
    if (probe.on) await probe.hit('projections.fail.before', event)
    const values = {
      ...this.cursor.fencedKey,
      from_position: this.cursor.place.position,
      error: describeError(error),
      attempts: null,
    }
    const over = AbortSignal.any([this.#stop.signal, this.cursor.signal])
    const [row] = await whenUnlocked(this.#host, over, (tx) => tx.run<{ attempts: number }>(cursorStatements.fail, values))
    if (row === undefined) {
      this.#leave()
      return 'left'
    }
    const { key, position } = event
    const retryInMs = this.#host.failed(this.#definition, { key, position, attempt: row.attempts, error })
    if (retryInMs === undefined) {
      const reason = `Event ${position} (${event.type}) failed ${row.attempts} time(s): ${messageOf(error)}`
      return this.#take(await this.#applier.park(event, { reason, error, attempts: row.attempts }))
    }
    await this.cursor.pause(retryInMs, this.#stop.signal)
    return 'again'
  }

  #isPollDue(): boolean {
    return monotonicMs() - this.#askedMs >= this.#host.idlePollMs
  }

  // ---- passing over what is not ours

  /** Nothing of ours up to here. The row follows once a second, not at every page; at once if a comparison waits for it. */
  async #passOver({ next }: LogRead): Promise<void> {
    const to = Math.min(next, this.#limit)
    const passed = to - this.cursor.place.position
    if (this.#limit !== Number.POSITIVE_INFINITY) return this.#passToLimit(to)
    if (passed < passEvents && monotonicMs() - this.#passedMs < passEveryMs) return
    if (passed > 0) await this.#pass(to)
    this.#passedMs = monotonicMs()
  }

  /** And stops there until the row says more. */
  async #passToLimit(to = this.#limit): Promise<void> {
    if (to > this.cursor.place.position) await this.#pass(to)
    this.#leave()
  }

  async #pass(to: number): Promise<void> {
    const place = await placeAt(this.#host, to, this.#pages.generation)
    if (place !== undefined) await this.#take(await this.#applier.apply([], place))
  }

  // ---- stopping and going on

  /** At once; one that stands at a limit asks again after a moment. */
  #isToReload(): boolean {
    return this.#mode === 'stopped' && this.#limit === Number.POSITIVE_INFINITY
  }

  /** The row is another one than we thought: it is read before anything else, and nothing of what was looked at is taken for passed. */
  #leave(): void {
    this.#mode = 'stopped'
    this.#pages.forget()
  }

  /** Paused, held for a comparison, or moved by an operator: reads the row. */
  async #mayGoOn(): Promise<boolean> {
    const { state, holdAt } = await this.cursor.reload(this.#host.engine)
    this.#pages.forget()
    this.#limit = holdAt ?? Number.POSITIVE_INFINITY
    if (state !== 'running' || this.cursor.place.position >= this.#limit) return false
    this.#mode = this.#nextMode()
    return true
  }

  #nextMode(): Mode {
    if (!this.cursor.isAfterCrash) return 'batch'
    return this.cursor.isSuspect && this.cursor.isUntried ? 'park-next' : 'one-by-one'
  }

  /** A person may have paused it, or resumed it from another position. */
  async #isElsewhere(): Promise<boolean> {
    this.#askedMs = monotonicMs()
    const [row] = await this.#host.engine.run<{ state: string; position: string }>(cursorStatements.state, this.cursor.fencedKey)
    return row?.state !== 'running' || Number(row.position) !== this.cursor.place.position
  }

  /** A log of another generation: is the event at our place still the one that we passed? */
  async #isSameLog(next: LogEvent): Promise<boolean> {
    const { logGeneration } = this.cursor.place
    if (logGeneration === null || logGeneration === next.generation) return true
    if (!(await isLogOf(this.#host, this.cursor))) return false
    this.cursor.place = { ...this.cursor.place, logGeneration: next.generation }
    return true
  }

  async #latch(reason: string): Promise<void> {
    await latch(this.#host, this.cursor, reason)
    this.#leave()
  }
}

interface Ahead {
  readonly after: number
  readonly read: Promise<LogRead>
}

/** The pages of a cursor's log, one after the other: the next one is fetched while this one is applied. */
class Pages {
  readonly #cursor: HeldCursor
  readonly #limit: number
  readonly #own: OwnRefreshes | undefined
  readonly #reader: Connection
  /** Everything up to here was read; what was ours is applied. */
  #readTo: number
  #ahead: Ahead | undefined
  /** Of the log, when the last page was read. */
  generation: number | undefined

  constructor(cursor: HeldCursor, definition: DefinedLog | DefinedState, reader: Connection) {
    this.#cursor = cursor
    this.#limit = definition.batchMax
    this.#own = definition.kind === 'state' ? definition.own : undefined
    this.#reader = reader
    this.#readTo = cursor.place.position
  }

  /** Whether positions that are none of ours were read and the row does not say so. */
  get isAhead(): boolean {
    return this.#readTo > this.#cursor.place.position
  }

  async next(): Promise<LogRead> {
    const after = this.#after()
    const ahead = this.#ahead?.after === after ? this.#ahead : undefined
    this.#ahead = undefined
    let page = await (ahead?.read ?? this.#read(after))
    // The server lost a tail of the log, and it has grown again: positions that were read may be new events.
    if (page.generation !== (this.generation ?? page.generation) && this.isAhead) {
      this.forget()
      page = await this.#read(this.#after())
    }
    this.generation = page.generation
    if (page.events.length === 0) this.finished(page)
    if (page.next < page.head) this.#ahead = { after: page.next, read: caught(this.#read(page.next)) }
    return page
  }

  /** Whatever was ours of this page is applied. */
  finished(page: LogRead): void {
    this.#readTo = page.next
  }

  /** For a loop that waits: the next page, if it starts there. */
  offer(fresh: FreshEvents): void {
    const after = this.#after()
    const page = readFresh(fresh, { after, limit: this.#limit, ...this.#cursor.filter })
    if (page !== undefined) this.#ahead = { after, read: Promise.resolve(page) }
  }

  forget(): void {
    this.#ahead = undefined
    this.#readTo = this.#cursor.place.position
  }

  #after(): number {
    return Math.max(this.#readTo, this.#cursor.place.position)
  }

  #read(after: number): Promise<LogRead> {
    return readLog(this.#reader, { after, limit: this.#limit, ...this.#cursor.filter, passedOver: this.#own?.passedOver })
  }
}
