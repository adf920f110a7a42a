// What the event log hears of a submission's end, in the same transaction: one event; and at a commit one per changed record where asked for.

import type { TxDb } from '../db/db.ts'
import { statement, textsLiteral } from '../db/statement.ts'
import type { FailureClass, RecordSetOptions } from './types.ts'

const submissionEventStatement = statement(import.meta.url, 'submission-event')
const recordEventsStatement = statement(import.meta.url, 'record-events')
const stagedEventsStatement = statement(import.meta.url, 'staged-events')

const errorCharsMax = 500

export interface ChangedRecord {
  readonly id: string
  readonly type: string
  readonly key: string
}

export interface Committed {
  readonly set: string
  readonly scope: string
  readonly submission: string
  readonly number: string
  readonly counts: { readonly created: number; readonly updated: number; readonly unchanged: number; readonly deleted: number }
  /** What was written. Looking for it by its number would read every record of the scope, for each put. */
  readonly changed: 'staged' | readonly ChangedRecord[]
}

/** What the event log hears of a submission that was given up, in the transaction that frees its slot. */
export async function failureEvent(
  tx: TxDb,
  tenant: string,
  which: NonNullable<RecordSetOptions['events']>,
  failed: { set: string; scope: string; submission: string; failureClass: FailureClass; error: string },
): Promise<void> {
  if (which === 'none') return
  const { set, scope, submission, failureClass } = failed
  // Without its stack, which says where and not what.
  const error = failed.error.split('\n', 1)[0]!.slice(0, errorCharsMax).toWellFormed()
  const payload = JSON.stringify({ set, scope: JSON.parse(scope) as unknown, submission, failureClass, error })
  await tx.run(submissionEventStatement, { tenant, record_set: set, scope, type: 'submission.failed', payload })
}

/** The scope is the key of every event, because its lock is what orders its commits. */
export async function commitEvents(
  tx: TxDb,
  tenant: string,
  which: NonNullable<RecordSetOptions['events']>,
  committed: Committed,
): Promise<void> {
  if (which === 'none') return
  const { set, scope, submission, number, counts, changed } = committed
  const payload = JSON.stringify({ set, scope: JSON.parse(scope) as unknown, submission, number, ...counts })
  await tx.run(submissionEventStatement, { tenant, record_set: set, scope, type: 'submission.committed', payload })
  if (which !== 'record') return
  const about = { tenant, record_set: set, scope, number }
  if (changed === 'staged') await tx.run(stagedEventsStatement, { ...about, id: submission })
  else
    await tx.run(recordEventsStatement, {
      ...about,
      record_ids: `{${changed.map(({ id }) => id).join(',')}}`,
      types: textsLiteral(changed.map(({ type }) => type)),
      keys: textsLiteral(changed.map(({ key }) => key)),
    })
}
