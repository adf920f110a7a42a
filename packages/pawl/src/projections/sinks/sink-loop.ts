// Hands the events of the log to a function, in the order of each key, several keys at once, at least once. What is finished is stored as
// soon as the last store was answered; a key whose attempts are used up is parked, and the others go on.

import { isPawlError, PawlError } from '../../errors.ts'
import type { LogEvent } from '../../events/types.ts'
import type { LoopWatch } from '../../kernel/alerts.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import { solitude } from '../../kernel/handler.ts'
import { probe } from '../../kernel/probe.ts'
import { engineBackoffMs } from '../../kernel/retry.ts'
import { Wakeup } from '../../kernel/service.ts'
import { type EventKey, type NextParked, nextUnparking, parkedEvent, tripBreaker, tryParked } from '../applier.ts'
import { type HeldCursor, isLogOf, latch, passEveryMs } from '../cursor.ts'
import type { DefinedSink } from '../definition.ts'
import { messageOf } from '../fenced.ts'
import type { Host } from '../part.ts'
import { Acks } from './acks.ts'
import { SinkCall } from './sink-call.ts'
import { type Queued, SinkKeys } from './sink-keys.ts'
import { SinkPages } from './sink-pages.ts'
import { SinkState } from './sink-state.ts'
import { SinkStore } from './sink-store.ts'

const windowMin = 1000
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
  readonly #window: number
  readonly #pages: SinkPages
  readonly #state: SinkState
  /** After a crash, the number of events that are handed over one at a time, each stored before the next. */
  #careful: number
  /** Holders died at the next event: it is parked untried. */
  #suspect: boolean
  /** Parked keys are polled for replays from here on; 0: now. */
  #unparkAtMs = 0
  #isStoring = false
  #failure: unknown

  constructor(cursor: HeldCursor, definition: DefinedSink, host: Host) {
    this.cursor = cursor
    this.#definition = definition
    this.#host = host
    this.#loop = host.loop(`sink ${definition.name}`)
    this.#acks = new Acks(cursor.place, cursor.done)
    this.#window = Math.max(windowMin, definition.concurrency * 8)
    this.#pages = new SinkPages(cursor, this.#acks, host, this.#window)
    this.#state = new SinkState(cursor, host)
    this.#store = new SinkStore(cursor, this.#acks, host, {
      onState: (state) => this.#state.heard(state),
      onFreed: (events) => {
        for (const event of events) this.#keys.add(event)
        this.#wakeup.fire()
      },
      onMoved: () => this.#giveUp(),
    })
    this.#careful = cursor.crashes > 0 ? this.#window : 0
    this.#suspect = cursor.isSuspect
  }

  wake(): void {
    this.#pages.grown()
    this.#wakeup.fire()
  }

  changed(): void {
    this.#state.changed()
    this.#unparkAtMs = 0
    this.#wakeup.fire()
  }

  /** Calls in progress get the grace to end; then their signals fire, and another process repeats them. */
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
    let isChecked = false
    for (let failed = 0; !this.#isOver(); ) {
      try {
        if (!isChecked) await this.#begin()
        isChecked = true
        await this.#turn()
        failed = 0
        this.#loop.succeeded()
        await this.#wakeup.wait(this.#state.isRunning && this.#acks.unpassed > 0 ? passEveryMs / 2 : this.#host.idlePollMs)
      } catch (error) {
        if (isPawlError(error, 'PAWL_LEASE_LOST')) {
          this.cursor.lose(error)
          throw error
        }
        if (isPawlError(error, 'PAWL_LOG_GAP')) await this.#latch(error.message)
        else this.#loop.failed(error)
        this.#unparkAtMs = 0
        await this.cursor.pause(engineBackoffMs(error, ++failed), this.#stop.signal)
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

  async #begin(): Promise<void> {
    await this.#store.begin()
    await this.#pages.begin()
    if (!(await isLogOf(this.#host, this.cursor))) this.#state.stopped()
  }

  /** This loop ends without a word about what it has done, and the next one starts from the row. */
  #giveUp(): void {
    this.#store.abandon()
    this.stop()
  }

  async #turn(): Promise<void> {
    if (!this.#state.isRunning) {
      const { state, isMoved } = await this.cursor.reload(this.#host.engine)
      this.#state.heard(state)
      if (!this.#state.isRunning) return
      // Resumed from another position.
      if (isMoved) return this.#giveUp()
    }
    await solitude.run(() => this.#advance())
    this.#storeSoon()
  }

  async #advance(): Promise<void> {
    if (this.#acks.open === 0 && !this.#store.hasNews && (await this.#state.isMoved())) return this.#giveUp()
    if (this.#store.hasParked) await this.#pollUnparking()
    // A loop without open events stores nothing, so it heard of no pause.
    if (this.#acks.open === 0) this.#state.expire()
    const polling = this.#pollState()
    polling.catch(() => undefined)
    await this.#readPages()
    await this.#pages.passOver()
    await polling
    if (this.#isToBeNoted() && this.#state.isRunning) await this.cursor.tryAlone(this.#host.engine)
    this.#start()
  }

  async #pollState(): Promise<void> {
    if (!this.#state.isFresh && (this.#pages.hasMore || this.#keys.hasReady)) await this.#state.read()
  }

  #isToBeNoted(): boolean {
    return this.cursor.isUntried && !this.#suspect && this.#running.size === 0 && this.#keys.next?.isParked === false
  }

  async #readPages(): Promise<void> {
    while (this.#pages.hasMore && this.#pages.hasRoom && !this.#isOver()) {
      const page = await this.#pages.next()
      if (page === undefined) return this.#giveUp()
      const { position } = this.cursor.place
      if (page.head < position) await this.#latch(`The cursor is at position ${position}, but the log ends at ${page.head}.`)
      else this.#queue(this.#acks.add(page.events, page.next, page.chars))
    }
  }

  #queue(events: readonly LogEvent[]): void {
    for (const event of events) {
      if (this.#store.isParked(event)) this.#store.parkBehind(event)
      else this.#keys.add(event)
    }
    this.#startReady()
  }

  /** After a notification, after the end of a replayed event, and at each poll. */
  async #pollUnparking(): Promise<void> {
    if (monotonicMs() < this.#unparkAtMs || this.#isReplayTooEarly()) return
    this.#unparkAtMs = monotonicMs() + this.#host.idlePollMs
    this.#store.forgetEnded()
    for (const next of await nextUnparking(this.#host, this.cursor)) {
      if (this.#isReplayTooEarly()) {
        this.#unparkAtMs = 0
        return
      }
      await this.#replay(next)
    }
  }

  async #replay(next: NextParked): Promise<void> {
    if (this.#isReplaying(next)) return
    const event = await parkedEvent(this.#host, next)
    // During that read the event before this one may have ended: then this is no longer the next one.
    if (this.#isReplaying(next)) {
      this.#unparkAtMs = 0
      return
    }
    const deaths = this.#careful > 0 ? await tryParked(this.#host, this.cursor, event) : undefined
    if (event === undefined) this.#store.free(next)
    else if (deaths === undefined) this.#keys.add(event, true)
    else this.#repark(event, deaths)
  }

  #isReplaying(key: EventKey): boolean {
    const isStoring = this.#store.isStoring(key)
    // The store wakes this loop, which then polls for the key's next event.
    if (isStoring) this.#unparkAtMs = 0
    return isStoring || this.#keys.has(key)
  }

  /** After a crash a replay runs alone, so that a death is its own. */
  #isReplayTooEarly(): boolean {
    return this.#careful > 0 && (this.#pages.hasMore || this.#keys.hasReady || this.#running.size > 0)
  }

  // ---- working

  #startReady(): void {
    if (!solitude.isClosed()) this.#start()
  }

  /** Where it is not closed, or inside: then what was just noted as tried starts. */
  #start(): void {
    const concurrency = this.#careful > 0 || this.#suspect ? 1 : this.#definition.concurrency
    if (!this.#state.isFresh || this.#isToBeNoted()) {
      if (this.#keys.hasReady) this.#wakeup.fire()
      return
    }
    while (this.#running.size < concurrency && !this.#isOver() && this.#state.isRunning) {
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
      this.#unparkAtMs = 0
      this.#store.unparked(event)
    } else this.#acks.finish(event.position)
    // A deciding run that waits for this call may kill the process.
    if (this.#careful === 0 && !solitude.isClosed()) return
    this.#careful = Math.max(0, this.#careful - 1)
    await this.#flush()
  }

  async #hand({ event, attempt }: Queued): Promise<void> {
    const { name, timeout, handle } = this.#definition
    const leave = this.#host.watch(name, timeout)
    const call = new SinkCall(`${this.#host.installation}/${name}/${event.id}`, attempt)
    this.#calls.add(call)
    try {
      const answer = handle(event, call)
      if (isThenable(answer)) await call.race(() => answer, `sink '${name}'`, timeout)
    } finally {
      this.#calls.delete(call)
      leave()
    }
  }

  async #failed(queued: Queued, error: unknown): Promise<void> {
    const { event, attempt } = queued
    const { key, position, type } = event
    const retryInMs = this.#host.failed(this.#definition, { key, position, attempt, error })
    if (retryInMs === undefined) {
      const reason = `Event ${position} (${type}) failed ${attempt} time(s): ${messageOf(error)}`
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
      this.#store.park({ reason, error, attempts, events: behind.map((each) => each.event) })
      this.#tellParked(event, reason)
    }
    await this.#flush()
    await tripBreaker(this.#host, this.#definition).catch((reason: unknown) => this.#host.trouble(reason))
    // The breaker may have paused it.
    this.#state.expire()
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
        await this.cursor.pause(engineBackoffMs(error, tried), this.#stop.signal)
      }
    }
  }

  async #latch(reason: string): Promise<void> {
    this.#state.stopped()
    await latch(this.#host, this.cursor, reason)
    // The answer of an earlier store may have come since.
    this.#state.stopped()
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
