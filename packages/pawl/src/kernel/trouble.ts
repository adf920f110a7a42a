// Whether this process had trouble with the database a moment ago. Then all others may have it too, and get more time to answer.

import type { Connection } from '../db/driver.ts'
import type { Parameter, Statement } from '../db/statement.ts'
import { monotonicMs } from './clock.ts'

const slowStatementMs = 500
const troubleLastsMs = 10_000

export class Trouble {
  #lastMs = Number.NEGATIVE_INFINITY

  note(): void {
    this.#lastMs = monotonicMs()
  }

  get isRecent(): boolean {
    return monotonicMs() - this.#lastMs < troubleLastsMs
  }

  /** A statement that fails or takes long is trouble. */
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
