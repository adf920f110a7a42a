// After the last row: what only the whole can say. Rows that name one record twice, records that are left out, and the counts that the
// preview shows and the commit must prove. One transaction, under the upload's fence.

import type { TxDb } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { retrying } from '../kernel/retry.ts'
import { wholeMs } from './commit.ts'
import type { Registry } from './sets.ts'
import { addErrors, type LineFault, type Staged, type Stager, uploadLost } from './staging.ts'

const countsStatement = statement(import.meta.url, 'counts')
const duplicatesStatement = statement(import.meta.url, 'duplicates')
const missingStatement = statement(import.meta.url, 'missing')
const tombstonesStatement = statement(import.meta.url, 'tombstones')
const otherTypesStatement = statement(import.meta.url, 'other-types')
const erasedStatement = statement(import.meta.url, 'erased-since')
const expireInvalidStatement = statement(import.meta.url, 'expire-invalid')
const validatedStatement = statement(import.meta.url, 'validated')

interface Found {
  readonly faults: readonly LineFault[]
  /** All of them, of which `faults` are the first. */
  readonly count: number
}

type Counts = Readonly<
  Record<'created' | 'updated' | 'unchanged' | 'invalid_created' | 'invalid_updated' | 'invalid_unkeyed' | 'keys', number>
>

const nothing: Found = { faults: [], count: 0 }

type Upload = Pick<Stager, 'lines' | 'lastLine' | 'errors'>

export async function validateStaged(registry: Registry, staged: Staged, upload: Upload): Promise<void> {
  const isValid = await retrying(() => registry.pool.transaction((tx) => validate(tx, staged, upload), { statementMs: wholeMs }))
  if (!isValid) registry.sweep.wake()
  if (probe.on) await probe.hit('records.validate.after', staged)
}

async function validate(tx: TxDb, staged: Staged, upload: Upload): Promise<boolean> {
  const { tenant, id, set } = staged
  const { errorsMax } = set.limits
  const [counted] = await tx.run<Counts>(countsStatement, { tenant, id })
  const { keys, ...counts } = counted!
  const found = Object.values(counts).reduce((sum, count) => sum + count)
  if (found !== upload.lines)
    throw new PawlError('PAWL_UPLOAD_FAILED', `Expected ${upload.lines} staged rows, found ${found}. Upload the file again.`)
  const room = Math.max(0, errorsMax - upload.errors)
  const doubled = keys < upload.lines - counts.invalid_unkeyed ? await findDuplicates(tx, staged, room) : nothing
  // Rows that name a live record, valid or not; a record that comes back from a tombstone was not live.
  const matched = counts.updated + counts.unchanged + counts.invalid_updated
  const missing = doubled.count > 0 ? 0 : await countMissing(tx, staged, matched)
  const isRefused = set.missing === 'reject' && missing > 0
  const dropped = isRefused ? await findMissing(tx, staged, missing, room - doubled.faults.length) : nothing
  const errors = upload.errors + doubled.count + dropped.count
  await addErrors(tx, staged, Math.min(upload.errors, errorsMax), [...doubled.faults, ...dropped.faults])
  const isValid = errors === 0
  const hasStones = set.missing === 'tombstone' && missing > 0 && isValid
  const stones = hasStones ? await addTombstones(tx, staged, missing, upload.lastLine) : undefined
  const [row] = await tx.run(validatedStatement, {
    tenant,
    id,
    fence: staged.fence,
    state: isValid ? 'validated' : 'invalid',
    ...counts,
    missing,
    deleted: stones?.rows ?? 0,
    errors: doubled.count + dropped.count,
    last_line: stones?.lastLine ?? upload.lastLine,
    error: isValid ? null : `${errors} error(s) in the rows.`,
    keep_ms: isValid ? set.keepMs.validated : set.keepMs.ended,
  })
  if (row === undefined) throw uploadLost(id)
  // With the row of the submission locked: an erasure that comes now waits for it, and finds all of its rows.
  const [erased] = await tx.run<{ rows: number; type: string; key: string }>(erasedStatement, { tenant, id })
  if (erased!.rows > 0) throw erasedSince(erased!)
  if (!isValid) await expireInvalid(tx, staged)
  return isValid
}

/** A file cannot name records of a type that the set does not have any more, so it leaves none of them out. */
async function countMissing(tx: TxDb, { tenant, scopeId, live, committed, types }: Staged, matched: number): Promise<number> {
  const missing = Number(live) - matched
  if (missing <= 0) return 0
  const [other] = await tx.run<{ live: string }>(otherTypesStatement, { tenant, scope_id: scopeId, committed, types })
  return Math.max(0, missing - Number(other!.live))
}

/** Invalid uploads of one scope that keep their rows; older ones are removed. */
const invalidMax = 10

/** Called when one becomes invalid. The sweep removes those that expire with it. */
export async function expireInvalid(tx: TxDb, { tenant, scopeId, id }: Staged): Promise<void> {
  await tx.run(expireInvalidStatement, { tenant, scope_id: scopeId, id, keep: invalidMax - 1 })
}

function erasedSince({ type, key }: { type: string; key: string }): PawlError {
  return new PawlError(
    'PAWL_UPLOAD_FAILED',
    `The ${type} '${key.slice(0, 100)}' was erased after this upload started, so the upload is refused. Upload an up-to-date file.`,
    { details: { type, key: key.slice(0, 500) } },
  )
}

async function findDuplicates(tx: TxDb, { tenant, id }: Staged, room: number): Promise<Found> {
  const rows = await tx.run<Record<'line' | 'type' | 'key' | 'first_line' | 'total', string>>(duplicatesStatement, {
    tenant,
    id,
    limit: Math.max(1, room),
  })
  const faults = rows.slice(0, room).map(({ line, type, key, first_line }) => {
    const reason = `line ${first_line} already has the same ${type}`
    return { line: Number(line), code: 'duplicate', reason, column: null, value: key.slice(0, 200) }
  })
  return { faults, count: Number(rows[0]?.total ?? 0) }
}

async function findMissing(tx: TxDb, staged: Staged, missing: number, room: number): Promise<Found> {
  const { tenant, scopeId, id, committed, types } = staged
  const page = { after_type: '', after_key: '', limit: Math.max(1, room) }
  const values = { tenant, scope_id: scopeId, id, committed, types, ...page }
  const rows = await tx.run<{ type: string; key: string }>(missingStatement, values)
  const faults = rows.slice(0, Math.max(0, room)).map(({ type, key }) => {
    const reason = `the ${type} with this key was submitted before but is missing from this upload`
    return { line: 0, code: 'missing', reason, column: null, value: key.slice(0, 200) }
  })
  return { faults, count: missing }
}

async function addTombstones(tx: TxDb, staged: Staged, missing: number, lastLine: number) {
  const { tenant, scopeId, id, committed, types, live } = staged
  const values = { tenant, scope_id: scopeId, id, committed, types, last_line: lastLine }
  const [row] = await tx.run<{ rows: string; last_line: string }>(tombstonesStatement, values)
  const found = { rows: Number(row!.rows), lastLine: Number(row!.last_line) }
  if (found.rows === missing) return found
  throw new PawlError(
    'PAWL_UPLOAD_FAILED',
    `Expected ${missing} missing records, found ${found.rows}: the scope's count of ${live} live records is wrong. records.audit() shows the correct one.`,
  )
}
