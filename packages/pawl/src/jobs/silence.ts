// A handler's statement may take as long as its attempt, so its connection has no time limit for answers. One that is half-open must be
// noticed all the same: when a session has been silent for half of that limit, the server is asked whether it is still at work.

import type { Connection } from '../db/driver.ts'
import { numbersLiteral, statement } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'

const atWorkStatement = statement(import.meta.url, 'at-work')

export interface SilenceOptions {
  readonly engine: Connection
  /** Behind a transaction pooler a session of ours has no number at the server: there only the attempt's timeout ends it. */
  readonly isNamed: boolean
  /** How long an answer may take where the server does not work on it. */
  readonly answerMs: number
}

interface Watched {
  askedMs: number
  /** How often in a row the server did not say that it is at work. */
  doubts: number
}

export class Silence {
  readonly #options: SilenceOptions
  readonly #open = new Map<Transaction, Watched>()

  constructor(options: SilenceOptions) {
    this.#options = options
  }

  add(tx: Transaction): void {
    if (this.#options.isNamed) this.#open.set(tx, { askedMs: 0, doubts: 0 })
  }

  delete(tx: Transaction): void {
    this.#open.delete(tx)
  }

  tick(nowMs: number): void {
    const halfMs = this.#options.answerMs / 2
    const silent: Transaction[] = []
    for (const [tx, watched] of this.#open) {
      if (tx.silentMs(nowMs) < halfMs) watched.doubts = 0
      else if (nowMs - watched.askedMs >= halfMs) {
        watched.askedMs = nowMs
        silent.push(tx)
      }
    }
    if (silent.length > 0) void this.#ask(silent)
  }

  /** Cut after two doubts: at the first, the answer may be on its way. */
  async #ask(silent: readonly Transaction[]): Promise<void> {
    const atWork = await this.#atWork(silent)
    for (const tx of silent) {
      const watched = this.#open.get(tx)
      if (watched === undefined) continue
      watched.doubts = atWork.has(tx.sessionId) ? 0 : watched.doubts + 1
      if (watched.doubts >= 2 && tx.silentMs(monotonicMs()) >= this.#options.answerMs) tx.abandon(silence())
    }
  }

  /** No answer is a doubt about each of them. */
  async #atWork(silent: readonly Transaction[]): Promise<ReadonlySet<number | null>> {
    const ids = silent.map((tx) => tx.sessionId).filter((id) => id !== null)
    const rows = await this.#options.engine
      .run<{ pid: number }>(atWorkStatement, { pids: numbersLiteral(ids) })
      .catch((): { pid: number }[] => [])
    return new Set(rows.map(({ pid }) => pid))
  }
}

function silence(): PawlError {
  return new PawlError(
    'PAWL_UNAVAILABLE',
    'The connection of this transaction stopped answering while the server ran no statement on it. Pawl closed it, and the transaction is rolled back.',
  )
}
