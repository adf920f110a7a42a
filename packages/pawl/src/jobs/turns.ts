// The one transaction of a group, as its handlers see it: each has a turn, in which its statements come one behind the other, with the
// settings reset in between. A handler may begin before the one before it has ended, since what it sends is executed later all the same.
// So the round trips of a group overlap, and yet the database sees one handler after another. A handler that sends a statement after its
// turn has passed is refused: it read something and writes by it, and between the two the next one may have written.

import { checked } from '../db/adapters.ts'
import { Calls, calls } from '../db/calls.ts'
import type { Answer, Transaction } from '../db/transaction.ts'
import { caught, PawlError } from '../errors.ts'
import type { DefinedKind } from './kinds.ts'
import type { JobTx } from './types.ts'

/** One job's SET LOCAL must not reach the next one. RESET ALL leaves the role as it is. Locks stay until the group commits: they guard its effects. */
export const resetSettings = 'reset session authorization; reset role; reset all; discard temp'

/** Kinds whose handlers send all they have to send without waiting for an answer, as far as this process has seen: `false` is for good. */
const sendAtOnce = new WeakMap<DefinedKind, boolean>()

/** Several statements, or a comment within a comment: the first word does not say what it does. */
const mayBeSeveral = /;\s*\S|\/\*/

export class Turns {
  readonly #tx: Transaction
  #current: Turn | undefined
  /** A text that may hide the end of the transaction: what came behind it would then be committed by itself. */
  #unsure: Promise<void> | undefined
  /** Somebody sent a statement after an answer. */
  hasWaited = false
  /** Somebody sent a statement after the next one's: nothing of the group may commit. */
  isOutOfOrder = false

  constructor(tx: Transaction) {
    this.#tx = tx
  }

  take(): Turn {
    return new Turn(this)
  }

  async send<Row>(turn: Turn, text: string, values: readonly unknown[]): Promise<Answer<Row>> {
    if (turn[calls].isOver) {
      turn[calls].late()
      throw new PawlError('PAWL_TX_REQUIRED', 'This job has ended. Await every query before the tx handler returns.')
    }
    while (this.#unsure !== undefined) await this.#unsure
    if (turn !== this.#current) this.#pass(turn)
    if (turn.isAnswered) this.hasWaited = true
    turn.hasSent()
    const sent = this.#tx.query<Row>(text, values)
    if (values.length === 0 && mayBeSeveral.test(text)) this.#waitFor(sent)
    const answer = await sent
    turn.isAnswered = true
    return answer
  }

  #waitFor(sent: Promise<unknown>): void {
    const over = () => {
      this.#unsure = undefined
    }
    this.#unsure = sent.then(over, over)
  }

  #pass(turn: Turn): void {
    if (turn.isSent) {
      this.isOutOfOrder = true
      throw new PawlError(
        'PAWL_ROLLED_BACK',
        'This statement came after a statement of the next job in the shared transaction. The transaction is rolled back, and each job runs again alone.',
      )
    }
    this.#current = turn
    this.#tx.set(resetSettings)
  }
}

/** The transaction in one handler's hands. */
export class Turn implements JobTx {
  readonly [checked] = true
  readonly [calls] = new Calls()
  readonly #turns: Turns
  readonly sent: Promise<void>
  hasSent!: () => void
  isSent = false
  isAnswered = false

  constructor(turns: Turns) {
    this.#turns = turns
    this.sent = new Promise((resolve) => {
      this.hasSent = () => {
        this.isSent = true
        resolve()
      }
    })
  }

  query<Row = Record<string, unknown>>(text: string, values: readonly unknown[] = []): Promise<Answer<Row>> {
    return caught(this.#query<Row>(text, values))
  }

  async #query<Row>(text: string, values: readonly unknown[]): Promise<Answer<Row>> {
    this[calls].begin()
    try {
      return await this.#turns.send<Row>(this, text, values)
    } finally {
      this[calls].end()
    }
  }
}

export function mayOverlap(kind: DefinedKind): boolean {
  return sendAtOnce.get(kind) === true
}

/** What a group showed of its kind. One that ran in full without a wait may overlap from now on; one that waited never again. */
export function learn(kind: DefinedKind, turns: Turns, ran: number): void {
  if (turns.hasWaited || turns.isOutOfOrder) sendAtOnce.set(kind, false)
  else if (ran > 1 && !sendAtOnce.has(kind)) sendAtOnce.set(kind, true)
}
