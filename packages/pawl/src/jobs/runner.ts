// Runs one attempt of one job: reads the payload, calls the handler, and says how the attempt ended. The two shapes differ only in who
// commits: a `run` handler's job is settled with others afterwards, a `tx` handler's inside its own transaction.

import { AsyncLocalStorage } from 'node:async_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Durability, Logger } from '../config.ts'
import { classify, isConflict, isRetryable } from '../db/classify.ts'
import type { Connection, Pool, PoolClient } from '../db/driver.ts'
import { StatementNames, statement } from '../db/statement.ts'
import { OwnTransaction } from '../db/transaction.ts'
import { describeError, isPawlError, PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { type HeldJob, leaseLost } from './held.ts'
import { readPayload, retryDelayMs } from './kinds.ts'
import { assertSafe, type PayloadLimits, toJson } from './payload.ts'
import type { Ending, FailedOutcome } from './settler.ts'
import { Snooze } from './snooze.ts'
import { Toucher } from './toucher.ts'
import type { JobContext } from './types.ts'

const settledStatement = statement(import.meta.url, 'settled')
/** How long a job waits whose handler met a database that cannot write. */
const unwritableDelayMs = 5000
/** How long a job waits whose payload only a newer release can read. */
const newerDelayMs = 5000
const completeSql = 'select pawl.complete_job($1::text, $2::bigint, $3::bigint, $4::jsonb, $5::integer)'

/** Raises the commit of a transaction; pools are durable already, unless a handler has reset its settings. */
export const levelSql = (level: 'durable' | 'replicated'): string => `select pawl.set_durability('${level}')`

/** Inside a tx handler a call without its transaction would wait for the very pool that the handler occupies. */
export const insideTx = new AsyncLocalStorage<{ readonly kind: string }>()

export interface RunnerOptions {
  readonly pool: Pool
  /** Whether statements may be prepared under a name: not behind a transaction pooler. */
  readonly isNamed: boolean
  readonly engine: Connection
  readonly logger: Logger
  readonly limits: PayloadLimits
  readonly durability: Durability
  readonly touchMs: number
  readonly onConflict: (error: unknown) => void
  readonly onTouch: () => void
  readonly onRefused: (held: HeldJob, what: string) => void
}

/** 'settled': its own transaction did it. 'late': it had an end before (timed out, lost). */
export type RunEnd = Ending | 'settled' | 'late'

export class Runner {
  readonly options: RunnerOptions
  readonly names: StatementNames | undefined

  constructor(options: RunnerOptions) {
    this.options = options
    this.names = options.isNamed ? new StatementNames() : undefined
  }

  /** How durable the commit of its handler is. */
  levelOf(held: HeldJob): Durability {
    return held.definition.durability ?? this.options.durability
  }

  // Not async, and few awaits below: a job of no work costs little more than its promises.
  run(held: HeldJob): Promise<RunEnd> {
    held.onRefused = this.options.onRefused
    held.isReplicated = this.levelOf(held) === 'replicated'
    held.limits = this.options.limits
    try {
      assertSafe(held.row.payload, 'payload', this.options.limits)
      const payload = readPayload(held.definition, held.row.payload, held.row.payload_version)
      if (payload instanceof Promise) return this.#runAfter(held, payload)
      held.payload = payload
    } catch (error) {
      return Promise.resolve(invalidEnd(held, error))
    }
    return held.definition.tx === undefined ? this.#runFree(held) : this.#runTx(held)
  }

  async #runAfter(held: HeldJob, payload: Promise<unknown>): Promise<RunEnd> {
    try {
      held.payload = await payload
    } catch (error) {
      return invalidEnd(held, error)
    }
    return held.definition.tx === undefined ? this.#runFree(held) : this.#runTx(held)
  }

  async #runFree(held: HeldJob): Promise<RunEnd> {
    const context = new RunContext(held, this.options)
    try {
      if (probe.on) await probe.hit('jobs.run.before', held)
      const result = await held.definition.run!(held as never, context)
      if (probe.on) await probe.hit('jobs.run.after', held)
      if (context.isTouched) await context.flush()
      if (held.isEnded) return 'late'
      if (held.completeCalled) return await this.#checkCompleted(held, undefined, result)
      return this.endOf(held, result)
    } catch (error) {
      if (classify(error) === 'unwritable') this.options.onConflict(error)
      await context.flush()
      if (held.isEnded) return 'late'
      return held.completeCalled ? this.#checkCompleted(held, error) : failedEnd(held, error)
    }
  }

  /** The end that a handler's answer means. */
  endOf(held: HeldJob, result: unknown): Ending {
    if (result instanceof Snooze)
      return { held, result: null, failed: { outcome: 'snoozed', delayMs: Math.max(1, result.delayMs), error: null } }
    if (result === undefined) return { held, result: null }
    try {
      return { held, result: toJson(result, `The result of '${held.kind}': result`, this.options.limits) }
    } catch (error) {
      held.unstorable = error
      return failedEnd(held, error)
    }
  }

  /** After job.complete(tx): only the history knows whether that transaction committed. If it did not, a handler may know and snooze. */
  async #checkCompleted(held: HeldJob, error: unknown, result?: unknown): Promise<RunEnd> {
    if (await this.isSettled(held)) return 'settled'
    if (result instanceof Snooze) return this.endOf(held, result)
    const reason =
      error ?? new Error('job.complete(tx) was called, but its transaction did not commit before the handler returned.')
    return failedEnd(held, reason)
  }

  async isSettled(held: HeldJob): Promise<boolean> {
    for (let tried = 1; ; tried++) {
      try {
        const rows = await this.options.engine.run(settledStatement, { tenant: held.tenant, id: held.id, fence: held.fence })
        return rows.length > 0
      } catch (error) {
        this.options.onConflict(error)
        if (tried >= 20) throw error
        await sleep(engineBackoffMs(error, tried))
      }
    }
  }

  /** Our own whole transaction may run again within the attempt when the database says so: nothing of it was applied. */
  async #runTx(held: HeldJob): Promise<RunEnd> {
    for (let tried = 1; ; tried++) {
      let client: PoolClient
      try {
        client = await this.connect(() => !held.isEnded && held.lost === undefined)
      } catch (error) {
        if (held.isEnded) return 'late'
        return tried === 1 && isRetryable(error) ? unstartedEnd(held) : failedEnd(held, error)
      }
      try {
        return await this.#tryTx(held, client)
      } catch (error) {
        const kind = classify(error)
        if (isConflict(error) || kind === 'unwritable') this.options.onConflict(error)
        if (held.isEnded) return 'late'
        if (kind === 'fenced') return this.#fencedEnd(held, error)
        if (isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) return this.#unknownEnd(held, error)
        if (tried >= 4 || (kind !== 'transient' && kind !== 'connection' && kind !== 'replan')) return failedEnd(held, error)
        await sleep(engineBackoffMs(error, tried))
        if (held.isEnded) return 'late'
      }
    }
  }

  /** Who cannot even begin has not started: no attempt is burnt for a database that is away. It is waited for while the job is ours. */
  async connect(isOurs: () => boolean): Promise<PoolClient> {
    for (let tried = 1; ; tried++) {
      try {
        return await this.options.pool.connect()
      } catch (error) {
        this.options.onConflict(error)
        if (!isRetryable(error) || !isOurs()) throw error
        await sleep(engineBackoffMs(error, tried))
      }
    }
  }

  async #tryTx(held: HeldJob, client: PoolClient): Promise<RunEnd> {
    const settings = this.levelOf(held) === 'replicated' ? levelSql('replicated') : undefined
    const tx = new OwnTransaction(client, { names: this.names, settings })
    const context = new RunContext(held, this.options)
    abandonWhenLost(held, client)
    try {
      if (probe.on) await probe.hit('jobs.tx.begun', held)
      const result = await insideTx.run(held, () => held.definition.tx!(held as never, tx, context))
      if (probe.on) await probe.hit('jobs.tx.handled', held)
      if (held.isEnded) throw leaseLost(held.row)
      const end = this.endOf(held, result)
      if (end.failed !== undefined) {
        await tx.rollback()
        return end
      }
      await context.flush()
      if (probe.on) await probe.hit('jobs.tx.before_commit', held)
      await tx.commitWith(
        completeSql,
        [held.tenant, held.id, held.fence, end.result, held.ranMs()],
        this.names === undefined ? undefined : 'pawl_complete_job',
      )
      if (probe.on) await probe.hit('jobs.tx.after_commit', held)
      return 'settled'
    } catch (error) {
      await tx.rollback()
      throw error
    } finally {
      held.onLost = undefined
      tx.release()
    }
  }

  /** The fence was refused. It may have been our own earlier commit whose answer was lost. */
  async #fencedEnd(held: HeldJob, error: unknown): Promise<RunEnd> {
    if (await this.isSettled(held)) return 'settled'
    held.lose(leaseLost(held.row, error))
    this.options.onRefused(held, 'complete')
    return 'late'
  }

  /** Never run again blindly: a failed attempt is written under the fence, and only if that is refused the history is asked. */
  async #unknownEnd(held: HeldJob, error: unknown): Promise<RunEnd> {
    return (await this.isSettled(held)) ? 'settled' : failedEnd(held, error)
  }
}

/** What a handler gets besides its job. */
class RunContext implements JobContext {
  readonly #held: HeldJob
  readonly #options: RunnerOptions
  #toucher: Toucher | undefined

  constructor(held: HeldJob, options: RunnerOptions) {
    this.#held = held
    this.#options = options
  }

  // Handlers take these apart, so each is given out bound; most take none.
  get touch(): JobContext['touch'] {
    return (progress) => this.#touch(progress)
  }

  get log(): JobContext['log'] {
    return (message, fields) => this.#log(message, fields)
  }

  get isTouched(): boolean {
    return this.#toucher !== undefined
  }

  get signal(): AbortSignal {
    return this.#held.signal
  }

  #touch(progress?: unknown): Promise<void> {
    this.#toucher ??= new Toucher(this.#held, this.#options)
    return this.#toucher.touch(progress)
  }

  #log(message: string, fields: Readonly<Record<string, unknown>> = {}): void {
    this.#options.logger.info({ job: this.#held.id, kind: this.#held.kind, attempt: this.#held.attempt, ...fields }, message)
  }

  async flush(): Promise<void> {
    await this.#toucher?.flush()
  }
}

export function failedEnd(held: HeldJob, error: unknown): Ending {
  // A full disk or a read-only server is not the job's failure: it waits, without an attempt used up.
  if (classify(error) === 'unwritable')
    return { held, result: null, failed: { outcome: 'snoozed', delayMs: unwritableDelayMs, error: describeError(error) } }
  return failure(held, 'failed', error, describeError(error))
}

/** What the kind's own `retry.when` threw is kept beside the error: nobody else would say it. */
function failure(held: HeldJob, outcome: FailedOutcome, error: unknown, text: string): Ending {
  let said = text
  // Running again would repeat its effects outside and end with the same result.
  if (held.unstorable !== undefined && error === held.unstorable)
    return { held, result: null, failed: { outcome, delayMs: undefined, error: said } }
  const delayMs = retryDelayMs(held.definition, held.row, error, (thrown) => {
    said += `\nIts retry.when threw, so it counts as retryable: ${describeError(thrown, 1000)}`
  })
  return { held, result: null, failed: { outcome, delayMs, error: said } }
}

/** It lost its lease, or its grace is over, before it could begin: given back, without an attempt. */
function unstartedEnd(held: HeldJob): Ending {
  return { held, result: null, failed: { outcome: 'released', delayMs: 0, error: null } }
}

/** A payload that is newer than this release is not wrong: it waits for a worker of the newer one, which is being deployed. */
function invalidEnd(held: HeldJob, error: unknown): Ending {
  const isNewer = held.row.payload_version > held.definition.payloadVersion
  const outcome = isNewer ? 'snoozed' : 'invalid'
  return { held, result: null, failed: { outcome, delayMs: isNewer ? newerDelayMs : undefined, error: describeError(error) } }
}

export function timedOutEnd(held: HeldJob): Ending {
  const error = new PawlError('PAWL_TIMED_OUT', `It ran longer than its timeout of ${held.definition.timeoutMs} ms.`)
  return failure(held, 'timed out', error, error.message)
}

/**
 * A timed-out or lost tx handler may sit on locks for ever; without its connection the server rolls it back. At the end of a stop's grace
 * the job is still ours, and an answer counts: only a job that is gone takes its connection with it.
 */
export function abandonWhenLost(held: HeldJob, client: PoolClient): void {
  held.onLost = () => {
    if (held.lost?.code !== 'PAWL_STOPPED')
      (client as unknown as { connection?: { stream?: { destroy(): void } } }).connection?.stream?.destroy()
  }
}
