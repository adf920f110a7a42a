// Staging: rows of an upload, a batch at a time, as thin as they can be. Keys and hashes go out; what comes back says which rows are new,
// changed or the same; only new and changed ones keep their data. A batch and the count of it are one transaction under the upload's fence.

import type { Db } from '../db/db.ts'
import { statement, textsLiteral } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { read, retrying } from '../kernel/retry.ts'
import { inert, type RecordsCore } from './core.ts'
import { changedFields } from './diff.ts'
import { type ReadRow, type RowFault, storable } from './rows.ts'
import type { DefinedSet } from './sets.ts'

const lookupStatement = statement(import.meta.url, 'lookup')
const progressStatement = statement(import.meta.url, 'stage-progress')
const errorsStatement = statement(import.meta.url, 'errors-add')

export const batchRows = 1000
/** A batch ends early when its rows are large, so that memory is bounded in bytes too. */
export const batchChars = 4_000_000
/** About what an error with its texts needs. */
const faultChars = 500

export function charsOf(row: ReadRow): number {
  return row.data.length + row.faults.length * faultChars
}

export interface Staged {
  readonly id: string
  readonly fence: string
  readonly scopeId: string
  /** The scope's committed number that everything is compared with. */
  readonly committed: string
  readonly live: string
  /** Of which records may be missing: a literal of PostgreSQL's. */
  readonly types: string
}

/** The record that a row names, as it is committed. */
export interface Met {
  readonly record_id: string
  readonly is_new: boolean
  readonly is_live: boolean
  readonly number: string | null
  readonly is_same: boolean
  /** The old one, where the new one is another. */
  readonly data: string | null
}

interface MetRow extends Omit<Met, 'is_same'> {
  readonly ordinal: number
  /** Of the one row that stands for all that are the same: arrays, one element for each. */
  readonly same_ordinals: string | null
  readonly same_ids: string
  readonly same_numbers: string
}

/** What rows meet, as of a committed number. The one comparison that preview, submit, put and append share. */
export async function lookup(
  read: <Row>(query: typeof lookupStatement, values: Record<string, string>) => Promise<Row[]>,
  place: { tenant: string; scopeId: string; committed: string },
  rows: readonly Pick<ReadRow, 'type' | 'key' | 'hash'>[],
): Promise<Met[]> {
  const found = await read<MetRow>(lookupStatement, {
    tenant: place.tenant,
    scope_id: place.scopeId,
    committed: place.committed,
    types: textsLiteral(rows.map((row) => row.type)),
    keys: textsLiteral(rows.map((row) => row.key)),
    hashes: `{${rows.map((row) => (row.hash === '' ? 'null' : row.hash)).join(',')}}`,
  })
  const met: Met[] = []
  met.length = rows.length
  for (const row of found) {
    if (row.same_ordinals === null) met[row.ordinal - 1] = { ...row, is_same: false }
    else addSame(met, row.same_ordinals, row.same_ids, row.same_numbers)
  }
  return met
}

function addSame(met: Met[], ordinals: string, ids: string, numbers: string): void {
  const [places, records, versions] = [elements(ordinals), elements(ids), elements(numbers)]
  for (const [index, place] of places.entries())
    met[Number(place) - 1] = {
      record_id: records[index]!,
      is_new: false,
      is_live: true,
      number: versions[index]!,
      is_same: true,
      data: null,
    }
}

/** Of an array of numbers as PostgreSQL writes it. */
function elements(array: string): string[] {
  return array.slice(1, -1).split(',')
}

export type Kind = 'C' | 'U' | '='

export function kindOf(met: Met): Kind {
  if (!met.is_live) return 'C'
  return met.is_same ? '=' : 'U'
}

export class Stager {
  readonly #core: RecordsCore
  readonly #tenant: string
  readonly #set: DefinedSet
  readonly #staged: Staged
  #errors = 0
  /** For every batch the same: they are staged one behind the other, and buffers of their own would pile up until they are collected. */
  #bytes = Buffer.alloc(0)
  #last = Promise.resolve()
  lines = 0
  lastLine = 0

  constructor(core: RecordsCore, tenant: string, set: DefinedSet, staged: Staged) {
    this.#core = core
    this.#tenant = tenant
    this.#set = set
    this.#staged = staged
  }

  get errors(): number {
    return this.#errors
  }

  /** Compares a batch at once, and stages it behind the one before: two connections, so that neither waits for the other's part. */
  add(rows: readonly ReadRow[], bytes: number): Promise<void> {
    // Nothing is committed in a new scope, so nothing needs to be looked up; the table's default gives each row its record's id.
    const met = this.#staged.committed === '0' ? undefined : this.#lookup(rows)
    met?.catch(() => undefined)
    this.#last = this.#last.then(async () => this.#stage(rows, bytes, await met))
    return this.#last
  }

  async #stage(rows: readonly ReadRow[], bytes: number, met: readonly Met[] | undefined): Promise<void> {
    const data = this.#encode(
      met === undefined
        ? firstLines(this.#tenant, this.#staged.id, rows)
        : comparedLines(this.#tenant, this.#staged.id, rows, met),
    )
    const columns = `tenant, submission, line, kind, is_new, type, key, hash, classification, data, changed${met === undefined ? '' : ', record_id'}`
    const faults = rows.flatMap((row) => row.faults.map((fault) => ({ line: row.line, fault })))
    const stage = async (tx: Transaction) => {
      // The fence first: rows of an upload that was started over would meet the new one's.
      const counted = await tx.run(progressStatement, {
        tenant: this.#tenant,
        id: this.#staged.id,
        fence: this.#staged.fence,
        lines: rows.length,
        last_line: rows.at(-1)!.line,
        bytes,
        errors: faults.length,
        keep_ms: this.#set.keepMs.uploading,
      })
      if (counted.length === 0) throw uploadLost(this.#staged.id)
      await tx.copy(`copy pawl.submission_row (${columns}) from stdin`, data)
      await this.#addFaults(tx, faults)
    }
    await retrying(() => this.#core.pool.transaction(stage, inert))
    this.#errors += faults.length
    this.lines += rows.length
    this.lastLine = rows.at(-1)!.line
    if (probe.on) await probe.hit('records.stage.committed', { id: this.#staged.id, lines: this.lines })
  }

  #encode(texts: readonly string[]): Buffer {
    // UTF-8 needs at most three bytes for a unit of a text.
    const bytesMax = 3 * texts.reduce((chars, each) => chars + each.length, 0)
    if (this.#bytes.length < bytesMax) this.#bytes = Buffer.allocUnsafeSlow(bytesMax)
    let end = 0
    for (const each of texts) end += this.#bytes.write(each, end)
    return this.#bytes.subarray(0, end)
  }

  #lookup(rows: readonly ReadRow[]): Promise<Met[]> {
    const place = { tenant: this.#tenant, scopeId: this.#staged.scopeId, committed: this.#staged.committed }
    return lookup((query, values) => read(this.#core.pool, query, values), place, rows)
  }

  async #addFaults(tx: Db, faults: readonly { line: number; fault: RowFault }[]): Promise<void> {
    const room = this.#set.limits.errorsMax - this.#errors
    if (faults.length === 0 || room <= 0) return
    await addErrors(tx, this.#tenant, this.#staged.id, this.#errors, faults.slice(0, room))
  }
}

export async function addErrors(
  tx: Db,
  tenant: string,
  id: string,
  first: number,
  faults: readonly { readonly line: number; readonly fault: RowFault }[],
): Promise<void> {
  if (faults.length === 0) return
  const errors = JSON.stringify(
    faults.map(({ line, fault: { code, column, value, reason } }) => ({
      line,
      code,
      column: column === null ? null : storable(column),
      value: value === null ? null : storable(value),
      reason: storable(reason, 1000),
    })),
  )
  await tx.run(errorsStatement, { tenant, id, first, errors })
}

/** The restarted upload has another fence; this one's rows went with the old. */
export function uploadLost(id: string): PawlError {
  return new PawlError(
    'PAWL_LEASE_LOST',
    `The upload of submission ${id} was restarted elsewhere or has expired, so its rows are refused. Stop sending.`,
    { details: { id } },
  )
}

// ---- COPY text

const special = /[\\\t\n\r]/g
const escapes: Readonly<Record<string, string>> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' }

function copyText(value: string): string {
  return value.replace(special, (found) => escapes[found]!)
}

/** JSON has no control characters, so only backslashes need a second one. */
function copyJson(data: string): string {
  return data.includes('\\') ? data.replaceAll('\\', '\\\\') : data
}

function copyNullable(value: string | null): string {
  return value === null ? '\\N' : copyText(value)
}

function firstLines(tenant: string, id: string, rows: readonly ReadRow[]): string[] {
  const start = `${copyText(tenant)}\t${id}\t`
  return rows.map((row) => {
    const kind = row.faults.length === 0 ? 'C' : row.key === '' ? 'X' : 'I'
    return `${start}${row.line}\t${kind}\tt\t${copyText(row.type)}\t${copyText(row.key)}\t${contentText(row, kind === 'C')}\t\\N\n`
  })
}

function contentText(row: ReadRow, isKept: boolean): string {
  return isKept ? `${row.hash}\t${copyNullable(row.classification)}\t${copyJson(row.data)}` : '\\N\t\\N\t\\N'
}

function comparedLines(tenant: string, id: string, rows: readonly ReadRow[], met: readonly Met[]): string[] {
  const start = `${copyText(tenant)}\t${id}\t`
  return rows.map((row, index) => {
    const found = met[index]!
    const kind = row.faults.length === 0 ? kindOf(found) : row.key === '' ? 'X' : kindOf(found) === 'C' ? 'I' : 'J'
    const changed = kind === 'U' ? copyText(textsLiteral(changedFields(found.data, row.data))) : '\\N'
    const about = `${row.line}\t${kind}\t${found.is_new ? 't' : 'f'}\t${copyText(row.type)}\t${copyText(row.key)}`
    return `${start}${about}\t${contentText(row, kind === 'C' || kind === 'U')}\t${changed}\t${found.record_id}\n`
  })
}
