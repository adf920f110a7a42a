// One scope of a record set: upload to it, put and append, read, export, erase.

import type { AnyTx } from '../db/adapters.ts'
import type { TxDb } from '../db/db.ts'
import { type Statement, statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { currentTenant } from '../kernel/handler.ts'
import { resolve } from '../kernel/options.ts'
import { read, transactIn } from '../kernel/retry.ts'
import { type Append, append } from './append.ts'
import { assertAttributes, assertSlotFree, attributesText, lockScope, wholeMs } from './commit.ts'
import { freeingSlot } from './fail.ts'
import { type ExportOptions, exportRecords } from './formats/export.ts'
import { assertBody, assertCsvOptions, assertReadable } from './formats/readers.ts'
import { appendTable, eraseTable, exportTable, putTable, submissionsTable, uploadTable } from './options.ts'
import {
  diffRecord,
  getRecord,
  type HistoryEntry,
  isNameable,
  type ListRecordsOptions,
  listRecords,
  namesOf,
  type ReadPlace,
  recordHistory,
  recordPages,
  storedKey,
  type VersionDiff,
} from './reads.ts'
import type { AppendRowOf, PutRowOf, RowTypes, TypeName, VersionOf } from './rows/row-types.ts'
import { type DefinedSet, keepDescription, type Registry, scopeText } from './sets.ts'
import { type ListSubmissionsOptions, listSubmissions, needSubmission, toSubmission } from './submissions.ts'
import type {
  AppendAnswer,
  AppendOptions,
  AppendRow,
  At,
  Body,
  Page,
  PageOptions,
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
  readonly revision: number
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
  readonly #registry: Registry
  readonly #given: string | undefined
  readonly #set: DefinedSet
  readonly #scope: string

  constructor(registry: Registry, tenant: string | undefined, set: DefinedSet, scope: ScopeKey) {
    this.#registry = registry
    this.#given = tenant
    this.#set = set
    this.#scope = scopeText(set, scope)
  }

  get #place(): ReadPlace {
    return { tenant: this.#given ?? currentTenant(), set: this.#set, scope: this.#scope }
  }

  /** Stages and validates a file. The answer is validated or invalid; submit it by its id. Throws when it did not arrive. */
  async upload(body: Body, options: UploadOptions): Promise<Submission> {
    resolve('upload', uploadTable, options)
    const [registry, place] = [this.#registry, this.#place]
    assertReadable(place.set, options)
    assertBody(place.set, body, options)
    const attributes = attributesText(place.set, options.attributes)
    await keepDescription(registry, place.tenant, place.set)
    const scope = await this.#read(place)
    assertAttributes(attributes, scope?.attributes ?? null)
    const scopeId = scope?.id ?? (await transactIn(registry.pool, undefined, (tx) => ensureScope(tx, place)))
    const id = await upload(registry, { ...place, scopeId }, body, options, attributes)
    return toSubmission(registry, await needSubmission(registry, place.tenant, id))
  }

  /** Submissions of this scope, newest first. */
  async submissions(options: ListSubmissionsOptions = {}): Promise<Page<Submission>> {
    resolve('submissions', submissionsTable, options)
    const place = this.#place
    const scope = await this.#read(place)
    return scope === undefined
      ? { items: [], next: null }
      : listSubmissions(this.#registry, place.tenant, { scope_id: scope.id }, options)
  }

  async state(): Promise<ScopeState | undefined> {
    const scope = await this.#read(this.#place)
    if (scope === undefined) return undefined
    const { revision, committed: number, live, attributes } = scope
    return {
      revision: Number(revision),
      number,
      live: Number(live),
      attributes: JSON.parse(attributes ?? '{}') as Record<string, string>,
    }
  }

  /** Writes one record now. Refused while a submission is being applied to the scope. */
  async put(row: Given, options: PutOptions = {}): Promise<AppendAnswer> {
    resolve('put', putTable, options)
    return this.#append('put', [row as AppendRow], options)
  }

  /** Writes a delta that the caller computed, all of it or nothing. Rows that change nothing write nothing. */
  async append(rows: readonly AppendRowOf<Given>[], options: AppendOptions = {}): Promise<AppendAnswer> {
    resolve('append', appendTable, options)
    return this.#append('append', rows as readonly AppendRow[], options)
  }

  async #append(origin: Append['origin'], rows: readonly AppendRow[], options: PutOptions & AppendOptions) {
    const place = this.#place
    if (options.tx === undefined) await keepDescription(this.#registry, place.tenant, place.set)
    const attributes = attributesText(place.set, options.attributes)
    return append(this.#registry, place, { ...options, origin, rows, attributes, scopeId: (tx) => ensureScope(tx, place) })
  }

  async get<Type extends string>(type: Type & TypeName<Rows>, key: string, at?: At): Promise<VersionOf<Rows, Type> | undefined> {
    return (await getRecord(this.#registry, this.#place, type, key, at)) as VersionOf<Rows, Type> | undefined
  }

  /** A page of records in the order of their keys. */
  async list<Type extends string>(
    options: ListRecordsOptions & { readonly type?: Type & TypeName<Rows> } = {},
  ): Promise<Page<VersionOf<Rows, Type>> & { readonly number: string | undefined }> {
    const page = await listRecords(this.#registry, this.#place, options)
    return page as unknown as { number: string | undefined } & Page<VersionOf<Rows, Type>>
  }

  /** Versions of one record, newest first. */
  async history(type: TypeName<Rows>, key: string, options: PageOptions = {}): Promise<Page<HistoryEntry>> {
    return recordHistory(this.#registry, this.#place, type, key, options)
  }

  async diff(type: string, key: string, from: At, to: At): Promise<VersionDiff> {
    return diffRecord(this.#registry, this.#place, type, key, from, to)
  }

  /** All current records, or those of a moment, as a stream of text that can be uploaded again. */
  export(options: ExportOptions): AsyncGenerator<string> {
    resolve('export', exportTable, options)
    assertCsvOptions('export', options)
    const [registry, place] = [this.#registry, this.#place]
    return exportRecords(place.set, (at) => recordPages(registry, place, options.type, at), options)
  }

  /**
   * Takes the data out of every version of a record, its events and what is staged. Its numbers and states stay, and who did it and why is kept.
   * The answer has 0 versions where it was only staged.
   */
  async erase(type: string, given: string, options: { reason: string; by?: string; tx?: AnyTx }): Promise<{ versions: number }> {
    resolve('erase', eraseTable, options)
    const [registry, place] = [this.#registry, this.#place]
    const { tenant } = place
    const key = await storedKey(registry, 'erase', place, type, given)
    if (!isNameable(type, key)) throw noRecord(type, key)
    const inOne = async (tx: TxDb) => {
      const [found] = await tx.run<{ id: string }>(scopeStatement, namesOf(place))
      if (found === undefined) throw noRecord(type, key)
      const scope = await lockScope(tx, tenant, found.id)
      await assertSlotFree(tx, tenant, scope)
      await tx.run(eraseLockStatement, { tenant, scope_id: scope.id })
      const what = { tenant, scope_id: scope.id, type, key, reason: options.reason, erased_by: options.by ?? null }
      const [erased] = await tx.run<{ versions: number }>(eraseStatement, what)
      if (erased === undefined) throw noRecord(type, key)
      if (erased.versions > 0) await tx.run(eraseEventsStatement, { ...what, ...namesOf(place) })
      return { versions: erased.versions }
    }
    return freeingSlot(registry, tenant, options.tx, () => transactIn(registry.pool, options.tx, inOne, { statementMs: wholeMs }))
  }

  /** Counts everything again. A scope that is not sound is a bug of Pawl, or its tables were written to. */
  async audit(): Promise<AuditReport | undefined> {
    const [row] = await read<Record<'live' | 'counted_live' | 'uncommitted' | 'empty', string> & { submitting: string | null }>(
      this.#registry.pool,
      auditStatement,
      namesOf(this.#place),
    )
    if (row === undefined) return undefined
    const orphans = row.submitting === null ? Number(row.uncommitted) + Number(row.empty) : 0
    const isSound = row.live === row.counted_live && orphans === 0
    return { isSound, live: Number(row.live), countedLive: Number(row.counted_live), orphans }
  }

  async #read(place: ReadPlace) {
    type Scope = Record<'id' | 'revision' | 'committed' | 'live', string> & { attributes: string | null }
    return (await read<Scope>(this.#registry.pool, scopeStatement, namesOf(place)))[0]
  }
}

async function ensureScope(tx: TxDb, place: ReadPlace): Promise<string> {
  const idOf = async (query: Statement) => (await tx.run<{ id: string }>(query, namesOf(place)))[0]?.id
  const id = (await idOf(scopeStatement)) ?? (await idOf(ensureStatement)) ?? (await idOf(scopeStatement))
  if (id !== undefined) return id
  // Above READ COMMITTED a scope that another transaction made since this one began cannot be seen.
  throw new PawlError('PAWL_ROLLED_BACK', 'Another transaction has just created this scope. Run your transaction again.')
}

function noRecord(type: string, key: string): PawlError {
  return new PawlError('PAWL_NOT_FOUND', `There is no ${type} '${key.slice(0, 100)}' with data in this scope.`, {
    details: { type, key },
  })
}
