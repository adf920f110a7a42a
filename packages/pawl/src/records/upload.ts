// An upload: from a stream, or from what an earlier submission staged, to a submission that is validated or invalid. One batch is staged
// while the next is compared and the one after it parsed, so memory holds three of them whatever the size.

import { setImmediate as nextTurn } from 'node:timers/promises'
import { statement, textsLiteral } from '../db/statement.ts'
import { describeError, isPawlError, PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { read, retrying } from '../kernel/retry.ts'
import { InvalidFile, isInvalidFile, UploadBytes } from './formats/bytes.ts'
import { limitOf, sourceRows } from './formats/readers.ts'
import { type ReadRow, RowReader, type SourceRow, storable } from './rows/reader.ts'
import { type DefinedSet, type Registry, setOf } from './sets.ts'
import { addErrors, batchChars, batchRows, charsOf, clearStaged, type Place, type Staged, Stager, uploadLost } from './staging.ts'
import { expired, idText, needSubmission, readSubmission, type StoredSubmission, wrongState } from './submissions.ts'
import type { Body, UploadOptions } from './types.ts'
import { expireInvalid, validateStaged } from './validate.ts'

const beginStatement = statement(import.meta.url, 'upload-begin')
const restartStatement = statement(import.meta.url, 'upload-restart')
const stagedStatement = statement(import.meta.url, 'upload-staged')
const endStatement = statement(import.meta.url, 'upload-end')
const erasedStatement = statement(import.meta.url, 'erased-since')
const clearErrorsStatement = statement(import.meta.url, 'errors-clear')
const restageStatement = statement(import.meta.url, 'restage')

/** Where rows come from. */
export interface Source {
  batches(): AsyncIterable<readonly ReadRow[]>
  /** How many have come. */
  bytes(): number
  ignoredSheets: readonly string[]
  /** The digest of all, when all have come. */
  end(): string | null
  /** How to begin again when they have not. */
  again(id: string): string
}

export async function upload(
  registry: Registry,
  place: Place,
  body: Body,
  options: UploadOptions,
  attributes: string | null,
): Promise<string> {
  const { restart: id, ...about } = { ...options, types: [...place.set.types.keys()], attributes }
  const staged = id === undefined ? await begin(registry, place, about) : await restart(registry, place, about, id)
  const bytes = new UploadBytes(body, limitOf(place.set, options.format), options.signal)
  const ignoredSheets: string[] = []
  const source: Source = {
    batches: () => parsed(place.set, bytes, options, (sheet) => ignoredSheets.push(storable(sheet))),
    bytes: () => bytes.count,
    ignoredSheets,
    end: () => bytes.digest(options.expect),
    again: (each) => `Upload it again with { restart: '${each}' }.`,
  }
  await fill(registry, staged, source, options.onProgress)
  return staged.id
}

/** Compares what a submission staged with the scope as it is now: a new submission with a new preview, by the same code as an upload. */
export async function rebase(registry: Registry, from: StoredSubmission): Promise<string> {
  const { id, state, counts, ignoredSheets, internal } = from
  if (internal.isExpired) throw expired(id)
  if (!['validated', 'superseded', 'failed'].includes(state)) throw wrongState(id, state, 'validated, superseded or failed')
  const place = { tenant: internal.tenant, set: setOf(registry, from.set), scopeId: internal.scopeId }
  // What is staged is what the columns and the schema of then made of the file; those of now may make something else of it, or refuse it.
  if (internal.schemaVersion !== place.set.schemaVersion) throw otherSchema(from, place.set.schemaVersion)
  const staged = await begin(registry, place, { ...from, ...internal, types: internal.types!, rebasedFrom: id })
  let lines = 0
  await fill(registry, staged, {
    async *batches() {
      for await (const rows of restaged(registry, from)) {
        lines += rows.length
        yield rows
      }
    },
    bytes: () => 0,
    ignoredSheets,
    end: () => {
      if (lines === counts.rows) return null
      throw new PawlError(
        'PAWL_UPLOAD_FAILED',
        `Submission ${id} has only ${lines} of its ${counts.rows} rows left, because a record was erased. Upload the file again.`,
      )
    },
    again: () => `Call records.rebase('${id}') again.`,
  })
  return staged.id
}

function otherSchema({ id, set, state, internal: { schemaVersion } }: StoredSubmission, current: number): PawlError {
  return new PawlError(
    'PAWL_WRONG_STATE',
    `Submission ${id} was read with schema version ${schemaVersion} of '${set}', but this process has version ${current}. Upload the file again.`,
    { details: { id, state, schemaVersion, current } },
  )
}

/** What is stored of an upload. */
interface About {
  readonly format: string | null
  readonly name?: string | null
  readonly by?: string | null
  readonly types: readonly string[]
  readonly attributes: string | null
  /** Of a rebase. */
  readonly rebasedFrom?: string
  readonly receivedAt?: string | null
}

type Begun = Pick<Staged, 'id' | 'fence' | 'committed' | 'live' | 'types'>

export async function begin(registry: Registry, place: Place, about: About): Promise<Staged> {
  const { rebasedFrom = null, receivedAt = null } = about
  const origin = rebasedFrom === null ? 'upload' : 'rebase'
  const values = { ...stored(place, about), origin, rebased_from: rebasedFrom, received_at: receivedAt }
  const [begun] = await retrying(() => registry.pool.transaction((tx) => tx.run<Begun>(beginStatement, values)))
  return { ...place, ...begun! }
}

function stored({ tenant, scopeId, set }: Place, { format, name, by, types, attributes }: About) {
  return {
    tenant,
    scope_id: scopeId,
    schema_version: set.schemaVersion,
    missing_policy: set.missing,
    format,
    name: name ?? null,
    submitted_by: by ?? null,
    types: textsLiteral(types),
    attributes,
    keep_ms: set.keepMs.uploading,
  }
}

async function restart(registry: Registry, place: Place, about: About, id: string): Promise<Staged> {
  const { tenant } = place
  const values = { ...stored(place, about), id: idText('submission', id) }
  const begun = await retrying(() =>
    registry.pool.transaction(async (tx) => {
      const [row] = await tx.run<Begun>(restartStatement, values)
      if (row !== undefined) await tx.run(clearErrorsStatement, { tenant, id })
      return row
    }),
  )
  if (begun === undefined) throw cannotRestart(await needSubmission(registry, tenant, id), place.scopeId)
  if (probe.on) await probe.hit('records.restart.committed', { id })
  if (!(await clearStaged(registry, tenant, id, begun.fence))) throw uploadLost(id)
  return { ...place, ...begun }
}

function cannotRestart({ id, state, origin, rebasedFrom, internal }: StoredSubmission, scopeId: string): PawlError {
  if (internal.scopeId !== scopeId)
    return new PawlError('PAWL_NOT_FOUND', `There is no submission ${id} in this scope; it belongs to another scope.`, {
      details: { id },
    })
  if (internal.isExpired) return expired(id)
  if (origin !== 'rebase') return wrongState(id, state, 'uploading, validating or upload-failed')
  return new PawlError(
    'PAWL_WRONG_STATE',
    `Submission ${id} is a rebase and cannot be restarted. Call records.rebase('${rebasedFrom}') for a new one.`,
    { details: { id, state } },
  )
}

export async function fill(
  registry: Registry,
  staged: Staged,
  source: Source,
  onProgress?: UploadOptions['onProgress'],
): Promise<void> {
  const stager = new Stager(registry, staged)
  const report = () => onProgress?.({ id: staged.id, lines: stager.lines, bytes: source.bytes() })
  try {
    let [before, staging] = [Promise.resolve(), Promise.resolve()]
    try {
      for await (const rows of source.batches()) {
        await before
        report()
        before = staging
        staging = stager.add(rows, source.bytes())
        staging.catch(() => undefined)
      }
    } finally {
      // Also when parsing failed: a batch in progress must not write after the end of the upload.
      await staging.catch(() => undefined)
    }
    await staging
    const digest = source.end()
    report()
    await markStaged(registry, staged, source, digest)
    if (probe.on) await probe.hit('records.validate.before', staged)
    await validateStaged(registry, staged, stager)
  } catch (error) {
    await endBadly(registry, staged, stager, source, error)
  }
}

async function markStaged(registry: Registry, staged: Staged, source: Source, digest: string | null): Promise<void> {
  const { tenant, id, fence, set } = staged
  const ignored = textsLiteral(source.ignoredSheets)
  const values = { tenant, id, fence, bytes: source.bytes(), digest, ignored, keep_ms: set.keepMs.uploading }
  const [row] = await retrying(() => registry.pool.transaction((tx) => tx.run(stagedStatement, values)))
  if (row === undefined) throw uploadLost(id)
}

/** "Your file is not valid" is an answer; "it did not arrive" is an error, and the same submission can be started over. */
async function endBadly(registry: Registry, staged: Staged, stager: Stager, source: Source, error: unknown): Promise<void> {
  if (isPawlError(error, 'PAWL_LEASE_LOST')) throw error
  const { tenant, id, fence, set } = staged
  const file = isInvalidFile(error) ? error : undefined
  const values = {
    tenant,
    id,
    fence,
    state: file === undefined ? 'upload-failed' : 'invalid',
    error: file === undefined ? describeError(error, 2000) : storable(file.message, 2000),
    errors: file === undefined ? 0 : 1,
    bytes: source.bytes(),
    ignored: textsLiteral(source.ignoredSheets),
    keep_ms: set.keepMs.ended,
  }
  const write = () =>
    registry.pool.transaction(async (tx) => {
      const [ended] = await tx.run(endStatement, values)
      if (ended === undefined) throw uploadLost(id)
      await tx.run(erasedStatement, { tenant, id })
      if (file === undefined) return
      const { code, message: reason, line } = file
      await addErrors(tx, staged, stager.errors, [{ line, code, reason, column: null, value: null }])
      await expireInvalid(tx, staged)
    })
  // If even this cannot be written the upload stays as it is and expires; the caller gets the first error.
  const unwritten: unknown = await retrying(write).catch((caught: unknown) => caught)
  if (isPawlError(unwritten, 'PAWL_LEASE_LOST')) {
    // Under our own fence only we can have ended it: it was validated, and the answer to that commit was lost.
    const now = await readSubmission(registry, tenant, id)
    if (now?.internal.fence === fence && now.state !== 'uploading' && now.state !== 'validating') return
    throw unwritten
  }
  if (file === undefined) throw failed(error, id, source.again(id))
  if (unwritten !== undefined) throw unwritten
  registry.sweep.wake()
}

function failed(error: unknown, id: string, advice: string): PawlError {
  if (isPawlError(error))
    return new PawlError(error.code, error.message, { cause: error.cause, details: { ...error.details, id } })
  return new PawlError(
    'PAWL_UPLOAD_FAILED',
    `The upload of submission ${id} failed and changed nothing: ${error instanceof Error ? error.message : String(error)} ${advice}`,
    { cause: error, details: { id } },
  )
}

/** Rows that are parsed before others of this process, among them the batch that is being staged, get their turn. */
const turnRows = 100

async function* parsed(
  set: DefinedSet,
  bytes: UploadBytes,
  options: UploadOptions,
  ignore: (sheet: string) => void,
): AsyncGenerator<readonly ReadRow[]> {
  const reader = new RowReader(set, options.decimal)
  let batch: ReadRow[] = []
  let chars = 0
  let given = 0
  let invalid: unknown
  try {
    for await (const rows of sourceRows(set, bytes, options, ignore)) {
      for (const row of rows) {
        given++
        if (given > set.limits.rowsMax) throw tooManyRows(row, set.limits.rowsMax)
        const reading = reader.read(row)
        const found = reading instanceof Promise ? await reading : reading
        batch.push(found)
        chars += charsOf(found)
        if (batch.length % turnRows === 0) await nextTurn()
        if (batch.length < batchRows && chars < batchChars) continue
        yield batch
        batch = []
        chars = 0
      }
    }
  } catch (error) {
    if (!isInvalidFile(error)) throw error
    invalid = error
  }
  // The errors of the rows before are stored as well.
  if (batch.length > 0) yield batch
  if (invalid !== undefined) throw invalid
}

function tooManyRows({ line, place = `line ${line}` }: SourceRow, rowsMax: number): InvalidFile {
  const reason = `The file has more than ${rowsMax} rows: ${place} is row ${rowsMax + 1}. Split it, or raise limits.rowsMax.`
  return new InvalidFile('too-many-rows', line, reason)
}

async function* restaged(registry: Registry, { id, internal }: StoredSubmission): AsyncGenerator<readonly ReadRow[]> {
  const values = { tenant: internal.tenant, id, committed: internal.baselineNumber, limit: batchRows }
  for (let after = '0'; ; ) {
    const rows = await read<Record<'line' | 'type' | 'key', string> & Record<'hash' | 'data' | 'classification', string | null>>(
      registry.pool,
      restageStatement,
      { ...values, after },
    )
    if (rows.length === 0) return
    after = rows.at(-1)!.line
    // A row without data was erased since; the count at the end notices.
    const whole = rows.flatMap(({ line, hash, data, ...row }) =>
      hash === null || data === null ? [] : [{ ...row, line: Number(line), hash, data, faults: [] }],
    )
    if (whole.length > 0) yield whole
  }
}
