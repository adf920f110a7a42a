// The transaction that a projection's handler writes in. In a replay that must not reach the outside it says so, and events.append and
// jobs.enqueue add nothing.

import { Transaction } from '../db/transaction.ts'
import type { World } from './world.ts'

/** A session of a pool of ours is durable; one of a pooler is what its role or database says. */
export async function openTx({ pool, config: { durability, database } }: World): Promise<Transaction> {
  const isDurable = durability === 'durable' && database.pooler === 'none'
  const settings = isDurable ? undefined : `select pawl.set_durability('${durability}', true)`
  return new Transaction(await pool.connect(), { names: pool.names, path: 'users', settings })
}
