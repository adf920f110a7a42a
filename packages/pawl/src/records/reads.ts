// Reads of a scope's records: current, as of a number, page by page, history. A reader takes of each record the latest version up to one
// number, so what it sees is one commit, at any moment of a running submission.

import { statement, textsLiteral } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { check, refused, resolve } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { at as atOption, listRecordsTable, pageTable } from './options.ts'
import { isFault } from './rows/columns.ts'
import { fieldChanges } from './rows/diff.ts'
import { canonicalField, canonicalRow, Unstorable } from './rows/json-text.ts'
import { type DefinedSet, type DefinedType, keyPart, keyText, mayHaveOtherColumns, type Registry } from './sets.ts'
import { idText, needSubmission } from './submissions.ts'
import type { At, FieldChange, Page, PageOptions, RecordData, RecordVersion } from './types.ts'

const pageStatement = statement(import.meta.url, 'record-page')
const historyStatement = statement(import.meta.url, 'history')
const numberAtStatement = statement(import.meta.url, 'number-at')
const scopeStatement = statement(import.meta.url, 'scope-read')

/** A page ends after this many bytes. It is read in steps: of its last step the database reads all rows, also those after the end. */
const pageBytes = 4_000_000
const stepRows = 1000

export interface ReadPlace {
  readonly tenant: string
  readonly set: DefinedSet
  /** The canonical text of the scope. */
  readonly scope: string
}

/** PostgreSQL stores no NUL in a string, so no record has one in its type or key. */
export function isNameable(type: string, key: string): boolean {
  return !type.includes('\u0000') && !key.includes('\u0000')
}

interface VersionRow {
  type: string
  key: string
  number: string
  status: RecordVersion['status']
  submission: string
  schema_version: number
  classification: string | null
  /** As JSON: the driver takes an array apart much slower. */
  changed: string[] | null
  data: RecordData | null
  is_erased: boolean
}

interface HistoryRow extends VersionRow {
  committed_at: Date | null
  submitted_by: string | null
  origin: string | null
}

export interface HistoryEntry extends RecordVersion {
  readonly committedAt: Date | null
  readonly by: string | null
  readonly origin: string | null
}

export interface ListRecordsOptions {
  readonly type?: string
  /** Fields that must have these values. */
  readonly filter?: RecordData
  readonly at?: At
  readonly withDeleted?: boolean
  /** A page of large records has fewer, and a `next`. */
  readonly limit?: number
  /** `next` of the last page. It carries the number of the first page, so that all pages are of one commit. */
  readonly after?: string
}

export interface VersionDiff {
  readonly from: RecordVersion
  readonly to: RecordVersion
  readonly table: readonly FieldChange[]
}

export async function getRecord(
  registry: Registry,
  place: ReadPlace,
  type: string,
  given: string,
  at?: At,
): Promise<RecordVersion | undefined> {
  const key = await storedKey(registry, 'get', place, type, given)
  const number = await numberAt(registry, place, check('get', 'at', atOption, at))
  if (!isNameable(type, key)) return undefined
  const [row] = await readVersions(registry, place, type, key, number)
  return row && toVersion(row)
}

/** From a number on backwards; null: from the committed one. */
function readVersions(registry: Registry, place: ReadPlace, type: string, key: string, number: string | null, limit = 1) {
  return read<HistoryRow>(registry.pool, historyStatement, { ...namesOf(place), type, key, number, limit })
}

export async function listRecords(registry: Registry, place: ReadPlace, given: ListRecordsOptions): Promise<RecordPage> {
  const options = resolve('list', listRecordsTable, given)
  const { limit } = options
  const [start, afterType = options.type ?? '', afterKey = ''] = options.after === undefined ? [] : cursorParts(options.after, 3)
  const filters = options.filter === undefined ? null : textsLiteral(filterTexts(place.set, options.type, options.filter))
  let number = start === undefined ? await numberAt(registry, place, options.at) : pinned(start)
  let after = { after_type: afterType, after_key: afterKey }
  const items: RecordVersion[] = []
  for (let bytes = 0; items.length < limit && bytes < pageBytes; ) {
    const asked = Math.min(limit - items.length, stepRows)
    const rows = await read<VersionRow & { pinned: string; bytes: number }>(registry.pool, pageStatement, {
      ...namesOf(place),
      number,
      type: options.type ?? null,
      filters,
      with_deleted: options.withDeleted,
      ...after,
      limit: asked,
      bytes_max: pageBytes - bytes,
    })
    for (const row of rows) items.push(toVersion(row))
    const last = rows.at(-1)
    if (last !== undefined) {
      bytes += last.bytes
      number = last.pinned
      after = { after_type: last.type, after_key: last.key }
    }
    if (rows.length < asked && bytes < pageBytes) return { items, next: null, number: number ?? undefined }
  }
  return { items, next: cursorText([number!, after.after_type, after.after_key]), number: number! }
}

export type RecordPage = Page<RecordVersion> & { readonly number: string | undefined }

/** All pages of one commit. */
export async function* recordPages(registry: Registry, place: ReadPlace, type?: string, at?: At): AsyncGenerator<RecordPage> {
  let after: string | undefined
  do {
    const page = await listRecords(registry, place, { limit: stepRows, type, at, after } as ListRecordsOptions)
    yield page
    after = page.next ?? undefined
  } while (after !== undefined)
}

/**
 * The filter as records may have it: with each value in the form of its column, and as it was given where a record may have a field in another
 * form, which a schema or an older version of the set gave it.
 */
function filterTexts(set: DefinedSet, type: string | undefined, filter: RecordData): string[] {
  const types = type === undefined ? [...set.types.values()] : [...set.types.values()].filter(({ name }) => name === type)
  const isOpen = types.length === 0 || mayHaveOtherColumns(set, types)
  if (!isOpen) assertColumns(set, types, Object.keys(filter))
  const names = Object.keys(filter).sort()
  const asColumns = names.map((name) => `${JSON.stringify(name)}:${filterValue(types, name, filter[name], isOpen)}`)
  const texts = [`{${asColumns.join(',')}}`, ...(isOpen ? [canonicalFilter(() => canonicalRow(filter))] : [])]
  return [...new Set(texts)]
}

/** A field without a value would be left out of the text, and everything would match. */
function filterValue(types: readonly DefinedType[], name: string, value: unknown, isOpen: boolean): string {
  const columns = types.flatMap(({ byName }) => byName.get(name) ?? [])
  const found = columns.map(({ form }) => form(value))
  const isNothing = value === null || value === undefined || (columns.length > 0 && found.every((text) => text === undefined))
  if (isNothing) throw refused('list', `filter.${name} must have a value, got ${shown(value)}. Leave the field out, or give one`)
  const texts = new Set(found.filter((text) => typeof text === 'string'))
  if (texts.size > 1)
    throw refused('list', `filter.${name} means ${[...texts].join(' or ')} in columns of different types. Give the type`)
  const [text] = texts
  if (text !== undefined) return text
  const fault = found.find((each) => each !== undefined && isFault(each))
  if (fault === undefined || isOpen) return canonicalFilter(() => canonicalField(value))
  throw refused('list', `filter.${name} ${fault.reason}, got ${shown(value)}`)
}

function canonicalFilter(canonical: () => string): string {
  try {
    return canonical()
  } catch (error) {
    if (!(error instanceof Unstorable)) throw error
    throw new PawlError('PAWL_CONFIG', `filter ${error.message}, so no record can match it.`)
  }
}

/** No record has a misspelt column, and an empty page would read as an answer. */
function assertColumns(set: DefinedSet, types: readonly DefinedType[], names: readonly string[]): void {
  const columns = new Set(types.flatMap(({ columns }) => columns.map(({ name }) => name)))
  const unknown = names.find((name) => !columns.has(name))
  if (unknown !== undefined)
    throw refused('list', `filter must name columns of '${set.name}' (${[...columns].join(', ')}), got ${shown(unknown)}`, {
      option: 'filter',
    })
}

export async function recordHistory(
  registry: Registry,
  place: ReadPlace,
  type: string,
  given: string,
  options: PageOptions,
): Promise<Page<HistoryEntry>> {
  const { limit, after } = resolve('history', pageTable, options)
  const key = await storedKey(registry, 'history', place, type, given)
  if (!isNameable(type, key)) return { items: [], next: null }
  const number = after === undefined ? null : String(BigInt(idText('version', after)) - 1n)
  const rows = await readVersions(registry, place, type, key, number, limit)
  const items = rows.map((row) => ({
    ...toVersion(row),
    committedAt: row.committed_at,
    by: row.submitted_by,
    origin: row.origin,
  }))
  return { items, next: items.length < limit ? null : items.at(-1)!.number }
}

/** What changed between two moments of one record. */
export async function diffRecord(
  registry: Registry,
  place: ReadPlace,
  type: string,
  key: string,
  from: At,
  to: At,
): Promise<VersionDiff> {
  const [before, after] = await Promise.all([
    getRecord(registry, place, type, key, from),
    getRecord(registry, place, type, key, to),
  ])
  if (before === undefined || after === undefined)
    throw new PawlError(
      'PAWL_NOT_FOUND',
      `There is no ${type} '${key.slice(0, 100)}' as of ${before === undefined ? 'the first' : 'the second'} of the two times.`,
    )
  return { from: before, to: after, table: fieldChanges(before.data, after.data) }
}

/** Of a cursor. */
function pinned(number: string): string {
  if (/^\d{1,18}$/.test(number)) return number
  throw notCursor(number)
}

/** null: as committed now. */
async function numberAt(registry: Registry, place: ReadPlace, at: At | undefined): Promise<string | null> {
  if (at === undefined) return null
  if ('number' in at) return at.number === '0' ? '0' : idText('number', at.number)
  const [scope] = await read<{ id: string }>(registry.pool, scopeStatement, namesOf(place))
  if (scope === undefined) return '0'
  if ('time' in at) {
    const values = { tenant: place.tenant, scope_id: scope.id, at: at.time.toISOString() }
    return (await read<{ number: string }>(registry.pool, numberAtStatement, values))[0]!.number
  }
  const submission = await needSubmission(registry, place.tenant, at.submission)
  if (submission.internal.scopeId === scope.id && submission.state === 'submitted') return submission.number
  throw new PawlError(
    'PAWL_WRONG_STATE',
    `Submission ${at.submission} is ${submission.state} or belongs to another scope. Name a submitted one of this scope.`,
    { details: { id: at.submission, state: submission.state } },
  )
}

export function namesOf({ tenant, set, scope }: ReadPlace) {
  return { tenant, record_set: set.name, scope }
}

function toVersion(row: VersionRow): RecordVersion {
  return {
    type: row.type,
    key: row.key,
    number: row.number,
    status: row.status,
    submission: row.submission,
    schemaVersion: row.schema_version,
    classification: row.classification,
    changed: row.changed,
    data: row.data,
    isErased: row.is_erased,
  }
}

/** Opaque to callers: the strings that name the last row of a page. */
export function cursorText(parts: readonly string[]): string {
  return Buffer.from(JSON.stringify(parts)).toString('base64url')
}

export function cursorParts(text: string, count: number): string[] {
  try {
    const parts = JSON.parse(Buffer.from(text, 'base64url').toString()) as unknown[]
    if (parts.length === count && parts.every((part) => typeof part === 'string')) return parts
  } catch {
    // It is said below.
  }
  throw notCursor(text)
}

function notCursor(given: string): PawlError {
  return new PawlError('PAWL_CONFIG', `after must be \`next\` of the previous page, or be left out, got ${shown(given)}.`)
}

/** The key that a call names a record with, as it is stored: " S " is S in a text column, and "5.0" is 5 in a number column. */
export async function storedKey(registry: Registry, call: string, place: ReadPlace, type: string, key: string): Promise<string> {
  if (typeof type !== 'string') throw refused(call, `type must be a string, got ${shown(type)}`)
  if (typeof key !== 'string') throw refused(call, `key must be a string, got ${shown(key)}. Give '5' and not 5`)
  const canonical = canonicalKey(place.set.types.get(type), key)
  if (canonical === key) return key
  // A record that an older version of the set wrote may have the key as it is given.
  const [held] = await readVersions(registry, place, type, key, null)
  return held === undefined ? canonical : key
}

function canonicalKey(type: DefinedType | undefined, key: string): string {
  if (type === undefined) return key
  const given = type.key.length === 1 ? [key] : partsOf(key)
  if (given.length !== type.key.length) return key
  const parts: string[] = []
  for (const [index, part] of given.entries()) {
    const text = type.columns[type.keyIndexes[index]!]!.form(part)
    if (text === undefined || isFault(text)) return key
    parts.push(keyPart(text))
  }
  return keyText(parts)
}

function partsOf(key: string): readonly unknown[] {
  try {
    const parts: unknown = JSON.parse(key)
    return Array.isArray(parts) ? parts : []
  } catch {
    return []
  }
}
