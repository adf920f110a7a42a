// Hands the events of the log to a function, in the order of each key, several keys at once, at least once. What is finished is stored as
// soon as the last store was answered; a key whose attempts are used up is parked, and the others go on.

import { setTimeout as sleep } from 'node:timers/promises'
import { isPawlError, PawlError } from '../../errors.ts'
import { type LogRead, readLog } from '../../events/read-log.ts'
import type { LogEvent } from '../../events/types.ts'
import type { LoopWatch } from '../../kernel/alerts.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import { solitude } from '../../kernel/handler.ts'
import { probe } from '../../kernel/probe.ts'
import { engineBackoffMs } from '../../kernel/retry.ts'
import { Wakeup } from '../../kernel/service.ts'
import { nextUnparking, parkedEvent, tripBreaker, tryParked } from '../applier.ts'
import {
  cursorStatements,
  filterOf,
  type HeldCursor,
  isLogOf,
  latch,
  leaseLost,
  logBounds,
  passEvents,
  passEveryMs,
  placeAt,
} from '../cursor.ts'
import { type DefinedSink, retryDelayMs } from '../definition.ts'
import { messageOf } from '../fenced.ts'
import type { Host } from '../part.ts'
import type { CursorState } from '../types.ts'
import { Acks } from './acks.ts'
import { SinkCall } from './sink-call.ts'
import { type Queued, SinkKeys } from './sink-keys.ts'
import { SinkStore } from './sink-store.ts'

/** So many events may be unfinished; that bounds memory, the ranges in the row, and what a crash repeats. */
const windowMin = 1000
/** And so many characters of them, or one page. */
const windowChars = 16_000_000
const pageMax = 500
const unparkEveryMs = 500
/** So old may the last word about the cursor's state be when a call begins. Every store brings a new one. */
const stateMaxMs = 100
const stopGraceMs = 30_000

export class SinkLoop {
  readonly cursor: HeldCursor
  readonly #definition: DefinedSink
  readonly #host: Host
  readonly #loop: LoopWatch
  readonly #acks: Acks
  readonly #keys = new SinkKeys()
  readonly #store: SinkStore
  readonly #wakeup = new Wakeup()
  readonly #stop = new AbortController()
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #running = new Set<Promise<void>>()
  readonly #calls = new Set<SinkCall>()
  /** After a crash at this place so many events are handed over one at a time, each stored before the next. */
  #careful: number
  #suspect: boolean
  #hasMore = true
  #isPaused = false
  #stateMs = Number.NEGATIVE_INFINITY
  #unparkedMs = 0
  #passedMs = monotonicMs()
  #movedMs = monotonicMs()
  #isStoring = false
  #generation: number | undefined
  #failure: unknown

  constructor(cursor: HeldCursor, definition: DefinedSink, host: Host) {
    this.cursor = cursor
    this.#definition = definition
    this.#host = host
    this.#loop = host.loop(`sink ${definition.name}`)
    this.#acks = new Acks(cursor.place, cursor.done)
    this.#store = new SinkStore(cursor, this.#acks, host, {
      onState: (state) => this.#heard(state),
      onFreed: (events) => {
        for (const event of events) this.#keys.add(event)
        this.#wakeup.fire()
      },
      onMoved: () => this.#giveUp(),
    })
    this.#careful = cursor.crashes > 0 ? this.#window() : 0
    this.#suspect = cursor.isSuspect
  }

  wake(): void {
    this.#hasMore = true
    this.#wakeup.fire()
  }

  changed(): void {
    this.#movedMs = Number.NEGATIVE_INFINITY
    this.#wakeup.fire()
  }

  /** Calls that are under way get the grace to end; then their signals fire, and what they did is handed over again elsewhere. */
  stop(graceMs = stopGraceMs): void {
    this.#stop.abort()
    this.#wakeup.fire()
    if (this.#running.size === 0) return
    const timer = setTimeout(() => {
      this.cursor.lose(new PawlError('PAWL_STOPPED', 'The worker is stopping and its grace period is over.'))
    }, graceMs)
    this.#timers.add(timer)
  }

  async run(): Promise<void> {
    const onLost = () => {
      for (const call of this.#calls) call.abort(this.cursor.signal.reason)
      this.#wakeup.fire()
    }
    this.cursor.signal.addEventListener('abort', onLost, { once: true })
    await this.#begin()
    for (let failed = 0; !this.#isOver(); ) {
      try {
        await this.#turn()
        failed = 0
        this.#loop.succeeded()
        await this.#wakeup.wait(
          this.#isPaused || this.#store.hasParked || this.#acks.unpassed > 0 ? unparkEveryMs : this.#host.idleLookMs(),
        )
      } catch (error) {
        if (isPawlError(error, 'PAWL_LEASE_LOST')) {
          this.cursor.lose(error)
          throw error
        }
        if (isPawlError(error, 'PAWL_LOG_GAP')) await this.#latch(error.message)
        else this.#loop.failed(error)
        await this.#pause(engineBackoffMs(error, ++failed))
      }
    }
    await Promise.race([Promise.all(this.#running), aborted(this.cursor.signal)])
    for (const timer of this.#timers) clearTimeout(timer)
    this.cursor.signal.removeEventListener('abort', onLost)
    if (this.#failure !== undefined) throw this.#failure
    if (this.cursor.signal.aborted) throw this.cursor.signal.reason
    await this.#store.flush()
  }

  #isOver(): boolean {
    return this.#stop.signal.aborted || this.cursor.signal.aborted || this.#failure !== undefined
  }

  #window(): number {
    return Math.max(windowMin, this.#definition.concurrency * 8)
  }

  async #begin(): Promise<void> {
    for (let tried = 1; !this.#isOver(); tried++) {
      try {
        await this.#store.begin()
        const { generation } = await logBounds(this.#host.reader)
        this.#generation = generation
        const { logGeneration } = this.cursor.place
        if (logGeneration !== null && logGeneration !== generation) this.#acks.forgetBefore()
        if (await isLogOf(this.#host, this.cursor)) return
        this.#isPaused = true
        return
      } catch (error) {
        if (isPawlError(error, 'PAWL_LEASE_LOST')) throw error
        this.#loop.failed(error)
        await this.#pause(engineBackoffMs(error, tried))
      }
    }
  }

  /** This loop ends without a word about what it has done, and the next one starts from the row. */
  #giveUp(): void {
    this.#store.abandon()
    this.stop()
  }

  async #turn(): Promise<void> {
    if (this.#isPaused) {
      const { state, isMoved } = await this.cursor.reload(this.#host.engine)
      this.#heard(state)
      if (this.#isPaused) return
      // Resumed elsewhere than it stood.
      if (isMoved) return this.#giveUp()
    }
    await solitude.run(() => this.#advance())
    this.#storeSoon()
  }

  async #advance(): Promise<void> {
    if (await this.#isElsewhere()) return this.#giveUp()
    if (this.#store.hasParked) await this.#lookForUnparking()
    // One that has nothing to do hears nothing: what comes now may come after a pause.
    if (this.#acks.open === 0) this.#stateMs = Number.NEGATIVE_INFINITY
    const looking = this.#lookAtState()
    looking.catch(() => undefined)
    await this.#readPages()
    await this.#passOver()
    await looking
    if (this.#isToBeNoted() && !this.#isPaused) await this.cursor.tryAlone(this.#host.engine)
    this.#start()
  }

  /** A person may have resumed it from another place while it had nothing to do. */
  async #isElsewhere(): Promise<boolean> {
    if (this.#acks.open > 0 || this.#store.hasNews || monotonicMs() - this.#movedMs < this.#host.idleLookMs()) return false
    this.#movedMs = monotonicMs()
    const [row] = await this.#host.engine.run<{ position: string }>(cursorStatements.state, this.cursor.fencedKey)
    if (row === undefined) throw leaseLost(this.cursor)
    return Number(row.position) !== this.cursor.place.position
  }

  /** Whether it still runs, before anything begins; unless a store has just told. */
  async #lookAtState(): Promise<void> {
    if (this.#isStateKnown() || (!this.#hasMore && !this.#keys.hasReady)) return
    const [row] = await this.#host.engine.run<{ state: CursorState }>(cursorStatements.state, this.cursor.fencedKey)
    if (row === undefined) throw leaseLost(this.cursor)
    this.#heard(row.state)
  }

  #heard(state: CursorState): void {
    this.#isPaused = state !== 'running'
    this.#stateMs = monotonicMs()
  }

  #isToBeNoted(): boolean {
    return this.cursor.isUntried && !this.#suspect && this.#running.size === 0 && this.#keys.next?.isParked === false
  }

  #isStateKnown(): boolean {
    return monotonicMs() - this.#stateMs < stateMaxMs
  }

  // By halves: a page for every event that ends would be many small ones.
  async #readPages(): Promise<void> {
    while (this.#hasMore && this.#hasRoom() && !this.#isOver()) await this.#read()
  }

  #hasRoom(): boolean {
    return this.#acks.open <= this.#window() / 2 && this.#acks.openChars <= windowChars / 2
  }

  async #read(): Promise<void> {
    const limit = Math.min(pageMax, this.#window() - this.#acks.open)
    const page = await this.#page(limit)
    // The server is another one since, and may have lost what this loop has read: positions that it has passed may be new events.
    if (page.generation !== this.#generation && this.#acks.lookedTo > 0) return this.#giveUp()
    this.#generation = page.generation
    if (page.head < this.cursor.place.position)
      return this.#latch(`The cursor is at position ${this.cursor.place.position}, but the log ends at ${page.head}.`)
    const fresh = this.#acks.add(page.events, page.next, page.chars)
    for (const event of fresh) {
      if (this.#store.isParked(event)) this.#store.parkBehind(event)
      else this.#keys.add(event)
    }
    this.#startReady()
  }

  /** Nothing of ours up to here. The row follows now and then, not at every tick. */
  async #passOver(): Promise<void> {
    const { unpassed, lookedTo } = this.#acks
    if (unpassed === 0 || (unpassed < passEvents && monotonicMs() - this.#passedMs < passEveryMs)) return
    const place = await placeAt(this.#host, lookedTo, this.#generation)
    if (place !== undefined) this.#acks.pass(place)
    this.#passedMs = monotonicMs()
  }

  /** The log may grow while it is read: a wake-up that comes meanwhile is about events that this page need not have. */
  async #page(limit: number): Promise<LogRead> {
    this.#hasMore = false
    try {
      const page = await readLog(this.#host.reader, { after: this.#acks.lookedTo, limit, ...filterOf(this.cursor) })
      if (page.next < page.head) this.#hasMore = true
      return page
    } catch (error) {
      this.#hasMore = true
      throw error
    }
  }

  async #lookForUnparking(): Promise<void> {
    if (monotonicMs() - this.#unparkedMs < unparkEveryMs) return
    this.#unparkedMs = monotonicMs()
    this.#store.forgetEnded()
    for (const next of await nextUnparking(this.#host, this.cursor)) {
      // Alone too: whatever dies now is to be known by its name.
      if (this.#careful > 0 && (this.#hasMore || this.#keys.hasReady || this.#running.size > 0)) return
      const key = { tenant: next.key_tenant, key: next.key }
      // Its last event is being stored; the next one is looked for as soon as that is done.
      if (this.#store.isStoring(key)) this.#unparkedMs = 0
      if (this.#keys.has(key) || this.#store.isStoring(key)) continue
      const event = await parkedEvent(this.#host, next)
      // While it was read, the one before it may have ended and been stored: then this is not the next one any more.
      if (this.#keys.has(key) || this.#store.isStoring(key)) {
        this.#unparkedMs = 0
        continue
      }
      const deaths = this.#careful > 0 ? await tryParked(this.#host, this.cursor, event) : undefined
      if (event === undefined) this.#store.free(key)
      else if (deaths === undefined) this.#keys.add(event, true)
      else this.#repark(event, deaths)
    }
  }

  // ---- working

  #startReady(): void {
    if (!solitude.isClosed()) this.#start()
  }

  /** Where it is not closed, or inside: then what was just noted as tried starts. */
  #start(): void {
    const concurrency = this.#careful > 0 || this.#suspect ? 1 : this.#definition.concurrency
    if (!this.#isStateKnown() || this.#isToBeNoted()) {
      if (this.#keys.hasReady) this.#wakeup.fire()
      return
    }
    while (this.#running.size < concurrency && !this.#isOver() && !this.#isPaused) {
      const queued = this.#keys.take()
      if (queued === undefined) return
      const leave = solitude.enter()
      const running = this.#work(queued).then(() => {
        this.#running.delete(running)
        leave()
        this.#startReady()
        this.#wakeup.fire()
      })
      this.#running.add(running)
    }
  }

  async #work(queued: Queued): Promise<void> {
    const { event } = queued
    if (this.#suspect && !queued.isParked) {
      this.#suspect = false
      const reason = `The process died ${this.cursor.crashes} times while it handed over event ${event.position} (${event.type}).`
      return this.#park(queued, reason, undefined)
    }
    try {
      await this.#hand(queued)
      if (probe.on) await probe.hit('projections.sink.handled', event)
    } catch (error) {
      if (this.cursor.signal.aborted) return
      return this.#failed(queued, error)
    }
    if (this.cursor.signal.aborted) return
    this.#keys.done(queued)
    this.#store.ended(event)
    if (queued.isParked) {
      this.#unparkedMs = 0
      this.#store.unparked(event)
    } else this.#acks.finish(event.position)
    // A deciding run that waits for this call may kill the process.
    if (this.#careful === 0 && !solitude.isClosed()) return
    this.#careful = Math.max(0, this.#careful - 1)
    await this.#flush()
  }

  async #hand({ event, attempt }: Queued): Promise<void> {
    const { name, timeoutMs, handle } = this.#definition
    const leave = this.#host.watch(name, timeoutMs)
    const call = new SinkCall(`${this.#host.installation()}/${name}/${event.id}`, attempt)
    this.#calls.add(call)
    try {
      const answer = handle(event, call)
      if (isThenable(answer)) await call.race(answer, name, timeoutMs)
    } finally {
      this.#calls.delete(call)
      leave()
    }
  }

  async #failed(queued: Queued, error: unknown): Promise<void> {
    const { event, attempt } = queued
    const { name } = this.#definition
    const retryInMs = retryDelayMs(this.#definition, attempt, error, this.#host.onTrouble)
    this.#host.failed(this.#definition, { name, key: event.key, position: event.position, attempt, error, retryInMs })
    if (retryInMs === undefined) {
      const reason = `Event ${event.position} (${event.type}) failed ${attempt} time(s): ${messageOf(error)}`
      return this.#park(queued, reason, error)
    }
    this.#store.failed(event, attempt, error)
    const timer = setTimeout(() => {
      this.#timers.delete(timer)
      this.#keys.retry(queued)
      this.#wakeup.fire()
    }, retryInMs)
    this.#timers.add(timer)
  }

  async #park(queued: Queued, reason: string, error: unknown): Promise<void> {
    const { event } = queued
    const behind = this.#keys.remove(queued)
    this.#store.ended(event)
    if (queued.isParked) this.#repark(event, error)
    else {
      const attempts = Math.max(1, queued.attempt)
      this.#store.park({ event, reason, error, attempts, events: behind.map((each) => each.event) })
      this.#tellParked(event, reason)
    }
    await this.#flush()
    await tripBreaker(this.#host, this.#definition).catch(this.#host.onTrouble)
    // It may be paused now.
    this.#stateMs = Number.NEGATIVE_INFINITY
  }

  #repark(event: LogEvent, error: unknown): void {
    this.#store.reparked(event, error)
    this.#tellParked(event, messageOf(error))
  }

  #tellParked({ key, position }: LogEvent, reason: string): void {
    this.#host.parked({ name: this.#definition.name, key, position, reason })
  }

  // ---- storing

  /** What has gathered since the last store was answered. */
  #storeSoon(): void {
    if (!this.#isStoring && this.#store.isIdle && this.#store.hasNews) void this.#flush()
  }

  /** Until it is stored, or this loop is over: then the last store of `run` is the one that counts. */
  async #flush(): Promise<void> {
    const loop = this.#host.loop(`store of sink ${this.#definition.name}`)
    for (let tried = 1; this.#failure === undefined; tried++) {
      this.#isStoring = true
      try {
        await this.#store.flush()
        this.#isStoring = false
        loop.succeeded()
        if (probe.on) await probe.hit('projections.sink.flushed', this.cursor)
        this.#wakeup.fire()
        return
      } catch (error) {
        if (isPawlError(error, 'PAWL_LEASE_LOST')) {
          this.#failure = error
          this.cursor.lose(error)
          return
        }
        loop.failed(error)
        if (this.#isOver()) return
        await this.#pause(engineBackoffMs(error, tried))
      }
    }
  }

  async #latch(reason: string): Promise<void> {
    this.#isPaused = true
    await latch(this.#host, this.cursor, reason)
    // An answer from before it may have come meanwhile.
    this.#isPaused = true
  }

  async #pause(delayMs: number): Promise<void> {
    const signal = AbortSignal.any([this.#stop.signal, this.cursor.signal])
    await sleep(delayMs, undefined, { signal }).catch(() => undefined)
  }
}

/** A promise of another realm or library is one too. */
function isThenable(answer: unknown): answer is PromiseLike<unknown> {
  return typeof (answer as PromiseLike<unknown> | null | undefined)?.then === 'function'
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
