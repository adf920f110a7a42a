// Gives positions to new events and passes the head of the log to the loops. Every worker ticks after a notification, after an append in its
// process, and at each poll: the poll is what correctness needs, the others save time.

import { Connection } from '../db/driver.ts'
import type { LoopWatch } from '../kernel/alerts.ts'
import type { Process } from '../kernel/process.ts'
import { Service, Sleep } from '../kernel/service.ts'
import type { FreshEvents } from './read-log.ts'
import { sequence } from './sequence.ts'

/** The queue name under which a sleeping reader of the log is listed. */
const sleepQueue = 'pawl.events'
/** Another process ticks; its positions are there in a moment. */
const busyMs = 5
/** Without notifications the poll interval after an event; it grows while none comes. */
const quickMs = 20
const unlistenedMs = 200

export interface PumpOptions {
  readonly process: Pick<Process, 'config' | 'failures' | 'isListening' | 'id'>
  readonly pollMs: number
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
    const { process, pollMs, signal, loop } = options
    this.#options = options
    this.#connection = new Connection(process.config.database, 'sequencer', { watch: process.failures })
    this.#sleep = new Sleep(this.#connection, {
      queues: [sleepQueue],
      canListen: process.config.hasSession,
      isListening: () => process.isListening,
      pollMs,
    })
    this.#service = new Service({ round: () => this.#tick(), signal, loop })
  }

  wake(): void {
    this.#service.wake()
  }

  /** After a change of incarnation: the sleep flag of the old one is gone. */
  reset(): void {
    this.#sleep.reset()
  }

  async run(): Promise<void> {
    await this.#service.run()
    await this.#connection.close()
  }

  /** Returns the milliseconds until the next tick. */
  async #tick(): Promise<number> {
    const { process, pollMs, onHead } = this.#options
    const { direct, hasSession } = process.config
    const tick = await sequence(this.#connection, direct)
    const isNew = tick.head !== this.#head
    if (isNew) {
      this.#head = tick.head
      onHead(tick.fresh)
    }
    if (tick.outcome === 'busy') return busyMs
    const worker = process.id
    if (isNew) this.#idleMs = quickMs
    if (worker === undefined) return quickMs
    if (isNew) {
      await this.#sleep.worked(worker, tick.sequenced)
      if (!hasSession) return quickMs
      // An event that this tick missed sends its own notification.
      return this.#sleep.isRelied(worker) ? pollMs : 0
    }
    const idleMs = await this.#sleep.idle(worker)
    if (hasSession) return idleMs
    this.#idleMs = Math.min(this.#idleMs * 1.5, unlistenedMs, pollMs)
    return this.#idleMs
  }
}
