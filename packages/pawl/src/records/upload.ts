// An upload: from a stream, or from what an earlier submission staged, to a submission that is validated or invalid. One batch is staged
// while the next is compared and the one behind it parsed, so memory holds three of them whatever the size.

import { setImmediate as nextTurn } from 'node:timers/promises'
import { statement, textsLiteral } from '../db/statement.ts'
import { describeError, isPawlError, PawlError } from '../errors.ts'
import { probe } from '../kernel/probe.ts'
import { read, retrying } from '../kernel/retry.ts'
import { InvalidFile, isInvalidFile, UploadBytes } from './bytes.ts'
import { idText, type RecordsCore } from './core.ts'
import { type ReadRow, RowReader, type SourceRow, storable } from './rows.ts'
import type { DefinedSet } from './sets.ts'
import { limitOf, sourceRows } from './sources.ts'
import { addErrors, batchChars, batchRows, charsOf, type Staged, Stager, uploadLost } from './staging.ts'
import { needSubmission, readSubmission, type SubmissionRow } from './submissions.ts'
import { expired, wrongState } from './submit.ts'
import type { Body, UploadOptions } from './types.ts'
import { expireInvalid, validateStaged } from './validate.ts'

const beginStatement = statement(import.meta.url, 'upload-begin')
const restartStatement = statement(import.meta.url, 'upload-restart')
const stagedStatement = statement(import.meta.url, 'upload-staged')
const endStatement = statement(import.meta.url, 'upload-end')
const erasedStatement = statement(import.meta.url, 'erased-since')
const clearStatement = statement(import.meta.url, 'stage-clear')
const clearErrorsStatement = statement(import.meta.url, 'errors-clear')
const restageStatement = statement(import.meta.url, 'restage')

export interface Place {
  readonly tenant: string
  readonly set: DefinedSet
  readonly scopeId: string
}

export interface Begun {
  id: string
  fence: string
  committed: string
  live: string
  /** A literal of PostgreSQL's. */
  types: string
}

/**
 * Where rows come from: the batches, how many bytes have come, which sheets were ignored, the digest of all when they have, and how to begin
 * anew when they have not.
 */
export interface Source {
  batches(): AsyncIterable<readonly ReadRow[]>
  bytes(): number
  ignored(): readonly string[]
  end(): string | null
  again(id: string): string
}

export async function upload(
  core: RecordsCore,
  place: Place,
  body: Body,
  options: UploadOptions,
  attributes: string | null,
): Promise<string> {
  const about = { ...options, types: [...place.set.types.keys()], attributes }
  const begun =
    options.restart === undefined
      ? await begin(core, place, { ...about, origin: 'upload' })
      : await restart(core, place, about, options.restart)
  const bytes = new UploadBytes(body, limitOf(place.set, options.format), options.signal)
  const ignored: string[] = []
  await fill(
    core,
    place,
    begun,
    {
      batches: () => parsed(place.set, bytes, options, (sheet) => ignored.push(storable(sheet))),
      bytes: () => bytes.count,
      ignored: () => ignored,
      end: () => {
        const sha256 = bytes.digest()
        UploadBytes.assertExpected({ bytes: bytes.count, sha256 }, options.expect)
        return sha256
      },
      again: (id) => `Upload it again with { restart: '${id}' }.`,
    },
    options.onProgress,
  )
  return begun.id
}

/** Compares what a submission staged with the scope as it is now: a new submission with a new preview, by the same code as an upload. */
export async function rebase(
  core: RecordsCore,
  place: Place,
  from: {
    id: string
    baselineNumber: string
    format: string | null
    name: string | null
    by: string | null
    lines: number
    ignoredSheets: readonly string[]
    types: readonly string[]
    attributes: string | null
    receivedAt: string
  },
): Promise<string> {
  const { id, format, name, by, types, attributes, receivedAt } = from
  const begun = await begin(core, place, { origin: 'rebase', format, name, by, types, attributes, receivedAt, rebasedFrom: id })
  let lines = 0
  await fill(core, place, begun, {
    async *batches() {
      for await (const rows of restaged(core, place.tenant, from)) {
        lines += rows.length
        yield rows
      }
    },
    bytes: () => 0,
    ignored: () => from.ignoredSheets,
    end: () => {
      if (lines === from.lines) return null
      throw new PawlError(
        'PAWL_UPLOAD_FAILED',
        `Submission ${from.id} has only ${lines} of its ${from.lines} rows left, because a record was erased. Upload the file again.`,
      )
    },
    again: () => `Call records.rebase('${from.id}') again.`,
  })
  return begun.id
}

/** What is stored of an upload. */
interface About {
  readonly format: string | null
  readonly name?: string | null
  readonly by?: string | null
  readonly types: readonly string[]
  readonly attributes: string | null
}

export async function begin(
  core: RecordsCore,
  place: Place,
  about: About & { readonly origin: 'upload' | 'rebase'; readonly rebasedFrom?: string; readonly receivedAt?: string },
): Promise<Begun> {
  return retrying(() =>
    core.pool.transaction(async (tx) => {
      const [begun] = await tx.run<Begun>(beginStatement, {
        ...stored(place, about),
        origin: about.origin,
        rebased_from: about.rebasedFrom ?? null,
        received_at: about.receivedAt ?? null,
      })
      return begun!
    }),
  )
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

async function restart(core: RecordsCore, place: Place, about: About, id: string): Promise<Begun> {
  const begun = await retrying(() =>
    core.pool.transaction(async (tx) => {
      const [row] = await tx.run<Begun>(restartStatement, {
        ...stored(place, about),
        id: idText('submission', id),
      })
      if (row !== undefined) await tx.run(clearErrorsStatement, { tenant: place.tenant, id })
      return row
    }),
  )
  if (begun === undefined) throw cannotRestart(await needSubmission(core, place.tenant, id), place.scopeId)
  if (probe.on) await probe.hit('records.restart.committed', { id })
  if (!(await clearStaged(core, place.tenant, id, begun.fence))) throw uploadLost(id)
  return begun
}

function cannotRestart({ id, scope_id, state, origin, rebased_from, is_expired }: SubmissionRow, scopeId: string): PawlError {
  if (scope_id !== scopeId)
    return new PawlError('PAWL_NOT_FOUND', `There is no submission ${id} in this scope; it belongs to another scope.`, {
      details: { id },
    })
  if (is_expired) return expired(id)
  if (origin !== 'rebase') return wrongState(id, state, 'uploading, validating or upload-failed')
  return new PawlError(
    'PAWL_WRONG_STATE',
    `Submission ${id} is a rebase and cannot be restarted. Call records.rebase('${rebased_from}') for a new one.`,
    { details: { id, state } },
  )
}

/** Removes staged rows in bounded steps. false: they are not the caller's any more, and what is there is somebody else's. */
export async function clearStaged(core: RecordsCore, tenant: string, id: string, fence: string | null): Promise<boolean> {
  const limit = 5000
  for (;;) {
    const values = { tenant, id, fence, limit }
    const [cleared] = await retrying(() => core.pool.transaction((tx) => tx.run<{ gone: number }>(clearStatement, values)))
    if (cleared === undefined) return false
    if (cleared.gone < limit) return true
  }
}

export async function fill(
  core: RecordsCore,
  place: Place,
  begun: Begun,
  source: Source,
  onProgress?: UploadOptions['onProgress'],
): Promise<void> {
  const staged: Staged = { ...begun, scopeId: place.scopeId }
  const stager = new Stager(core, place.tenant, place.set, staged)
  try {
    let [before, staging] = [Promise.resolve(), Promise.resolve()]
    try {
      for await (const rows of source.batches()) {
        await before
        onProgress?.({ id: begun.id, lines: stager.lines, bytes: source.bytes() })
        before = staging
        staging = stager.add(rows, source.bytes())
        staging.catch(() => undefined)
      }
    } finally {
      // Also when parsing failed: what is under way must not write behind the end of the upload.
      await staging.catch(() => undefined)
    }
    await staging
    const digest = source.end()
    onProgress?.({ id: begun.id, lines: stager.lines, bytes: source.bytes() })
    await markStaged(core, place, staged, source, digest)
    if (probe.on) await probe.hit('records.validate.before', staged)
    await validateStaged(core, place, staged, stager)
  } catch (error) {
    await endBadly(core, place, staged, stager, source, error)
  }
}

async function markStaged(
  core: RecordsCore,
  { tenant, set }: Place,
  { id, fence }: Staged,
  source: Source,
  digest: string | null,
): Promise<void> {
  const ignored = textsLiteral(source.ignored())
  const values = { tenant, id, fence, bytes: source.bytes(), digest, ignored, keep_ms: set.keepMs.uploading }
  const [row] = await retrying(() => core.pool.transaction((tx) => tx.run(stagedStatement, values)))
  if (row === undefined) throw uploadLost(id)
}

/** "Your file is not valid" is an answer; "it did not arrive" is an error, and the same submission can be started over. */
async function endBadly(
  core: RecordsCore,
  place: Place,
  staged: Staged,
  stager: Stager,
  source: Source,
  error: unknown,
): Promise<void> {
  if (isPawlError(error, 'PAWL_LEASE_LOST')) throw error
  const isInvalid = isInvalidFile(error)
  const values = {
    tenant: place.tenant,
    id: staged.id,
    fence: staged.fence,
    state: isInvalid ? 'invalid' : 'upload-failed',
    error: isInvalid ? storable(error.message, 2000) : describeError(error, 2000),
    errors: isInvalid ? 1 : 0,
    bytes: source.bytes(),
    ignored: textsLiteral(source.ignored()),
    keep_ms: place.set.keepMs.ended,
  }
  const write = () =>
    core.pool.transaction(async (tx) => {
      const [ended] = await tx.run(endStatement, values)
      if (ended === undefined) throw uploadLost(staged.id)
      await tx.run(erasedStatement, { tenant: place.tenant, id: staged.id })
      if (isInvalid) {
        const fault = { code: error.code, reason: error.message, column: null, value: null }
        await addErrors(tx, place.tenant, staged.id, stager.errors, [{ line: error.line, fault }])
        await expireInvalid(tx, place, staged.id)
      }
    })
  // If even this cannot be written the upload stays as it is and expires; what went wrong first is what
  // the caller hears.
  const unwritten: unknown = await retrying(write).catch((caught: unknown) => caught)
  if (isPawlError(unwritten, 'PAWL_LEASE_LOST')) {
    // Under our own fence only we can have ended it: it was validated, and the answer to that commit was lost.
    const now = await readSubmission(core, place.tenant, staged.id)
    if (now?.fence === staged.fence && now.state !== 'uploading' && now.state !== 'validating') return
    throw unwritten
  }
  if (isInvalid) {
    if (unwritten !== undefined) throw unwritten
    core.sweep.wake()
    return
  }
  throw isPawlError(error) ? withId(error, staged.id) : failed(error, staged.id, source.again(staged.id))
}

function failed(error: unknown, id: string, advice: string): PawlError {
  return new PawlError(
    'PAWL_UPLOAD_FAILED',
    `The upload of submission ${id} failed and changed nothing: ${error instanceof Error ? error.message : String(error)} ${advice}`,
    { cause: error, details: { id } },
  )
}

function withId(error: PawlError, id: string): PawlError {
  return new PawlError(error.code, error.message, { cause: error.cause, details: { ...error.details, id } })
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
  let malformed: unknown
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
    malformed = error
  }
  // What is wrong with the rows before a malformed one is told as well.
  if (batch.length > 0) yield batch
  if (malformed !== undefined) throw malformed
}

function tooManyRows({ line, place = `line ${line}` }: SourceRow, rowsMax: number): InvalidFile {
  const reason = `The file has more than ${rowsMax} rows: ${place} is row ${rowsMax + 1}. Split it, or raise limits.rowsMax.`
  return new InvalidFile('too-many-rows', line, reason)
}

async function* restaged(
  core: RecordsCore,
  tenant: string,
  from: { id: string; baselineNumber: string },
): AsyncGenerator<readonly ReadRow[]> {
  let after = '0'
  for (;;) {
    const rows = await read<{
      line: string
      type: string
      key: string
      hash: string | null
      data: string | null
      classification: string | null
    }>(core.pool, restageStatement, { tenant, id: from.id, committed: from.baselineNumber, after, limit: batchRows })
    if (rows.length === 0) return
    after = rows.at(-1)!.line
    // A row without data was erased since; the count at the end notices.
    const whole = rows.filter((row) => row.hash !== null && row.data !== null)
    if (whole.length > 0)
      yield whole.map(({ line, type, key, hash, data, classification }) => ({
        line: Number(line),
        type,
        key,
        hash: hash!,
        data: data!,
        classification,
        faults: [],
      }))
  }
}
