// Staging: rows of an upload, a batch at a time, as thin as they can be. Keys and hashes go out; the answer says which rows are new,
// changed or the same; only new and changed ones keep their data. A batch and the count of it are one transaction under the upload's fence.

import type { Db, TxDb } from '../db/db.ts'
import { statement, textsLiteral } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { read, retrying, retryingCall } from '../kernel/retry.ts'
import { inert } from './commit.ts'
import { changedFields } from './rows/diff.ts'
import { type ReadRow, type RowFault, storable } from './rows/reader.ts'
import type { DefinedSet, Registry } from './sets.ts'

const lookupStatement = statement(import.meta.url, 'lookup')
const progressStatement = statement(import.meta.url, 'stage-progress')
const errorsStatement = statement(import.meta.url, 'errors-add')
const clearStatement = statement(import.meta.url, 'stage-clear')

export const batchRows = 1000
/** A batch ends early when its rows are large, so that memory is bounded in bytes too. */
export const batchChars = 4_000_000
/** About the size of an error with its strings. */
const faultChars = 500

export function charsOf(row: ReadRow): number {
  return row.data.length + row.faults.length * faultChars
}

/** What an upload belongs to. */
export interface Place {
  readonly tenant: string
  readonly set: DefinedSet
  readonly scopeId: string
}

/** An upload that has begun. */
export interface Staged extends Place {
  readonly id: string
  readonly fence: string
  /** The scope's committed number that everything is compared with. */
  readonly committed: string
  readonly live: string
  /** Of which records may be missing: a literal of PostgreSQL's. */
  readonly types: string
}

export interface LineFault extends RowFault {
  readonly line: number
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
  db: Db,
  { tenant, scopeId, committed }: Pick<Staged, 'tenant' | 'scopeId' | 'committed'>,
  rows: readonly Pick<ReadRow, 'type' | 'key' | 'hash'>[],
): Promise<Met[]> {
  const found = await db.run<MetRow>(lookupStatement, {
    tenant,
    scope_id: scopeId,
    committed,
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
  const same = { is_new: false, is_live: true, is_same: true, data: null }
  for (const [index, place] of places.entries())
    met[Number(place) - 1] = { record_id: records[index]!, number: versions[index]!, ...same }
}

/** Of an array of numbers as PostgreSQL writes it. */
function elements(array: string): string[] {
  return array.slice(1, -1).split(',')
}

export function kindOf(met: Met): 'created' | 'updated' | 'unchanged' {
  if (!met.is_live) return 'created'
  return met.is_same ? 'unchanged' : 'updated'
}

export class Stager {
  readonly #registry: Registry
  readonly #staged: Staged
  /** For every batch the same: they are staged one after the other, and buffers of their own would pile up until they are collected. */
  #bytes = Buffer.alloc(0)
  #last = Promise.resolve()
  errors = 0
  lines = 0
  lastLine = 0

  constructor(registry: Registry, staged: Staged) {
    this.#registry = registry
    this.#staged = staged
  }

  /** Compares a batch at once, and stages it after the one before: two connections, so that neither waits for the other's part. */
  add(rows: readonly ReadRow[], bytes: number): Promise<void> {
    // Nothing is committed in a new scope, so no lookup is needed; the table's default gives each row its record's id.
    const isNew = this.#staged.committed === '0'
    const met = isNew ? undefined : retryingCall(() => lookup(this.#registry.pool, this.#staged, rows))
    met?.catch(() => undefined)
    this.#last = this.#last.then(async () => this.#stage(rows, bytes, await met))
    return this.#last
  }

  async #stage(rows: readonly ReadRow[], bytes: number, met: readonly Met[] | undefined): Promise<void> {
    const { tenant, id, fence, set } = this.#staged
    const data = this.#encode(stagedLines(this.#staged, rows, met))
    const columns = `tenant, submission, line, kind, is_new, type, key, hash, classification, data, changed${met === undefined ? '' : ', record_id'}`
    const faults = rows.flatMap(({ line, faults }) => faults.map((fault) => ({ ...fault, line })))
    const counts = { lines: rows.length, last_line: rows.at(-1)!.line, bytes, errors: faults.length }
    const stage = async (tx: Transaction) => {
      // The fence first: rows of an upload that was started over would meet the new one's.
      const values = { tenant, id, fence, ...counts, keep_ms: set.keepMs.uploading }
      if ((await tx.run(progressStatement, values)).length === 0) throw uploadLost(id)
      await tx.copy(`copy pawl.submission_row (${columns}) from stdin`, data)
      await addErrors(tx, this.#staged, this.errors, faults.slice(0, Math.max(0, set.limits.errorsMax - this.errors)))
    }
    await retrying(() => this.#registry.pool.transaction(stage, inert))
    this.errors += faults.length
    this.lines += rows.length
    this.lastLine = counts.last_line
    if (probe.on) await probe.hit('records.stage.committed', { id, lines: this.lines })
  }

  #encode(texts: readonly string[]): Buffer {
    // UTF-8 needs at most three bytes for a UTF-16 unit.
    const bytesMax = 3 * texts.reduce((chars, each) => chars + each.length, 0)
    if (this.#bytes.length < bytesMax) this.#bytes = Buffer.allocUnsafeSlow(bytesMax)
    let end = 0
    for (const each of texts) end += this.#bytes.write(each, end)
    return this.#bytes.subarray(0, end)
  }
}

/** Stores them after the first ones. */
export async function addErrors(tx: TxDb, { tenant, id }: Staged, first: number, faults: readonly LineFault[]): Promise<void> {
  if (faults.length === 0) return
  const errors = JSON.stringify(
    faults.map(({ line, code, column, value, reason }) => ({
      line,
      code,
      column: column === null ? null : storable(column),
      value: value === null ? null : storable(value),
      reason: storable(reason, 1000),
    })),
  )
  await tx.run(errorsStatement, { tenant, id, first, errors })
}

/** Removes staged rows in bounded steps. false: the fence is another, and the rows belong to another upload. */
export async function clearStaged(registry: Registry, tenant: string, id: string, fence: string | null): Promise<boolean> {
  const limit = 5000
  for (;;) {
    const [cleared] = await read<{ gone: number }>(registry.pool, clearStatement, { tenant, id, fence, limit })
    if (cleared === undefined) return false
    if (cleared.gone < limit) return true
  }
}

/** The restarted upload has another fence; this one's rows went with the old. */
export function uploadLost(id: string): PawlError {
  return new PawlError(
    'PAWL_LEASE_LOST',
    `The upload of submission ${id} was restarted elsewhere, cancelled or has expired, so its rows are refused. Stop sending.`,
    { details: { id } },
  )
}

// ---- COPY text

const special = /[\\\t\n\r]/g
const escapes: Readonly<Record<string, string>> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' }

function copyText(value: string | null): string {
  return value === null ? '\\N' : value.replace(special, (found) => escapes[found]!)
}

/** JSON has no control characters, so only backslashes need a second one. */
function copyJson(data: string): string {
  return data.includes('\\') ? data.replaceAll('\\', '\\\\') : data
}

/** Without `met` nothing is committed, so every row would be created. */
function stagedLines({ tenant, id }: Staged, rows: readonly ReadRow[], met: readonly Met[] | undefined): string[] {
  const start = `${copyText(tenant)}\t${id}\t`
  return rows.map((row, index) => {
    const found = met?.[index]
    const would = found === undefined ? 'created' : kindOf(found)
    const kind =
      row.faults.length === 0 ? would : row.key === '' ? 'unkeyed' : would === 'created' ? 'invalid-created' : 'invalid-updated'
    const isNew = found === undefined || found.is_new
    const about = `${row.line}\t${kind}\t${isNew ? 't' : 'f'}\t${copyText(row.type)}\t${copyText(row.key)}`
    const isKept = kind === 'created' || kind === 'updated'
    const content = isKept ? `${row.hash}\t${copyText(row.classification)}\t${copyJson(row.data)}` : '\\N\t\\N\t\\N'
    const changed = kind === 'updated' ? copyText(textsLiteral(changedFields(found!.data, row.data))) : '\\N'
    return `${start}${about}\t${content}\t${changed}${found === undefined ? '' : `\t${found.record_id}`}\n`
  })
}
