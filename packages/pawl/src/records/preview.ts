// What a submission would do, or did, row by row: the same staged rows that its apply writes; after the commit, the versions themselves.

import { statement, textsLiteral } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { check, type Resolved } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { afterLine, type pageTable } from './options.ts'
import { cursorParts, cursorText } from './reads.ts'
import { fieldChanges } from './rows/diff.ts'
import type { Registry } from './sets.ts'
import type { StoredSubmission } from './submissions.ts'
import type { Page, PreviewRow, RecordData, RowError, RowKind } from './types.ts'

const previewStatement = statement(import.meta.url, 'preview')
const missingStatement = statement(import.meta.url, 'missing')
const changesStatement = statement(import.meta.url, 'changes')
const errorsStatement = statement(import.meta.url, 'errors-list')

const invalidKinds = ['invalid-created', 'invalid-updated', 'unkeyed']

/** States in which all rows are staged and counted. */
const counted: readonly string[] = ['validated', 'submitting', 'superseded', 'failed']

const statuses: Readonly<Partial<Record<RowKind, string>>> = { created: 'CREATED', updated: 'UPDATED', missing: 'DELETED' }

interface Row {
  type: string
  key: string
  before: RecordData | null
  after: RecordData | null
}

export async function previewRows(
  registry: Registry,
  submission: StoredSubmission,
  kind: RowKind,
  { limit, after }: Resolved<typeof pageTable>,
): Promise<Page<PreviewRow>> {
  const { id, state, number, internal } = submission
  if (state !== 'submitted' && kind !== 'missing') return stagedRows(registry, submission, kind, limit, after)
  const [after_type = '', after_key = ''] = after === undefined ? [] : cursorParts(after, 2)
  const page = { tenant: internal.tenant, scope_id: internal.scopeId, after_type, after_key, limit }
  const rows =
    state === 'submitted'
      ? await read<Row>(registry.pool, changesStatement, { ...page, number, status: statusOf(id, kind) })
      : await read<Row>(registry.pool, missingStatement, {
          ...page,
          id,
          committed: internal.baselineNumber,
          types: textsLiteral(internal.types!),
        })
  const last = rows.length < limit ? undefined : rows.at(-1)
  return { items: rows.map((row) => toRow(row, null)), next: last === undefined ? null : cursorText([last.type, last.key]) }
}

async function stagedRows(
  registry: Registry,
  { id, state, counts, internal }: StoredSubmission,
  kind: Exclude<RowKind, 'missing'>,
  limit: number,
  after: string | undefined,
): Promise<Page<PreviewRow>> {
  // The counts of a whole upload say it; a scan would read every staged row to find none.
  if (kind !== 'invalid' && counted.includes(state) && counts[kind] === 0) return { items: [], next: null }
  const rows = await read<Row & { line: string; kind: string }>(registry.pool, previewStatement, {
    tenant: internal.tenant,
    id,
    committed: internal.baselineNumber,
    kinds: textsLiteral(kind === 'invalid' ? invalidKinds : [kind]),
    after: check('rows', 'after', afterLine, after) ?? '0',
    limit,
  })
  const items = rows.map((row) => {
    const found = toRow(row.kind === 'unchanged' ? { ...row, after: row.before } : row, Number(row.line))
    // The data of an invalid row is not kept; compared with nothing, every field would be gone.
    return kind === 'invalid' ? { ...found, changes: [] } : found
  })
  return { items, next: rows.length < limit ? null : rows.at(-1)!.line }
}

function statusOf(id: string, kind: RowKind): string {
  const status = statuses[kind]
  if (status !== undefined) return status
  throw new PawlError('PAWL_WRONG_STATE', `Submission ${id} is submitted, so its ${kind} rows are no longer kept.`, {
    details: { id, state: 'submitted' },
  })
}

export async function rowErrors(
  registry: Registry,
  { id, internal: { tenant } }: StoredSubmission,
  { limit, after }: Resolved<typeof pageTable>,
): Promise<Page<RowError>> {
  const values = { tenant, id, after: check('errors', 'after', afterLine, after) ?? '0', limit }
  const rows = await read<RowError & { ordinal: string }>(registry.pool, errorsStatement, values)
  return {
    items: rows.map(({ ordinal: _, line, ...error }) => ({ line: Number(line), ...error })),
    next: rows.length < limit ? null : rows.at(-1)!.ordinal,
  }
}

function toRow({ type, key, before, after }: Row, line: number | null): PreviewRow {
  return { line, type, key, before, after, changes: fieldChanges(before, after) }
}
