// Runs one attempt of one job: reads the payload, calls the handler, and says how the attempt ended. The two shapes differ only in who
// commits: a `run` handler's job is settled with others afterwards, a `tx` handler's inside its own transaction.

import { AsyncLocalStorage } from 'node:async_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Durability, Logger } from '../config.ts'
import { calls } from '../db/calls.ts'
import { classify, type ErrorClass, isConflict, isOwn, isRetryable, sqlState } from '../db/classify.ts'
import type { PoolClient } from '../db/client.ts'
import type { Connection, Pool } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { Transaction } from '../db/transaction.ts'
import { caught, describeError, isPawlError, PawlError } from '../errors.ts'
import { type PayloadLimits, toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { runAs } from '../kernel/tenant.ts'
import { type HeldJob, leaseLost } from './held.ts'
import { retryDelayMs } from './kinds.ts'
import type { Ending, FailedOutcome } from './settler.ts'
import { Silence } from './silence.ts'
import { Snooze } from './snooze.ts'
import { Toucher } from './toucher.ts'
import type { JobContext } from './types.ts'

const settledStatement = statement(import.meta.url, 'settled')
/** How long a job waits whose handler met a database of ours that cannot write or cannot be reached. */
const troubleDelayMs = 5000
/** How often in a row it waits so. After that it is the job's own doing: a handler can make its transaction read-only, or end its session. */
const troublesMax = 10
/** How many jobs are remembered that wait so. */
const troubledJobsMax = 1000
/** How long a job waits whose payload only a newer release can read. */
const newerDelayMs = 5000
const completeStatement = statement(import.meta.url, 'complete', 'any')
const snoozeStatement = statement(import.meta.url, 'snooze', 'any')
const completedStatement = statement(import.meta.url, 'assert-completed', 'any')

/** It is not put off: a handler that works on after a dropped snooze would repeat its effects without a limit of attempts. */
const snoozeDropped = 'job.snooze() was called, but the handler did not return its value. Write return job.snooze(...).'

/** Raises the commit of a transaction. */
export const levelSql = (level: 'durable' | 'replicated'): string => `select pawl.set_durability('${level}')`

/** Inside a tx handler a call without its transaction would wait for the very pool that the handler occupies. */
export const insideTx = new AsyncLocalStorage<{ readonly kind: string; readonly isEnded: boolean }>()

/** The tx handler that this call is made in. A timer that a handler left behind is in none once its attempt has ended. */
export function txHandler(): { readonly kind: string } | undefined {
  const inside = insideTx.getStore()
  return inside?.isEnded ? undefined : inside
}

/** Runs the handler of something that is no job, such as a projection, in the same way. */
export async function runInsideTx<Answer>(kind: string, handler: () => Promise<Answer>): Promise<Answer> {
  const inside = { kind, isEnded: false }
  try {
    return await insideTx.run(inside, handler)
  } finally {
    inside.isEnded = true
  }
}

export interface RunnerOptions {
  readonly pool: Pool
  /** Whether statements may be prepared under a name: not behind a transaction pooler. */
  readonly isNamed: boolean
  readonly engine: Connection
  readonly logger: Logger
  readonly limits: PayloadLimits
  readonly durability: Durability
  readonly touchMs: number
  /** How long an answer may take that does not wait for a handler's statement. */
  readonly answerMs: number
  readonly onConflict: (error: unknown) => void
  readonly onTouch: () => void
  readonly onRefused: (held: HeldJob, what: string) => void
}

/** 'settled', 'snoozed': its own transaction did it. 'late': it had an end before (timed out, lost). 'stopped': that, and its handler heeded the signal. */
export type RunEnd = Ending | 'settled' | 'snoozed' | 'late' | 'stopped'

export class Runner {
  readonly options: RunnerOptions
  /** Sent after every transaction of a handler. Behind a pooler the session is others' too, and its durability is left as it is. */
  readonly reset: string
  readonly #silence: Silence
  /** How often in a row a job waits for a database of ours. */
  readonly #troubles = new Map<string, number>()

  constructor(options: RunnerOptions) {
    this.options = options
    this.#silence = new Silence(options)
    this.reset = `select pawl.reset_session(${options.isNamed})`
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
      const reading = held.read()
      if (reading !== undefined) return this.#runAfter(held, reading)
    } catch (error) {
      return Promise.resolve(invalidEnd(held, error))
    }
    return held.definition.tx === undefined ? this.#runFree(held) : this.#runTx(held)
  }

  async #runAfter(held: HeldJob, reading: Promise<void>): Promise<RunEnd> {
    try {
      await reading
    } catch (error) {
      return invalidEnd(held, error)
    }
    return held.definition.tx === undefined ? this.#runFree(held) : this.#runTx(held)
  }

  async #runFree(held: HeldJob): Promise<RunEnd> {
    const context = new RunContext(held, this.options)
    try {
      if (probe.on) await probe.hit('jobs.run.before', held)
      const result = await runAs(held.tenant, () => held.definition.run!(held as never, context))
      if (probe.on) await probe.hit('jobs.run.after', held)
      if (context.isTouched) await context.flush()
      if (held.isEnded) return 'late'
      if (held.completeCalled) return await this.#checkCompleted(held, undefined, result)
      return this.endOf(held, result)
    } catch (error) {
      if (kindOf(error) === 'unwritable') this.options.onConflict(error)
      await context.flush()
      if (held.isEnded) return lateEnd(held, error)
      return held.completeCalled ? this.#checkCompleted(held, error) : this.failedEnd(held, error)
    }
  }

  /** The end that a handler's answer means. */
  endOf(held: HeldJob, result: unknown): Ending {
    if (result instanceof Snooze)
      return { held, result: null, failed: { outcome: 'snoozed', delayMs: Math.max(1, result.delayMs), error: null } }
    if (held.snoozeCalled) return this.failedEnd(held, new Error(snoozeDropped))
    if (result === undefined) return { held, result: null }
    try {
      return { held, result: toJson(result, `The result of '${held.kind}': result`, this.options.limits) }
    } catch (error) {
      held.unstorable = error
      return this.failedEnd(held, error)
    }
  }

  failedEnd(held: HeldJob, error: unknown): Ending {
    if (error instanceof Snooze) return this.endOf(held, error)
    // It was told to stop, and did: whatever it throws from then on, no attempt is burnt for a deploy.
    if (held.lost?.code === 'PAWL_STOPPED') return unstartedEnd(held)
    const key = `${held.tenant} ${held.id}`
    const waited = this.#troubles.get(key) ?? 0
    this.#troubles.delete(key)
    // A full disk, a read-only server or one that is away is not the job's failure: it waits, without an attempt used up.
    if (!isTrouble(error) || waited >= troublesMax) return failure(held, 'failed', error, describeError(error))
    if (this.#troubles.size >= troubledJobsMax) this.#troubles.delete(this.#troubles.keys().next().value!)
    this.#troubles.set(key, waited + 1)
    return { held, result: null, failed: { outcome: 'snoozed', delayMs: troubleDelayMs, error: describeError(error) } }
  }

  /** After job.complete(tx): only the history knows whether that transaction committed. If it did not, a handler may know and snooze. */
  async #checkCompleted(held: HeldJob, error: unknown, result?: unknown): Promise<RunEnd> {
    if (await this.isSettled(held)) {
      // The job is done, so this is no failed attempt, and nothing else would say it.
      if (error !== undefined)
        this.options.logger.error(
          { job: held.id, kind: held.kind, error: describeError(error) },
          'the handler threw after job.complete(tx) had committed; the job is done',
        )
      return 'settled'
    }
    if (result instanceof Snooze) return this.endOf(held, result)
    const reason =
      error ?? new Error('job.complete(tx) was called, but its transaction did not commit before the handler returned.')
    return this.failedEnd(held, reason)
  }

  async isSettled(held: HeldJob): Promise<boolean> {
    return (await this.#fate(held)) === 'done'
  }

  /** What became of the job under this very fence: done, still held, or neither. */
  async #fate(held: HeldJob): Promise<'done' | 'held' | undefined> {
    for (let tried = 1; ; tried++) {
      try {
        const [row] = await this.options.engine.run<{ fate: 'done' | 'held' }>(settledStatement, {
          tenant: held.tenant,
          id: held.id,
          fence: held.fence,
        })
        return row?.fate
      } catch (error) {
        this.options.onConflict(error)
        if (tried >= 20) throw error
        await sleep(engineBackoffMs(error, tried))
      }
    }
  }

  /** Our own whole transaction may run again within the attempt when the database says so: nothing of it was applied. */
  async #runTx(held: HeldJob): Promise<RunEnd> {
    let isSerialized = false
    for (let tried = 1; ; tried++) {
      let client: PoolClient
      try {
        client = await this.connect([held])
      } catch (error) {
        if (held.isEnded) return 'stopped'
        return tried === 1 && isRetryable(error) ? unstartedEnd(held) : this.failedEnd(held, error)
      }
      // It may have waited long for a connection: what has ended or was lost meanwhile does not start.
      if (held.isEnded || held.lost !== undefined) {
        client.release()
        if (held.isEnded) return 'stopped'
        return foundLost(held) ? this.#fencedEnd(held, held.lost) : unstartedEnd(held)
      }
      try {
        return await this.#tryTx(held, client, isSerialized)
      } catch (error) {
        const kind = kindOf(error)
        isSerialized ||= sqlState(error) === '40001'
        if (kind === 'unwritable' || (kind === 'transient' && isConflict(error))) this.options.onConflict(error)
        if (held.isEnded) return lateEnd(held, error)
        if (wasCut(held, error, kind)) return unstartedEnd(held)
        if (kind === 'fenced') return this.#fencedEnd(held, error)
        if (foundLost(held)) return this.#fencedEnd(held, kind === 'connection' ? held.lost : error)
        if (isOwn(error) && isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) return this.#unknownEnd(held, error)
        if (tried >= 4 || (kind !== 'transient' && kind !== 'connection' && kind !== 'replan')) return this.failedEnd(held, error)
        await sleep(engineBackoffMs(error, tried))
        if (held.isEnded) return 'late'
        const invalid = await readAgain(held)
        if (invalid !== undefined) return invalid
      }
    }
  }

  /** Who cannot even begin has not started: no attempt is burnt for a database that is away. It is waited for while the job is ours. */
  async connect(group: readonly HeldJob[]): Promise<PoolClient> {
    for (const held of group) held.isConnecting = true
    try {
      for (let tried = 1; ; tried++) {
        try {
          return await this.options.pool.connect()
        } catch (error) {
          this.options.onConflict(error)
          if (!isRetryable(error) || !group.some((held) => !held.isEnded && held.lost === undefined)) throw error
          await sleep(engineBackoffMs(error, tried))
        }
      }
    } finally {
      for (const held of group) held.isConnecting = false
    }
  }

  /** `isSerialized`: above READ COMMITTED, a touch that is stored meanwhile is a conflict with the transaction's own completion. */
  async #tryTx(held: HeldJob, client: PoolClient, isSerialized: boolean): Promise<RunEnd> {
    const tx = this.begin(client)
    const context = new RunContext(held, this.options, isSerialized)
    held.completeCalled = false
    abandonWhenLost(held, tx)
    tx[calls].onLate = () => this.late(held)
    try {
      if (probe.on) await probe.hit('jobs.tx.begun', held)
      const result = await insideTx.run(held, () => runAs(held.tenant, () => held.definition.tx!(held as never, tx, context)))
      if (tx[calls].areOpen) await tx[calls].quiet()
      if (probe.on) await probe.hit('jobs.tx.handled', held)
      if (held.isEnded) throw leaseLost(held.row)
      const end = this.endOf(held, result)
      const isSnoozed = end.failed?.outcome === 'snoozed' && !held.completeCalled
      if (end.failed !== undefined && !isSnoozed) {
        await tx.rollback()
        return end
      }
      await context.quiet()
      if (probe.on) await probe.hit('jobs.tx.before_commit', held)
      const settings = this.#settingsOf(held)
      const key = { tenant: held.tenant, id: held.id, fence: held.fence }
      const progress = held.unstored()
      if (isSnoozed) await tx.commitWith(snoozeStatement, { ...key, delay_ms: end.failed!.delayMs!, progress }, settings)
      else if (held.completeCalled) await tx.commitWith(completedStatement, key, settings)
      else await tx.commitWith(completeStatement, { ...key, result: end.result, ran_ms: held.ranMs(), progress }, settings)
      if (probe.on) await probe.hit('jobs.tx.after_commit', held)
      return isSnoozed ? 'snoozed' : 'settled'
    } catch (error) {
      await tx.rollback()
      // The row is free again.
      await context.flush()
      throw error
    } finally {
      held.onLost = undefined
      this.end(tx)
    }
  }

  /** A statement came after the commit. It is refused, and in most cases nobody waits for the error. */
  late(held: HeldJob): void {
    this.options.logger.error(
      { job: held.id, kind: held.kind, attempt: held.attempt },
      'a tx handler used its transaction after it had returned, and that call was refused; await every call before you return',
    )
  }

  /** A transaction for handlers. Their statements may take as long as their attempt. */
  begin(client: PoolClient, settings?: string): Transaction {
    const { answerMs } = this.options
    const path = settings === undefined ? 'users' : 'own'
    const tx = new Transaction(client, { names: this.options.pool.names, path, settings, answerMs, reset: this.reset })
    this.#silence.add(tx)
    return tx
  }

  /** Puts its connection back. */
  end(tx: Transaction): void {
    this.#silence.delete(tx)
    tx.release()
  }

  tick(nowMs: number): void {
    this.#silence.tick(nowMs)
  }

  /** At the commit, so that a handler may still choose the isolation. A pool's sessions are durable already; behind a pooler each must ask. */
  #settingsOf(held: HeldJob): string | undefined {
    if (this.levelOf(held) === 'replicated') return levelSql('replicated')
    return this.options.isNamed ? undefined : levelSql('durable')
  }

  /** A fence was refused: that of our own earlier commit whose answer was lost, that of another job, or this one's, which is lost only if its row is gone. */
  async #fencedEnd(held: HeldJob, error: unknown): Promise<RunEnd> {
    const fate = await this.#fate(held)
    if (fate === 'done') return 'settled'
    if (fate === 'held') return this.failedEnd(held, error)
    held.lose(leaseLost(held.row, error))
    this.options.onRefused(held, 'complete')
    return 'late'
  }

  /** Never run again blindly: unless history has it, it waits, which is written under the fence; a commit that comes later is refused by that. */
  async #unknownEnd(held: HeldJob, error: unknown): Promise<RunEnd> {
    return (await this.isSettled(held)) ? 'settled' : this.failedEnd(held, error)
  }
}

/** What a handler gets besides its job. */
class RunContext implements JobContext {
  readonly #held: HeldJob
  readonly #options: RunnerOptions
  readonly #isKept: boolean
  #toucher: Toucher | undefined

  /** `isKept`: progress waits for the end. */
  constructor(held: HeldJob, options: RunnerOptions, isKept = false) {
    this.#held = held
    this.#options = options
    this.#isKept = isKept
    held.unstored = () => this.#toucher?.unstored ?? null
  }

  // Handlers take these apart, so each is given out bound; most take none.
  get touch(): JobContext['touch'] {
    return (progress) => caught(this.#touch(progress))
  }

  get log(): JobContext['log'] {
    return (message, fields) => say(this.#options.logger, this.#held, message, fields)
  }

  get isTouched(): boolean {
    return this.#toucher !== undefined
  }

  get signal(): AbortSignal {
    return this.#held.signal
  }

  #touch(progress?: unknown): Promise<void> {
    this.#toucher ??= new Toucher(this.#held, this.#options, this.#isKept)
    return this.#toucher.touch(progress)
  }

  async flush(): Promise<void> {
    await this.#toucher?.flush()
  }

  /** Nothing is on its way any more. */
  async quiet(): Promise<void> {
    await this.#toucher?.quiet()
  }
}

export function say(logger: Logger, held: HeldJob, message: string, fields: Readonly<Record<string, unknown>> = {}): void {
  logger.info({ job: held.id, kind: held.kind, attempt: held.attempt, ...fields }, message)
}

/** What an error means to the engine. The same code from any connection but ours is the handler's failure, whatever it says. */
function kindOf(error: unknown): ErrorClass {
  return isOwn(error) ? classify(error) : 'foreign'
}

/** Of a connection of ours: the database cannot write, cannot be reached, or was lost before a commit was answered. */
function isTrouble(error: unknown): boolean {
  if (!isOwn(error)) return false
  const isUnanswered = isPawlError(error, 'PAWL_COMMIT_UNKNOWN') || isPawlError(error, 'PAWL_ROLLED_BACK')
  const kind = classify(isUnanswered ? error.cause : error)
  // A session that idled or took too long in its transaction is the handler's own doing.
  return kind === 'unwritable' || (kind === 'connection' && !handlersStates.includes(sqlState(error)))
}

const handlersStates: readonly (string | undefined)[] = ['25P03', '25P04']

/** A handler that stops because its signal fired has written nothing: there is nothing to refuse. A statement on its ended transaction is a write. */
function lateEnd(held: HeldJob, error: unknown): 'late' | 'stopped' {
  return isReason(held, error) && !isOwn(error) ? 'stopped' : 'late'
}

/** Whether it is why the job was lost, or what a library made of it: AbortError has the signal's reason as its cause. */
function isReason({ lost }: HeldJob, error: unknown): boolean {
  return lost !== undefined && (error === lost || (error instanceof Error && error.cause === lost))
}

/** How the kind's own `retry.when` failed is kept beside the error: nobody else would say it. */
function failure(held: HeldJob, outcome: FailedOutcome, error: unknown, text: string): Ending {
  let said = text
  // Running again would repeat its effects outside and end with the same result.
  if (held.unstorable !== undefined && error === held.unstorable)
    return { held, result: null, failed: { outcome, delayMs: undefined, error: said } }
  const delayMs = retryDelayMs(held.definition, held.row, error, (thrown) => {
    said += `\nretry.when failed too, so this error counts as retryable: ${describeError(thrown, 1000)}`
  })
  return { held, result: null, failed: { outcome, delayMs, error: said } }
}

/** A call of the handler itself found that its fence is refused, and may have caught that. Only then has the loss a cause. */
function foundLost({ lost }: HeldJob): boolean {
  return lost?.cause !== undefined
}

/** The incarnation was lost and the handler's transaction cut with it. */
function wasCut(held: HeldJob, error: unknown, kind: ErrorClass): boolean {
  if (held.lost === undefined || held.lost.code === 'PAWL_STOPPED' || foundLost(held)) return false
  return isReason(held, error) || kind === 'connection'
}

/** It lost its lease, or its grace is over, before anything of it could commit: given back, without an attempt. */
function unstartedEnd(held: HeldJob): Ending {
  return { held, result: null, failed: { outcome: 'released', delayMs: 0, error: null } }
}

/** For another call of the handler. Undefined unless what is stored cannot be read. */
async function readAgain(held: HeldJob): Promise<Ending | undefined> {
  try {
    await held.read()
    return undefined
  } catch (error) {
    return invalidEnd(held, error)
  }
}

/** A payload that is newer than this release is not wrong: it waits for a worker of the newer one, which is being deployed. */
function invalidEnd(held: HeldJob, error: unknown): Ending {
  const isNewer = held.row.payload_version > held.definition.payloadVersion
  const outcome = isNewer ? 'snoozed' : 'invalid'
  return { held, result: null, failed: { outcome, delayMs: isNewer ? newerDelayMs : undefined, error: describeError(error) } }
}

export function timedOutEnd(held: HeldJob): Ending {
  const error = new PawlError('PAWL_TIMED_OUT', `The attempt ran longer than its timeout of ${held.definition.timeoutMs} ms.`)
  return failure(held, 'timed out', error, error.message)
}

/**
 * A timed-out or lost tx handler may never return, and hold locks and a connection. It loses both at once. At the end of a stop's grace
 * the job is still ours, and an answer counts: only a job that is gone takes its connection with it.
 */
export function abandonWhenLost(held: HeldJob, tx: Transaction): void {
  held.onLost = () => {
    if (held.lost !== undefined && held.lost.code !== 'PAWL_STOPPED') tx.abandon(held.lost)
  }
}
