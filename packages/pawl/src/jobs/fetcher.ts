// Claims: from which queue, and from where in its order. A stranger's old snapshot may keep thousands of dead entries in front of what is
// ready. So under full load, and whenever a look from the beginning has shown to be dear, a claim starts behind the last one's end. Once a
// second it looks from the beginning, and less often where that itself takes long, twice in a row: one answer may be late for any reason.

import type { Connection } from '../db/driver.ts'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Holder } from '../kernel/lease.ts'
import { probe } from '../kernel/probe.ts'
import type { ClaimedRow } from './held.ts'
import type { DefinedKind } from './kinds.ts'

const claimStatement = statement(import.meta.url, 'claim')
const claimSuspectStatement = statement(import.meta.url, 'claim-suspect')
const suspectsStatement = statement(import.meta.url, 'suspects-waiting')
const releaseUnknownStatement = statement(import.meta.url, 'release-unknown')

const fullScanEveryMs = 1000
const fullScanEveryMsMax = 60_000
/** Of the time, looks from the beginning take at most one part in so many. */
const fullScanShare = 10
const beginning = { due: '-infinity', id: '0' }

/** A look from the beginning that takes longer than this, its rows aside, is dear. */
const dearDefaultMs = 5
const perRowMs = 0.1

interface Mark {
  readonly due: string
  readonly id: string
  /** When the next look from the beginning is due. */
  readonly fullScanMs: number
  /** More was waiting behind it. */
  readonly isFull: boolean
  readonly isDear: boolean
  /** What the last look from the beginning took. */
  readonly costMs: number
  /** The last look began behind the mark, and what lies before it waits for the next whole one. */
  readonly isPartial: boolean
}

export class Fetcher {
  readonly #connection: Connection
  readonly #bufferMs: number
  readonly #dearMs: number
  readonly #marks = new Map<string, Mark>()
  claims = 0

  constructor(connection: Connection, bufferMs: number, dearMs = dearDefaultMs) {
    this.#connection = connection
    this.#bufferMs = bufferMs
    this.#dearMs = dearMs
  }

  /** Milliseconds until the next look from the beginning, where the last look was only behind a mark; undefined where it was whole. */
  get nextFullScanInMs(): number | undefined {
    const partial = [...this.#marks.values()].filter((mark) => mark.isPartial)
    if (partial.length === 0) return undefined
    return Math.max(1, Math.min(...partial.map((mark) => mark.fullScanMs)) - monotonicMs())
  }

  async claim(worker: Holder, queue: string, kinds: readonly DefinedKind[], limit: number): Promise<ClaimedRow[]> {
    const mark = this.#marks.get(queue)
    const nowMs = monotonicMs()
    const from = mark !== undefined && (mark.isFull || mark.isDear) && nowMs < mark.fullScanMs ? mark : undefined
    if (probe.on) await probe.hit('jobs.claim.before', { worker: worker.id, queue, limit })
    this.claims++
    const rows = await this.#connection.run<ClaimedRow>(claimStatement, {
      ...holderParameters(worker),
      queue,
      limit,
      after_due: from?.due ?? beginning.due,
      after_id: from?.id ?? beginning.id,
      ...this.#kindParameters(kinds),
    })
    if (probe.on) await probe.hit('jobs.claim.after', rows)
    for (const row of rows) row.queue = queue
    rows.sort(byOrder)
    const last = rows.at(-1) ?? mark
    if (last !== undefined) {
      const tookMs = monotonicMs() - nowMs - rows.length * perRowMs
      const costMs = Math.min(tookMs, mark?.costMs ?? 0)
      this.#marks.set(queue, {
        due: last.due,
        id: last.id,
        fullScanMs: from?.fullScanMs ?? nextFullScanMs(nowMs, costMs),
        isFull: rows.length >= limit,
        isDear: from?.isDear ?? costMs > this.#dearMs,
        costMs: from?.costMs ?? tookMs,
        isPartial: from !== undefined,
      })
    }
    // Behind the mark there was nothing: what lies before it is looked at now, not in a second, unless that is dear.
    if (from !== undefined && rows.length === 0 && !from.isDear) return this.claim(worker, queue, kinds, limit)
    return rows
  }

  async claimSuspect(worker: Holder, queue: string, kinds: readonly DefinedKind[]): Promise<ClaimedRow | undefined> {
    if (probe.on) await probe.hit('jobs.claim.before', { worker: worker.id, queue, limit: 1 })
    const [row] = await this.#connection.run<ClaimedRow>(claimSuspectStatement, {
      ...holderParameters(worker),
      queue,
      ...this.#kindParameters(kinds),
    })
    if (probe.on) await probe.hit('jobs.claim.after', row === undefined ? [] : [row])
    if (row !== undefined) row.queue = queue
    return row
  }

  async areSuspectsWaiting(queues: readonly string[], kinds: readonly DefinedKind[]): Promise<boolean> {
    const [row] = await this.#connection.run<{ waiting: boolean }>(suspectsStatement, {
      queues: textsLiteral(queues),
      kinds: textsLiteral(kinds.map((kind) => kind.name)),
    })
    return row?.waiting ?? false
  }

  /** After a claim without an answer: what the database thinks we hold and we do not know goes back. */
  async releaseUnknown(worker: Holder, known: readonly string[]): Promise<number> {
    const rows = await this.#connection.run(releaseUnknownStatement, {
      ...holderParameters(worker),
      known: numbersLiteral(known),
    })
    return rows.length
  }

  #kindParameters(kinds: readonly DefinedKind[]): { kinds: string; timeouts_ms: string } {
    return {
      kinds: textsLiteral(kinds.map((kind) => kind.name)),
      timeouts_ms: numbersLiteral(kinds.map((kind) => kind.timeoutMs + this.#bufferMs)),
    }
  }
}

function holderParameters({ id, nonce }: Holder): { worker: number; nonce: string } {
  return { worker: id, nonce }
}

function nextFullScanMs(startedMs: number, costMs: number): number {
  return startedMs + Math.min(fullScanEveryMsMax, Math.max(fullScanEveryMs, costMs * fullScanShare))
}

function byOrder(a: ClaimedRow, b: ClaimedRow): number {
  if (a.due !== b.due) return a.due < b.due ? -1 : 1
  return a.id.length - b.id.length || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)
}
