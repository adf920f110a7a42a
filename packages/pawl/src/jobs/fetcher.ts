// Claims: from which queue, and from where in its order. Under full load a claim starts behind the last one's end, because a stranger's
// old snapshot may keep thousands of dead entries in front; at least once a second it looks from the beginning.

import type { Connection } from '../db/driver.ts'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { probe } from '../kernel/probe.ts'
import type { ClaimedRow } from './held.ts'
import type { DefinedKind } from './kinds.ts'

const claimStatement = statement(import.meta.url, 'claim')
const claimSuspectStatement = statement(import.meta.url, 'claim-suspect')
const suspectsStatement = statement(import.meta.url, 'suspects-waiting')
const releaseUnknownStatement = statement(import.meta.url, 'release-unknown')

const fullScanEveryMs = 1000
const beginning = { due: '-infinity', id: '0' }

interface Mark {
  due: string
  id: string
  fullScanMs: number
}

export class Fetcher {
  readonly #connection: Connection
  readonly #bufferMs: number
  readonly #marks = new Map<string, Mark>()
  claims = 0

  constructor(connection: Connection, bufferMs: number) {
    this.#connection = connection
    this.#bufferMs = bufferMs
  }

  async claim(worker: number, queue: string, kinds: readonly DefinedKind[], limit: number): Promise<ClaimedRow[]> {
    const mark = this.#marks.get(queue)
    const nowMs = monotonicMs()
    const from = mark !== undefined && nowMs - mark.fullScanMs < fullScanEveryMs ? mark : undefined
    if (probe.on) await probe.hit('jobs.claim.before', { worker, queue, limit })
    this.claims++
    const rows = await this.#connection.run<ClaimedRow>(claimStatement, {
      worker,
      queue,
      limit,
      after_due: from?.due ?? beginning.due,
      after_id: from?.id ?? beginning.id,
      ...this.#kindParameters(kinds),
    })
    if (probe.on) await probe.hit('jobs.claim.after', rows)
    rows.sort(byOrder)
    this.#remember(queue, rows, limit, from === undefined ? nowMs : mark!.fullScanMs)
    // Behind the mark there was too little: what lies before it is looked at now, not in a second.
    if (from !== undefined && rows.length === 0) return this.claim(worker, queue, kinds, limit)
    return rows
  }

  async claimSuspect(worker: number, queue: string, kinds: readonly DefinedKind[]): Promise<ClaimedRow | undefined> {
    if (probe.on) await probe.hit('jobs.claim.before', { worker, queue, limit: 1 })
    const [row] = await this.#connection.run<ClaimedRow>(claimSuspectStatement, { worker, queue, ...this.#kindParameters(kinds) })
    if (probe.on) await probe.hit('jobs.claim.after', row === undefined ? [] : [row])
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
  async releaseUnknown(worker: number, known: readonly string[]): Promise<number> {
    const rows = await this.#connection.run(releaseUnknownStatement, { worker, known: numbersLiteral(known) })
    return rows.length
  }

  #kindParameters(kinds: readonly DefinedKind[]): { kinds: string; timeouts_ms: string } {
    return {
      kinds: textsLiteral(kinds.map((kind) => kind.name)),
      timeouts_ms: numbersLiteral(kinds.map((kind) => kind.timeoutMs + this.#bufferMs)),
    }
  }

  /** Only a full claim leaves a mark: then more is waiting, and everything before its last row was taken or is locked. */
  #remember(queue: string, rows: readonly ClaimedRow[], limit: number, fullScanMs: number): void {
    const last = rows.at(-1)
    if (last === undefined || rows.length < limit) this.#marks.delete(queue)
    else this.#marks.set(queue, { due: last.due, id: last.id, fullScanMs })
  }
}

function byOrder(a: ClaimedRow, b: ClaimedRow): number {
  if (a.due !== b.due) return a.due < b.due ? -1 : 1
  return a.id.length - b.id.length || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)
}
