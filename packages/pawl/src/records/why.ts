// Why a submission is where it is, from the same columns that decide it.

import { isPawlError } from '../errors.ts'
import type { RecordsCore } from './core.ts'
import { slotHolder } from './slot.ts'
import type { SubmissionRow } from './submissions.ts'
import type { SubmissionState } from './types.ts'

export interface SubmissionWhy {
  readonly id: string
  readonly state: SubmissionState
  readonly reasons: readonly { readonly code: string; readonly text: string }[]
}

export async function explainSubmission(core: RecordsCore, tenant: string, row: SubmissionRow): Promise<SubmissionWhy> {
  const reasons = await reasonsFor(core, tenant, row)
  return { id: row.id, state: row.state, reasons: reasons.map(([code, text]) => ({ code, text })) }
}

type Reason = [code: string, text: string]

async function reasonsFor(core: RecordsCore, tenant: string, row: SubmissionRow): Promise<Reason[]> {
  if (row.state === 'submitting') return submittingReasons(core, tenant, row)
  const reasons = reasonsOf(row)
  if (row.is_expired || (row.state !== 'validated' && row.state !== 'failed')) return reasons
  return [...reasons, nextOf(row, await slotHolder(core, tenant, row.scope_id))]
}

/** What submit, or resume, would answer. */
function nextOf(row: SubmissionRow, holder: string | undefined): Reason {
  const verb = row.state === 'failed' ? 'resume' : 'submit'
  if (row.baseline !== row.scope_revision)
    return [
      'stale',
      `Its scope has moved from revision ${row.baseline} to ${row.scope_revision}, so ${verb} would fail as superseded. Call records.rebase('${row.id}') to compare it again, or upload the file again.`,
    ]
  if (holder !== undefined)
    return [
      'scope-busy',
      `Submission ${holder} is being applied to its scope, so ${verb} is refused until that ends. If that commits, this one is superseded.`,
    ]
  const until = row.expires_at?.toISOString()
  return row.state === 'failed'
    ? ['resumable', `Fix the cause, then call records.resume('${row.id}') before ${until}.`]
    : ['ready', `It can be submitted until ${until}.`]
}

async function submittingReasons(core: RecordsCore, tenant: string, row: SubmissionRow): Promise<Reason[]> {
  const of = Number(row.created) + Number(row.updated) + Number(row.deleted)
  const reasons: Reason[] = [['applying', `${row.applied} of ${of} changes are written; readers see them once all are.`]]
  if (row.failures > 0)
    reasons.push(['retrying', `${row.failures} attempt(s) failed (${row.failure_class}); the last: ${firstLine(row.error)}`])
  try {
    const why = await core.jobs(tenant).why(row.job_id!)
    for (const { code, text } of why.reasons) reasons.push([`job-${code}`, `Its job ${row.job_id}: ${text}`])
  } catch (error) {
    if (!isPawlError(error, 'PAWL_NOT_FOUND')) throw error
    reasons.push(['job-gone', `Its job ${row.job_id} is gone. Within a minute the submission fails and what it wrote is purged.`])
  }
  return reasons
}

function reasonsOf(row: SubmissionRow): Reason[] {
  const until = row.expires_at?.toISOString()
  if (row.is_expired) return [['expired', `It expired at ${until} and is removed soon. Upload the file again.`]]
  switch (row.state) {
    case 'uploading':
    case 'validating':
      return [
        [
          row.state,
          `${row.lines} row(s) are staged. If no more rows arrive, it expires at ${until}. To start over: ${againOf(row)}`,
        ],
      ]
    case 'validated':
      return []
    case 'invalid':
      return [
        ['invalid', `${firstLine(row.error)} records.errors('${row.id}') lists the details. Fix the file and upload it again.`],
      ]
    case 'upload-failed':
      return [['upload-failed', `The upload failed: ${firstLine(row.error)} ${againOf(row)}`]]
    case 'superseded':
      return [['superseded', `${firstLine(row.error)} records.rebase('${row.id}') compares it again.`]]
    case 'failed':
      return [['failed', `It failed (${row.failure_class}), and what it had written was purged: ${firstLine(row.error)}`]]
    default:
      return [['submitted', `It was committed as number ${row.number} at ${row.ended_at?.toISOString()}.`]]
  }
}

function againOf(row: SubmissionRow): string {
  return row.origin === 'rebase'
    ? `Call records.rebase('${row.rebased_from}') again.`
    : `Upload it with { restart: '${row.id}' }.`
}

function firstLine(text: string | null): string {
  return (text ?? 'no reason was recorded.').split('\n')[0]!
}
