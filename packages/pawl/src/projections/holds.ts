// The cursors that this process holds. At each poll, and when a worker came or went, it takes its share of each projection's free shards, and gives back
// what exceeds its share. A cursor that is lost is dropped; its loop has no way to write any more.

import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { describeError, isPawlError, PawlError } from '../errors.ts'
import type { FreshEvents } from '../events/read-log.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { type Holder, leaseStatements } from '../kernel/lease.ts'
import { probe } from '../kernel/probe.ts'
import { Service } from '../kernel/service.ts'
import { type AcquiredRow, cursorStatements, HeldCursor } from './cursor.ts'
import { type Defined, idOf, kindOf } from './definition.ts'
import { registerForgotten } from './generations/register.ts'
import { LogLoop } from './log-loop.ts'
import type { Host } from './part.ts'
import { SinkLoop } from './sinks/sink-loop.ts'

const surveyStatement = statement(import.meta.url, 'survey')
const markStaleStatement = statement(import.meta.url, 'mark-stale')
const choresEveryMs = 10_000

/** The work of one held cursor. */
export interface CursorLoop {
  readonly cursor: HeldCursor
  run(): Promise<void>
  /** There may be something to do; `fresh`: it may be this. */
  wake(fresh?: FreshEvents): void
  /** The cursor's row may have changed. */
  changed(): void
  stop(): void
}

interface Hold {
  readonly loop: CursorLoop
  readonly ended: Promise<void>
}

interface SurveyRow {
  readonly definition: number
  readonly shards: number
  readonly mine: number
  readonly free: number
  readonly peers: number
}

export class Holds {
  readonly #definitions: readonly Defined[]
  readonly #host: Host
  readonly #holds = new Set<Hold>()
  readonly #polls: Service
  readonly #stop = new AbortController()
  #running: Promise<void> | undefined
  #choresMs = 0
  #confirmedFor: number | undefined

  constructor(definitions: readonly Defined[], host: Host) {
    this.#definitions = definitions
    this.#host = host
    this.#polls = new Service({ round: () => this.#poll(), signal: this.#stop.signal, loop: host.loop('cursors') })
  }

  list(): { name: string; generation: number; shard: number; fence: string }[] {
    return [...this.#holds].map(({ loop: { cursor } }) => ({
      name: cursor.definition.name,
      generation: cursor.definition.generation,
      shard: cursor.shard,
      fence: cursor.fence,
    }))
  }

  /** The log has grown. */
  wake(fresh?: FreshEvents): void {
    for (const { loop } of this.#holds) loop.wake(fresh)
  }

  /** A person may have put one elsewhere, or let it go on. */
  changed(): void {
    for (const { loop } of this.#holds) loop.changed()
    this.#polls.wake()
  }

  /** Something may be free. */
  look(): void {
    this.#polls.wake()
  }

  run(): Promise<void> {
    this.#running = this.#polls.run()
    return this.#running
  }

  /** Takes no more, and each loop ends when its handler has. */
  close(): void {
    this.#stop.abort()
    for (const { loop } of this.#holds) loop.stop()
  }

  /** Resolves when every cursor was given back. */
  async ended(): Promise<void> {
    await this.#running
    await Promise.all([...this.#holds].map(({ ended }) => ended))
  }

  /** Aborts the handlers that still run. Their transactions roll back, and their cursors are given back. */
  abort(reason: PawlError): void {
    for (const { loop } of this.#holds) loop.cursor.lose(reason)
  }

  /** The incarnation's lease is gone, and with it everything that it held. */
  lose(worker: number): void {
    for (const { loop } of this.#holds) {
      if (loop.cursor.worker !== worker) continue
      const reason = new PawlError(
        'PAWL_LEASE_LOST',
        `The lease of worker ${worker} has ended, so it no longer holds ${loop.cursor}.`,
      )
      loop.cursor.lose(reason)
    }
    this.#polls.wake()
  }

  async #poll(): Promise<number> {
    const { holder, pollMs } = this.#host
    if (holder !== undefined) await this.#pollFor(holder)
    return pollMs
  }

  async #pollFor(worker: Holder): Promise<void> {
    const definitions = this.#definitions
    const { claims, config, engine } = this.#host
    // What was forgotten before this incarnation was opened is created again.
    if (this.#confirmedFor !== worker.id) await registerForgotten(engine, config.database, definitions)
    this.#confirmedFor = worker.id
    const rows = await claims.run<SurveyRow>(surveyStatement, {
      worker: worker.id,
      fences: this.#fences(),
      tenants: textsLiteral(definitions.map(({ tenant }) => tenant)),
      names: textsLiteral(definitions.map(({ name }) => name)),
      generations: numbersLiteral(definitions.map(({ generation }) => generation)),
      kinds: textsLiteral(definitions.map(kindOf)),
    })
    for (const row of rows) {
      const definition = definitions[row.definition - 1]!
      const share = Math.ceil(row.shards / Math.max(1, row.peers))
      if (row.free > 0 && row.mine < share) await this.#acquire(definition, worker, Math.min(row.free, share - row.mine))
      else if (row.mine > share) this.#giveBack(definition, row.mine - share)
      else if (row.free > 0) await this.#releaseStrays(definition, worker)
    }
    if (monotonicMs() - this.#choresMs < choresEveryMs) return
    this.#choresMs = monotonicMs()
    await claims.run(markStaleStatement, {})
  }

  #fences(): string {
    return numbersLiteral([...this.#holds].map(({ loop }) => loop.cursor.fence))
  }

  async #acquire(definition: Defined, worker: Holder, limit: number): Promise<void> {
    const { name, generation } = definition
    const rows = await this.#host.claims.run<AcquiredRow>(cursorStatements.acquire, {
      ...idOf(definition),
      worker: worker.id,
      nonce: worker.nonce,
      limit,
      fences: this.#fences(),
    })
    for (const row of rows) {
      const cursor = new HeldCursor(definition, worker.id, row)
      if (probe.on) await probe.hit('projections.acquired', cursor)
      this.#host.events.emit('cursor.acquired', { name, generation, shard: row.shard, fence: row.fence, crashes: row.crashes })
      this.#hold(cursor)
    }
  }

  /** What is free and more than our share is for others; to them it is not free while it has our name on it. */
  async #releaseStrays(definition: Defined, { id, nonce }: Holder): Promise<void> {
    const values = { ...idOf(definition), worker: id, nonce, fences: this.#fences() }
    await this.#host.claims.run(cursorStatements.releaseStrays, values)
  }

  #hold(cursor: HeldCursor): void {
    const host = this.#host
    const { definition } = cursor
    const loop = definition.kind === 'sink' ? new SinkLoop(cursor, definition, host) : new LogLoop(cursor, definition, host)
    const hold: Hold = { loop, ended: Promise.resolve().then(() => this.#runLoop(hold)) }
    this.#holds.add(hold)
    host.cursors = this.#holds.size
    if (this.#stop.signal.aborted) loop.stop()
  }

  /** Each is given back when its loop has ended. */
  #giveBack(definition: Defined, count: number): void {
    const mine = [...this.#holds].filter(({ loop }) => loop.cursor.definition === definition)
    for (const { loop } of mine.slice(0, count)) loop.stop()
  }

  async #runLoop(hold: Hold): Promise<void> {
    const { cursor } = hold.loop
    try {
      await hold.loop.run()
      await this.#release(cursor)
    } catch (error) {
      await this.#ended(cursor, error)
    } finally {
      this.#holds.delete(hold)
      this.#host.cursors = this.#holds.size
    }
  }

  async #release(cursor: HeldCursor): Promise<void> {
    if (probe.on) await probe.hit('projections.release.before', cursor)
    // A process that stops claims nothing and has no next poll; its handler's transaction may still be rolling back.
    const waits = this.#stop.signal.aborted
    await this.#host.claims.run(cursorStatements.release, { ...cursor.fencedKey, waits })
  }

  async #ended(cursor: HeldCursor, error: unknown): Promise<void> {
    const host = this.#host
    const { name, generation } = cursor.definition
    // The grace of a stop is over and nothing of its handler is left. The fence is still ours, so the cursor is given to others.
    if (isPawlError(error, 'PAWL_STOPPED')) return this.#release(cursor).catch((reason: unknown) => host.trouble(reason))
    if (!isPawlError(error, 'PAWL_LEASE_LOST')) {
      // Its fence is forgotten with the hold, so the next poll takes the cursor again, or leaves it to another process.
      host.config.logger.error({ name, generation, error: describeError(error) }, 'a cursor loop failed; restarting it')
      return
    }
    host.events.emit('cursor.lost', { name, generation, shard: cursor.shard, fence: cursor.fence })
    // The row was looked at, and had another fence: a write was refused. When only the lease ended, none was.
    if (error.details.fence !== undefined) await this.#keepEvidence(cursor, error)
  }

  /** A write under an old fence was refused: kept, outside the transaction that rolled back. */
  async #keepEvidence(cursor: HeldCursor, error: PawlError): Promise<void> {
    const host = this.#host
    const { tenant, name, generation } = cursor.definition
    host.events.emit('cursor.refused', { name, generation, shard: cursor.shard, fence: cursor.fence, what: 'move' })
    await host.claims
      .run(leaseStatements.refuse, {
        what: 'cursor',
        holder: cursor.worker,
        detail: error.message,
        tenants: textsLiteral([tenant]),
        subjects: textsLiteral([`${cursor}`]),
        fences: numbersLiteral([cursor.fence]),
      })
      .catch((reason: unknown) => host.trouble(reason))
  }
}
