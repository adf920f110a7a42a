// What a sink's loop knows of its cursor's row. Each store of progress returns the state; a loop that stores nothing reads it.

import { monotonicMs } from '../../kernel/clock.ts'
import { cursorStatements, type HeldCursor, leaseLost } from '../cursor.ts'
import type { Host } from '../part.ts'
import type { CursorState } from '../types.ts'

/** A call starts at most this long after the state was read. */
const freshMs = 100

interface Row {
  readonly state: CursorState
  readonly position: string
}

export class SinkState {
  readonly #cursor: HeldCursor
  readonly #host: Host
  #isRunning = true
  #heardMs = Number.NEGATIVE_INFINITY
  #comparedMs = monotonicMs()

  constructor(cursor: HeldCursor, host: Host) {
    this.#cursor = cursor
    this.#host = host
  }

  get isRunning(): boolean {
    return this.#isRunning
  }

  get isFresh(): boolean {
    return monotonicMs() - this.#heardMs < freshMs
  }

  heard(state: CursorState): void {
    this.#isRunning = state === 'running'
    this.#heardMs = monotonicMs()
  }

  stopped(): void {
    this.#isRunning = false
  }

  /** The next call starts after a read of the state. */
  expire(): void {
    this.#heardMs = Number.NEGATIVE_INFINITY
  }

  /** The next `isMoved` reads the row. */
  changed(): void {
    this.#comparedMs = Number.NEGATIVE_INFINITY
  }

  async read(): Promise<void> {
    this.heard((await this.#row()).state)
  }

  /** Whether an operator moved an idle cursor: compared after a notification, and at each poll. */
  async isMoved(): Promise<boolean> {
    if (monotonicMs() - this.#comparedMs < this.#host.idlePollMs) return false
    this.#comparedMs = monotonicMs()
    return Number((await this.#row()).position) !== this.#cursor.place.position
  }

  async #row(): Promise<Row> {
    const [row] = await this.#host.engine.run<Row>(cursorStatements.state, this.#cursor.fencedKey)
    if (row === undefined) throw leaseLost(this.#cursor)
    return row
  }
}
