// Erasure: removes payload and headers of one key's events, with a row in pawl.audit. Ids, order and positions stay, so readers need no special case.

import type { Config } from '../config.ts'
import { type Db, dbOf } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { type InTx, ownTx, reason, required, resolve, type TableOf, text } from '../kernel/options.ts'
import { assertOutsideTx } from './append.ts'
import { callOnLongConnection } from './long-connection.ts'

const eraseStatement = statement(import.meta.url, 'erase')

export interface EraseOptions extends InTx {
  readonly aggregateType: string
  readonly key: string
  /** Stored in pawl.audit. */
  readonly reason: string
  /** The acting person or program, stored in pawl.audit. */
  readonly by?: string
}

export const eraseTable = {
  aggregateType: required(text({ to: 200, doc: 'The aggregate type of the events.' })),
  key: required(text({ to: 500, doc: 'The key of the events.' })),
  reason: reason('The reason, stored in pawl.audit.'),
  by: text({ to: 200, doc: 'The acting person or program, stored in pawl.audit.' }),
  tx: ownTx,
} satisfies TableOf<EraseOptions>

export async function erase(config: Config, tenant: string, options: EraseOptions): Promise<{ erased: number }> {
  const { aggregateType, key, reason, by: actor = null, tx } = resolve('erase', eraseTable, options)
  const values = { tenant, aggregatetype: aggregateType, aggregateid: key, reason, actor }
  const run = async (db: Db) => {
    const [row] = await db.run<{ erased: number }>(eraseStatement, values)
    return { erased: row!.erased }
  }
  if (tx !== undefined) return run(dbOf(tx))
  assertOutsideTx('erase')
  return callOnLongConnection(config, 'erase', run)
}
