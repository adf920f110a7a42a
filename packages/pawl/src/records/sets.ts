// Record sets: what a scope is made of, which types of row there are, and what each column must be. Declared once, resolved once.

import type { Logger } from '../config.ts'
import type { Pool } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import type { Jobs } from '../jobs/index.ts'
import { assertKnown, check, type Resolved, refused, required, resolve, text } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import type { Ends } from './ends.ts'
import { keepTable, recordSetTable, type recordTypeTable } from './options.ts'
import { assertUsed, type Coerce, compileCell, compileColumn, compileForm } from './rows/columns.ts'
import { describeSet } from './rows/json-schema.ts'
import type { Sweep } from './sweep.ts'
import type {
  Column,
  FileFormat,
  RecordSet,
  RecordSetDescription,
  RecordSetOptions,
  RecordTypeOptions,
  ScopeKey,
} from './types.ts'

const keepStatement = statement(import.meta.url, 'set-keep')
const listStatement = statement(import.meta.url, 'set-list')

/** The sets of a process, and what their verbs run on. */
export interface Registry {
  readonly pool: Pool
  readonly sets: Map<string, DefinedSet>
  /** Sets whose description this process has stored. */
  readonly kept: Set<string>
  readonly jobs: (tenant: string) => Jobs
  /** One for all waiting calls of this process. */
  readonly ends: Ends
  /** Of this process, for all tenants. */
  readonly sweep: Sweep
  readonly logger: Pick<Logger, 'error'>
}

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

type SetOptions = Resolved<typeof recordSetTable>

export interface DefinedSet
  extends Pick<
    SetOptions,
    'scope' | 'typeColumn' | 'missing' | 'unknownColumns' | 'schemaVersion' | 'classify' | 'events' | 'retry'
  > {
  readonly name: string
  readonly attributes: readonly string[]
  readonly types: ReadonlyMap<string, DefinedType>
  readonly formats: readonly FileFormat[]
  readonly limits: SetOptions['limits'] & Pick<SetOptions['tuning'], 'rowCharsMax' | 'errorsMax'>
  readonly chunkRows: number
  readonly keepMs: Resolved<typeof keepTable>
}

const nameOfSet = required(text({ to: 200, doc: 'The name of a record set.' }))
const typeName = required(text({ to: 200, doc: 'The name of a type of row.' }))
/** Of a set that this process does not define. */
export const keepDefaults = resolve('records.define', keepTable, {})
/** It is the key of the scope's events, which have the same limit. */
const scopeCharsMax = 500

export function defineSet(name: string, given: RecordSetOptions): DefinedSet {
  const call = `records.define('${check('records.define', 'name', nameOfSet, name)}')`
  const { keep, limits, tuning, types, ...options } = resolve(call, recordSetTable, given)
  if (Object.keys(types).length === 0) throw refused(call, 'types must have at least one type')
  if (options.scope.length === 0 || new Set(options.scope).size !== options.scope.length)
    throw refused(
      call,
      `scope must have one or more distinct names, got ${options.scope.length === 0 ? 'none' : options.scope.join(', ')}`,
    )
  return {
    ...options,
    name,
    attributes: options.attributes ?? [],
    types: new Map(Object.entries(types).map(([type, each]) => [type, defineType(call, type, each)])),
    formats: options.formats ?? [],
    limits: { ...limits, rowCharsMax: tuning.rowCharsMax, errorsMax: tuning.errorsMax },
    chunkRows: tuning.chunkRows,
    keepMs: keep,
  }
}

function defineType(call: string, name: string, options: Resolved<typeof recordTypeTable>): DefinedType {
  check(call, 'the name of a type', typeName, name)
  const path = `types.${name}`
  const { key } = options
  if (key.length === 0) throw refused(call, `${path}.key must name at least one column`)
  for (const column of key) {
    if (!Object.hasOwn(options.columns, column))
      throw refused(call, `${path}.key must name columns of the type, got ${shown(column)}. Declare it in ${path}.columns`)
  }
  const columns = Object.keys(options.columns)
    .sort()
    .map((column) => {
      const given = options.columns[column] as Column
      assertUsed(call, `${path}.columns.${column}`, given)
      return defineColumn(column, given, key.includes(column))
    })
  const keyIndexes = key.map((column) => columns.findIndex((each) => each.name === column))
  return {
    name,
    key,
    keyIndexes,
    columns,
    byName: new Map(columns.map((column) => [column.name, column])),
    names: Object.keys(options.columns),
    jsonNames: new Set(columns.filter(({ column }) => column.type === 'json').map(({ name }) => name)),
    schema: options.schema as RecordTypeOptions['schema'],
  }
}

function defineColumn(name: string, given: Column, isKey: boolean): DefinedColumn {
  // A row without its key cannot be told apart from the others.
  const column = isKey ? { ...given, required: true } : given
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

/** A string as it is, any other value as its JSON. */
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
export async function keepDescription(registry: Registry, tenant: string, set: DefinedSet): Promise<void> {
  const asked = JSON.stringify([tenant, set.name])
  if (registry.kept.has(asked)) return
  const { name, schemaVersion, ...definition } = describeSet(set)
  await read(registry.pool, keepStatement, {
    tenant,
    name,
    schema_version: schemaVersion,
    definition: JSON.stringify(definition),
  })
  registry.kept.add(asked)
}

/** The sets that were ever used, each in its latest version. */
export async function keptDescriptions(registry: Registry, tenant: string): Promise<RecordSetDescription[]> {
  type Definition = Omit<RecordSetDescription, 'name' | 'schemaVersion'>
  type Row = { name: string; schema_version: number; definition: Definition }
  const rows = await read<Row>(registry.pool, listStatement, { tenant })
  return rows.map(({ name, schema_version: schemaVersion, definition }) => ({ name, schemaVersion, ...definition }))
}
