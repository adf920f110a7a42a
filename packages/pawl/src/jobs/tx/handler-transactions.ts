// The transactions of tx handlers, each on a connection of their pool. A handler's statement may take as long as its attempt, so these
// connections have no time limit for answers. When a session has been silent for half of the usual limit, the server is asked whether it
// still works on a statement: a connection that is half-open is found by that.

import { setTimeout as sleep } from 'node:timers/promises'
import { isRetryable } from '../../db/classify.ts'
import type { PoolClient } from '../../db/client.ts'
import type { Pool } from '../../db/driver.ts'
import { numbersLiteral, statement } from '../../db/statement.ts'
import { Transaction } from '../../db/transaction.ts'
import { PawlError } from '../../errors.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import type { Process } from '../../kernel/process.ts'
import { engineBackoffMs } from '../../kernel/retry.ts'
import type { Attempt } from '../attempt.ts'

const atWorkStatement = statement(new URL('..', import.meta.url).href, 'at-work')

/** Raises the durability of the commit of a transaction. */
export const levelSql = (level: 'durable' | 'replicated'): string => `select pawl.set_durability('${level}')`

interface Watched {
  askedMs: number
  /** How many answers in a row did not say that the server runs a statement of this transaction. */
  doubts: number
}

export class HandlerTransactions {
  /** Through a transaction pooler nothing is prepared under a name, and sessions are shared with other clients. */
  readonly isNamed: boolean
  readonly #process: Pick<Process, 'config' | 'engine' | 'trouble'>
  readonly #pool: Pool
  readonly #open = new Map<Transaction, Watched>()

  constructor(process: Pick<Process, 'config' | 'engine' | 'trouble' | 'handlers'>) {
    this.#process = process
    this.isNamed = process.config.database.pooler === 'none'
    this.#pool = process.handlers.part()
  }

  /** Waits for a database that is away while any of these is ours: what cannot even begin has used up no attempt. */
  async connect(group: readonly Attempt[]): Promise<PoolClient> {
    for (const attempt of group) attempt.become('connecting')
    try {
      for (let tried = 1; ; tried++) {
        try {
          return await this.#pool.connect()
        } catch (error) {
          this.#process.trouble(error)
          if (!isRetryable(error) || group.every((attempt) => attempt.isEnded || attempt.abortReason !== undefined)) throw error
          await sleep(engineBackoffMs(error, tried))
        }
      }
    } finally {
      for (const attempt of group) attempt.become('running')
    }
  }

  begin(client: PoolClient, settings?: string): Transaction {
    const tx = new Transaction(client, {
      names: this.#pool.names,
      path: settings === undefined ? 'users' : 'own',
      settings,
      answerMs: this.#process.config.database.queryTimeoutMs,
      // A pooler's session is other clients' too, and its durability is left as it is.
      reset: `select pawl.reset_session(${this.isNamed})`,
    })
    // Through a pooler our session has no pid of its own: only the attempt's timeout ends it.
    if (this.isNamed) this.#open.set(tx, { askedMs: 0, doubts: 0 })
    return tx
  }

  /** Puts its connection back. */
  end(tx: Transaction): void {
    this.#open.delete(tx)
    tx.release()
  }

  // ---- half-open connections

  tick(nowMs: number): void {
    const halfMs = this.#process.config.database.queryTimeoutMs / 2
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
    const answerMs = this.#process.config.database.queryTimeoutMs
    const atWork = await this.#atWork(silent)
    for (const tx of silent) {
      const watched = this.#open.get(tx)
      if (watched === undefined) continue
      watched.doubts = atWork.has(tx.sessionId) ? 0 : watched.doubts + 1
      if (watched.doubts >= 2 && tx.silentMs(monotonicMs()) >= answerMs) tx.abandon(stoppedAnswering())
    }
  }

  /** No answer is a doubt about each of them. */
  async #atWork(silent: readonly Transaction[]): Promise<ReadonlySet<number | null>> {
    const ids = silent.map((tx) => tx.sessionId).filter((id) => id !== null)
    const rows = await this.#process.engine
      .run<{ pid: number }>(atWorkStatement, { pids: numbersLiteral(ids) })
      .catch((): { pid: number }[] => [])
    return new Set(rows.map(({ pid }) => pid))
  }
}

function stoppedAnswering(): PawlError {
  return new PawlError(
    'PAWL_UNAVAILABLE',
    'The connection of this transaction stopped answering while the server ran no statement on it. Pawl closed it, and the transaction is rolled back.',
  )
}
