// The verbs of the event log. append, ingest and erase take an optional transaction of the caller's.

import { callIn } from '../db/calls.ts'
import { statement } from '../db/statement.ts'
import { currentTenant } from '../kernel/handler.ts'
import { resolve } from '../kernel/options.ts'
import { extendPartitions } from '../kernel/partitions.ts'
import { read, retryingCall } from '../kernel/retry.ts'
import { type AppendCore, type AppendEventOptions, type Appended, append } from './append.ts'
import { auditLog, type LogAudit } from './audit.ts'
import { type EraseOptions, erase } from './erase.ts'
import { type HoldBack, whoHoldsBack } from './hold-back.ts'
import { type Ingested, type IngestOptions, ingest, type OutsideEvent } from './ingest.ts'
import { callOnLongConnection } from './long-connection.ts'
import { keepTable } from './maintenance.ts'
import { type Retained, retain } from './retention.ts'
import type { NewEvent } from './types.ts'

const lagStatement = statement(import.meta.url, 'lag')

export interface LogLag {
  /** The last position. */
  readonly head: number
  readonly generation: number
  /** Events up to here may have been removed. */
  readonly removedUntil: number
  /** Committed events without a position yet, counted up to 10,000. The next tick of a worker gives them one. */
  readonly waiting: number
  /** How long ago the oldest of them was appended. */
  readonly oldestMs: number | undefined
  readonly tickedAt: Date
}

interface LagRow {
  readonly head: string
  readonly generation: number
  readonly removed_until: string
  readonly waiting: number
  readonly oldest_ms: string | null
  readonly ticked_at: Date
}

/** The verbs of one tenant: `pawl.for('acme').events` cannot name another tenant's events. */
export class TenantEvents {
  protected readonly core: AppendCore
  readonly #given: string | undefined

  constructor(core: AppendCore, tenant: string | undefined) {
    this.core = core
    this.#given = tenant
  }

  get #tenant(): string {
    return this.#given ?? currentTenant()
  }

  /** Appends one event, or many in order. With `tx` they exist if and only if your transaction commits. */
  append(events: NewEvent | readonly NewEvent[], options: AppendEventOptions = {}): Promise<Appended> {
    return callIn(options?.tx, async () => append(this.core, this.#tenant, listOf(events), options))
  }

  /** Appends events of an outside source, each once, and moves the source's position in the same transaction. */
  ingest(events: OutsideEvent | readonly OutsideEvent[], options: IngestOptions): Promise<Ingested> {
    return callIn(options?.tx, async () => ingest(this.core, this.#tenant, listOf(events), options))
  }

  /** Removes payload and headers of the events of one key. Ids, order and positions stay; pawl.audit has the person and the reason. */
  async erase(options: EraseOptions): Promise<{ erased: number }> {
    return erase(this.core.config, this.#tenant, options)
  }
}

/** The event log: `pawl.events`. It appends for the tenant of the job whose handler calls it, else for the empty one; its other verbs span all tenants. */
export class EventLog extends TenantEvents {
  constructor(core: AppendCore) {
    super(core, undefined)
  }

  /** Proves that the log has every event once. It reads every kept event. */
  async audit(): Promise<LogAudit> {
    return auditLog(this.core.config)
  }

  /** Everything that delays delivery or retention, with the statement that ends it. */
  async whoHoldsBack(options: { keepDays?: number } = {}): Promise<HoldBack[]> {
    const keepDays = days('whoHoldsBack', options)
    return retryingCall(() => whoHoldsBack(this.core.pool, keepDays))
  }

  /** The position of the log, and the events that wait for one. */
  async lag(): Promise<LogLag> {
    const [row] = await read<LagRow>(this.core.pool, lagStatement)
    return {
      head: Number(row!.head),
      generation: row!.generation,
      removedUntil: Number(row!.removed_until),
      waiting: row!.waiting,
      oldestMs: row!.oldest_ms === null ? undefined : Number(row!.oldest_ms),
      tickedAt: row!.ticked_at,
    }
  }

  /** Removes days of events that are old enough and that no reader needs. Workers do it by themselves; call it where none runs. */
  async retain(options: { keepDays?: number } = {}): Promise<Retained> {
    const keepDays = days('retain', options)
    return callOnLongConnection(this.core.config, 'event maintenance', async (connection) => {
      await extendPartitions(connection)
      return retain(connection, { keepDays })
    })
  }
}

function days(call: string, options: object): number {
  return resolve(call, keepTable, options).keepDays
}

function listOf<T>(given: T | readonly T[]): readonly T[] {
  return Array.isArray(given) ? (given as readonly T[]) : [given as T]
}
