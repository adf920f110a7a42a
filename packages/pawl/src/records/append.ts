// Put and append: a few rows, committed at once, in the caller's transaction or one of our own. Each is a submission of its own, so numbers,
// history and events are the same as for an upload; and it waits for no submission: a scope with one in progress refuses it.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { once } from '../kernel/once.ts'
import { refused } from '../kernel/options.ts'
import { probe } from '../kernel/probe.ts'
import { transactIn } from '../kernel/retry.ts'
import { assertAttributes, assertSlotFree, commitEvents, type LockedScope, lockScope } from './commit.ts'
import { freeingSlot } from './fail.ts'
import { ObjectRow } from './formats/json.ts'
import { isNameable, type ReadPlace, storedKey } from './reads.ts'
import { changedFields } from './rows/diff.ts'
import { contentHash } from './rows/json-text.ts'
import { type ReadRow, RowReader } from './rows/reader.ts'
import type { DefinedSet, Registry } from './sets.ts'
import { kindOf, lookup, type Met } from './staging.ts'
import type { AppendAnswer, AppendOptions, AppendRow, PutOptions } from './types.ts'

const appendStatement = statement(import.meta.url, 'append')
const onceReadStatement = statement(import.meta.url, 'once-answer')

const rowsMax = 50_000
const onceNamespace = 'pawl.records'
/** Bounded, and longer than a caller retries after a lost answer. */
const onceMs = 30 * 86_400_000

export interface Append extends Omit<PutOptions & AppendOptions, 'attributes'> {
  readonly origin: 'put' | 'append'
  readonly rows: readonly AppendRow[]
  readonly scopeId: (tx: TxDb) => Promise<string>
  /** As JSON. */
  readonly attributes: string | null
}

interface Change {
  readonly row: ReadRow
  readonly met: Met
  readonly kind: 'created' | 'updated' | 'deleted'
}

export async function append(registry: Registry, place: ReadPlace, options: Append): Promise<AppendAnswer> {
  if (!Array.isArray(options.rows))
    throw refused('append', `rows must be an array of { data }, got ${shown(options.rows)}. For one record call put`)
  if (options.rows.length > rowsMax)
    throw new PawlError('PAWL_CONFIG', `append takes at most ${rowsMax} rows, got ${options.rows.length}. Upload them instead.`)
  const rows = await readRows(registry, place, options.rows)
  const inOne = async (tx: TxDb) => {
    const scope = await lockScope(tx, place.tenant, await options.scopeId(tx))
    const check = () => checkedChanges(tx, place, scope, rows, options)
    return options.once === undefined ? (await check())() : onceIn(tx, place.tenant, scope, rows, options.once, check)
  }
  return freeingSlot(registry, place.tenant, options.tx, () => transactIn(registry.pool, options.tx, inOne))
}

/** Checks first and returns the write: a caller's transaction that continues after a refusal must hold nothing written, not even a once key. */
async function checkedChanges(
  tx: TxDb,
  { tenant, set }: ReadPlace,
  scope: LockedScope,
  rows: readonly ReadRow[],
  options: Append,
): Promise<() => Promise<AppendAnswer>> {
  await assertSlotFree(tx, tenant, scope)
  if (options.revision !== undefined && options.revision !== scope.revision)
    throw conflict('The scope is at revision', scope.revision, options.revision, 'revision')
  assertAttributes(options.attributes, scope.attributes)
  const place = { tenant, scopeId: scope.id, committed: scope.committed }
  const met = await lookup(tx, place, rows)
  if (options.number !== undefined) assertNumber(rows[0]!, met[0]!, options.number)
  // A record of a type that the set does not have any more can still be deleted.
  for (const [index, { type }] of rows.entries()) if (!set.types.has(type) && !met[index]!.is_live) throw noType(set, type, index)
  const changes = changesOf(rows, options.rows, met)
  const unchanged = rows.filter((_row, index) => options.rows[index]!.data !== null && met[index]!.is_same).length
  const count = (kind: Change['kind']) => changes.filter((change) => change.kind === kind).length
  const counts = { created: count('created'), updated: count('updated'), deleted: count('deleted'), unchanged }
  return async () => {
    if (changes.length === 0) return { submission: null, number: scope.committed, ...counts }
    const [written] = await tx.run<{ submission: string; number: string }>(appendStatement, {
      tenant,
      scope_id: scope.id,
      origin: options.origin,
      schema_version: set.schemaVersion,
      submitted_by: options.by ?? null,
      unchanged,
      attributes: options.attributes,
      rows: `[${changes.map(changeText).join(',')}]`,
    })
    const { submission, number } = written!
    const changed = changes.map(({ row, met }) => ({ id: met.record_id, type: row.type, key: row.key }))
    await commitEvents(tx, set.events, { tenant, set: set.name, scope: scope.scope, submission, number, counts, changed })
    if (probe.on) await probe.hit('records.append.written', { submission, number })
    return { submission, number, ...counts }
  }
}

interface OnceResult {
  readonly digest: string
  readonly answer: AppendAnswer
}

/** Under the scope's lock, which every write with a key of this scope holds: so the key exists, or this transaction writes it. */
async function onceIn(
  tx: TxDb,
  tenant: string,
  scope: LockedScope,
  rows: readonly ReadRow[],
  key: string,
  check: () => Promise<() => Promise<AppendAnswer>>,
): Promise<AppendAnswer> {
  const name = { tenant, namespace: onceNamespace, key: `${scope.id} ${key}` }
  const digest = contentHash(JSON.stringify(rows.map(({ type, key, hash }) => [type, key, hash])), null)
  const [known] = await tx.run<{ result: string }>(onceReadStatement, name)
  const write = async () => {
    const writes = await check()
    const { result } = await once<OnceResult>(tx, { ...name, ttl: onceMs }, async () => ({ digest, answer: await writes() }))
    return result
  }
  const found = known === undefined ? await write() : (JSON.parse(known.result) as OnceResult)
  if (found.digest === digest) return found.answer
  throw new PawlError(
    'PAWL_INVALID_PAYLOAD',
    `The once key '${key.slice(0, 100)}' was already used in this scope with different rows. Use a new key for new rows.`,
    { details: { once: key } },
  )
}

async function readRows(registry: Registry, place: ReadPlace, given: readonly AppendRow[]): Promise<ReadRow[]> {
  const { set } = place
  const reader = new RowReader(set)
  const rows: ReadRow[] = []
  for (const [index, row] of given.entries()) {
    if (typeof row !== 'object' || typeof row?.data !== 'object' || Array.isArray(row.data))
      throw refused(
        'put or append',
        `row ${index + 1} must be { data: {...} }, or { key, data: null } to delete, got ${shown(row)}`,
      )
    if (row.data === null) rows.push(await deletion(registry, place, row, index))
    else {
      if (row.type !== undefined && !set.types.has(row.type)) throw noType(set, row.type, index)
      const withType = row.type === undefined || set.types.size === 1 ? row.data : { ...row.data, [set.typeColumn]: row.type }
      rows.push(await reader.read(new ObjectRow(index + 1, withType as Record<string, unknown>)))
    }
  }
  const faults = rows.flatMap((row) =>
    row.faults.map(({ column, code, reason, value }) => ({ row: row.line, column, code, reason, value })),
  )
  if (faults.length > 0) {
    const { row, column, reason } = faults[0]!
    throw invalid(`Row ${row} of ${set.name} is not valid${column === null ? '' : `: ${column}`}: ${reason}.`, faults)
  }
  const keys = new Set(rows.map((row) => JSON.stringify([row.type, row.key])))
  if (keys.size < rows.length) throw invalid(`Two rows of ${set.name} name the same record. Give each record once.`)
  return rows
}

function invalid(message: string, errors?: readonly object[]): PawlError {
  return new PawlError('PAWL_RECORD_INVALID', message, errors && { details: { errors: errors.slice(0, 100) } })
}

function noType(set: DefinedSet, type: string, index: number): PawlError {
  const reason = `must be one of ${[...set.types.keys()].join(', ').slice(0, 200)}`
  const error = { row: index + 1, column: set.typeColumn, code: 'type', reason, value: type.slice(0, 200) }
  return invalid(`Row ${index + 1} of ${set.name}: type ${reason}, got '${type.slice(0, 100)}'.`, [error])
}

async function deletion(registry: Registry, place: ReadPlace, row: AppendRow, index: number): Promise<ReadRow> {
  const { set } = place
  const type = row.type ?? (set.types.size === 1 ? [...set.types.keys()][0]! : undefined)
  if (type === undefined || row.key === undefined)
    throw invalid(`Row ${index + 1} deletes a record of ${set.name} and must name its type and key.`)
  const key = await storedKey(registry, `append: row ${index + 1}`, place, type, row.key)
  if (!isNameable(type, key)) throw invalid(`Row ${index + 1} of ${set.name} must name a type and key without NUL characters.`)
  return { line: index + 1, type, key, data: '', hash: '', classification: null, faults: [] }
}

function changesOf(rows: readonly ReadRow[], given: readonly AppendRow[], found: readonly Met[]): Change[] {
  return rows.flatMap((row, index): Change[] => {
    const met = found[index]!
    if (given[index]!.data === null) return met.is_live ? [{ row, met, kind: 'deleted' }] : []
    const kind = kindOf(met)
    return kind === 'unchanged' ? [] : [{ row, met, kind }]
  })
}

function changeText({ row, met, kind }: Change): string {
  const { type, key, hash, classification } = row
  const record = { record_id: met.record_id, kind, is_new: met.is_new, type, key }
  if (kind === 'deleted') return JSON.stringify(record)
  const changed = kind === 'updated' ? changedFields(met.data, row.data) : null
  return `${JSON.stringify({ ...record, hash, classification, changed }).slice(0, -1)},"data":${row.data}}`
}

function assertNumber({ type, key }: ReadRow, met: Met, expected: string): void {
  const actual = met.is_live ? met.number! : '0'
  if (actual !== expected)
    throw conflict(`The ${type} '${key.slice(0, 100)}' is at version`, actual, expected, 'version', { type, key })
}

function conflict<Counter extends string | number>(
  where: string,
  actual: Counter,
  expected: Counter,
  what: string,
  about: object = {},
): PawlError {
  return new PawlError(
    'PAWL_REVISION_CONFLICT',
    `${where} ${actual}, not ${expected}: it has changed. Read it again and retry with the new ${what}.`,
    { details: { ...about, expected, actual } },
  )
}
