// Submissions as callers see them, and the reasons for the state of each.

import { statement } from '../db/statement.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { resolve } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { slotHolder } from './commit.ts'
import { submissionsTable } from './options.ts'
import { type Registry, scopeOf } from './sets.ts'
import type { Page, Submission, SubmissionState } from './types.ts'

const readStatement = statement(import.meta.url, 'submission-read')
const listStatement = statement(import.meta.url, 'submission-list')
const listSetStatement = statement(import.meta.url, 'submission-list-set')

/** A submission as pawl.submission_info has it. */
export interface StoredSubmission extends Omit<Submission, 'scope'> {
  readonly internal: {
    readonly tenant: string
    readonly scopeId: string
    readonly scope: string
    readonly scopeRevision: number
    readonly fence: string
    readonly baselineNumber: string
    readonly receivedAt: string | null
    readonly types: readonly string[] | null
    /** JSON. */
    readonly attributes: string | null
    readonly schemaVersion: number
    readonly appliedLine: string
    readonly failures: number
    readonly isExpired: boolean
  }
}

/** Ids are bigints; any other string names nothing. */
export function idText(what: string, id: string): string {
  if (/^[1-9]\d{0,17}$/.test(id)) return id
  throw new PawlError('PAWL_NOT_FOUND', `There is no ${what} '${String(id).slice(0, 50)}'.`, {
    details: { id: String(id).slice(0, 50) },
  })
}

export async function readSubmission(registry: Registry, tenant: string, id: string): Promise<StoredSubmission | undefined> {
  const [row] = await read<{ info: string }>(registry.pool, readStatement, { tenant, id: idText('submission', id) })
  return row && stored(row)
}

export async function needSubmission(registry: Registry, tenant: string, id: string): Promise<StoredSubmission> {
  const found = await readSubmission(registry, tenant, id)
  if (found !== undefined) return found
  throw new PawlError('PAWL_NOT_FOUND', `There is no submission ${id}, or it expired and was removed.`, { details: { id } })
}

export interface ListSubmissionsOptions {
  readonly state?: SubmissionState
  /** `next` of the last page. */
  readonly after?: string
  /** Up to 500. Default 50. */
  readonly limit?: number
}

export async function listSubmissions(
  registry: Registry,
  tenant: string,
  where: { scope_id: string } | { record_set: string },
  options: ListSubmissionsOptions,
): Promise<Page<Submission>> {
  const { state = null, after, limit } = resolve('submissions', submissionsTable, options)
  const page = { tenant, state, before: after === undefined ? '9223372036854775807' : idText('submission', after), limit }
  const query = 'scope_id' in where ? listStatement : listSetStatement
  const rows = await read<{ info: string }>(registry.pool, query, { ...page, ...where })
  const items = rows.map((row) => toSubmission(registry, stored(row)))
  return { items, next: items.length < limit ? null : items.at(-1)!.id }
}

const times = new Set(['createdAt', 'submittingAt', 'endedAt', 'expiresAt'])

function stored({ info }: { info: string }): StoredSubmission {
  const reviver = (name: string, value: unknown) => (times.has(name) && typeof value === 'string' ? new Date(value) : value)
  return JSON.parse(info, reviver) as StoredSubmission
}

export function toSubmission(registry: Registry, { internal, ...seen }: StoredSubmission): Submission {
  return { ...seen, scope: scopeOf(registry.sets.get(seen.set), internal.scope) }
}

export function expired(id: string): PawlError {
  return new PawlError('PAWL_NOT_FOUND', `Submission ${id} expired. Upload the file again.`, { details: { id } })
}

export function wrongState(id: string, state: SubmissionState, needed: string): PawlError {
  return new PawlError('PAWL_WRONG_STATE', `Submission ${id} is ${state}; it must be ${needed}.`, { details: { id, state } })
}

// ---- why

export interface SubmissionWhy {
  readonly id: string
  readonly state: SubmissionState
  readonly reasons: readonly { readonly code: string; readonly text: string }[]
}

type Reason = [code: string, text: string]

/** From the same columns that decide it. */
export async function explainSubmission(registry: Registry, row: StoredSubmission): Promise<SubmissionWhy> {
  const reasons = row.state === 'submitting' ? await submittingReasons(registry, row) : reasonsOf(row)
  const isOpen = (row.state === 'validated' || row.state === 'failed') && !row.internal.isExpired
  if (isOpen) reasons.push(nextOf(row, await slotHolder(registry, row.internal.tenant, row.internal.scopeId)))
  return { id: row.id, state: row.state, reasons: reasons.map(([code, text]) => ({ code, text })) }
}

/** What submit, or resume, would answer. */
function nextOf({ id, state, baseline, expiresAt, internal }: StoredSubmission, holder: string | undefined): Reason {
  const verb = state === 'failed' ? 'resume' : 'submit'
  if (baseline !== internal.scopeRevision)
    return [
      'stale',
      `Its scope has moved from revision ${baseline} to ${internal.scopeRevision}, so ${verb} would fail as superseded. Call records.rebase('${id}') to compare it again, or upload the file again.`,
    ]
  if (holder !== undefined)
    return [
      'scope-busy',
      `Submission ${holder} is being applied to its scope, so ${verb} is refused until that ends. If that commits, this one is superseded.`,
    ]
  const until = expiresAt?.toISOString()
  return state === 'failed'
    ? ['resumable', `Fix the cause, then call records.resume('${id}') before ${until}.`]
    : ['ready', `It can be submitted until ${until}.`]
}

async function submittingReasons(registry: Registry, row: StoredSubmission): Promise<Reason[]> {
  const { jobId, failureClass, progress, internal } = row
  const reasons: Reason[] = [
    ['applying', `${progress.applied} of ${progress.of} changes are written; readers see them once all are.`],
  ]
  if (internal.failures > 0)
    reasons.push(['retrying', `${internal.failures} attempt(s) failed (${failureClass}); the last: ${firstLine(row.error)}`])
  try {
    const why = await registry.jobs(internal.tenant).why(jobId!)
    for (const { code, text } of why.reasons) reasons.push([`job-${code}`, `Its job ${jobId}: ${text}`])
  } catch (error) {
    if (!isPawlError(error, 'PAWL_NOT_FOUND')) throw error
    reasons.push(['job-gone', `Its job ${jobId} is gone. Within a minute the submission fails and what it wrote is purged.`])
  }
  return reasons
}

function reasonsOf(row: StoredSubmission): Reason[] {
  const { id, state, error } = row
  const until = row.expiresAt?.toISOString()
  if (row.internal.isExpired) return [['expired', `It expired at ${until} and is removed soon. Upload the file again.`]]
  const again = `Call records.rebase('${row.rebasedFrom}') again.`
  const restart = row.origin === 'rebase' ? again : `Upload it with { restart: '${id}' }.`
  const text = () => {
    switch (state) {
      case 'uploading':
      case 'validating':
        return `${row.counts.rows} row(s) are staged. If no more rows arrive, it expires at ${until}. To start over: ${restart}`
      case 'invalid':
        return `${firstLine(error)} records.errors('${id}') lists the details. Fix the file and upload it again.`
      case 'upload-failed':
        return `The upload failed: ${firstLine(error)} ${restart}`
      case 'superseded':
        return `${firstLine(error)} records.rebase('${id}') compares it again.`
      case 'failed':
        return `It failed (${row.failureClass}), and what it had written was purged: ${firstLine(error)}`
      default:
        return `It was committed as number ${row.number} at ${row.endedAt?.toISOString()}.`
    }
  }
  return state === 'validated' ? [] : [[state, text()]]
}

function firstLine(text: string | null): string {
  return (text ?? 'no reason was recorded.').split('\n')[0]!
}
