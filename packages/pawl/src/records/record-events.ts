// What the event log hears of a commit, in the committing transaction: one event per submission; and one per changed record where asked for.

import type { Tx } from '../db/adapters.ts'
import { statement, textsLiteral } from '../db/statement.ts'
import { run } from './core.ts'
import type { RecordSetOptions } from './types.ts'

const submissionEventStatement = statement(import.meta.url, 'submission-event')
const recordEventsStatement = statement(import.meta.url, 'record-events')
const stagedEventsStatement = statement(import.meta.url, 'staged-events')

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

/** The scope is the key of every event, because its lock is what orders its commits. */
export async function commitEvents(
  tx: Tx,
  tenant: string,
  which: NonNullable<RecordSetOptions['events']>,
  committed: Committed,
): Promise<void> {
  if (which === 'none') return
  const { set, scope, submission, number, counts, changed } = committed
  const payload = JSON.stringify({ set, scope: JSON.parse(scope) as unknown, submission, number, ...counts })
  await run(tx, submissionEventStatement, { tenant, record_set: set, scope, payload })
  if (which !== 'record') return
  const about = { tenant, record_set: set, scope, number }
  if (changed === 'staged') await run(tx, stagedEventsStatement, { ...about, id: submission })
  else
    await run(tx, recordEventsStatement, {
      ...about,
      record_ids: `{${changed.map(({ id }) => id).join(',')}}`,
      types: textsLiteral(changed.map(({ type }) => type)),
      keys: textsLiteral(changed.map(({ key }) => key)),
    })
}
