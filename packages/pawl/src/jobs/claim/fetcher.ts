// Claims: from which queues, and from where in the order of each. A stranger's old snapshot may keep thousands of dead entries in front of what is
// ready. So under full load, and whenever a scan from the beginning was slow twice in a row (one answer may be late for any reason), a claim
// starts after the last one's end. A scan from the beginning follows once a second under full load; else slow ones take at most 1/10 of the
// time. A claim that is as slow from the mark on shows that the network is slow, not the scan: then the mark is not used.

import type { Connection } from '../../db/driver.ts'
import { numbersLiteral, statement, textsLiteral } from '../../db/statement.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import type { Holder } from '../../kernel/lease.ts'
import { probe } from '../../kernel/probe.ts'
import type { ClaimedRow } from '../attempt.ts'
import type { DefinedKind } from '../kinds.ts'

const home = new URL('..', import.meta.url).href
const claimStatement = statement(home, 'claim')
const claimSuspectStatement = statement(home, 'claim-suspect')
const startAloneStatement = statement(home, 'start-alone')
const releaseUnknownStatement = statement(home, 'release-unknown')

const fullScanEveryMs = 1000
/** Where a mark is used only because scans are slow, a job before it waits ten times as long as one scan, and no longer. */
const slowScanEveryMs = 50
const fullScanEveryMsMax = 60_000
/** Spend at most 1/10 of the time on scans from the beginning. */
const fullScanShare = 10
const beginning = { due: '-infinity', id: '0' }

/** A scan from the beginning that takes longer than this, its rows aside, is slow. */
const slowDefaultMs = 5
const perRowMs = 0.1
/** And each further queue of the same claim. */
const perQueueMs = 0.1
/** A scan for one kind that takes longer than this and finds none is not repeated at once. */
const apartSlowMs = 20

/** The most bytes of payloads that one claim asks for, by the mean size of the last ones. */
const claimBytesMax = 16 * 1_048_576
/** The first claim of a process: as much as sixteen payloads of the largest size allowed by default. */
const firstRows = 16
/** How long a process may take to empty itself for a job that must run alone. */
export const drainMs = 30_000

export type Deciding = 'alone' | 'leave' | 'only'

export interface Claim {
  readonly rows: readonly ClaimedRow[]
  /** It got all it asked for, or more may lie before the mark. */
  readonly isFull: boolean
  /** Nothing of these kinds is left in these queues, or only before a mark, where the next full scan finds it. */
  readonly isExhausted: boolean
  /** Whether a job that died with its process was ready in these queues; undefined where the claim found nothing, and so says nothing. */
  readonly areSuspectsReady?: boolean | undefined
}

export interface SuspectClaim {
  /** To be run beside others. */
  readonly rows: readonly ClaimedRow[]
  /** To be run with nothing beside it: another crash would be its last. */
  readonly deciding: ClaimedRow | undefined
  readonly isSuspectLeft: boolean
  readonly isDecidingLeft: boolean
}

interface ReadyRow extends ClaimedRow {
  readonly are_suspects_ready: boolean
}

interface SuspectRow extends Omit<ClaimedRow, 'id'> {
  readonly id: string | null
  readonly is_deciding: boolean
  readonly is_suspect_left: boolean
  readonly is_deciding_left: boolean
}

interface Mark {
  readonly due: string
  readonly id: string
  /** When the next scan from the beginning is due. */
  readonly fullScanMs: number
  /** More was waiting after it. */
  readonly isFull: boolean
  readonly isSlow: boolean
  /** The duration of the last scan from the beginning. */
  readonly costMs: number
  /** The last scan began at the mark, and jobs before it wait for the next full one. */
  readonly isPartial: boolean
}

/** What a claim found in one queue. */
interface Scan {
  readonly from: Mark | undefined
  readonly found: readonly ClaimedRow[]
  readonly isFull: boolean
  readonly nowMs: number
  /** All queues together. */
  readonly tookMs: number
}

export class Fetcher {
  readonly #connection: Connection
  readonly #bufferMs: number
  readonly #slowMs: number
  readonly #marks = new Map<string, Mark>()
  /** When a kind that is claimed apart is looked for again, after a long scan that did not find it. */
  readonly #apartMs = new Map<string, number>()
  #rowsMax = firstRows
  #bytesPerRow = 0
  claims = 0

  constructor(connection: Connection, bufferMs: number, slowMs = slowDefaultMs) {
    this.#connection = connection
    this.#bufferMs = bufferMs
    this.#slowMs = slowMs
  }

  /** How many jobs fit into this number of bytes, by the mean size of the last ones. */
  rowsIn(bytes: number): number {
    return Math.floor(bytes / Math.max(1, this.#bytesPerRow))
  }

  /** Milliseconds until the next scan from the beginning, where the last scan began at a mark; undefined where it was full. */
  get nextFullScanInMs(): number | undefined {
    const partial = this.#partialMs()
    return partial.length === 0 ? undefined : Math.max(1, Math.min(...partial) - monotonicMs())
  }

  /**
   * Milliseconds until a scan is due that the last claims left out; infinite where there is none. One that was due before `sinceMs`, the beginning of
   * this turn, waits for room, not for time. One that came due during the turn may have been missed by its claim.
   */
  nextScanInMs(sinceMs: number): number {
    const ahead = [...this.#partialMs(), ...this.#apartMs.values()].filter((atMs) => atMs > sinceMs)
    return Math.max(1, Math.min(...ahead) - monotonicMs())
  }

  /** When the full scans are due of what was last scanned from a mark. */
  #partialMs(): number[] {
    return [...this.#marks.values()].filter((mark) => mark.isPartial).map((mark) => mark.fullScanMs)
  }

  /** Rows of kinds that are claimed together. Each set of kinds has marks of its own in each queue: what one passes by, another may want. */
  async claim(
    worker: Holder,
    queues: readonly string[],
    kinds: readonly DefinedKind[],
    limit: number,
    isApart = false,
  ): Promise<Claim> {
    const group = kinds[0]!.name
    const nowMs = monotonicMs()
    if (isApart && nowMs < (this.#apartMs.get(group) ?? 0)) return { rows: [], isFull: false, isExhausted: false }
    const froms = queues.map((queue) => this.#from(markKey(group, queue), nowMs))
    const asked = Math.min(limit, this.#rowsMax)
    if (probe.on) await probe.hit('jobs.claim.before', { worker: worker.id, queues, limit: asked })
    this.claims++
    const rows = await this.#connection.run<ReadyRow>(claimStatement, {
      ...holderParameters(worker),
      queues: textsLiteral(queues),
      limit: asked,
      after_dues: textsLiteral(froms.map((from) => from?.due ?? beginning.due)),
      after_ids: numbersLiteral(froms.map((from) => from?.id ?? beginning.id)),
      ...this.#kindParameters(kinds),
    })
    if (probe.on) await probe.hit('jobs.claim.after', rows)
    this.#measure(rows, asked)
    // Everything else that is ready was read in vain: at most 1/10 of the time goes into that.
    const scannedMs = monotonicMs() - nowMs
    if (isApart && rows.length === 0 && scannedMs > apartSlowMs) this.#apartMs.set(group, nowMs + fullScanShare * scannedMs)
    const tookMs = scannedMs - rows.length * perRowMs - (queues.length - 1) * perQueueMs
    const isFull = rows.length >= asked
    const byQueue = inQueues(rows, queues)
    // A full claim has not come to the queues after the last one that it found something in.
    const reached = isFull ? byQueue.findLastIndex((found) => found.length > 0) : queues.length - 1
    for (const [n, found] of byQueue.entries()) {
      found.sort(byOrder)
      if (n <= reached)
        this.#mark(markKey(group, queues[n]!), { from: froms[n], found, isFull: isFull && n === reached, nowMs, tookMs })
    }
    const isQuick = froms.some((from, n) => from !== undefined && !this.#marks.get(markKey(group, queues[n]!))!.isSlow)
    // After the marks there was nothing: jobs before them are scanned for now, not in a second, unless that is slow.
    if (rows.length === 0 && isQuick) return this.claim(worker, queues, kinds, limit, isApart)
    return {
      rows: queues.length === 1 ? rows : byQueue.flat(),
      isFull: isFull || isQuick,
      isExhausted: !isFull && !isQuick,
      areSuspectsReady: rows[0]?.are_suspects_ready,
    }
  }

  /** Where a claim starts, if not at the beginning. */
  #from(key: string, nowMs: number): Mark | undefined {
    const mark = this.#marks.get(key)
    return mark !== undefined && (mark.isFull || mark.isSlow) && nowMs < mark.fullScanMs ? mark : undefined
  }

  #mark(key: string, { from, found, isFull, nowMs, tookMs }: Scan): void {
    const mark = this.#marks.get(key)
    const last = found.at(-1)
    if (last === undefined && mark === undefined) return
    const costMs = Math.min(tookMs, mark?.costMs ?? 0)
    this.#marks.set(key, {
      due: last === undefined ? mark!.due : timeOf(dueUs(last)),
      id: last?.id ?? mark!.id,
      fullScanMs: from?.fullScanMs ?? nextFullScanMs(nowMs, costMs, isFull),
      isFull,
      isSlow: from === undefined ? costMs > this.#slowMs : from.isSlow && from.costMs - tookMs > this.#slowMs,
      costMs: from?.costMs ?? tookMs,
      isPartial: from !== undefined,
    })
  }

  async claimSuspects(
    worker: Holder,
    queues: readonly string[],
    kinds: readonly { readonly kind: DefinedKind; readonly room: number }[],
    { limit, deciding }: { readonly limit: number; readonly deciding: Deciding },
  ): Promise<SuspectClaim> {
    const asked = Math.min(limit, this.#rowsMax)
    if (probe.on) await probe.hit('jobs.claim.before', { worker: worker.id, queues, limit: asked, deciding })
    this.claims++
    const answer = await this.#connection.run<SuspectRow>(claimSuspectStatement, {
      ...holderParameters(worker),
      queues: textsLiteral(queues),
      limit: asked,
      deciding,
      drain_ms: drainMs,
      rooms: numbersLiteral(kinds.map(({ room }) => room)),
      ...this.#kindParameters(kinds.map(({ kind }) => kind)),
    })
    const found = answer.filter((row): row is SuspectRow & ClaimedRow => row.id !== null)
    const rows = found.filter((row) => !row.is_deciding)
    const alone = found.find((row) => row.is_deciding)
    if (probe.on) await probe.hit('jobs.claim.after', alone === undefined ? rows : [...rows, alone])
    this.#measure(rows, asked)
    return {
      rows: rows.sort(byOrder),
      deciding: alone,
      isSuspectLeft: answer[0]?.is_suspect_left ?? false,
      isDecidingLeft: answer[0]?.is_deciding_left ?? false,
    }
  }

  /** Called when this process is empty; false when the job is no longer ours to start. */
  async startAlone(worker: Holder, { tenant, id, fence }: ClaimedRow, kind: DefinedKind): Promise<boolean> {
    const timeoutMs = kind.timeoutMs + this.#bufferMs
    const parameters = { ...holderParameters(worker), tenant, id, fence, timeout_ms: timeoutMs }
    return (await this.#connection.run(startAloneStatement, parameters)).length > 0
  }

  /** The batch doubles only while the last one was below half of what a claim may bring. */
  #measure(rows: readonly ClaimedRow[], asked: number): void {
    if (rows.length === 0) return
    const bytes = rows.reduce((sum, row) => sum + bytesOf(row), 0)
    const mean = bytes / rows.length
    this.#bytesPerRow = Math.max(mean, this.#bytesPerRow * 0.7 + mean * 0.3)
    const grown = rows.length >= asked && bytes < claimBytesMax / 2 ? Math.max(this.#rowsMax, 2 * asked) : this.#rowsMax
    this.#rowsMax = Math.max(1, Math.min(grown, this.rowsIn(claimBytesMax)))
  }

  /** After a claim without an answer: what the database thinks we hold and we do not know goes back. */
  async releaseUnknown(worker: Holder, known: readonly { readonly id: string; readonly fence: string }[]): Promise<number> {
    const rows = await this.#connection.run(releaseUnknownStatement, {
      ...holderParameters(worker),
      ids: numbersLiteral(known.map(({ id }) => id)),
      fences: numbersLiteral(known.map(({ fence }) => fence)),
    })
    return rows.length
  }

  #kindParameters(kinds: readonly DefinedKind[]): Record<'kinds' | 'timeouts_ms' | 'max_attempts' | 'max_crashes', string> {
    return {
      kinds: textsLiteral(kinds.map((kind) => kind.name)),
      timeouts_ms: numbersLiteral(kinds.map((kind) => kind.timeoutMs + this.#bufferMs)),
      max_attempts: numbersLiteral(kinds.map((kind) => kind.attempts)),
      max_crashes: numbersLiteral(kinds.map((kind) => kind.crashes)),
    }
  }
}

/** The rows of each queue. */
function inQueues(rows: ClaimedRow[], queues: readonly string[]): ClaimedRow[][] {
  if (queues.length === 1) return [rows]
  const found = new Map(queues.map((queue) => [queue, [] as ClaimedRow[]]))
  for (const row of rows) found.get(row.queue)!.push(row)
  return [...found.values()]
}

function markKey(group: string, queue: string): string {
  return JSON.stringify([group, queue])
}

function holderParameters({ id, nonce }: Holder): { worker: number; nonce: string } {
  return { worker: id, nonce }
}

function nextFullScanMs(startedMs: number, costMs: number, isFull: boolean): number {
  const leastMs = isFull ? fullScanEveryMs : slowScanEveryMs
  return startedMs + Math.min(fullScanEveryMsMax, Math.max(leastMs, costMs * fullScanShare))
}

function dueUs({ due_us }: ClaimedRow): number {
  return due_us === null ? Number.NEGATIVE_INFINITY : Number(due_us)
}

/** Microseconds since 1970 as a time that PostgreSQL reads in any DateStyle. */
function timeOf(us: number): string {
  if (!Number.isFinite(us)) return beginning.due
  const ms = Math.floor(us / 1000)
  return `${new Date(ms).toISOString().slice(0, -1)}${String(us - ms * 1000).padStart(3, '0')}Z`
}

/** Its approximate size in memory while it waits. */
export function bytesOf({ payload, headers }: ClaimedRow): number {
  return payload.length + (headers?.length ?? 0)
}

function byOrder(a: ClaimedRow, b: ClaimedRow): number {
  if (a.due_us !== b.due_us) return dueUs(a) - dueUs(b)
  return a.id.length - b.id.length || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)
}
