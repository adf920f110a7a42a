// Erasure: what the events of one key say is removed, with a note of who did it and why. Their ids, order and positions stay, so no reader
// has to know.

import { assertKnown, type Config } from '../config.ts'
import { type AnyTx, toTx } from '../db/adapters.ts'
import { inOwnPath } from '../db/own-path.ts'
import { bind, statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { assertOutsideTx } from './append.ts'
import { onLongConnection } from './long-connection.ts'

const eraseStatement = statement(import.meta.url, 'erase')

const known = new Set(['aggregateType', 'key', 'reason', 'actor', 'tx'])

export interface EraseOptions {
  readonly aggregateType: string
  readonly key: string
  /** Why; kept in pawl.audit. */
  readonly reason: string
  /** Who; kept in pawl.audit. */
  readonly actor?: string
  readonly tx?: AnyTx
}

export async function erase(config: Config, tenant: string, options: EraseOptions): Promise<{ erased: number }> {
  assertKnown('erase', options, known)
  const { aggregateType, key, reason, actor, tx } = options
  if (typeof reason !== 'string' || reason.trim().length === 0 || reason.length > 2000)
    throw new PawlError('PAWL_CONFIG', 'An erasure needs a reason of 1 to 2000 characters: it is kept in pawl.audit.')
  const values = { tenant, aggregatetype: aggregateType, aggregateid: key, reason, actor: actor?.slice(0, 200) ?? null }
  if (tx !== undefined) {
    const { rows } = await inOwnPath(toTx(tx)).query<{ erased: number | string }>(
      eraseStatement.text,
      bind(eraseStatement, values),
    )
    return { erased: Number(rows[0]!.erased) }
  }
  assertOutsideTx('erase')
  return onLongConnection(config, 'erase', async (connection) => {
    const [row] = await connection.run<{ erased: number }>(eraseStatement, values)
    return { erased: row!.erased }
  })
}
