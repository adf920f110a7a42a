// Record sets: what a scope is made of, which types of row there are, and what each column must be. Declared once, resolved once.

import { statement } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { assertKnown, durationIn, notOneOf, whole, withoutUndefined } from '../kernel/options.ts'
import { type RecordsCore, read } from './core.ts'
import { type Coerce, compileCell, compileColumn, compileForm, resolveColumn } from './rows/columns.ts'
import { describeSet } from './rows/json-schema.ts'
import type {
  Column,
  FileFormat,
  MissingPolicy,
  RecordSet,
  RecordSetDescription,
  RecordSetOptions,
  RecordTypeOptions,
  ScopeKey,
  UploadLimits,
} from './types.ts'

const keepStatement = statement(import.meta.url, 'set-keep')
const listStatement = statement(import.meta.url, 'set-list')

export interface DefinedColumn {
  readonly name: string
  readonly column: Column
  /** `,"name":`, ready to be put before the value. */
  readonly prefix: string
  readonly coerce: Coerce
  /** Of a CSV or a workbook. */
  readonly coerceCell: Coerce
  /** Of a CSV with a decimal comma. */
  readonly coerceCommaCell: Coerce
  /** Of a filter or a key, which is searched for: no rule but the form. */
  readonly form: Coerce
}

export interface DefinedType {
  readonly name: string
  readonly key: readonly string[]
  /** Where the key's columns are in `columns`. */
  readonly keyIndexes: readonly number[]
  /** In the order of their names, which is the order of the canonical text. */
  readonly columns: readonly DefinedColumn[]
  readonly byName: ReadonlyMap<string, DefinedColumn>
  /** The names of the columns, as declared. */
  readonly names: readonly string[]
  /** Of the columns of type json. */
  readonly jsonNames: ReadonlySet<string>
  readonly schema: RecordTypeOptions['schema']
}

export interface DefinedSet {
  readonly name: string
  readonly scope: readonly string[]
  readonly attributes: readonly string[]
  readonly types: ReadonlyMap<string, DefinedType>
  readonly typeColumn: string
  readonly missing: MissingPolicy
  readonly unknownColumns: NonNullable<RecordSetOptions['unknownColumns']>
  readonly schemaVersion: number
  readonly classify: RecordSetOptions['classify']
  readonly events: NonNullable<RecordSetOptions['events']>
  readonly retry: Required<NonNullable<RecordSetOptions['retry']>>
  readonly formats: readonly FileFormat[]
  readonly limits: UploadLimits
  readonly chunkRows: number
  readonly keepMs: Readonly<Record<'validated' | 'uploading' | 'ended', number>>
}

export const recordDefaults = {
  retry: { attempts: 5, initialMs: 1000, maxMs: 60_000, jitter: true },
  limits: {
    bytesMax: 1_073_741_824,
    rowsMax: 2_000_000,
    rowCharsMax: 1_000_000,
    errorsMax: 1000,
  },
  keepMs: { validated: 7 * 86_400_000, uploading: 3_600_000, ended: 86_400_000 },
} as const

const knownOptions = new Set([
  'scope',
  'attributes',
  'types',
  'typeColumn',
  'missing',
  'unknownColumns',
  'schemaVersion',
  'classify',
  'events',
  'retry',
  'formats',
  'limits',
  'chunkRows',
  'keep',
])
const knownType = new Set(['key', 'columns', 'schema'])
/** It is the key of the scope's events, which have the same limit. */
const scopeCharsMax = 500
const policies: readonly MissingPolicy[] = ['reject', 'keep', 'tombstone']
const unknownPolicies = ['reject', 'ignore', 'keep'] as const
const eventChoices = ['none', 'submission', 'record'] as const
/** A row is one text here and in PostgreSQL. */
const rowCharsMax = 100_000_000
const keepMsMax = 36_500 * 86_400_000

export function defineSet(name: string, options: RecordSetOptions): DefinedSet {
  const where = `records.define('${name}')`
  assertName('record set', name)
  assertKnown(where, options, knownOptions)
  assertObject(`${where}.types`, options.types)
  assertNames(`${where}.scope`, options.scope)
  const types = new Map(
    Object.entries(options.types).map(([type, given]) => [type, defineType(`${where}.types.${type}`, type, given)]),
  )
  if (types.size === 0) throw new PawlError('PAWL_CONFIG', `${where} needs at least one type.`)
  if (options.scope.length === 0 || new Set(options.scope).size !== options.scope.length)
    throw new PawlError('PAWL_CONFIG', `${where}.scope must have one or more distinct names.`)
  const missing = options.missing ?? 'keep'
  if (!policies.includes(missing)) throw notOneOf(`${where}.missing`, missing, policies)
  const { unknownColumns = 'reject', events = 'submission' } = options
  if (!unknownPolicies.includes(unknownColumns)) throw notOneOf(`${where}.unknownColumns`, unknownColumns, unknownPolicies)
  if (!eventChoices.includes(events)) throw notOneOf(`${where}.events`, events, eventChoices)
  return {
    name,
    scope: [...options.scope],
    attributes: [...assertNames(`${where}.attributes`, options.attributes ?? [])],
    types,
    typeColumn: options.typeColumn ?? 'type',
    missing,
    unknownColumns,
    schemaVersion: whole('schemaVersion', options.schemaVersion ?? 1, 1, 2_147_483_647),
    classify: options.classify,
    events,
    retry: retryOf(`${where}.retry`, options.retry),
    chunkRows: whole('chunkRows', options.chunkRows ?? 5000, 1, 100_000),
    formats: formatsOf(`${where}.formats`, options.formats),
    limits: limitsOf(`${where}.limits`, options.limits),
    keepMs: keepOf(`${where}.keep`, options.keep),
  }
}

function retryOf(where: string, given: RecordSetOptions['retry'] = {}): DefinedSet['retry'] {
  assertKnown(where, given, namesOf(recordDefaults.retry))
  const filled = { ...recordDefaults.retry, ...withoutUndefined(given) }
  return {
    attempts: whole(`${where}.attempts`, filled.attempts, 1, 1_000_000),
    initialMs: whole(`${where}.initialMs`, filled.initialMs, 0, 86_400_000),
    maxMs: whole(`${where}.maxMs`, filled.maxMs, 0, 86_400_000),
    jitter: filled.jitter,
  }
}

function formatsOf(where: string, given: RecordSetOptions['formats'] = []): DefinedSet['formats'] {
  const isFormat = (each: Partial<FileFormat> | null) => each?.name === 'xlsx' && typeof each.read === 'function'
  if (Array.isArray(given) && given.every(isFormat)) return [...given]
  const wrong: unknown = Array.isArray(given) ? given.find((each) => !isFormat(each)) : given
  throw new PawlError(
    'PAWL_CONFIG',
    `${where} must be an array of formats such as xlsx() of 'pawl/records/xlsx', got ${shown(wrong)}.`,
  )
}

function limitsOf(where: string, given: Partial<UploadLimits> = {}): UploadLimits {
  assertKnown(where, given, namesOf(recordDefaults.limits))
  const limits = { ...recordDefaults.limits, ...withoutUndefined(given) }
  for (const [name, value] of Object.entries(limits)) whole(`${where}.${name}`, value, 1, Number.MAX_SAFE_INTEGER)
  whole(`${where}.rowCharsMax`, limits.rowCharsMax, 1, rowCharsMax)
  return limits
}

function keepOf(where: string, given: RecordSetOptions['keep'] = {}): DefinedSet['keepMs'] {
  assertKnown(where, given, namesOf(recordDefaults.keepMs))
  const filled = { ...recordDefaults.keepMs, ...withoutUndefined(given) }
  const ms = (name: keyof typeof filled) => durationIn(`${where}.${name}`, filled[name], 1, keepMsMax)
  return { validated: ms('validated'), uploading: ms('uploading'), ended: ms('ended') }
}

function namesOf(options: object): ReadonlySet<string> {
  return new Set(Object.keys(options))
}

function defineType(where: string, name: string, options: RecordTypeOptions): DefinedType {
  assertKnown(where, options, knownType)
  assertName('record type', name)
  assertObject(`${where}.columns`, options.columns)
  const key = assertNames(`${where}.key`, typeof options.key === 'string' ? [options.key] : options.key)
  if (key.length === 0) throw new PawlError('PAWL_CONFIG', `${where}.key needs at least one column.`)
  for (const column of key) {
    if (options.columns[column] === undefined)
      throw new PawlError('PAWL_CONFIG', `${where}.key names the column '${column}', which is not declared.`)
  }
  const columns = Object.keys(options.columns)
    .sort()
    .map((column) => defineColumn(`${where}.columns.${column}`, column, options.columns[column]!, key.includes(column)))
  const keyIndexes = key.map((column) => columns.findIndex((each) => each.name === column))
  return {
    name,
    key,
    keyIndexes,
    columns,
    byName: new Map(columns.map((column) => [column.name, column])),
    names: Object.keys(options.columns),
    jsonNames: new Set(columns.filter(({ column }) => column.type === 'json').map(({ name }) => name)),
    schema: options.schema,
  }
}

function assertName(what: string, name: unknown): void {
  if (typeof name === 'string' && name.length > 0 && name.length <= 200) return
  const got = typeof name === 'string' ? `${name.length} of them` : shown(name)
  throw new PawlError('PAWL_CONFIG', `The name of a ${what} must be a string of 1 to 200 characters, got ${got}.`)
}

function assertObject(where: string, given: unknown): void {
  if (typeof given === 'object' && given !== null && !Array.isArray(given)) return
  throw new PawlError('PAWL_CONFIG', `${where} must be an object, got ${shown(given)}.`)
}

function assertNames(where: string, given: readonly string[]): readonly string[] {
  const wrong: unknown = Array.isArray(given) ? given.find((name) => typeof name !== 'string') : given
  if (Array.isArray(given) && wrong === undefined) return given
  throw new PawlError('PAWL_CONFIG', `${where} must be an array of strings, got ${shown(wrong)}.`)
}

function defineColumn(where: string, name: string, given: Parameters<typeof resolveColumn>[1], isKey: boolean): DefinedColumn {
  const resolved = resolveColumn(where, given)
  // A row without its key cannot be told apart from the others.
  const column = isKey ? { ...resolved, required: true } : resolved
  return {
    name,
    column,
    prefix: `,${JSON.stringify(name)}:`,
    coerce: compileColumn(column),
    coerceCell: compileCell(column),
    coerceCommaCell: compileCell(column, ','),
    form: compileForm(column),
  }
}

/** Whether records may have columns that are not declared: kept ones, ones that a schema adds, ones of an older version of the set. */
export function mayHaveOtherColumns(set: DefinedSet, types: readonly DefinedType[]): boolean {
  return set.unknownColumns === 'keep' || set.schemaVersion > 1 || types.some(({ schema }) => schema !== undefined)
}

/** The canonical text of a scope: its parts in the declared order, as a JSON array, so that no part can run into the next. */
export function scopeText(set: DefinedSet, scope: ScopeKey): string {
  assertKnown(`The scope of '${set.name}'`, scope, new Set(set.scope))
  const parts = set.scope.map((name) => {
    const part = scope[name]
    if (typeof part === 'string' && part.length > 0 && part.length <= 500 && part.isWellFormed() && !part.includes('\u0000'))
      return part
    throw new PawlError(
      'PAWL_CONFIG',
      `The scope of '${set.name}' needs '${name}', a string of 1 to 500 characters, got ${shown(part)}.`,
    )
  })
  const text = JSON.stringify(parts)
  if (text.length > scopeCharsMax)
    throw new PawlError(
      'PAWL_CONFIG',
      `The scope of '${set.name}' must have at most ${scopeCharsMax} characters as JSON, got ${text.length}.`,
    )
  return text
}

export function scopeOf(set: DefinedSet | undefined, text: string): ScopeKey {
  const parts = JSON.parse(text) as string[]
  return Object.fromEntries(parts.map((part, index) => [set?.scope[index] ?? String(index), part]))
}

/** A record's key: the value itself, or for several columns their JSON array. */
export function keyText(parts: readonly string[]): string {
  return parts.length === 1 ? parts[0]! : JSON.stringify(parts)
}

/** A text as it is, anything else as its JSON. */
export function keyPart(json: string): string {
  if (json.startsWith('"') && !json.includes('\\')) return json.slice(1, -1)
  const value = JSON.parse(json) as unknown
  return typeof value === 'string' ? value : json
}

export function setName(set: RecordSet | string): string {
  const name: unknown = typeof set === 'string' ? set : (set as RecordSet | null | undefined)?.name
  if (typeof name === 'string') return name
  throw new PawlError('PAWL_CONFIG', `A record set must be the value of records.define or a name, got ${shown(set)}.`)
}

export function setOf({ sets }: { readonly sets: ReadonlyMap<string, DefinedSet> }, set: RecordSet | string): DefinedSet {
  const name = setName(set)
  const found = sets.get(name)
  if (found !== undefined) return found
  throw new PawlError('PAWL_NOT_FOUND', `This process defines no record set '${name}'. Call records.define first.`, {
    details: { set: name },
  })
}

/** Stores it unless it is stored already; each process asks once. */
export async function keepDescription(core: RecordsCore, tenant: string, set: DefinedSet): Promise<void> {
  const asked = JSON.stringify([tenant, set.name])
  if (core.kept.has(asked)) return
  const { name, schemaVersion, ...definition } = describeSet(set)
  await read(core, keepStatement, { tenant, name, schema_version: schemaVersion, definition: JSON.stringify(definition) })
  core.kept.add(asked)
}

/** The sets that were ever used, each in its latest version. */
export async function keptDescriptions(core: RecordsCore, tenant: string): Promise<RecordSetDescription[]> {
  const rows = await read<{ name: string; schema_version: number; definition: string }>(core, listStatement, { tenant })
  return rows.map((row) => ({
    name: row.name,
    schemaVersion: row.schema_version,
    ...(JSON.parse(row.definition) as Omit<RecordSetDescription, 'name' | 'schemaVersion'>),
  }))
}
