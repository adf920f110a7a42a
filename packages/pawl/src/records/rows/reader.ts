// From a row as its format gives it to a row as it is stored: coerced, keyed, validated, classified, hashed.

import type { SchemaResult } from '../../jobs/types.ts'
import { type DefinedSet, type DefinedType, keyPart, keyText } from '../sets.ts'
import type { RecordData } from '../types.ts'
import { asText, type CellFault, type Decimal, dateText, isFault } from './columns.ts'
import { canonicalField, canonicalRow, contentHash, Unstorable } from './json-text.ts'

export const keyCharsMax = 500
const valueCharsMax = 200
/** Undeclared columns of one row that are errors of their own. */
const unknownMax = 50

/** One row as the parser gives it. `line` is where it begins, for people. */
export interface SourceRow {
  readonly line: number
  /** Where it is in a file with more than one list of lines. */
  readonly place?: string | undefined
  /** Its values are cells of a table. */
  readonly isTabular?: boolean
  /** Named by the workbook's sheet; otherwise a column says it. */
  readonly type: string | undefined
  get(column: string): unknown
  /** The values of these columns, in their order. */
  values(columns: readonly { readonly name: string }[]): readonly unknown[]
  /** The row itself cannot be read, for example because it has more cells than the header. */
  readonly fault?: RowFault | undefined
  /** The names of columns that have a value here and are not among the given. */
  others(known: ReadonlyMap<string, unknown>): readonly string[]
}

export interface RowFault extends CellFault {
  readonly column: string | null
  readonly value: string | null
}

export interface ReadRow {
  readonly line: number
  readonly type: string
  /** '' when it could not be read. */
  readonly key: string
  readonly data: string
  readonly hash: string
  readonly classification: string | null
  readonly faults: readonly RowFault[]
}

export class RowReader {
  readonly #set: DefinedSet
  readonly #onlyType: DefinedType | undefined
  /** What coerces a cell of a table. */
  readonly #cell: 'coerceCell' | 'coerceCommaCell'

  constructor(set: DefinedSet, decimal: Decimal = '.') {
    this.#set = set
    this.#cell = decimal === ',' ? 'coerceCommaCell' : 'coerceCell'
    this.#onlyType = set.types.size === 1 ? [...set.types.values()][0] : undefined
  }

  /** A promise only where the schema is asynchronous. */
  read(row: SourceRow): ReadRow | Promise<ReadRow> {
    const found = this.#read(row)
    if (row.place === undefined) return found
    return found instanceof Promise ? found.then((read) => placed(row.place!, read)) : placed(row.place, found)
  }

  #read(row: SourceRow): ReadRow | Promise<ReadRow> {
    if (row.fault !== undefined) return invalid({ line: row.line, type: '', key: '' }, [row.fault])
    const type = this.#typeOf(row)
    if (type === undefined) return this.#untyped(row)
    const faults: RowFault[] = []
    const fields = this.#fields(row, type, faults)
    const key = keyOf(type, fields)
    const isTooLong = key.length > keyCharsMax
    if (isTooLong) {
      const reason = `the key must have at most ${keyCharsMax} characters, got ${key.length}`
      faults.push({ code: 'key-too-long', reason, column: type.key[0]!, value: shown(key) })
    }
    const found = { line: row.line, type: type.name, key: isTooLong ? '' : key }
    const extra = this.#set.unknownColumns === 'ignore' ? undefined : this.#unknown(row, type, faults)
    if (faults.length > 0) return invalid(found, faults)
    const data = extra === undefined ? objectText(fields) : objectText(merged(type, fields, extra))
    return type.schema === undefined ? this.#finish(found, data) : this.#validated(found, type, data)
  }

  #typeOf(row: SourceRow): DefinedType | undefined {
    if (row.type !== undefined) return this.#set.types.get(row.type)
    if (this.#onlyType !== undefined) return this.#onlyType
    const name = row.get(this.#set.typeColumn)
    return typeof name === 'string' ? this.#set.types.get(name.trim()) : undefined
  }

  #untyped(row: SourceRow): ReadRow {
    const value = row.type ?? row.get(this.#set.typeColumn)
    const known = [...this.#set.types.keys()].join(', ').slice(0, 200)
    const fault = { code: 'type', reason: `must be one of ${known}`, column: this.#set.typeColumn, value: shown(value) }
    return { line: row.line, type: '', key: '', data: '', hash: '', classification: null, faults: [fault] }
  }

  /** Of each column its name and the canonical text of its value, in the order of the columns; undefined where there is none. */
  #fields(row: SourceRow, type: DefinedType, faults: RowFault[]): (string | undefined)[] {
    const { columns } = type
    const { isTabular = false } = row
    const values = row.values(columns)
    const fields: (string | undefined)[] = []
    for (let index = 0; index < columns.length; index++) {
      const column = columns[index]!
      const { name, prefix, coerce } = column
      const text = isTabular ? column[this.#cell](values[index]) : coerce(values[index])
      const fault = isFault(text) ? text : undefined
      if (fault !== undefined) faults.push({ code: fault.code, reason: fault.reason, column: name, value: shown(values[index]) })
      fields.push(typeof text === 'string' ? prefix + text : undefined)
    }
    return fields
  }

  /** Columns that are not declared: faults, or fields to be kept. */
  #unknown(row: SourceRow, type: DefinedType, faults: RowFault[]): Map<string, string> | undefined {
    const others = row.others(type.byName)
    if (others.length === 0) return undefined
    const names = this.#onlyType === undefined ? others.filter((name) => name !== this.#set.typeColumn) : others
    if (this.#set.unknownColumns === 'reject') {
      reject(row, type, names, faults)
      return undefined
    }
    const fields = new Map<string, string>()
    for (const name of names) {
      const value = row.get(name)
      try {
        fields.set(name, `,${canonicalField(name)}:${canonicalField(keptValue(row, value))}`)
      } catch (error) {
        if (!(error instanceof Unstorable)) throw error
        faults.push({ code: 'json', reason: error.message, column: storable(name), value: shown(value) })
        if (faults.length >= unknownMax) break
      }
    }
    return fields.size === 0 ? undefined : fields
  }

  #validated(found: Pick<ReadRow, 'line' | 'type' | 'key'>, type: DefinedType, data: string): ReadRow | Promise<ReadRow> {
    const given = JSON.parse(data) as Record<string, unknown>
    const result = type.schema!['~standard'].validate(given)
    const answered = (answer: SchemaResult<unknown>) => this.#answered(found, type, given, answer)
    return result instanceof Promise ? result.then(answered) : answered(result)
  }

  #answered(
    found: Pick<ReadRow, 'line' | 'type' | 'key'>,
    type: DefinedType,
    given: Readonly<Record<string, unknown>>,
    result: SchemaResult<unknown>,
  ): ReadRow {
    if (result.issues === undefined) {
      try {
        const fault = schemaFault(type, given, result.value)
        return fault === undefined
          ? this.#finish(found, canonicalRow(result.value as object, type.jsonNames))
          : invalid(found, [fault])
      } catch (error) {
        if (!(error instanceof Unstorable)) throw error
        return invalid(found, [{ code: 'schema', reason: error.message, column: null, value: null }])
      }
    }
    return invalid(
      found,
      result.issues.slice(0, 50).map((issue) => {
        const [first] = issue.path ?? []
        const column = first === undefined ? null : String(typeof first === 'object' ? first.key : first)
        const value = column !== null && Object.hasOwn(given, column) ? shown(given[column]) : null
        return { code: 'schema', reason: issue.message.slice(0, 500), column, value }
      }),
    )
  }

  #finish(found: Pick<ReadRow, 'line' | 'type' | 'key'>, data: string): ReadRow {
    const { classify } = this.#set
    const classification =
      classify === undefined ? null : classify({ type: found.type, key: found.key, data: JSON.parse(data) as RecordData })
    return { ...found, data, hash: contentHash(data, classification), classification, faults: [] }
  }
}

/** What a schema may not make of a row: something else than an object, or a row with another key, which another row may have. */
function schemaFault(type: DefinedType, given: Readonly<Record<string, unknown>>, value: unknown): RowFault | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return { code: 'schema', reason: 'the schema must return an object', column: null, value: shown(value) }
  const isOther = (name: string) => canonicalField((value as Record<string, unknown>)[name]) !== canonicalField(given[name])
  const column = type.key.find(isOther)
  if (column === undefined) return undefined
  const reason = `the schema changed it to ${shown((value as Record<string, unknown>)[column]) ?? 'nothing'}, but must not change a key`
  return { code: 'key', reason, column, value: shown(given[column]) }
}

function keptValue({ isTabular }: SourceRow, value: unknown): unknown {
  if (typeof value === 'string') return value.trim()
  return isTabular && value instanceof Date ? dateText(value) : value
}

/** A file with the wrong header has them all in every row: the first ones and the number of the others say as much. */
function reject(row: SourceRow, type: DefinedType, names: readonly string[], faults: RowFault[]): void {
  for (const name of names.slice(0, unknownMax)) {
    const reason = `is not a column of '${type.name}'`
    faults.push({ code: 'unknown-column', reason, column: storable(name), value: shown(row.get(name)) })
  }
  if (names.length <= unknownMax) return
  const reason = `the row has ${names.length - unknownMax} more columns that '${type.name}' does not have`
  faults.push({ code: 'unknown-columns', reason, column: null, value: null })
}

function placed(place: string, row: ReadRow): ReadRow {
  if (row.faults.length === 0) return row
  return { ...row, faults: row.faults.map((fault) => ({ ...fault, reason: `${place}: ${fault.reason}` })) }
}

function invalid(found: Pick<ReadRow, 'line' | 'type' | 'key'>, faults: readonly RowFault[]): ReadRow {
  return { ...found, data: '', hash: '', classification: null, faults }
}

/**
 * The fields, in the order of their names, which is the canonical one, as one object. Each begins with a comma. Joining them makes a string that is
 * one piece; adding them up would make a tree of pieces, which the hash would have to put together first.
 */
function objectText(fields: (string | undefined)[]): string {
  const first = fields.findIndex((field) => field !== undefined)
  if (first < 0) return '{}'
  fields[first] = `{${fields[first]!.slice(1)}`
  fields.push('}')
  return fields.join('')
}

function merged(type: DefinedType, fields: readonly (string | undefined)[], extra: ReadonlyMap<string, string>): string[] {
  const all = new Map(extra)
  for (const [index, field] of fields.entries()) if (field !== undefined) all.set(type.columns[index]!.name, field)
  return [...all].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, text]) => text)
}

function keyOf(type: DefinedType, fields: readonly (string | undefined)[]): string {
  const parts: string[] = []
  for (const index of type.keyIndexes) {
    const field = fields[index]
    if (field === undefined) return ''
    parts.push(keyPart(field.slice(type.columns[index]!.prefix.length)))
  }
  return keyText(parts)
}

/** What a person needs to find the cell again, bounded and storable. */
export function shown(value: unknown): string | null {
  if (value === undefined || value === null) return null
  if (value instanceof Error) return storable(typeof value.cause === 'string' ? value.cause : value.message)
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? 'an invalid date' : dateText(value)
  return storable(asText(value) ?? jsonOf(value))
}

function jsonOf(value: unknown): string {
  try {
    return JSON.stringify(value, (_name, field: unknown) => (typeof field === 'bigint' ? String(field) : field)) ?? String(value)
  } catch {
    // Reading JSON has no limit of depth; writing it has.
    return '(nested too deeply)'
  }
}

/** The beginning of a string, in a form that PostgreSQL can store. */
export function storable(text: string, charsMax = valueCharsMax): string {
  return text
    .slice(0, charsMax)
    .replace(/[\u0000-\u001f]/g, ' ')
    .toWellFormed()
}
