// Submissions as people and programs see them.

import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { resolve } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { idText, type RecordsCore } from './core.ts'
import { submissionsTable } from './options.ts'
import { scopeOf } from './sets.ts'
import type { FailureClass, Submission, SubmissionState } from './types.ts'

const readStatement = statement(import.meta.url, 'submission-read')
const listStatement = statement(import.meta.url, 'submission-list')
const listSetStatement = statement(import.meta.url, 'submission-list-set')

/** The row of submission-read.sql. */
export interface SubmissionRow {
  id: string
  record_set: string
  scope_id: string
  scope: string
  origin: Submission['origin']
  state: SubmissionState
  revision: number
  fence: string
  baseline: string
  baseline_number: string
  received_at_revision: string | null
  /** JSON, as are attributes. */
  types: string | null
  attributes: string | null
  number: string | null
  schema_version: number
  missing_policy: string
  format: string | null
  name: string | null
  submitted_by: string | null
  rebased_from: string | null
  ignored_sheets: string
  lines: string
  last_line: string
  bytes: string
  created: string
  updated: string
  unchanged: string
  missing: string
  deleted: string
  invalid_created: string
  invalid_updated: string
  invalid_unkeyed: string
  errors: string
  applied_line: string
  applied: string
  job_id: string | null
  failures: number
  failure_class: FailureClass | null
  error: string | null
  created_at: Date
  submitting_at: Date | null
  ended_at: Date | null
  expires_at: Date | null
  is_expired: boolean
  scope_revision: string
  committed: string
}

export async function readSubmission(core: RecordsCore, tenant: string, id: string): Promise<SubmissionRow | undefined> {
  const [row] = await read<SubmissionRow>(core.pool, readStatement, { tenant, id: idText('submission', id) })
  return row
}

export async function needSubmission(core: RecordsCore, tenant: string, id: string): Promise<SubmissionRow> {
  const row = await readSubmission(core, tenant, id)
  if (row !== undefined) return row
  throw new PawlError('PAWL_NOT_FOUND', `There is no submission ${id}, or it expired and was removed.`, { details: { id } })
}

export interface ListSubmissionsOptions {
  readonly state?: SubmissionState
  /** The id that the last page ended with. */
  readonly before?: string
  /** Up to 500. Default 50. */
  readonly limit?: number
}

export async function listSubmissions(
  core: RecordsCore,
  tenant: string,
  where: { scopeId: string } | { set: string },
  options: ListSubmissionsOptions,
): Promise<SubmissionRow[]> {
  const { state = null, before, limit } = resolve('submissions', submissionsTable, options)
  const values = {
    tenant,
    state,
    before: before === undefined ? '9223372036854775807' : idText('submission', before),
    limit,
  }
  if ('set' in where) return read<SubmissionRow>(core.pool, listSetStatement, { ...values, record_set: where.set })
  return read<SubmissionRow>(core.pool, listStatement, { ...values, scope_id: where.scopeId })
}

export function toSubmission(core: RecordsCore, row: SubmissionRow): Submission {
  return {
    id: row.id,
    set: row.record_set,
    scope: scopeOf(core.sets.get(row.record_set), row.scope),
    origin: row.origin,
    state: row.state,
    revision: row.revision,
    baseline: row.baseline,
    number: row.number,
    format: row.format,
    name: row.name,
    by: row.submitted_by,
    rebasedFrom: row.rebased_from,
    ignoredSheets: JSON.parse(row.ignored_sheets) as string[],
    counts: {
      rows: Number(row.lines),
      created: Number(row.created),
      updated: Number(row.updated),
      unchanged: Number(row.unchanged),
      missing: Number(row.missing),
      deleted: Number(row.deleted),
      invalid: {
        created: Number(row.invalid_created),
        updated: Number(row.invalid_updated),
        unkeyed: Number(row.invalid_unkeyed),
      },
      errors: Number(row.errors),
    },
    progress: {
      bytes: Number(row.bytes),
      rows: Number(row.lines),
      applied: Number(row.applied),
      of: Number(row.created) + Number(row.updated) + Number(row.deleted),
    },
    jobId: row.job_id,
    failureClass: row.failure_class,
    error: row.error,
    createdAt: row.created_at,
    submittingAt: row.submitting_at,
    endedAt: row.ended_at,
    expiresAt: row.expires_at,
  }
}
