// Errors of the engine's own statements that no repetition mends: a missing privilege, a column that is not there, a bug. Each is counted
// and logged, once a minute per statement; after a few in a row there is an alert, until the statement succeeds again.

import type { Logger } from '../config.ts'
import { classify } from '../db/classify.ts'
import type { Connection, StatementWatch } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { describeError, isPawlError } from '../errors.ts'

const raiseStatement = statement(import.meta.url, 'raise-failing')
const resolveStatement = statement(import.meta.url, 'resolve-failing')

const inARowMax = 3
const everyMs = 60_000

interface Failing {
  inARow: number
  /** When it was last logged, and when its alert was last raised. */
  loggedMs: number
  alertedMs: number | undefined
  connection: Connection
}

export interface FailuresOptions {
  readonly logger: Pick<Logger, 'error'>
  readonly onError?: () => void
  readonly onRepeated?: () => void
}

export class Failures implements StatementWatch {
  readonly #options: FailuresOptions
  readonly #failing = new Map<string, Failing>()

  constructor(options: FailuresOptions) {
    this.#options = options
  }

  succeeded(name: string): void {
    // Called after every statement: mostly none fails.
    if (this.#failing.size === 0) return
    const failing = this.#failing.get(name)
    if (failing === undefined) return
    this.#failing.delete(name)
    if (failing.alertedMs !== undefined) failing.connection.run(resolveStatement, { subject: name }).catch(() => undefined)
  }

  failed(name: string, error: unknown, connection: Connection): void {
    if (name === raiseStatement.file || name === resolveStatement.file || !isLasting(error)) return
    this.#options.onError?.()
    const nowMs = performance.now()
    const failing = this.#failing.get(name) ?? { inARow: 0, loggedMs: -everyMs, alertedMs: undefined, connection }
    this.#failing.set(name, failing)
    failing.inARow++
    failing.connection = connection
    const text = describeError(error, 1000)
    if (nowMs - failing.loggedMs >= everyMs) {
      failing.loggedMs = nowMs
      this.#options.logger.error({ statement: name, inARow: failing.inARow, error: text }, 'a statement of the engine failed')
    }
    if (failing.inARow >= inARowMax && nowMs - (failing.alertedMs ?? -everyMs) >= everyMs) {
      failing.alertedMs = nowMs
      this.#raise(name, failing, text)
    }
  }

  repeated(): void {
    this.#options.onRepeated?.()
  }

  /** An alert that cannot be written is tried again with the next failure. */
  #raise(name: string, failing: Failing, text: string): void {
    const message = `The statement '${name}' of the engine failed ${failing.inARow} times in a row: ${text}`
    failing.connection.run(raiseStatement, { subject: name, message }).catch(() => {
      failing.alertedMs = undefined
    })
  }
}

/** Not: a connection that breaks, a conflict, or a server that cannot write now. Those end by themselves, and others tell of them. */
function isLasting(error: unknown): boolean {
  if (isPawlError(error, 'PAWL_STOPPED')) return false
  // A refused login is waited for, and lasts until a person changes it.
  const kind = classify(isPawlError(error, 'PAWL_UNAVAILABLE') ? error.cause : error)
  return kind === 'permanent' || kind === 'foreign' || kind === 'replan'
}
