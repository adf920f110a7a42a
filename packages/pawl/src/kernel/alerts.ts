// Alerts: what needs a person. The engine raises one when a statement or loop of its own keeps failing (Failures).

import type { Logger } from '../config.ts'
import { classify } from '../db/classify.ts'
import type { Db } from '../db/db.ts'
import type { StatementWatch } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { describeError, isPawlError } from '../errors.ts'
import { read } from './retry.ts'

const openStatement = statement(import.meta.url, 'open-alerts')
export const resolveAlert = statement(import.meta.url, 'resolve-alert')

export interface Alert {
  readonly tenant: string
  readonly code: string
  readonly subject: string
  readonly message: string
  readonly count: number
  readonly firstAt: Date
  readonly lastAt: Date
}

/** '*': of all tenants. */
export function listAlerts(db: Db, tenant: string): Promise<Alert[]> {
  return read<Alert>(db, openStatement, { tenant: tenant === '*' ? null : tenant, limit: 500 })
}

// ---- failures

// Errors of the engine's own statements and loops that no retry mends: a missing privilege, a missing column, a bug. Each is counted, and
// logged once a minute per statement or loop; three in a row raise an alert, which a success resolves.

const raiseStatement = statement(import.meta.url, 'raise-failing')

const inARowMax = 3
const everyMs = 60_000

interface Failing {
  readonly what: 'statement' | 'loop'
  inARow: number
  /** When it was last logged, and when its alert was last raised. */
  loggedMs: number
  alertedMs: number | undefined
  /** Where its alert is written. */
  db: Db
}

interface FailuresOptions {
  readonly logger: Pick<Logger, 'error'>
  readonly onError?: () => void
  readonly onRepeated?: () => void
}

/** Hears how the turns of one loop end. */
export interface LoopWatch {
  readonly succeeded: () => void
  readonly failed: (error: unknown) => void
}

export class Failures implements StatementWatch {
  readonly #options: FailuresOptions
  readonly #failing = new Map<string, Failing>()
  /** What a statement failed with reaches its loop too, and counts once. */
  readonly #counted = new WeakSet<object>()

  constructor(options: FailuresOptions) {
    this.#options = options
  }

  succeeded(name: string): void {
    // Called after every statement: mostly none fails.
    if (this.#failing.size === 0) return
    const failing = this.#failing.get(name)
    if (failing === undefined) return
    this.#failing.delete(name)
    if (failing.alertedMs !== undefined)
      failing.db.run(resolveAlert, { code: 'engine.failing', subject: name }).catch(() => undefined)
  }

  failed(name: string, error: unknown, db: Db): void {
    if (name === raiseStatement.name || name === resolveAlert.name || !isLasting(error)) return
    if (error instanceof Error) this.#counted.add(error)
    this.#count('statement', name, error, db)
  }

  /** For a loop whose turn can fail outside of a statement. Its alert is written on the given database. */
  loop(name: string, db: Db): LoopWatch {
    const subject = `loop ${name}`
    return {
      succeeded: () => this.succeeded(subject),
      failed: (error) => {
        const isCounted = error instanceof Error && this.#counted.has(error)
        if (!isCounted && isLasting(error)) this.#count('loop', subject, error, db)
      },
    }
  }

  #count(what: Failing['what'], name: string, error: unknown, db: Db): void {
    this.#options.onError?.()
    const nowMs = performance.now()
    const failing = this.#failing.get(name) ?? { what, inARow: 0, loggedMs: -everyMs, alertedMs: undefined, db }
    this.#failing.set(name, failing)
    failing.inARow++
    failing.db = db
    const text = describeError(error, 1000)
    if (nowMs - failing.loggedMs >= everyMs) {
      failing.loggedMs = nowMs
      this.#options.logger.error({ [what]: name, inARow: failing.inARow, error: text }, `engine ${what} failed`)
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
    const subject = failing.what === 'statement' ? `The engine statement '${name}'` : `The engine ${name}`
    const message = `${subject} failed ${failing.inARow} times in a row: ${text}`
    failing.db.run(raiseStatement, { subject: name, message }).catch(() => {
      failing.alertedMs = undefined
    })
  }
}

/** Not: a connection that breaks, a conflict, or a server that cannot write now. Those end by themselves, and others tell of them. */
export function isLasting(error: unknown): boolean {
  if (isPawlError(error, 'PAWL_STOPPED') || isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) return false
  // A refused login is waited for, and lasts until a person changes it.
  const kind = classify(isPawlError(error, 'PAWL_UNAVAILABLE') ? error.cause : error)
  return kind === 'permanent' || kind === 'foreign' || kind === 'replan'
}
