// One scope of a record set: upload to it, put and append, read, export, erase.

import type { AnyTx } from '../db/adapters.ts'
import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { resolve } from '../kernel/options.ts'
import { read, transactIn } from '../kernel/retry.ts'
import { currentTenant } from '../kernel/tenant.ts'
import { append } from './append.ts'
import { assertAttributes, attributesText } from './attributes.ts'
import { isNameable, type RecordsCore, wholeMs } from './core.ts'
import { type ExportOptions, exportRecords } from './export.ts'
import { freeingSlot } from './fail.ts'
import { keepDescription } from './json-schema.ts'
import { storedKey } from './keys.ts'
import { appendTable, eraseTable, exportTable, putTable, submissionsTable, uploadTable } from './options.ts'
import {
  diffRecord,
  getRecord,
  type HistoryEntry,
  type ListRecordsOptions,
  listRecords,
  recordHistory,
  type VersionDiff,
} from './reads.ts'
import type { AppendRowOf, PutRowOf, RowTypes, TypeName, VersionOf } from './row-types.ts'
import { type DefinedSet, scopeText } from './sets.ts'
import { assertSlotFree, lockScope } from './slot.ts'
import { assertBody, assertCsvOptions, assertReadable } from './sources.ts'
import { type ListSubmissionsOptions, listSubmissions, needSubmission, toSubmission } from './submissions.ts'
import type {
  AppendAnswer,
  AppendOptions,
  AppendRow,
  At,
  Body,
  Page,
  PutOptions,
  ScopeKey,
  Submission,
  UploadOptions,
} from './types.ts'
import { upload } from './upload.ts'

const ensureStatement = statement(import.meta.url, 'scope-ensure')
const scopeStatement = statement(import.meta.url, 'scope-read')
const eraseLockStatement = statement(import.meta.url, 'erase-lock')
const eraseEventsStatement = statement(import.meta.url, 'erase-events')
const eraseStatement = statement(import.meta.url, 'erase')
const auditStatement = statement(import.meta.url, 'audit')

export interface ScopeState {
  /** Grows with every commit and erasure. */
  readonly revision: string
  /** The committed number: everything up to it is seen by readers. */
  readonly number: string
  readonly live: number
  readonly attributes: Readonly<Record<string, string>>
}

export interface AuditReport {
  readonly isSound: boolean
  readonly live: number
  readonly countedLive: number
  /** Versions above the committed number while nothing is submitting. */
  readonly orphans: number
}

export class RecordScope<Rows extends RowTypes = RowTypes, Given = PutRowOf<Rows>> {
  readonly #core: RecordsCore
  readonly #given: string | undefined
  readonly #set: DefinedSet
  readonly #scope: string

  constructor(core: RecordsCore, tenant: string | undefined, set: DefinedSet, scope: ScopeKey) {
    this.#core = core
    this.#given = tenant
    this.#set = set
    this.#scope = scopeText(set, scope)
  }

  get #tenant(): string {
    return this.#given ?? currentTenant()
  }

  /** Stages and validates a file. The answer is validated or invalid; submit it by its id. Throws when it did not arrive. */
  async upload(body: Body, options: UploadOptions): Promise<Submission> {
    resolve('upload', uploadTable, options)
    assertReadable(this.#set, options)
    assertBody(this.#set, body, options)
    const attributes = attributesText(this.#set, options.attributes)
    await keepDescription(this.#core, this.#tenant, this.#set)
    const [scope] = await this.#read()
    assertAttributes(attributes, scope?.attributes ?? null)
    const scopeId = scope?.id ?? (await transactIn(this.#core.pool, undefined, (tx) => this.#ensure(tx)))
    const place = { tenant: this.#tenant, set: this.#set, scopeId }
    const id = await upload(this.#core, place, body, options, attributes)
    return toSubmission(this.#core, await needSubmission(this.#core, this.#tenant, id))
  }

  /** Submissions of this scope, newest first. */
  async submissions(options: ListSubmissionsOptions = {}): Promise<Submission[]> {
    resolve('submissions', submissionsTable, options)
    const [scope] = await this.#read()
    if (scope === undefined) return []
    const rows = await listSubmissions(this.#core, this.#tenant, { scopeId: scope.id }, options)
    return rows.map((row) => toSubmission(this.#core, row))
  }

  async state(): Promise<ScopeState | undefined> {
    const [row] = await this.#read()
    if (row === undefined) return undefined
    return {
      revision: row.revision,
      number: row.committed,
      live: Number(row.live),
      attributes: JSON.parse(row.attributes ?? '{}') as Record<string, string>,
    }
  }

  /** Writes one record now. Refused while a submission is being applied to the scope. */
  async put(row: Given, options: PutOptions = {}): Promise<AppendAnswer> {
    resolve('put', putTable, options)
    if (options.tx === undefined) await keepDescription(this.#core, this.#tenant, this.#set)
    return append(this.#core, this.#place, {
      origin: 'put',
      rows: [row as AppendRow],
      scopeId: (tx) => this.#ensure(tx),
      attributes: attributesText(this.#set, options.attributes),
      tx: options.tx,
      revision: undefined,
      number: options.number,
      by: options.by,
      once: options.once,
    })
  }

  /** Writes a delta that the caller computed, all of it or nothing. Rows that change nothing write nothing. */
  async append(rows: readonly AppendRowOf<Given>[], options: AppendOptions = {}): Promise<AppendAnswer> {
    resolve('append', appendTable, options)
    if (options.tx === undefined) await keepDescription(this.#core, this.#tenant, this.#set)
    return append(this.#core, this.#place, {
      origin: 'append',
      rows: rows as readonly AppendRow[],
      scopeId: (tx) => this.#ensure(tx),
      attributes: attributesText(this.#set, options.attributes),
      tx: options.tx,
      revision: options.revision,
      number: undefined,
      by: options.by,
      once: options.once,
    })
  }

  async get<Type extends string>(type: Type & TypeName<Rows>, key: string, at?: At): Promise<VersionOf<Rows, Type> | undefined> {
    return (await getRecord(this.#core, this.#place, type, key, at)) as VersionOf<Rows, Type> | undefined
  }

  /** A page of records in the order of their keys. */
  async list<Type extends string>(
    options: ListRecordsOptions & { readonly type?: Type & TypeName<Rows> } = {},
  ): Promise<Page<VersionOf<Rows, Type>> & { readonly number: string | undefined }> {
    const page = await listRecords(this.#core, this.#place, options)
    return page as unknown as { number: string | undefined } & Page<VersionOf<Rows, Type>>
  }

  /** Versions of one record, newest first. */
  async history(type: TypeName<Rows>, key: string, options: { limit?: number; before?: string } = {}): Promise<HistoryEntry[]> {
    return recordHistory(this.#core, this.#place, type, key, options)
  }

  async diff(type: string, key: string, from: At, to: At): Promise<VersionDiff> {
    return diffRecord(this.#core, this.#place, type, key, from, to)
  }

  /** All current records, or those of a moment, as a stream of text that can be uploaded again. */
  export(options: ExportOptions): AsyncGenerator<string> {
    resolve('export', exportTable, options)
    assertCsvOptions('export', options)
    return exportRecords(this.#core, this.#place, options)
  }

  /**
   * Takes the data out of every version of a record, its events and what is staged. Its numbers and states stay, and who did it and why is kept.
   * The answer has 0 versions where it was only staged.
   */
  async erase(type: string, given: string, options: { reason: string; by?: string; tx?: AnyTx }): Promise<{ versions: number }> {
    resolve('erase', eraseTable, options)
    const key = await storedKey(this.#core, 'erase', this.#place, type, given)
    if (!isNameable(type, key)) throw noRecord(type, key)
    const inOne = async (tx: TxDb) => {
      const [found] = await tx.run<{ id: string }>(scopeStatement, this.#names)
      if (found === undefined) throw noRecord(type, key)
      const scope = await lockScope(tx, this.#tenant, found.id)
      await assertSlotFree(tx, this.#tenant, scope)
      await tx.run(eraseLockStatement, { tenant: this.#tenant, scope_id: scope.id })
      const [erased] = await tx.run<{ versions: number }>(eraseStatement, {
        tenant: this.#tenant,
        scope_id: scope.id,
        type,
        key,
        reason: options.reason,
        erased_by: options.by ?? null,
      })
      if (erased === undefined) throw noRecord(type, key)
      const about = { ...this.#names, type, key, reason: options.reason, erased_by: options.by ?? null }
      if (erased.versions > 0) await tx.run(eraseEventsStatement, { ...about, scope_id: scope.id })
      return { versions: erased.versions }
    }
    return freeingSlot(this.#core, this.#tenant, options.tx, () =>
      transactIn(this.#core.pool, options.tx, inOne, { statementMs: wholeMs }),
    )
  }

  /** Counts everything anew. What is not sound is a bug of ours, or somebody wrote to the tables. */
  async audit(): Promise<AuditReport | undefined> {
    const [row] = await read<{
      live: string
      counted_live: string
      uncommitted: string
      empty: string
      submitting: string | null
    }>(this.#core.pool, auditStatement, this.#names)
    if (row === undefined) return undefined
    const orphans = row.submitting === null ? Number(row.uncommitted) + Number(row.empty) : 0
    return {
      isSound: row.live === row.counted_live && orphans === 0,
      live: Number(row.live),
      countedLive: Number(row.counted_live),
      orphans,
    }
  }

  get #place() {
    return { tenant: this.#tenant, set: this.#set, scope: this.#scope }
  }

  get #names() {
    return { tenant: this.#tenant, record_set: this.#set.name, scope: this.#scope }
  }

  #read() {
    return read<{ id: string; revision: string; committed: string; live: string; attributes: string | null }>(
      this.#core.pool,
      scopeStatement,
      this.#names,
    )
  }

  async #ensure(tx: TxDb): Promise<string> {
    const find = async () => (await tx.run<{ id: string }>(scopeStatement, this.#names))[0]?.id
    const id = (await find()) ?? (await tx.run<{ id: string }>(ensureStatement, this.#names))[0]?.id ?? (await find())
    if (id !== undefined) return id
    // Above READ COMMITTED a scope that somebody made since the transaction began cannot be seen.
    throw new PawlError('PAWL_ROLLED_BACK', 'Another transaction has just created this scope. Run your transaction again.')
  }
}

function noRecord(type: string, key: string): PawlError {
  return new PawlError('PAWL_NOT_FOUND', `There is no ${type} '${key.slice(0, 100)}' with data in this scope.`, {
    details: { type, key },
  })
}
