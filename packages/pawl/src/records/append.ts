// Put and append: a few rows, committed at once, in the caller's transaction or one of our own. Each is a submission of its own, so numbers,
// history and events are the same as for an upload; and it waits for nobody, because a scope that is being submitted to refuses it.

import type { AnyTx } from '../db/adapters.ts'
import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { once } from '../kernel/once.ts'
import { refused, withoutUndefined } from '../kernel/options.ts'
import { probe } from '../kernel/probe.ts'
import { transactIn } from '../kernel/retry.ts'
import { assertAttributes } from './attributes.ts'
import { isNameable, type ReadPlace, type RecordsCore } from './core.ts'
import { changedFields } from './diff.ts'
import { freeingSlot } from './fail.ts'
import { ObjectRow } from './json-rows.ts'
import { contentHash } from './json-text.ts'
import { storedKey } from './keys.ts'
import { commitEvents } from './record-events.ts'
import { type ReadRow, RowReader } from './rows.ts'
import type { DefinedSet } from './sets.ts'
import { assertSlotFree, type LockedScope, lockScope } from './slot.ts'
import { kindOf, lookup, type Met } from './staging.ts'
import type { AppendAnswer, AppendRow } from './types.ts'

const appendStatement = statement(import.meta.url, 'append')
const onceReadStatement = statement(import.meta.url, 'once-answer')

const rowsMax = 50_000
const onceNamespace = 'pawl.records'
/** Long enough for a caller who never heard the answer, and bounded. */
const onceMs = 30 * 86_400_000

export interface Append {
  readonly origin: 'put' | 'append'
  readonly rows: readonly AppendRow[]
  readonly scopeId: (tx: TxDb) => Promise<string>
  /** As JSON. */
  readonly attributes: string | null
  readonly tx: AnyTx | undefined
  readonly revision: string | undefined
  /** Of a put: the number that the record's current version must have; '0' for none. */
  readonly number: string | undefined
  readonly by: string | undefined
  readonly once: string | undefined
}

interface Change {
  readonly row: ReadRow
  readonly met: Met
  readonly kind: 'C' | 'U' | 'D'
}

export async function append(core: RecordsCore, place: ReadPlace, options: Append): Promise<AppendAnswer> {
  const { tenant, set } = place
  if (!Array.isArray(options.rows))
    throw refused('append', `rows must be an array of { data }, got ${shown(options.rows)}. For one record call put`)
  if (options.rows.length > rowsMax)
    throw new PawlError('PAWL_CONFIG', `append takes at most ${rowsMax} rows, got ${options.rows.length}. Upload them instead.`)
  const rows = await readRows(core, place, options.rows)
  const inOne = async (tx: TxDb) => {
    const scope = await lockScope(tx, tenant, await options.scopeId(tx))
    const check = () => checkedChanges(tx, tenant, set, scope, rows, options)
    if (options.once === undefined) return (await check())()
    return onceIn(tx, { tenant, scope, rows, key: options.once }, check)
  }
  return freeingSlot(core, tenant, options.tx, () => transactIn(core.pool, options.tx, inOne))
}

/** Checks first, and answers with what writes: a caller who goes on after a refusal must find nothing written, not even a once key. */
async function checkedChanges(
  tx: TxDb,
  tenant: string,
  set: DefinedSet,
  scope: LockedScope,
  rows: readonly ReadRow[],
  options: Append,
): Promise<() => Promise<AppendAnswer>> {
  await assertSlotFree(tx, tenant, scope)
  if (options.revision !== undefined && options.revision !== scope.revision) throw moved(scope, options.revision)
  assertAttributes(options.attributes, scope.attributes)
  const place = { tenant, scopeId: scope.id, committed: scope.committed }
  const met = await lookup((query, values) => tx.run(query, values), place, rows)
  if (options.number !== undefined) assertNumber(rows[0]!, met[0]!, options.number)
  assertTypes(set, rows, met)
  const changes = changesOf(rows, options.rows, met)
  const unchanged = rows.filter((_row, index) => options.rows[index]!.data !== null && met[index]!.is_same).length
  const counts = { created: count(changes, 'C'), updated: count(changes, 'U'), deleted: count(changes, 'D'), unchanged }
  return async () => {
    if (changes.length === 0) return { submission: null, number: scope.committed, ...counts }
    const written = await write(tx, tenant, set, scope, changes, options, unchanged)
    const changed = changes.map(({ row, met }) => ({ id: met.record_id, type: row.type, key: row.key }))
    await commitEvents(tx, tenant, set.events, { set: set.name, scope: scope.scope, ...written, counts, changed })
    if (probe.on) await probe.hit('records.append.written', written)
    return { ...written, ...counts }
  }
}

interface OnceWrite {
  readonly tenant: string
  readonly scope: LockedScope
  readonly rows: readonly ReadRow[]
  readonly key: string
}

/** Under the scope's lock, which everyone with a key of this scope holds: so the key is there or comes with what is written now. */
async function onceIn(tx: TxDb, given: OnceWrite, check: () => Promise<() => Promise<AppendAnswer>>): Promise<AppendAnswer> {
  const name = { tenant: given.tenant, namespace: onceNamespace, key: `${given.scope.id} ${given.key}` }
  const digest = digestOf(given.rows)
  const [known] = await tx.run<{ result: string }>(onceReadStatement, name)
  if (known !== undefined) return sameAnswer(JSON.parse(known.result) as OnceResult, digest, given.key)
  const writes = await check()
  const { result } = await once<OnceResult>(tx, { ...name, ttl: onceMs }, async () => ({ digest, answer: await writes() }))
  return sameAnswer(result, digest, given.key)
}

interface OnceResult {
  readonly digest: string
  readonly answer: AppendAnswer
}

function digestOf(rows: readonly ReadRow[]): string {
  return contentHash(JSON.stringify(rows.map(({ type, key, hash }) => [type, key, hash])), null)
}

function sameAnswer({ digest, answer }: OnceResult, given: string, key: string): AppendAnswer {
  if (digest === given) return answer
  throw new PawlError(
    'PAWL_INVALID_PAYLOAD',
    `The once key '${key.slice(0, 100)}' was already used in this scope with different rows. Use a new key for new rows.`,
    { details: { once: key } },
  )
}

async function readRows(core: RecordsCore, place: ReadPlace, given: readonly AppendRow[]): Promise<ReadRow[]> {
  const { set } = place
  const reader = new RowReader(set)
  const rows: ReadRow[] = []
  for (const [index, row] of given.entries()) {
    if (typeof row !== 'object' || typeof row?.data !== 'object' || Array.isArray(row.data))
      throw refused(
        'put or append',
        `row ${index + 1} must be { data: {...} }, or { key, data: null } to delete, got ${shown(row)}`,
      )
    if (row.data === null) rows.push(await deletion(core, place, row, index))
    else {
      if (row.type !== undefined && !set.types.has(row.type)) throw noType(set, row.type, index)
      const withType = row.type === undefined || set.types.size === 1 ? row.data : { ...row.data, [set.typeColumn]: row.type }
      rows.push(await reader.read(new ObjectRow(index + 1, withoutUndefined(withType) as Record<string, unknown>)))
    }
  }
  const faults = rows.flatMap((row) =>
    row.faults.map(({ column, code, reason, value }) => ({ row: row.line, column, code, reason, value })),
  )
  if (faults.length > 0) {
    const [first] = faults
    throw new PawlError(
      'PAWL_RECORD_INVALID',
      `Row ${first!.row} of ${set.name} is not valid${first!.column === null ? '' : `: ${first!.column}`}: ${first!.reason}.`,
      {
        details: { errors: faults.slice(0, 100) },
      },
    )
  }
  const keys = new Set(rows.map((row) => JSON.stringify([row.type, row.key])))
  if (keys.size < rows.length)
    throw new PawlError('PAWL_RECORD_INVALID', `Two rows of ${set.name} name the same record. Give each record once.`)
  return rows
}

/** A record of a type that the set does not have any more can still be deleted. */
function assertTypes(set: DefinedSet, rows: readonly ReadRow[], met: readonly Met[]): void {
  for (const [index, { type }] of rows.entries()) if (!set.types.has(type) && !met[index]!.is_live) throw noType(set, type, index)
}

function noType(set: DefinedSet, type: string, index: number): PawlError {
  const reason = `must be one of ${[...set.types.keys()].join(', ').slice(0, 200)}`
  const error = { row: index + 1, column: set.typeColumn, code: 'type', reason, value: type.slice(0, 200) }
  return new PawlError('PAWL_RECORD_INVALID', `Row ${index + 1} of ${set.name}: type ${reason}, got '${type.slice(0, 100)}'.`, {
    details: { errors: [error] },
  })
}

async function deletion(core: RecordsCore, place: ReadPlace, row: AppendRow, index: number): Promise<ReadRow> {
  const { set } = place
  const type = row.type ?? (set.types.size === 1 ? [...set.types.keys()][0]! : undefined)
  if (type === undefined || row.key === undefined)
    throw new PawlError('PAWL_RECORD_INVALID', `Row ${index + 1} deletes a record of ${set.name} and must name its type and key.`)
  const key = await storedKey(core, `append: row ${index + 1}`, place, type, row.key)
  if (!isNameable(type, key))
    throw new PawlError('PAWL_RECORD_INVALID', `Row ${index + 1} of ${set.name} must name a type and key without NUL characters.`)
  return { line: index + 1, type, key, data: '', hash: '', classification: null, faults: [] }
}

function changesOf(rows: readonly ReadRow[], given: readonly AppendRow[], met: readonly Met[]): Change[] {
  return rows.flatMap((row, index): Change[] => {
    const found = met[index]!
    if (given[index]!.data === null) return found.is_live ? [{ row, met: found, kind: 'D' }] : []
    const kind = kindOf(found)
    return kind === '=' ? [] : [{ row, met: found, kind }]
  })
}

function count(changes: readonly Change[], kind: Change['kind']): number {
  return changes.filter((change) => change.kind === kind).length
}

async function write(
  tx: TxDb,
  tenant: string,
  set: DefinedSet,
  scope: LockedScope,
  changes: readonly Change[],
  options: Append,
  unchanged: number,
): Promise<{ submission: string; number: string }> {
  const rows = changes.map(({ row, met, kind }) => {
    const fields = { record_id: met.record_id, kind, is_new: met.is_new, type: row.type, key: row.key }
    const about = JSON.stringify(
      kind === 'D'
        ? fields
        : {
            ...fields,
            hash: row.hash,
            classification: row.classification,
            changed: kind === 'U' ? changedFields(met.data, row.data) : null,
          },
    )
    return kind === 'D' ? about : `${about.slice(0, -1)},"data":${row.data}}`
  })
  const [written] = await tx.run<{ submission: string; number: string }>(appendStatement, {
    tenant,
    scope_id: scope.id,
    origin: options.origin,
    schema_version: set.schemaVersion,
    submitted_by: options.by ?? null,
    unchanged,
    attributes: options.attributes,
    rows: `[${rows.join(',')}]`,
  })
  return { submission: written!.submission, number: written!.number }
}

function moved(scope: LockedScope, expected: string): PawlError {
  return new PawlError(
    'PAWL_REVISION_CONFLICT',
    `The scope is at revision ${scope.revision}, not ${expected}: it has changed. Read it again and retry with the new revision.`,
    {
      details: { expected, actual: scope.revision },
    },
  )
}

function assertNumber(row: ReadRow, met: Met, expected: string): void {
  const actual = met.is_live ? met.number! : '0'
  if (actual === expected) return
  throw new PawlError(
    'PAWL_REVISION_CONFLICT',
    `The ${row.type} '${row.key.slice(0, 100)}' is at version ${actual}, not ${expected}: it has changed. Read it again and retry with the new version.`,
    { details: { type: row.type, key: row.key, expected, actual } },
  )
}
