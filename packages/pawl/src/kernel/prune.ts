// Removes what the kernel keeps for a while: once keys, evidence, closed workers and alerts that are over.

import type { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'

const pruneStatement = statement(import.meta.url, 'prune')

/** Removes all of it, in statements of `limit` rows each. */
export async function pruneKernel(connection: Connection, signal?: AbortSignal, limit = 10_000): Promise<void> {
  for (;;) {
    const [row] = await connection.run<{ removed: string }>(pruneStatement, { limit })
    if (Number(row?.removed) < limit || signal?.aborted) return
  }
}
