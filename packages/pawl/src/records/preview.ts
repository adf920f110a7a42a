// What a submission would do, or did, row by row: the same staged rows that its apply writes; after the commit, the versions themselves.

import { statement, textsLiteral } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { resolve, whole } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import type { RecordsCore } from './core.ts'
import { fieldChanges } from './diff.ts'
import { pageTable } from './options.ts'
import type { SubmissionRow } from './submissions.ts'
import type { Page, PageOptions, PreviewRow, RecordData, RowError, RowKind } from './types.ts'

const previewStatement = statement(import.meta.url, 'preview')
const missingStatement = statement(import.meta.url, 'missing')
const changesStatement = statement(import.meta.url, 'changes')
const errorsStatement = statement(import.meta.url, 'errors-list')

const kinds: Readonly<Record<Exclude<RowKind, 'missing'>, readonly string[]>> = {
  created: ['C'],
  updated: ['U'],
  unchanged: ['='],
  invalid: ['I', 'J', 'X'],
}

/** States in which all rows are staged and counted. */
const counted: readonly SubmissionRow['state'][] = ['validated', 'submitting', 'superseded', 'failed']

const statuses: Readonly<Partial<Record<RowKind, string>>> = { created: 'CREATED', updated: 'UPDATED', missing: 'DELETED' }

export async function previewRows(
  core: RecordsCore,
  tenant: string,
  submission: SubmissionRow,
  kind: RowKind,
  options: PageOptions,
): Promise<Page<PreviewRow>> {
  const { limit } = resolve('rows', pageTable, options)
  if (submission.state === 'submitted') return changedRows(core, tenant, submission, kind, limit, options.after)
  if (kind === 'missing') return missingRows(core, tenant, submission, limit, options.after)
  // The counts of a whole upload say it; looking would read every staged row to find none.
  if (kind !== 'invalid' && counted.includes(submission.state) && submission[kind] === '0') return { items: [], next: undefined }
  const rows = await read<{ line: string; kind: string; type: string; key: string; before: string | null; after: string | null }>(
    core.pool,
    previewStatement,
    {
      tenant,
      id: submission.id,
      committed: submission.baseline_number,
      kinds: textsLiteral(kinds[kind]),
      after: options.after === undefined ? '0' : whole('after', Number(options.after), 0, Number.MAX_SAFE_INTEGER),
      limit,
    },
  )
  return {
    items: rows.map((row) => {
      const found = toRow(row.type, row.key, row.before, row.kind === '=' ? row.before : row.after, Number(row.line))
      // The data of an invalid row is not kept; compared with nothing, every field would be gone.
      return kind === 'invalid' ? { ...found, changes: [] } : found
    }),
    next: rows.length < limit ? undefined : rows.at(-1)!.line,
  }
}

async function missingRows(
  core: RecordsCore,
  tenant: string,
  submission: SubmissionRow,
  limit: number,
  after: string | undefined,
): Promise<Page<PreviewRow>> {
  const [afterType, afterKey] = readPair(after)
  const rows = await read<{ type: string; key: string; data: string | null }>(core.pool, missingStatement, {
    tenant,
    scope_id: submission.scope_id,
    id: submission.id,
    committed: submission.baseline_number,
    types: textsLiteral(JSON.parse(submission.types!) as string[]),
    after_type: afterType,
    after_key: afterKey,
    limit,
  })
  return { items: rows.map((row) => toRow(row.type, row.key, row.data, null, null)), next: nextPair(rows, limit) }
}

async function changedRows(
  core: RecordsCore,
  tenant: string,
  submission: SubmissionRow,
  kind: RowKind,
  limit: number,
  after: string | undefined,
): Promise<Page<PreviewRow>> {
  const status = statuses[kind]
  if (status === undefined)
    throw new PawlError('PAWL_WRONG_STATE', `Submission ${submission.id} is submitted, so its ${kind} rows are no longer kept.`, {
      details: { id: submission.id, state: submission.state },
    })
  const [afterType, afterKey] = readPair(after)
  const rows = await read<{ type: string; key: string; before: string | null; after: string | null }>(
    core.pool,
    changesStatement,
    {
      tenant,
      scope_id: submission.scope_id,
      number: submission.number,
      status,
      after_type: afterType,
      after_key: afterKey,
      limit,
    },
  )
  return { items: rows.map((row) => toRow(row.type, row.key, row.before, row.after, null)), next: nextPair(rows, limit) }
}

export async function rowErrors(core: RecordsCore, tenant: string, id: string, options: PageOptions): Promise<Page<RowError>> {
  const { limit } = resolve('errors', pageTable, options)
  const rows = await read<{
    ordinal: string
    line: string
    code: string
    field: string | null
    value: string | null
    reason: string
  }>(core.pool, errorsStatement, {
    tenant,
    id,
    after: options.after === undefined ? 0 : whole('after', Number(options.after), 0, Number.MAX_SAFE_INTEGER),
    limit,
  })
  return {
    items: rows.map(({ line, code, field, value, reason }) => ({ line: Number(line), code, column: field, value, reason })),
    next: rows.length < limit ? undefined : rows.at(-1)!.ordinal,
  }
}

function toRow(type: string, key: string, before: string | null, after: string | null, line: number | null): PreviewRow {
  const old = before === null ? null : (JSON.parse(before) as RecordData)
  const next = after === null ? null : (JSON.parse(after) as RecordData)
  return { line, type, key, before: old, after: next, changes: fieldChanges(old, next) }
}

function nextPair(rows: readonly { type: string; key: string }[], limit: number): string | undefined {
  const last = rows.at(-1)
  return last === undefined || rows.length < limit
    ? undefined
    : Buffer.from(JSON.stringify([last.type, last.key])).toString('base64url')
}

function readPair(after: string | undefined): [type: string, key: string] {
  if (after === undefined) return ['', '']
  try {
    const [type, key] = JSON.parse(Buffer.from(after, 'base64url').toString()) as unknown[]
    if (typeof type === 'string' && typeof key === 'string') return [type, key]
  } catch {
    // It is said below.
  }
  throw new PawlError('PAWL_CONFIG', `after must be \`next\` of the previous page, or be left out, got ${shown(after)}.`)
}
