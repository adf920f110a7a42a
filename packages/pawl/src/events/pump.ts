// Gives positions to new events and tells the loops how far the log goes. Every runner does it, as often as there is a reason: a
// notification, an append in this process, or the poll, which is the truth.

import type { Config } from '../config.ts'
import { Connection, type StatementWatch } from '../db/driver.ts'
import type { LoopWatch } from '../kernel/alerts.ts'
import { Service, Sleep } from '../kernel/service.ts'
import type { FreshEvents } from './read-log.ts'
import { sequence } from './sequence.ts'

/** The queue that sleeping readers of the log are listed under. */
const sleepQueue = 'pawl.events'
/** Somebody else gives positions just now; what they are is known in a moment. */
const busyMs = 5
/** Without notifications the poll is this quick after an event, and slows down. */
const quickMs = 20
const unlistenedMs = 200

export interface PumpOptions {
  readonly config: Config
  readonly watch: StatementWatch
  readonly pollMs: number
  readonly isListening: () => boolean
  readonly worker: () => number | undefined
  /** The log has grown. */
  readonly onHead: (fresh: FreshEvents | undefined) => void
  readonly signal: AbortSignal
  readonly loop: LoopWatch
}

export class Pump {
  readonly #options: PumpOptions
  readonly #connection: Connection
  readonly #sleep: Sleep
  readonly #service: Service
  #head = -1
  #idleMs = quickMs

  constructor(options: PumpOptions) {
    const { config, watch, signal, loop } = options
    this.#options = options
    this.#connection = new Connection(config.database, 'sequencer', { watch })
    this.#sleep = new Sleep(this.#connection, {
      queues: [sleepQueue],
      canListen: config.hasSession,
      isListening: options.isListening,
      pollMs: options.pollMs,
    })
    this.#service = new Service({ round: () => this.#tick(), signal, loop })
  }

  wake(): void {
    this.#service.wake()
  }

  /** Another incarnation: the old one's sleep flag is gone. */
  reset(): void {
    this.#sleep.reset()
  }

  async run(): Promise<void> {
    await this.#service.run()
    await this.#connection.close()
  }

  /** Returns how long to wait before the next. */
  async #tick(): Promise<number> {
    const tick = await sequence(this.#connection, this.#options.config.direct)
    const isNew = tick.head !== this.#head
    if (isNew) {
      this.#head = tick.head
      this.#options.onHead(tick.fresh)
    }
    if (tick.outcome === 'busy') return busyMs
    const worker = this.#options.worker()
    if (isNew) this.#idleMs = quickMs
    if (worker === undefined) return quickMs
    if (isNew) {
      await this.#sleep.worked(worker, tick.sequenced)
      if (!this.#options.config.hasSession) return quickMs
      // An event that this tick did not see brings a notification of its own.
      return this.#sleep.isRelied(worker) ? this.#options.pollMs : 0
    }
    const idleMs = await this.#sleep.idle(worker)
    if (this.#options.config.hasSession) return idleMs
    this.#idleMs = Math.min(this.#idleMs * 1.5, unlistenedMs, this.#options.pollMs)
    return this.#idleMs
  }
}
