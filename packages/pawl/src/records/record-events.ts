// What the event log hears of a commit, in the committing transaction: one event per submission; and one per changed record where asked for.

import type { Tx } from '../db/adapters.ts'
import { statement } from '../db/statement.ts'
import { run } from './core.ts'
import type { RecordSetOptions } from './types.ts'

const submissionEventStatement = statement(import.meta.url, 'submission-event')
const recordEventsStatement = statement(import.meta.url, 'record-events')

export interface Committed {
  readonly set: string
  readonly scope: string
  readonly scopeId: string
  readonly submission: string
  readonly number: string
  readonly counts: { readonly created: number; readonly updated: number; readonly unchanged: number; readonly deleted: number }
}

/** The scope is the key of every event, because its lock is what orders its commits. */
export async function commitEvents(
  tx: Tx,
  tenant: string,
  which: NonNullable<RecordSetOptions['events']>,
  committed: Committed,
): Promise<void> {
  if (which === 'none') return
  const { set, scope, submission, number, counts } = committed
  const payload = JSON.stringify({ set, scope: JSON.parse(scope) as unknown, submission, number, ...counts })
  await run(tx, submissionEventStatement, { tenant, record_set: set, scope, payload })
  if (which === 'record')
    await run(tx, recordEventsStatement, { tenant, record_set: set, scope, scope_id: committed.scopeId, number })
}
