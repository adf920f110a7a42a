// Batches for tests: a worker in the test's own process, and waiting for ends.

import type { BatchReport, NewItem, Pawl, Worker } from 'pawl'
import { onTestFinished } from 'vitest'
import { stopBeforeDrop, type TestDatabase, until } from './database.ts'

export async function startWorker(pawl: Pawl, concurrency = 10): Promise<Worker> {
  const worker = pawl.worker({ concurrency, lease: '30s', tuning: { beatMs: 200, pollMs: 100 } })
  stopBeforeDrop(pawl, worker)
  onTestFinished(async () => void (await worker.stop({ grace: 5000 })))
  await worker.start()
  return worker
}

export function files(count: number, more: Partial<NewItem> = {}): NewItem[] {
  return Array.from({ length: count }, (_, index) => ({ key: `file-${index + 1}`, data: { path: `/${index + 1}` }, ...more }))
}

/** Ended, and nothing is left to do for it. */
export function closed(pawl: Pick<Pawl, 'batches'>, id: string, timeoutMs?: number): Promise<BatchReport> {
  const isClosed = ({ state, phase }: BatchReport) => state !== 'queued' && state !== 'running' && phase === null
  return until(`batch ${id} is closed`, () => pawl.batches.get(id), isClosed, timeoutMs)
}

export async function eventsOf(db: TestDatabase, id: string): Promise<string[]> {
  const rows = await db.query<{ type: string }>(
    "select type from pawl.event where channel = 'batches' and aggregateid = $1 order by seq",
    [id],
  )
  return rows.map(({ type }) => type)
}
