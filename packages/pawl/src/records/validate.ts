// After the last row: what only the whole can say. Rows that name one record twice, records that are left out, and the counts that the
// preview shows and the commit must prove. One transaction, under the upload's fence.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { retrying } from '../kernel/retry.ts'
import { type RecordsCore, wholeMs } from './core.ts'
import type { RowFault } from './rows.ts'
import { addErrors, type Staged, uploadLost } from './staging.ts'
import type { Place } from './upload.ts'

const countsStatement = statement(import.meta.url, 'counts')
const duplicatesStatement = statement(import.meta.url, 'duplicates')
const missingStatement = statement(import.meta.url, 'missing')
const tombstonesStatement = statement(import.meta.url, 'tombstones')
const otherTypesStatement = statement(import.meta.url, 'other-types')
const erasedStatement = statement(import.meta.url, 'erased-since')
const expireInvalidStatement = statement(import.meta.url, 'expire-invalid')
const validatedStatement = statement(import.meta.url, 'validated')

type Fault = { readonly line: number; readonly fault: RowFault }

interface Found {
  readonly faults: readonly Fault[]
  /** All of them, of which `faults` are the first. */
  readonly count: number
}

const nothing: Found = { faults: [], count: 0 }

export async function validateStaged(
  core: RecordsCore,
  place: Place,
  staged: Staged,
  upload: { readonly lines: number; readonly lastLine: number; readonly errors: number },
): Promise<void> {
  const isValid = await retrying(() =>
    core.pool.transaction((tx) => validate(tx, place, staged, upload), { statementMs: wholeMs }),
  )
  if (!isValid) core.sweep.wake()
  if (probe.on) await probe.hit('records.validate.after', staged)
}

async function validate(
  tx: TxDb,
  place: Place,
  staged: Staged,
  upload: { lines: number; lastLine: number; errors: number },
): Promise<boolean> {
  const { tenant, set } = place
  const rows = await tx.run<{ kind: string; rows: string }>(countsStatement, { tenant, id: staged.id })
  const count = (kind: string) => Number(rows.find((row) => row.kind === kind)?.rows ?? 0)
  const found = ['C', 'U', '=', 'I', 'J', 'X'].reduce((sum, kind) => sum + count(kind), 0)
  if (found !== upload.lines)
    throw new PawlError('PAWL_UPLOAD_FAILED', `Expected ${upload.lines} staged rows, found ${found}. Upload the file again.`)
  const keyed = upload.lines - count('X')
  const room = Math.max(0, set.limits.errorsMax - upload.errors)
  const doubled = count('keys') < keyed ? await findDuplicates(tx, tenant, staged.id, room) : nothing
  // Rows that name a live record, valid or not; a record that comes back from a tombstone was not live.
  const matched = count('U') + count('=') + count('J')
  const missing = doubled.count > 0 ? 0 : await countMissing(tx, place, staged, matched)
  const dropped =
    set.missing === 'reject' && missing > 0
      ? await findMissing(tx, place, staged, missing, room - doubled.faults.length)
      : nothing
  const errors = upload.errors + doubled.count + dropped.count
  await addErrors(tx, tenant, staged.id, Math.min(upload.errors, set.limits.errorsMax), [...doubled.faults, ...dropped.faults])
  const isValid = errors === 0
  const stones =
    set.missing === 'tombstone' && missing > 0 && isValid
      ? await addTombstones(tx, place, staged, missing, upload.lastLine)
      : undefined
  const [row] = await tx.run(validatedStatement, {
    tenant,
    id: staged.id,
    fence: staged.fence,
    state: isValid ? 'validated' : 'invalid',
    created: count('C'),
    updated: count('U'),
    unchanged: count('='),
    missing,
    deleted: stones?.rows ?? 0,
    invalid_created: count('I'),
    invalid_updated: count('J'),
    invalid_unkeyed: count('X'),
    errors: doubled.count + dropped.count,
    last_line: stones?.lastLine ?? upload.lastLine,
    error: isValid ? null : `${errors} error(s) in the rows.`,
    keep_ms: isValid ? set.keepMs.validated : set.keepMs.ended,
  })
  if (row === undefined) throw uploadLost(staged.id)
  // With the row of the submission locked: an erasure that comes now waits for it, and finds all of its rows.
  const [erased] = await tx.run<{ rows: number; type: string; key: string }>(erasedStatement, { tenant, id: staged.id })
  if (erased!.rows > 0) throw erasedSince(erased!)
  if (!isValid) await expireInvalid(tx, place, staged.id)
  return isValid
}

/** A file cannot name records of a type that the set does not have any more, so it leaves none of them out. */
async function countMissing(tx: TxDb, { tenant, scopeId }: Place, staged: Staged, matched: number): Promise<number> {
  const missing = Number(staged.live) - matched
  if (missing <= 0) return 0
  const { committed, types } = staged
  const [other] = await tx.run<{ live: string }>(otherTypesStatement, { tenant, scope_id: scopeId, committed, types })
  return Math.max(0, missing - Number(other!.live))
}

/** Invalid uploads of one scope that keep their rows; older ones are removed. */
const invalidMax = 10

/** Called when one becomes invalid. The sweep removes those that expire with it. */
export async function expireInvalid(tx: TxDb, { tenant, scopeId }: Place, id: string): Promise<void> {
  await tx.run(expireInvalidStatement, { tenant, scope_id: scopeId, id, keep: invalidMax - 1 })
}

function erasedSince({ type, key }: { type: string; key: string }): PawlError {
  return new PawlError(
    'PAWL_UPLOAD_FAILED',
    `The ${type} '${key.slice(0, 100)}' was erased after this upload started, so the upload is refused. Upload an up-to-date file.`,
    { details: { type, key: key.slice(0, 500) } },
  )
}

async function findDuplicates(tx: TxDb, tenant: string, id: string, room: number): Promise<Found> {
  const rows = await tx.run<{ line: string; type: string; key: string; first_line: string; total: string }>(duplicatesStatement, {
    tenant,
    id,
    limit: Math.max(1, room),
  })
  const faults = rows.slice(0, room).map(({ line, type, key, first_line }) => ({
    line: Number(line),
    fault: {
      code: 'duplicate',
      reason: `line ${first_line} already has the same ${type}`,
      column: null,
      value: key.slice(0, 200),
    },
  }))
  return { faults, count: Number(rows[0]?.total ?? 0) }
}

async function findMissing(tx: TxDb, place: Place, staged: Staged, missing: number, room: number): Promise<Found> {
  const rows = await tx.run<{ type: string; key: string }>(missingStatement, {
    tenant: place.tenant,
    scope_id: place.scopeId,
    id: staged.id,
    committed: staged.committed,
    types: staged.types,
    after_type: '',
    after_key: '',
    limit: Math.max(1, room),
  })
  const faults = rows.slice(0, Math.max(0, room)).map(({ type, key }) => ({
    line: 0,
    fault: {
      code: 'missing',
      reason: `the ${type} with this key was submitted before but is missing from this upload`,
      column: null,
      value: key.slice(0, 200),
    },
  }))
  return { faults, count: missing }
}

async function addTombstones(
  tx: TxDb,
  place: Place,
  staged: Staged,
  missing: number,
  lastLine: number,
): Promise<{ rows: number; lastLine: number }> {
  const [row] = await tx.run<{ rows: string; last_line: string }>(tombstonesStatement, {
    tenant: place.tenant,
    scope_id: place.scopeId,
    id: staged.id,
    committed: staged.committed,
    types: staged.types,
    last_line: lastLine,
  })
  const found = { rows: Number(row!.rows), lastLine: Number(row!.last_line) }
  if (found.rows === missing) return found
  throw new PawlError(
    'PAWL_UPLOAD_FAILED',
    `Expected ${missing} missing records, found ${found.rows}: the scope's count of ${staged.live} live records is wrong. records.audit() shows the correct one.`,
  )
}
