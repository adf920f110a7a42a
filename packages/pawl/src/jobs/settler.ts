// Writes the ends of attempts, in batches, each under its fence. A flush takes whatever has gathered when the last one answered, so
// batches grow by themselves under load and a lone job is never delayed. A job counts as held until its flush has answered. A row that
// somebody has locked, such as a handler that timed out inside its own transaction, is set aside: nobody waits behind it. So is an end that the
// database refuses for now, for want of a privilege for example. Each durability has a loop and connections of its own, so that a commit that
// waits for a standby holds up only commits that must.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Durability, Logger } from '../config.ts'
import { isConflict, isRetryable, sqlState } from '../db/classify.ts'
import { Connection, type DatabaseOptions, type StatementWatch } from '../db/driver.ts'
import { numbersLiteral, type Parameter, statement, textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { LoopWatch } from '../kernel/failures.ts'
import { probe } from '../kernel/probe.ts'
import { type Backoff, backoffMs, engineBackoffMs } from '../kernel/retry.ts'
import { Wakeup } from '../kernel/signal.ts'
import type { HeldJob } from './held.ts'

const settleStatement = statement(import.meta.url, 'settle')
const unsettledStatement = statement(import.meta.url, 'unsettled')
const failStatement = statement(import.meta.url, 'settle-failed')
const lockedStatement = statement(import.meta.url, 'locked')

/** How long a batch waits for a row that somebody has locked, before all of it is set aside. */
const lockTimeoutMs = 500

/** PostgreSQL takes 1 GB in one statement; this much settles within a second. */
const bytesMax = 16 * 1_048_576

/** For ends that the database refuses and may take later: whatever is missing, a person has to mend it. */
const refusedBackoff: Backoff = { initialMs: 200, factor: 2, maxMs: 10_000, jitter: true }
/** After so many refusals in one batch it is not a row that is broken, and the others of the batch are not tried one by one. */
const refusedMax = 10

/** What waits here, or was done and is not stored yet, takes about this much memory at most. */
export const waitingBytesMax = 32 * 1_048_576

type Purpose = 'settle' | 'settle-aside'

export type FailedOutcome = 'failed' | 'timed out' | 'snoozed' | 'released' | 'invalid'

export interface Ending {
  readonly held: HeldJob
  /** JSON text of the result of a job that is done. */
  readonly result: string | null
  readonly failed?: { readonly outcome: FailedOutcome; readonly delayMs: number | undefined; readonly error: string | null }
  /** Made here, in place of an end that PostgreSQL refused to store. */
  readonly isStandIn?: true
}

interface JobKey {
  readonly tenant: string
  readonly id: string
}

export interface SettlerOptions {
  readonly database: DatabaseOptions
  /** Of a kind that names none. */
  readonly durability: Durability
  readonly batchMax: number
  readonly logger: Logger
  readonly watch: StatementWatch
  readonly onSettled: (endings: readonly Ending[]) => void
  readonly onRefused: (endings: readonly Ending[]) => void
  readonly loop: (name: Purpose) => LoopWatch
}

export class Settler {
  readonly #options: SettlerOptions
  readonly #lanes = new Map<Durability, SettleLane>()
  readonly #drained = new Set<() => void>()
  #isStarted = false

  constructor(options: SettlerOptions) {
    this.#options = options
  }

  get unsettled(): number {
    let count = 0
    for (const lane of this.#lanes.values()) count += lane.unsettled
    return count
  }

  /** Those of them that are about to be stored: not the locked and the refused ones, which may wait for long. */
  get pending(): number {
    let count = 0
    for (const lane of this.#lanes.values()) count += lane.pending
    return count
  }

  /** What the results and errors of all of them take in memory, about. */
  get bytes(): number {
    let bytes = 0
    for (const lane of this.#lanes.values()) bytes += lane.bytes
    return bytes
  }

  /** How long the oldest of them has waited; 0: there is none. */
  oldestMs(nowMs: number): number {
    let oldestMs = 0
    for (const lane of this.#lanes.values()) oldestMs = Math.max(oldestMs, lane.oldestMs(nowMs))
    return oldestMs
  }

  /** Nothing is claimed or started until some of it is stored. */
  get isFull(): boolean {
    return this.bytes >= waitingBytesMax
  }

  heldJobs(): HeldJob[] {
    return [...this.#lanes.values()].flatMap((lane) => lane.heldJobs())
  }

  start(): void {
    this.#isStarted = true
    for (const lane of this.#lanes.values()) lane.start()
  }

  add(ending: Ending): void {
    const durability = ending.held.definition.durability ?? this.#options.durability
    let lane = this.#lanes.get(durability)
    if (lane === undefined) {
      lane = new SettleLane(this.#options, durability, () => this.#tellDrained())
      this.#lanes.set(durability, lane)
      if (this.#isStarted) lane.start()
    }
    lane.add(ending)
  }

  /** Resolves when everything added so far has been answered, or the signal aborts. */
  async drained(signal?: AbortSignal): Promise<void> {
    if (this.unsettled === 0 || signal?.aborted) return
    await new Promise<void>((resolve) => {
      const done = () => {
        this.#drained.delete(done)
        signal?.removeEventListener('abort', done)
        resolve()
      }
      this.#drained.add(done)
      signal?.addEventListener('abort', done)
    })
  }

  /** Tries no more. What is not stored by now belongs to whoever takes over from this worker. */
  async stop(): Promise<void> {
    await Promise.all([...this.#lanes.values()].map((lane) => lane.stop()))
  }

  #tellDrained(): void {
    if (this.unsettled > 0) return
    for (const resolve of [...this.#drained]) resolve()
  }
}

/** The ends of one durability. */
class SettleLane {
  readonly #options: SettlerOptions
  readonly #durability: Durability
  readonly #onEmpty: () => void
  readonly #settling: LoopWatch
  readonly #connections = new Map<Purpose, Connection>()
  #waiting: Ending[] = []
  readonly #inFlight = new Set<Ending>()
  /** Locked, or refused for now. Each is tried until it is stored, or its fence is refused: given back it would run again and again. */
  readonly #aside = new Set<Ending>()
  #bytes = 0
  readonly #gaveUp = new AbortController()
  readonly #more = new Wakeup()
  readonly #moreAside = new Wakeup()
  #running: Promise<unknown> | undefined

  constructor(options: SettlerOptions, durability: Durability, onEmpty: () => void) {
    this.#options = options
    this.#durability = durability
    this.#onEmpty = onEmpty
    this.#settling = options.loop('settle')
  }

  get unsettled(): number {
    return this.pending + this.#aside.size
  }

  get pending(): number {
    return this.#waiting.length + this.#inFlight.size
  }

  get bytes(): number {
    return this.#bytes
  }

  heldJobs(): HeldJob[] {
    return [...this.#waiting, ...this.#inFlight, ...this.#aside].map((ending) => ending.held)
  }

  /** Batches are taken in order, so the first of each is the oldest. */
  oldestMs(nowMs: number): number {
    const [inFlight] = this.#inFlight
    const first = [this.#waiting[0], inFlight, ...this.#aside]
    return Math.max(0, ...first.map((ending) => (ending === undefined ? 0 : nowMs - ending.held.endedMs + 1)))
  }

  start(): void {
    this.#running ??= Promise.all([this.#loop(), this.#loopAside()])
  }

  add(ending: Ending): void {
    ending.held.endedMs ||= monotonicMs()
    this.#bytes += lengthOf(ending)
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
        this.#onEmpty()
        await this.#more.wait()
        continue
      }
      const [batch] = byBytes(this.#waiting, this.#options.batchMax, sizeOf)
      this.#waiting.splice(0, batch!.length)
      for (const ending of batch!) this.#inFlight.add(ending)
      await this.#flush(batch!, 'settle')
    }
  }

  /** What was set aside is asked for again and again, less often each time. A newcomer is looked at once: most of its batch is free. */
  async #loopAside(): Promise<void> {
    const loop = this.#options.loop('settle-aside')
    for (let tried = 0; !this.#gaveUp.signal.aborted; ) {
      const before = this.#aside.size
      let trouble: unknown
      let areRefused = false
      try {
        areRefused = await this.#flushAside()
        loop.succeeded()
      } catch (error) {
        trouble = error
        loop.failed(error)
      }
      this.#onEmpty()
      tried = this.#aside.size < before ? 0 : tried + 1
      const waitMs = areRefused ? backoffMs(refusedBackoff, tried) : engineBackoffMs(trouble, tried)
      await this.#moreAside.wait(this.#aside.size === 0 ? undefined : waitMs)
    }
  }

  /** Says whether the database refused any. */
  async #flushAside(): Promise<boolean> {
    let areRefused = false
    for (const batch of byBytes([...this.#aside], this.#options.batchMax, sizeOf)) {
      if (this.#gaveUp.signal.aborted) break
      const rows = await this.#connection('settle-aside').run<JobKey>(lockedStatement, identity(batch))
      if (await this.#flush(without(batch, rows), 'settle-aside')) areRefused = true
    }
    return areRefused
  }

  async #flush(batch: readonly Ending[], purpose: Purpose): Promise<boolean> {
    const groups = new Map<string, Ending[]>()
    for (const ending of batch) {
      const key = ending.failed ? 'failed' : 'done'
      const group = groups.get(key)
      if (group === undefined) groups.set(key, [ending])
      else group.push(ending)
    }
    const refusals = await Promise.all([...groups.values()].map((group) => this.#settleSurely(group, purpose)))
    return refusals.includes(true)
  }

  /** Tries until the database has answered, or somebody's lock or its refusal is in the way: an end that is lost here would be run again. */
  async #settleSurely(group: readonly Ending[], purpose: Purpose): Promise<boolean> {
    const { signal } = this.#gaveUp
    for (let tried = 1; !signal.aborted; tried++) {
      try {
        const connection = this.#connection(purpose)
        const refused = await (group[0]!.failed === undefined ? settleDone(connection, group) : settleFailed(connection, group))
        for (const ending of group) this.#remove(ending)
        if (refused.length < group.length)
          this.#options.onSettled(refused.length === 0 ? group : group.filter((ending) => !refused.includes(ending)))
        if (refused.length > 0) this.#options.onRefused(refused)
        this.#settling.succeeded()
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
    const before = this.#aside.size
    for (const ending of group) {
      this.#inFlight.delete(ending)
      this.#aside.add(ending)
    }
    if (this.#aside.size > before) this.#moreAside.fire()
  }

  #remove(ending: Ending): void {
    this.#inFlight.delete(ending)
    this.#aside.delete(ending)
    this.#bytes -= lengthOf(ending)
  }

  #connection(purpose: Purpose): Connection {
    let connection = this.#connections.get(purpose)
    if (connection === undefined) {
      const { database, watch } = this.#options
      connection = new Connection(database, purpose, { durability: this.#durability, lockTimeoutMs, watch })
      this.#connections.set(purpose, connection)
    }
    return connection
  }

  /** What PostgreSQL cannot store is said, and the job is dead with it. Anything else may be mended: the end waits. Says whether it does. */
  #refuse(ending: Ending, error: unknown): boolean {
    const { held } = ending
    this.#inFlight.delete(ending)
    const isNew = !this.#aside.delete(ending)
    if (isNew)
      this.#options.logger.error(
        { job: held.id, kind: held.kind, error: describeError(error) },
        'the outcome of a job could not be stored',
      )
    if (ending.isStandIn || !isAboutValue(error)) {
      // Behind the others, which may be the ones that are not refused.
      this.#aside.add(ending)
      if (isNew) this.#moreAside.fire()
      return true
    }
    const what = ending.failed === undefined ? 'result' : 'outcome'
    this.#bytes -= lengthOf(ending)
    this.add({
      held,
      result: null,
      failed: { outcome: 'failed', delayMs: undefined, error: `The ${what} could not be stored: ${describeError(error, 500)}` },
      isStandIn: true,
    })
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
function sizeOf({ held, result, failed }: Ending): number {
  return Buffer.byteLength(result ?? failed?.error ?? '') + Buffer.byteLength(held.unstored() ?? '')
}

/** The last progress of each that no touch could store. Mostly there is none. */
function progressOf(group: readonly Ending[]): string {
  const progress = group.map(({ held }) => held.unstored())
  return progress.every((each) => each === null) ? '{}' : textsLiteral(progress)
}

/** Batches of at most so many, and of so much text unless a single one is longer. */
export function* byBytes<Item>(items: readonly Item[], countMax: number, size: (item: Item) => number): Generator<Item[]> {
  for (let from = 0, to = 0; from < items.length; from = to) {
    for (let bytes = 0; to < items.length && to - from < countMax; to++) {
      bytes += size(items[to]!)
      if (to > from && bytes > bytesMax) break
    }
    yield items.slice(from, to)
  }
}

async function settleDone(connection: Connection, group: readonly Ending[]): Promise<readonly Ending[]> {
  if (probe.on) await probe.hit('jobs.settle.before', group)
  const [row] = await connection.run<{ settled: number }>(settleStatement, {
    ...identity(group),
    // An array that is too short is filled up with nulls: mostly there are no results and only the empty tenant.
    results: group.every((ending) => ending.result === null) ? '{}' : textsLiteral(group.map((ending) => ending.result)),
    progress: progressOf(group),
    at_least: 0,
    ...(group.every((ending) => ending.held.tenant === '') ? { tenants: '{}' } : {}),
    ran_ms: numbersLiteral(group.map((ending) => ending.held.ranMs())),
  })
  if (probe.on) await probe.hit('jobs.settle.after', group)
  if (row?.settled === group.length) return []
  const refused = await connection.run<JobKey>(unsettledStatement, identity(group))
  return group.filter((ending) => refused.some((row) => row.id === ending.held.id && row.tenant === ending.held.tenant))
}

async function settleFailed(connection: Connection, group: readonly Ending[]): Promise<readonly Ending[]> {
  if (probe.on) await probe.hit(group[0]!.failed!.outcome === 'released' ? 'jobs.release.before' : 'jobs.fail.before', group)
  const accepted = await connection.run<JobKey>(failStatement, {
    ...identity(group),
    // More than one: an incarnation was lost, and another opened, while they ran.
    holders: numbersLiteral(group.map((ending) => ending.held.worker)),
    outcomes: textsLiteral(group.map((ending) => ending.failed!.outcome)),
    delays_ms: numbersLiteral(group.map((ending) => ending.failed!.delayMs ?? null)),
    errors: textsLiteral(group.map((ending) => ending.failed!.error)),
    progress: progressOf(group),
    ran_ms: numbersLiteral(group.map((ending) => (ending.held.startedMs === 0 ? null : ending.held.ranMs()))),
  })
  if (probe.on) await probe.hit('jobs.fail.after', group)
  return without(group, accepted)
}

function without(group: readonly Ending[], rows: readonly JobKey[]): readonly Ending[] {
  return group.filter((ending) => !rows.some((row) => row.id === ending.held.id && row.tenant === ending.held.tenant))
}

function identity(group: readonly Ending[]): Record<'tenants' | 'ids' | 'fences', Parameter> {
  return {
    tenants: textsLiteral(group.map((ending) => ending.held.tenant)),
    ids: numbersLiteral(group.map((ending) => ending.held.id)),
    fences: numbersLiteral(group.map((ending) => ending.held.fence)),
  }
}
