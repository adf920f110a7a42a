// Why a submission is where it is, from the same columns that decide it.

import { isPawlError } from '../errors.ts'
import type { RecordsCore } from './core.ts'
import type { SubmissionRow } from './submissions.ts'
import type { SubmissionState } from './types.ts'

export interface SubmissionWhy {
  readonly id: string
  readonly state: SubmissionState
  readonly reasons: readonly { readonly code: string; readonly text: string }[]
}

export async function explainSubmission(core: RecordsCore, tenant: string, row: SubmissionRow): Promise<SubmissionWhy> {
  const reasons = row.state === 'submitting' ? await submittingReasons(core, tenant, row) : reasonsOf(row)
  return { id: row.id, state: row.state, reasons: reasons.map(([code, text]) => ({ code, text })) }
}

type Reason = [code: string, text: string]

async function submittingReasons(core: RecordsCore, tenant: string, row: SubmissionRow): Promise<Reason[]> {
  const of = Number(row.created) + Number(row.updated) + Number(row.deleted)
  const reasons: Reason[] = [
    ['applying', `${row.applied} of ${of} changes are written; readers see none of them until the last is.`],
  ]
  if (row.failures > 0)
    reasons.push(['retrying', `${row.failures} attempt(s) failed (${row.failure_class}); the last: ${firstLine(row.error)}`])
  try {
    const why = await core.jobs(tenant).why(row.job_id!)
    for (const { code, text } of why.reasons) reasons.push([`job-${code}`, `Its job ${row.job_id}: ${text}`])
  } catch (error) {
    if (!isPawlError(error, 'PAWL_NOT_FOUND')) throw error
    reasons.push(['job-gone', `Its job ${row.job_id} is gone; it will be ended, and what it wrote purged, within a minute.`])
  }
  return reasons
}

function reasonsOf(row: SubmissionRow): Reason[] {
  const until = row.expires_at?.toISOString()
  if (row.is_expired) return [['expired', `Its time was over at ${until}; it is removed soon. Upload the file again.`]]
  switch (row.state) {
    case 'uploading':
    case 'validating':
      return [
        [
          row.state,
          `${row.lines} row(s) are staged. If nothing more comes it expires at ${until}; an upload with { restart: '${row.id}' } starts it over.`,
        ],
      ]
    case 'validated':
      return row.baseline === row.scope_revision
        ? [['ready', `It can be submitted until ${until}.`]]
        : [
            [
              'stale',
              `Its scope has moved from revision ${row.baseline} to ${row.scope_revision}: submit would answer superseded. Rebase it, or upload the file again.`,
            ],
          ]
    case 'invalid':
      return [
        [
          'invalid',
          `${row.errors} error(s): ${firstLine(row.error)} records.errors('${row.id}') lists them. Mend the file and upload it again.`,
        ],
      ]
    case 'upload-failed':
      return [['upload-failed', `It did not arrive: ${firstLine(row.error)} Upload it with { restart: '${row.id}' }.`]]
    case 'superseded':
      return [['superseded', `${firstLine(row.error)} records.rebase('${row.id}') compares it anew.`]]
    case 'failed':
      return [
        [
          'failed',
          `It was given up (${row.failure_class}) and what it had written was purged: ${firstLine(row.error)} Mend the cause, then records.resume('${row.id}').`,
        ],
      ]
    default:
      return [['submitted', `It was committed as number ${row.number} at ${row.ended_at?.toISOString()}.`]]
  }
}

function firstLine(text: string | null): string {
  return (text ?? 'no reason was recorded.').split('\n')[0]!
}
