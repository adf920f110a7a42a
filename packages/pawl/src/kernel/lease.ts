// Leases: the end of a lease is one column of one row, the holder's. A job names its holder and its fence, so renewing one row renews
// everything that the holder has. A take-over closes the holder's row first, and only after a question in that row stayed unanswered.

import type { Connection } from '../db/driver.ts'
import { type Parameter, type Statement, statement } from '../db/statement.ts'
import { monotonicMs } from './clock.ts'

/** The first key of Pawl's advisory locks: "pawl". The second is an incarnation's id for its liveness lock, 0 for a watch, -1 for a promotion. */
export const lockClass = 0x7061776c

/** An incarnation: its id, and the nonce drawn when it was opened, because a restore can give an id out twice. */
export interface Holder {
  readonly id: number
  readonly nonce: string
}

export const leaseStatements = {
  open: statement(import.meta.url, 'open-worker'),
  takeLiveness: statement(import.meta.url, 'take-liveness'),
  lock: statement(import.meta.url, 'lock-worker'),
  look: statement(import.meta.url, 'look-worker'),
  beat: statement(import.meta.url, 'beat'),
  close: statement(import.meta.url, 'close-worker'),
  ask: statement(import.meta.url, 'ask-workers'),
  closeDead: statement(import.meta.url, 'close-dead-workers'),
  empty: statement(import.meta.url, 'empty-workers'),
  endSessions: statement(import.meta.url, 'end-sessions'),
  refuse: statement(import.meta.url, 'refuse'),
} as const

const lookMsMax = 500

/** How often a keeper reads its own row: twice a second, and more often where a lease is so short that this would be late. */
export function lookEveryMs(leaseMs: number): number {
  return Math.max(10, Math.min(lookMsMax, Math.floor(leaseMs / 20)))
}

const answerMsMin = 500
const troubleFactor = 10

/** How long an incarnation gets to answer: two of its polls, a second by default, and ten times that if statements of the asker failed or were slow. */
export function answerWithinMs(lookMs: number, hadTrouble: boolean): number {
  return Math.max(answerMsMin, 2 * lookMs) * (hadTrouble ? troubleFactor : 1)
}

const slowStatementMs = 500
const troubleLastsMs = 10_000

/** Whether statements of this process failed or were slow a moment ago. Then those of all others may be, too, and they get more time to answer. */
export class Trouble {
  #lastMs = Number.NEGATIVE_INFINITY

  note(): void {
    this.#lastMs = monotonicMs()
  }

  get isRecent(): boolean {
    return monotonicMs() - this.#lastMs < troubleLastsMs
  }

  /** Notes a statement that fails or takes long. */
  async run<Row>(connection: Connection, sent: Statement, values: Readonly<Record<string, Parameter>>): Promise<Row[]> {
    const startedMs = monotonicMs()
    try {
      return await connection.run<Row>(sent, values)
    } catch (error) {
      this.note()
      throw error
    } finally {
      if (monotonicMs() - startedMs > slowStatementMs) this.note()
    }
  }
}
