// Makes scheduled jobs ready when their time has come.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'

const promoteStatement = statement(import.meta.url, 'promote')
const everyMs = 500
const limit = 1000

export async function promoteWhenDue(options: {
  readonly engine: Connection
  readonly signal: AbortSignal
  readonly onPromoted: () => void
  readonly onTrouble: (error: unknown) => void
}): Promise<void> {
  const { engine, signal, onPromoted, onTrouble } = options
  while (!signal.aborted) {
    let waitMs = everyMs
    try {
      const [row] = await engine.run<{ promoted: number; next_ms: string | null }>(promoteStatement, { limit })
      if ((row?.promoted ?? 0) > 0) onPromoted()
      if (row?.promoted === limit) waitMs = 0
      else if (row?.next_ms != null) waitMs = Math.min(everyMs, Number(row.next_ms) + 1)
    } catch (error) {
      onTrouble(error)
    }
    await sleep(waitMs, undefined, { signal }).catch(() => undefined)
  }
}
