// Shared memory between the main thread and the keeper's: what the keeper must know without asking a thread that may be blocked.

import { threadClockNs } from '../clock.ts'

export interface Running {
  readonly id: string
  readonly fence: string
}

/** A running handler, as far as the keeper must know it. */
export interface Watched extends Running {
  slot: number
  readonly definition: { readonly timeoutMs: number }
}

/** Cells before those of the jobs. */
const headCells = 2

/**
 * Shared memory: [0] is the time of the main thread's last turn, [1] since when an end waits to be stored (0: none does); then three cells a
 * running job: id, fence, deadline (0: free).
 */
export class Board {
  readonly buffer: SharedArrayBuffer
  readonly #cells: BigInt64Array
  readonly #free: number[]

  constructor(slots: number, buffer = new SharedArrayBuffer(8 * (headCells + 3 * slots))) {
    this.buffer = buffer
    this.#cells = new BigInt64Array(buffer)
    this.#free = Array.from({ length: (this.#cells.length - headCells) / 3 }, (_, index) => index)
  }

  /** Called again and again by the main thread, with the time for which its oldest end has waited to be stored. */
  turn(oldestEndMs = 0): void {
    const nowNs = threadClockNs()
    Atomics.store(this.#cells, 1, oldestEndMs === 0 ? 0n : nowNs - BigInt(Math.ceil(oldestEndMs)) * 1_000_000n)
    Atomics.store(this.#cells, 0, nowNs)
  }

  /** Since when an end waits to be stored; 0: none does. */
  oldestEndNs(): bigint {
    return Atomics.load(this.#cells, 1)
  }

  lastTurnNs(): bigint {
    return Atomics.load(this.#cells, 0)
  }

  enter(held: Watched): void {
    const slot = this.#free.pop()
    if (slot === undefined) return
    held.slot = slot
    const cell = headCells + slot * 3
    Atomics.store(this.#cells, cell, BigInt(held.id))
    Atomics.store(this.#cells, cell + 1, BigInt(held.fence))
    Atomics.store(this.#cells, cell + 2, threadClockNs() + BigInt(held.definition.timeoutMs) * 1_000_000n)
  }

  leave(held: Watched): void {
    if (held.slot < 0) return
    Atomics.store(this.#cells, headCells + held.slot * 3 + 2, 0n)
    this.#free.push(held.slot)
    held.slot = -1
  }

  overdue(nowNs: bigint): Running[] {
    return this.#jobs((deadlineNs) => deadlineNs < nowNs)
  }

  running(): Running[] {
    return this.#jobs(() => true)
  }

  #jobs(isIt: (deadlineNs: bigint) => boolean): Running[] {
    const found: Running[] = []
    for (let cell = headCells; cell < this.#cells.length; cell += 3) {
      const deadline = Atomics.load(this.#cells, cell + 2)
      if (deadline === 0n || !isIt(deadline)) continue
      const [id, fence] = [Atomics.load(this.#cells, cell), Atomics.load(this.#cells, cell + 1)]
      // The main thread may have woken and put another job here: with the same deadline still, all three are of one job.
      if (Atomics.load(this.#cells, cell + 2) === deadline) found.push({ id: String(id), fence: String(fence) })
    }
    return found
  }
}
