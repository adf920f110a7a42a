// Finds the end of batches: after each flush that settled items, in each watch, and when a job of a batch is dead. Counts are never kept: the first
// item without an outcome says that a batch goes on, and a cursor in the database that only moves forward makes the search cheap.

import { setTimeout as sleep } from 'node:timers/promises'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import type { SettleWith } from '../jobs/kinds.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { insideTx } from '../kernel/handler.ts'
import { probe } from '../kernel/probe.ts'
import { retrying } from '../kernel/retry.ts'
import type { Registry } from './definition.ts'

const stateStatement = statement(import.meta.url, 'state')
const inspectStatement = statement(import.meta.url, 'inspect')
const moveStatement = statement(import.meta.url, 'move-cursor')
const failLostStatement = statement(import.meta.url, 'fail-lost')
const endStatement = statement(import.meta.url, 'end-batch')
const blockersStatement = statement(import.meta.url, 'blockers')
const openStatement = statement(import.meta.url, 'open-batches')
const clearStatement = statement(import.meta.url, 'clear-items')
const reviveStatement = statement(import.meta.url, 'revive-end')

/** A watch runs at least this often. */
const watchMs = 15_000
/** An end that found its lock taken is tried again after this long; the watch goes on after `triesMax`. */
const busyMs = 300
const triesMax = 10
/** The cursor of a batch is moved by at least this many items. */
const cursorItems = 100
/** A process polls this often for overdue batches while batches that it defines are open. */
export const pollMs = 1000
/** An alert names what keeps a batch from ending this long after its deadline. */
const blockedMs = 60_000

export interface ItemPayload {
  readonly batch: string
  readonly n: number
  readonly fence: string
  readonly key: string
  readonly data: unknown
}

export interface BatchRef {
  readonly tenant: string
  readonly batch: string
  readonly fence: string
}

interface OpenBatch extends BatchRef {
  readonly is_running: boolean
  /** Its deadline has passed; or it has ended, and the job of its end is dead or gone. */
  readonly is_due: boolean
}

interface Inspected {
  readonly state: string
  readonly left_ms: string
  /** The first item without an outcome. */
  readonly waiting: number | null
  /** Items up to here have ended; what the cursor says. */
  readonly ended: number
  readonly upto: number
  readonly is_step_lost: boolean
  readonly step: 'prepare' | 'boundary' | 'feed'
  readonly step_job: string | null
  readonly last_error: string | null
}

export class Finisher {
  /** The numbers of items that run here, by batch. An attempt that hangs after its time-out counts only until the next of its item has ended. */
  readonly #running = new Map<string, Set<number>>()
  /** Batches, and names of them, that are being inspected; true: once more after that. */
  readonly #inspecting = new Map<string, boolean>()
  /** When these batches were read, and how long they had left: 0 where nothing may start. */
  readonly #left = new Map<string, { readonly readMs: number; readonly leftMs: Promise<number> }>()
  #isPolling = false

  /** How items settle. `registry` is read when they do. */
  settleWith(registry: () => Registry): SettleWith {
    return {
      done: statement(import.meta.url, 'settle-items'),
      dead: statement(import.meta.url, 'settle-dead-items'),
      complete: statement(import.meta.url, 'complete-item'),
      guard: statement(import.meta.url, 'guard-item'),
      values: (attempts) => {
        const items = attempts.map(({ payload }) => (payload ?? {}) as Partial<ItemPayload>)
        return {
          batches: numbersLiteral(items.map(({ batch }) => batch ?? null)),
          numbers: numbersLiteral(items.map(({ n }) => n ?? null)),
          batch_fences: numbersLiteral(items.map(({ fence }) => fence ?? null)),
        }
      },
      about: (payload) => {
        const { batch, n, key } = (payload ?? {}) as Partial<ItemPayload>
        return { batch, n, key }
      },
      settled: (attempts) => {
        const refs = new Map<string, BatchRef>()
        for (const { tenant, payload } of attempts) {
          const { batch, fence } = (payload ?? {}) as Partial<ItemPayload>
          if (batch !== undefined && fence !== undefined) refs.set(batch, { tenant, batch, fence })
        }
        return Promise.all([...refs.values()].map((ref) => this.#settled(registry(), ref)))
      },
    }
  }

  /** While handlers of a batch run here, none of its settles can be the last one, and the last handler's settle inspects it. Returns what ends it. */
  running(registry: Registry, ref: BatchRef, n: number): () => void {
    this.poll(registry)
    const key = keyOf(ref)
    const running = this.#running.get(key) ?? new Set()
    this.#running.set(key, running.add(n))
    return () => {
      running.delete(n)
      if (running.size === 0 && this.#running.get(key) === running) this.#running.delete(key)
    }
  }

  /**
   * Whether a step or an item may start: its batch runs and is not overdue, which is read once a second. One read per item would take more than
   * settling it. A worker that comes up after the deadline starts nothing, and its poll ends the batch.
   */
  async mayStart(registry: Registry, ref: BatchRef): Promise<boolean> {
    this.poll(registry)
    const key = keyOf(ref)
    const nowMs = monotonicMs()
    let known = this.#left.get(key)
    if (known === undefined || nowMs - known.readMs >= pollMs) {
      known = { readMs: nowMs, leftMs: this.#leftMs(registry, ref) }
      this.#left.set(key, known)
    }
    return (await known.leftMs) > monotonicMs() - known.readMs
  }

  #leftMs({ pool, logger }: Registry, { tenant, batch: id }: BatchRef): Promise<number> {
    // In no handler's transaction: others of this process wait for the answer too.
    return insideTx.exit(() =>
      retrying(() => pool.run<{ state: string; left_ms: string | null }>(stateStatement, { tenant, id })).then(
        ([row]) => (row?.state === 'running' ? Number(row.left_ms) : 0),
        (error: unknown) => {
          logger.debug({ batch: id, error: describeError(error) }, 'the deadline of a batch could not be read; its items wait')
          return 0
        },
      ),
    )
  }

  /** Errors are left to the watch. */
  async #settled(registry: Registry, ref: BatchRef): Promise<void> {
    const key = keyOf(ref)
    if (this.#running.has(key)) return
    const inspected = this.#oneAtATime(key, async () => {
      if (probe.on) await probe.hit('batches.settled', ref)
      for (let tried = 1; (await this.#inspect(registry, ref, 'finished')) === 'busy' && tried < triesMax; tried++)
        await sleep(busyMs, undefined, { ref: false })
    })
    await inspected.catch((error: unknown) => {
      if (!registry.pool.isEnded)
        registry.logger.debug({ batch: ref.batch, error: describeError(error) }, 'the end of a batch is left to its watch')
    })
  }

  /** Polls for due batches until none is open. A watch is a job and needs a slot, and items that hang may occupy every slot. */
  poll(registry: Registry): void {
    if (!this.#isPolling) void this.#pollWhileOpen(registry)
  }

  async #pollWhileOpen(registry: Registry): Promise<void> {
    this.#isPolling = true
    for (let isOpen = true; isOpen; ) {
      await sleep(pollMs, undefined, { ref: false })
      if (registry.pool.isEnded) break
      this.#left.clear()
      isOpen = await this.#tendOpen(registry).catch((error: unknown) => {
        registry.logger.debug({ error: describeError(error) }, 'a poll for overdue batches failed')
        return true
      })
    }
    this.#isPolling = false
  }

  /** False: no batch that this process defines is open. */
  async #tendOpen(registry: Registry): Promise<boolean> {
    const names = textsLiteral([...registry.batches.keys()])
    const rows = await registry.pool.run<OpenBatch>(openStatement, { names })
    for (const { is_running, is_due, ...ref } of rows) {
      const isHere = this.#running.has(keyOf(ref))
      if (is_running && is_due) await this.tend(registry, ref)
      // For its cursor: what ended since the last inspection, an end has to read.
      else if (is_running && isHere) await this.#inspect(registry, ref, 'finished')
      if (is_running) continue
      if (is_due) await registry.pool.run(reviveStatement, { tenant: ref.tenant, id: ref.batch })
      if (isHere) await this.#abortItems(registry, ref)
    }
    return rows.length > 0
  }

  /** Cancels the jobs of an ended batch. The job of its end does the same, but may wait for a slot that these items occupy. */
  async #abortItems({ pool }: Registry, { tenant, batch: id }: BatchRef): Promise<void> {
    for (let after: number | null = 0; after !== null; ) {
      const [row]: { last: number | null }[] = await pool.run(clearStatement, { tenant, id, after, step: null })
      after = row!.last
    }
  }

  /** One round of a watch. Returns the milliseconds until the next; undefined: the batch has ended. */
  async tend(registry: Registry, ref: BatchRef): Promise<number | undefined> {
    this.poll(registry)
    const { tenant, batch: id, fence } = ref
    await retrying(() => registry.pool.run(failLostStatement, { tenant, id, fence }))
    if (probe.on) await probe.hit('batches.watch.lost', ref)
    const found = await this.#inspect(registry, ref, 'any')
    if (found === undefined) return undefined
    return found === 'busy' ? busyMs : Math.max(1, Math.min(watchMs, found))
  }

  /**
   * Checks the running batches of a name after one of their jobs died. A hint: their watches would find the same. One round at a time: a
   * thousand items that fail together ask for two.
   */
  async tendNamed(registry: Registry, name: string): Promise<void> {
    await this.#oneAtATime(`named ${name}`, async () => {
      const rows = await registry.pool.run<OpenBatch>(openStatement, { names: textsLiteral([name]) })
      for (const { is_running, is_due: _, ...ref } of rows) if (is_running) await this.tend(registry, ref)
    })
  }

  /** Runs it, and once more if it was asked for in the meantime. */
  async #oneAtATime(key: string, round: () => Promise<void>): Promise<void> {
    const isBusy = this.#inspecting.has(key)
    this.#inspecting.set(key, isBusy)
    if (isBusy) return
    try {
      do {
        this.#inspecting.set(key, false)
        await round()
      } while (this.#inspecting.get(key))
    } finally {
      this.#inspecting.delete(key)
    }
  }

  /**
   * Milliseconds to its deadline while it runs; 'busy': it should end, and its lock is taken.
   * Only `tend` fails lost items first. A flush ends as 'finished' only: it would time out a batch whose last items are lost, which is finished.
   */
  async #inspect(registry: Registry, ref: BatchRef, endsAs: 'finished' | 'any'): Promise<number | 'busy' | undefined> {
    const { tenant, batch: id, fence } = ref
    const { pool } = registry
    const [row] = await retrying(() => pool.run<Inspected>(inspectStatement, { tenant, id, fence }))
    if (row?.state !== 'running') return undefined
    const { ended: upto, step_job } = row
    const leftMs = Number(row.left_ms)
    if (upto >= row.upto + cursorItems) await pool.run(moveStatement, { tenant, id, upto })
    const [state, reason = null] = endFor(row, leftMs)
    if (state === undefined || (endsAs === 'finished' && state !== 'finished')) return leftMs
    if (probe.on) await probe.hit('batches.end.before', ref)
    const values = { tenant, id, state, reason, step_job }
    const [ended] = await retrying(() => pool.run<{ state: string | null }>(endStatement, values))
    if (probe.on) await probe.hit('batches.end.after', ref)
    if (ended!.state === 'running') return leftMs
    if (ended!.state !== 'busy') return undefined
    if (leftMs < -blockedMs) await pool.run(blockersStatement, { tenant, id })
    return 'busy'
  }
}

function endFor(row: Inspected, leftMs: number): [state?: 'finished' | 'failed' | 'timed-out', reason?: string] {
  if (row.waiting === null) return ['finished']
  if (row.is_step_lost) return ['failed', `its step '${row.step}' is dead: ${row.last_error ?? 'its job was cancelled'}`]
  return leftMs <= 0 ? ['timed-out', 'its deadline has passed'] : []
}

function keyOf({ tenant, batch }: BatchRef): string {
  return `${tenant}/${batch}`
}
