// Writes the ends of attempts, in batches, each under its fence. A flush takes whatever has gathered when the last one answered, so
// batches grow by themselves under load and a lone job is never delayed. A job counts as held until its flush has answered. An end
// whose row is locked, as by a handler that timed out inside its own transaction, is set aside: no other end waits for it. So is an end that the
// database refuses for now, for example because a privilege is missing. Each durability has a loop and connections of its own, so that a commit that
// waits for a standby holds up only commits that must.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Durability } from '../config.ts'
import { isConflict, isRetryable, sqlState } from '../db/classify.ts'
import { Connection } from '../db/driver.ts'
import { numbersLiteral, type Statement, statement, textsLiteral, type Values } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import type { LoopWatch } from '../kernel/alerts.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { probe } from '../kernel/probe.ts'
import type { Process } from '../kernel/process.ts'
import { type Backoff, backoffMs, engineBackoffMs } from '../kernel/retry.ts'
import { Wakeup } from '../kernel/service.ts'
import { type Attempt, type JobKey, keysOf } from './attempt.ts'
import { type Ending, failed } from './endings.ts'
import type { Outcomes } from './outcomes.ts'
import { goneOf } from './reconcile.ts'

const settleStatement = statement(import.meta.url, 'settle')
const failStatement = statement(import.meta.url, 'settle-failed')
const lockedStatement = statement(import.meta.url, 'locked')

/** How long a batch waits for a locked row, before all of it is set aside. */
const lockTimeoutMs = 500

/** PostgreSQL takes 1 GB in one statement; this much settles within a second. */
const bytesMax = 16 * 1_048_576

/** For ends that the database refuses and may take later: whatever is missing, a person has to mend it. */
const refusedBackoff: Backoff = { initialMs: 200, factor: 2, maxMs: 10_000, jitter: true }
/** After this many refusals in one batch it is not a row that is broken, and the others of the batch are not tried one by one. */
const refusedMax = 10

/** What waits here, or was done and is not stored yet, takes about this much memory at most. */
export const waitingBytesMax = 32 * 1_048_576

type Purpose = 'settle' | 'settle-aside'

export interface SettlerOptions {
  readonly process: Pick<Process, 'config' | 'failures' | 'loop'>
  readonly batchMax: number
  readonly outcomes: Pick<Outcomes, 'settled' | 'refusedEnds'>
  /** Ends have left, some of them given back perhaps: there is room, and something may be ready. */
  readonly onStored: (endings: readonly Ending[]) => void
}

/** What a lane needs of the settler: the ends that are not stored. */
type Unstored = Pick<Settler, 'add' | 'remove' | 'sinceMs'>

export class Settler {
  readonly #options: SettlerOptions
  /** Those that are not stored, oldest first, with the time since when their attempts have had an end. */
  readonly #ends = new Map<Ending, number>()
  readonly #lanes = new Map<Durability, SettleLane>()
  readonly #waiters: (() => void)[] = []
  #isStarted = false
  /** What the results and errors of all of them take in memory, about. */
  bytes = 0

  constructor(options: SettlerOptions) {
    this.#options = options
  }

  get unsettled(): number {
    return this.#ends.size
  }

  /** How many ends are about to be stored: not those set aside, locked or refused, which may wait for long. */
  get pending(): number {
    let count = this.#ends.size
    for (const lane of this.#lanes.values()) count -= lane.aside.size
    return count
  }

  /** Nothing is claimed or started until some of it is stored. */
  get isFull(): boolean {
    return this.bytes >= waitingBytesMax
  }

  /** How long the oldest of them has waited; 0: there is none. */
  oldestMs(nowMs: number): number {
    const [sinceMs] = this.#ends.values()
    return sinceMs === undefined ? 0 : Math.max(0, nowMs - sinceMs + 1)
  }

  attempts(): Attempt[] {
    return [...this.#ends.keys()].map(({ attempt }) => attempt)
  }

  start(): void {
    this.#isStarted = true
    for (const lane of this.#lanes.values()) lane.start()
  }

  add(ending: Ending, sinceMs = monotonicMs()): void {
    this.bytes += lengthOf(ending)
    this.#ends.set(ending, sinceMs)
    const durability = ending.attempt.definition.durability ?? this.#options.process.config.durability
    let lane = this.#lanes.get(durability)
    if (lane === undefined) {
      lane = new SettleLane(this.#options, durability, this)
      this.#lanes.set(durability, lane)
      if (this.#isStarted) lane.start()
    }
    lane.add(ending)
  }

  sinceMs(ending: Ending): number | undefined {
    return this.#ends.get(ending)
  }

  /** It is stored or refused. */
  remove(ending: Ending): void {
    if (!this.#ends.delete(ending)) return
    this.bytes -= lengthOf(ending)
    if (this.#ends.size === 0) for (const resolve of this.#waiters.splice(0)) resolve()
  }

  /** Resolves when nothing is unsettled, or after this time. */
  async drained(patienceMs: number): Promise<void> {
    if (this.#ends.size === 0) return
    const emptied = new Promise<void>((resolve) => this.#waiters.push(resolve))
    await Promise.race([emptied, sleep(patienceMs, undefined, { ref: false })])
  }

  /** Tries no more. What is not stored by now belongs to the worker that takes over. */
  async stop(): Promise<void> {
    await Promise.all([...this.#lanes.values()].map((lane) => lane.stop()))
  }
}

/** The ends of one durability. */
class SettleLane {
  readonly #options: SettlerOptions
  readonly #durability: Durability
  readonly #unstored: Unstored
  readonly #settling: LoopWatch
  readonly #connections = new Map<Purpose, Connection>()
  readonly #waiting: Ending[] = []
  /** Locked, or refused for now. Each is tried until it is stored, or its fence is refused: given back it would run again and again. */
  readonly aside = new Set<Ending>()
  readonly #gaveUp = new AbortController()
  readonly #more = new Wakeup()
  readonly #moreAside = new Wakeup()
  #running: Promise<unknown> | undefined

  constructor(options: SettlerOptions, durability: Durability, unstored: Unstored) {
    this.#options = options
    this.#durability = durability
    this.#unstored = unstored
    this.#settling = options.process.loop('settle')
  }

  start(): void {
    this.#running ??= Promise.all([this.#loop(), this.#loopAside()])
  }

  add(ending: Ending): void {
    this.#waiting.push(ending)
    this.#more.fire()
  }

  async stop(): Promise<void> {
    this.#gaveUp.abort()
    this.#more.fire()
    this.#moreAside.fire()
    await this.#running
    await Promise.all([...this.#connections.values()].map((connection) => connection.close()))
  }

  async #loop(): Promise<void> {
    while (!this.#gaveUp.signal.aborted) {
      if (this.#waiting.length === 0) {
        await this.#more.wait()
        continue
      }
      const [batch] = byBytes(this.#waiting, this.#options.batchMax, sizeOf)
      this.#waiting.splice(0, batch!.length)
      await this.#flush(batch!, 'settle')
    }
  }

  /** Tries what was set aside again, less often each time. What is newly set aside is tried at once: most of its batch is not locked. */
  async #loopAside(): Promise<void> {
    const loop = this.#options.process.loop('settle-aside')
    for (let tried = 0; !this.#gaveUp.signal.aborted; ) {
      const before = this.aside.size
      let trouble: unknown
      let areRefused = false
      try {
        areRefused = await this.#flushAside()
        loop.succeeded()
      } catch (error) {
        trouble = error
        loop.failed(error)
      }
      tried = this.aside.size < before ? 0 : tried + 1
      const waitMs = areRefused ? backoffMs(refusedBackoff, tried) : engineBackoffMs(trouble, tried)
      await this.#moreAside.wait(this.aside.size === 0 ? undefined : waitMs)
    }
  }

  /** Says whether the database refused any. */
  async #flushAside(): Promise<boolean> {
    let areRefused = false
    for (const batch of byBytes([...this.aside], this.#options.batchMax, sizeOf)) {
      if (this.#gaveUp.signal.aborted) break
      const rows = await this.#connection('settle-aside').run<JobKey>(
        lockedStatement,
        keysOf(batch.map(({ attempt }) => attempt)),
      )
      if (await this.#flush(without(batch, rows), 'settle-aside')) areRefused = true
    }
    return areRefused
  }

  async #flush(batch: readonly Ending[], purpose: Purpose): Promise<boolean> {
    const groups = new Map<Statement, Ending[]>()
    for (const ending of batch) {
      const settle = statementOf(ending)
      const group = groups.get(settle)
      if (group === undefined) groups.set(settle, [ending])
      else group.push(ending)
    }
    const refusals = await Promise.all([...groups.values()].map((group) => this.#settleSurely(group, purpose)))
    return refusals.includes(true)
  }

  /** Tries until the database has answered, or a lock or its refusal is in the way: an end that is lost here would be run again. */
  async #settleSurely(group: readonly Ending[], purpose: Purpose): Promise<boolean> {
    const { signal } = this.#gaveUp
    for (let tried = 1; !signal.aborted; tried++) {
      try {
        const connection = this.#connection(purpose)
        const settled = await (group[0]!.failed === undefined ? settleDone(connection, group) : settleFailed(connection, group))
        this.#settling.succeeded()
        this.#answered(group, settled)
        return false
      } catch (error) {
        this.#settling.failed(error)
        if (isConflict(error)) {
          this.#setAside(group)
          return false
        }
        if (!isRetryable(error)) return group.length > 1 ? this.#settleEach(group, purpose) : this.#refuse(group[0]!, error)
        await sleep(engineBackoffMs(error, tried), undefined, { signal }).catch(() => undefined)
      }
    }
    return false
  }

  /** The database has them: an error from here on must not send them again, as their fences would be refused. */
  #answered(group: readonly Ending[], { refused, left }: Settled): void {
    const answered = left.length === 0 ? group : group.filter((ending) => !left.includes(ending))
    for (const ending of answered) this.#remove(ending)
    if (left.length > 0) this.#setAside(left)
    const { outcomes, onStored } = this.#options
    const stored = refused.length === 0 ? answered : answered.filter((ending) => !refused.includes(ending))
    if (stored.length > 0) this.#follow(() => outcomes.settled(stored))
    if (refused.length > 0) this.#follow(() => outcomes.refusedEnds(refused))
    this.#follow(() => onStored(answered))
  }

  #follow(act: () => void): void {
    try {
      act()
    } catch (error) {
      this.#options.process.config.logger.error({ error: describeError(error) }, 'what follows a settle failed')
    }
  }

  /** One broken row must not hold up the others of its batch. */
  async #settleEach(group: readonly Ending[], purpose: Purpose): Promise<boolean> {
    let refused = 0
    for (const [index, ending] of group.entries()) {
      if (await this.#settleSurely([ending], purpose)) refused++
      if (refused < refusedMax) continue
      this.#setAside(group.slice(index + 1))
      break
    }
    return refused > 0
  }

  #setAside(group: readonly Ending[]): void {
    const before = this.aside.size
    for (const ending of group) this.aside.add(ending)
    if (this.aside.size > before) this.#moreAside.fire()
  }

  #remove(ending: Ending): void {
    this.aside.delete(ending)
    this.#unstored.remove(ending)
  }

  #connection(purpose: Purpose): Connection {
    let connection = this.#connections.get(purpose)
    if (connection === undefined) {
      const { config, failures: watch } = this.#options.process
      connection = new Connection(config.database, purpose, { durability: this.#durability, lockTimeoutMs, watch })
      this.#connections.set(purpose, connection)
    }
    return connection
  }

  /** What PostgreSQL cannot store is said, and the job is dead with it. Anything else may be mended: the end waits. Says whether it does. */
  #refuse(ending: Ending, error: unknown): boolean {
    const { attempt } = ending
    const isNew = !this.aside.delete(ending)
    if (isNew)
      this.#options.process.config.logger.error(
        { ...attempt.named, error: describeError(error) },
        'the outcome of a job could not be stored',
      )
    if (ending.isStandIn || !isAboutValue(error)) {
      // After the others, which may be the ones that are not refused.
      this.aside.add(ending)
      if (isNew) this.#moreAside.fire()
      return true
    }
    const what = ending.failed === undefined ? 'result' : 'outcome'
    const reason = `The ${what} could not be stored: ${describeError(error, 500)}`
    this.#unstored.add({ ...failed(attempt, 'failed', undefined, reason), isStandIn: true }, this.#unstored.sinceMs(ending))
    this.#remove(ending)
    return false
  }
}

/** Trying again gives the same answer. A row without a partition is a check violation too, and that of no constraint. */
function isAboutValue(error: unknown): boolean {
  const state = sqlState(error) ?? ''
  const { constraint } = error as { constraint?: unknown }
  return state.startsWith('22') || state === '54000' || (state === '23514' && constraint !== undefined)
}

function lengthOf({ result, failed }: Ending): number {
  return (result ?? failed?.error ?? '').length
}

/** What an end weighs in its statement. */
function sizeOf({ attempt, result, failed }: Ending): number {
  return Buffer.byteLength(result ?? failed?.error ?? '') + Buffer.byteLength(attempt.unstored ?? '')
}

/** The last progress of each that no touch could store. Mostly there is none. */
function progressOf(group: readonly Ending[]): string {
  const progress = group.map(({ attempt }) => attempt.unstored)
  return progress.every((each) => each === null) ? '{}' : textsLiteral(progress)
}

/** Batches of at most `countMax` items and 16 MB, unless a single item is larger. */
export function* byBytes<Item>(items: readonly Item[], countMax: number, size: (item: Item) => number): Generator<Item[]> {
  for (let from = 0, to = 0; from < items.length; from = to) {
    for (let bytes = 0; to < items.length && to - from < countMax; to++) {
      bytes += size(items[to]!)
      if (to > from && bytes > bytesMax) break
    }
    yield items.slice(from, to)
  }
}

interface Settled {
  readonly refused: readonly Ending[]
  /** A capability's statement did not take them yet. */
  readonly left: readonly Ending[]
}

const allSettled: Settled = { refused: [], left: [] }

/** A kind may have statements of its own, with the parameters of ours. */
function statementOf({ attempt, failed }: Ending): Statement {
  const { settleWith } = attempt.definition
  if (failed === undefined) return settleWith?.done ?? settleStatement
  return (failed.delayMs === undefined ? settleWith?.dead : undefined) ?? failStatement
}

/** The parameters that only a capability's statement has. */
function ownValues(group: readonly Ending[]): Values {
  const { settleWith } = group[0]!.attempt.definition
  const isOurs = settleWith === undefined || statementOf(group[0]!) === failStatement
  return isOurs ? {} : settleWith.values(group.map(({ attempt }) => attempt))
}

async function settleDone(connection: Connection, group: readonly Ending[]): Promise<Settled> {
  const attempts = group.map(({ attempt }) => attempt)
  if (probe.on) await probe.hit('jobs.settle.before', group)
  const [row] = await connection.run<{ settled: number }>(statementOf(group[0]!), {
    ...keysOf(attempts),
    // An array that is too short is filled up with nulls: mostly there are no results and only the empty tenant.
    results: group.every((ending) => ending.result === null) ? '{}' : textsLiteral(group.map((ending) => ending.result)),
    progress: progressOf(group),
    at_least: 0,
    ...(attempts.every(({ tenant }) => tenant === '') ? { tenants: '{}' } : {}),
    ran_ms: numbersLiteral(attempts.map((attempt) => attempt.ranMs())),
    ...ownValues(group),
  })
  if (probe.on) await probe.hit('jobs.settle.after', group)
  if (row?.settled === group.length) return allSettled
  const gone = new Map((await goneOf(connection, attempts)).map(({ held, outcome }) => [held, outcome]))
  return {
    // What this very fence had settled before, by a commit without an answer, is done.
    refused: group.filter(({ attempt }) => gone.has(attempt) && gone.get(attempt) !== 'done'),
    left: group.filter(({ attempt }) => !gone.has(attempt)),
  }
}

async function settleFailed(connection: Connection, group: readonly Ending[]): Promise<Settled> {
  const attempts = group.map(({ attempt }) => attempt)
  if (probe.on) await probe.hit(group[0]!.failed!.outcome === 'released' ? 'jobs.release.before' : 'jobs.fail.before', group)
  const accepted = await connection.run<JobKey>(statementOf(group[0]!), {
    ...keysOf(attempts),
    // More than one: an incarnation was lost, and another opened, while they ran.
    holders: numbersLiteral(attempts.map(({ worker }) => worker)),
    outcomes: textsLiteral(group.map((ending) => ending.failed!.outcome)),
    delays_ms: numbersLiteral(group.map((ending) => ending.failed!.delayMs ?? null)),
    errors: textsLiteral(group.map((ending) => ending.failed!.error)),
    progress: progressOf(group),
    ran_ms: numbersLiteral(attempts.map((attempt) => (attempt.startedMs === 0 ? null : attempt.ranMs()))),
    ...ownValues(group),
  })
  if (probe.on) await probe.hit('jobs.fail.after', group)
  const missing = without(group, accepted)
  if (missing.length === 0 || statementOf(group[0]!) === failStatement) return { refused: missing, left: [] }
  const gone = new Set((await goneOf(connection, attempts)).map(({ held }) => held))
  return {
    refused: missing.filter(({ attempt }) => gone.has(attempt)),
    left: missing.filter(({ attempt }) => !gone.has(attempt)),
  }
}

function without(group: readonly Ending[], rows: readonly Pick<JobKey, 'tenant' | 'id'>[]): readonly Ending[] {
  return group.filter(({ attempt }) => !rows.some((row) => row.id === attempt.id && row.tenant === attempt.tenant))
}
