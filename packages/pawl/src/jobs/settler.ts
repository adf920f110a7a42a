// Writes the ends of attempts, in batches, each under its fence. A flush takes whatever has gathered when the last one answered, so
// batches grow by themselves under load and a lone job is never delayed. A job counts as held until its flush has answered. A row that
// somebody has locked, such as a handler that timed out inside its own transaction, is set aside: nobody waits behind it.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Durability, Logger } from '../config.ts'
import { classify, isConflict, isRetryable } from '../db/classify.ts'
import { Connection, type DatabaseOptions } from '../db/driver.ts'
import { numbersLiteral, type Parameter, statement, textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { Wakeup } from '../kernel/signal.ts'
import type { HeldJob } from './held.ts'

const settleStatement = statement(import.meta.url, 'settle')
const unsettledStatement = statement(import.meta.url, 'unsettled')
const failStatement = statement(import.meta.url, 'settle-failed')
const lockedStatement = statement(import.meta.url, 'locked')

/** How long a batch waits for a row that somebody has locked, before all of it is set aside. */
const lockTimeoutMs = 500

type Lane = 'settle' | 'settle-aside'

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
  readonly onSettled: (endings: readonly Ending[]) => void
  readonly onRefused: (endings: readonly Ending[]) => void
  readonly onTrouble: (error: unknown) => void
}

export class Settler {
  readonly #options: SettlerOptions
  readonly #connections = new Map<string, Connection>()
  #waiting: Ending[] = []
  #inFlight: readonly Ending[] = []
  readonly #aside = new Set<Ending>()
  /** Nothing could be stored of their ends. They are held until their time limit; given back they would run again and again. */
  readonly #unstorable = new Set<string>()
  readonly #gaveUp = new AbortController()
  readonly #more = new Wakeup()
  readonly #moreAside = new Wakeup()
  readonly #drained = new Set<() => void>()
  #running: Promise<unknown> | undefined

  constructor(options: SettlerOptions) {
    this.#options = options
  }

  get unsettled(): number {
    return this.#waiting.length + this.#inFlight.length + this.#aside.size
  }

  ids(): string[] {
    return [...[...this.#waiting, ...this.#inFlight, ...this.#aside].map((ending) => ending.held.id), ...this.#unstorable]
  }

  start(): void {
    this.#running ??= Promise.all([this.#loop(), this.#loopAside()])
  }

  add(ending: Ending): void {
    this.#waiting.push(ending)
    this.#more.fire()
  }

  /** Resolves when everything added so far has been answered, or the signal aborts. */
  async drained(signal?: AbortSignal): Promise<void> {
    if (this.unsettled === 0 || signal?.aborted) return
    await new Promise<void>((resolve) => {
      this.#drained.add(resolve)
      signal?.addEventListener('abort', () => resolve(), { once: true })
    })
  }

  /** Tries no more. What is not stored by now belongs to whoever takes over from this worker. */
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
        this.#tellDrained()
        await this.#more.wait()
        continue
      }
      const batch = this.#waiting.splice(0, this.#options.batchMax)
      this.#inFlight = batch
      await this.#flush(batch, 'settle')
      this.#inFlight = []
    }
  }

  /** What was set aside is asked for again and again, less often each time. A newcomer is looked at once: most of its batch is free. */
  async #loopAside(): Promise<void> {
    for (let tried = 0; !this.#gaveUp.signal.aborted; ) {
      const before = this.#aside.size
      let trouble: unknown
      try {
        await this.#flushAside()
      } catch (error) {
        trouble = error
        this.#options.onTrouble(error)
      }
      this.#tellDrained()
      tried = this.#aside.size < before ? 0 : tried + 1
      await this.#moreAside.wait(this.#aside.size === 0 ? undefined : engineBackoffMs(trouble, tried))
    }
  }

  async #flushAside(): Promise<void> {
    const { batchMax, durability } = this.#options
    const all = [...this.#aside]
    for (let from = 0; from < all.length && !this.#gaveUp.signal.aborted; from += batchMax) {
      const batch = all.slice(from, from + batchMax)
      const rows = await this.#connection(durability, 'settle-aside').run<JobKey>(lockedStatement, identity(batch))
      await this.#flush(without(batch, rows), 'settle-aside')
    }
  }

  #tellDrained(): void {
    if (this.unsettled > 0) return
    for (const resolve of this.#drained) resolve()
    this.#drained.clear()
  }

  async #flush(batch: readonly Ending[], lane: Lane): Promise<void> {
    const groups = new Map<string, Ending[]>()
    for (const ending of batch) {
      const { durability, settleEach } = ending.held.definition
      const key = settleEach ? `${ending.held.id}` : `${ending.failed ? 'failed' : 'done'} ${durability}`
      const group = groups.get(key)
      if (group === undefined) groups.set(key, [ending])
      else group.push(ending)
    }
    await Promise.all([...groups.values()].map((group) => this.#settleSurely(group, lane)))
  }

  /** Tries until the database has answered, or somebody's lock is in the way: an ending that is lost here would be run again. */
  async #settleSurely(group: readonly Ending[], lane: Lane): Promise<void> {
    const { signal } = this.#gaveUp
    for (let tried = 1; !signal.aborted; tried++) {
      try {
        const refused = await this.#settle(group, lane)
        if (lane === 'settle-aside') for (const ending of group) this.#aside.delete(ending)
        if (refused.length < group.length)
          this.#options.onSettled(refused.length === 0 ? group : group.filter((ending) => !refused.includes(ending)))
        if (refused.length > 0) this.#options.onRefused(refused)
        return
      } catch (error) {
        this.#options.onTrouble(error)
        if (isConflict(error)) return this.#setAside(group)
        // One broken row must not hold up the others of its batch.
        if (group.length > 1 && !isRetryable(error)) {
          for (const ending of group) await this.#settleSurely([ending], lane)
          return
        }
        if (!isRetryable(error)) return this.#giveUp(group[0]!, error)
        await sleep(engineBackoffMs(error, tried), undefined, { signal }).catch(() => undefined)
      }
    }
  }

  #setAside(group: readonly Ending[]): void {
    const before = this.#aside.size
    for (const ending of group) this.#aside.add(ending)
    if (this.#aside.size > before) this.#moreAside.fire()
  }

  /** Gives the refused ones. */
  async #settle(group: readonly Ending[], lane: Lane): Promise<readonly Ending[]> {
    const connection = this.#connection(group[0]!.held.definition.durability ?? this.#options.durability, lane)
    return group[0]!.failed === undefined ? settleDone(connection, group) : settleFailed(connection, group)
  }

  #connection(durability: Durability, lane: Lane): Connection {
    const key = `${lane} ${durability}`
    let connection = this.#connections.get(key)
    if (connection === undefined) {
      connection = new Connection(this.#options.database, lane, { durability, lockTimeoutMs })
      this.#connections.set(key, connection)
    }
    return connection
  }

  /** The statement itself was refused: a bug, or something that PostgreSQL cannot store. It is said, and the job is dead with it. */
  #giveUp(ending: Ending, error: unknown): void {
    const { held } = ending
    this.#aside.delete(ending)
    this.#options.logger.error(
      { job: held.id, kind: held.kind, error: describeError(error) },
      'the end of a job could not be stored',
    )
    if (ending.isStandIn || classify(error) !== 'permanent') {
      this.#unstorable.add(held.id)
      return
    }
    const what = ending.failed === undefined ? 'result' : 'end'
    this.add({
      held,
      result: null,
      failed: { outcome: 'failed', delayMs: undefined, error: `Its ${what} could not be stored: ${describeError(error, 500)}` },
      isStandIn: true,
    })
  }
}

async function settleDone(connection: Connection, group: readonly Ending[]): Promise<readonly Ending[]> {
  if (probe.on) await probe.hit('jobs.settle.before', group)
  const [row] = await connection.run<{ settled: number }>(settleStatement, {
    ...identity(group),
    // An array that is too short is filled up with nulls: mostly there are no results and only the empty tenant.
    results: group.every((ending) => ending.result === null) ? '{}' : textsLiteral(group.map((ending) => ending.result)),
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
    worker: group[0]!.held.worker,
    outcomes: textsLiteral(group.map((ending) => ending.failed!.outcome)),
    delays_ms: numbersLiteral(group.map((ending) => ending.failed!.delayMs ?? null)),
    errors: textsLiteral(group.map((ending) => ending.failed!.error)),
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
