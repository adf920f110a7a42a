// Explains the state of a batch, from the rows that decide it.

import { statement } from '../db/statement.ts'
import { read } from '../kernel/retry.ts'
import type { Registry } from './definition.ts'
import { needBatch } from './reads.ts'
import type { BatchReport, BatchWhy } from './types.ts'

const aheadStatement = statement(import.meta.url, 'queue-ahead')
const jobsStatement = statement(import.meta.url, 'item-jobs')
const stateStatement = statement(import.meta.url, 'state')

type Reason = BatchWhy['reasons'][number]

export async function explainBatch(registry: Registry, tenant: string, id: string): Promise<BatchWhy> {
  const batch = await needBatch(registry.pool, tenant, id)
  const reasons =
    batch.state === 'queued'
      ? await queuedReasons(registry, tenant, id)
      : batch.state === 'running'
        ? await runningReasons(registry, tenant, batch)
        : endedReasons(batch)
  if (batch.phase !== null && batch.phase !== 'items') reasons.push(...(await stepReasons(registry, tenant, batch)))
  return { id, state: batch.state, reasons }
}

async function queuedReasons({ pool }: Registry, tenant: string, id: string): Promise<Reason[]> {
  const [row] = await read<{ blocker: string | null; name: string; deadline: Date; ahead: number }>(pool, aheadStatement, {
    tenant,
    id,
  })
  const { blocker = null, name, deadline, ahead = 0 } = row ?? {}
  const reasons: Reason[] = []
  if (blocker !== null)
    reasons.push({
      code: 'track-busy',
      text: `Batch ${blocker} ('${name}') runs on its track until ${deadline?.toISOString()} at the latest.`,
    })
  reasons.push({
    code: 'queued',
    text:
      ahead === 0
        ? 'It is the next of its track.'
        : `Before it ${ahead === 1 ? '1 batch waits' : `${ahead} batches wait`} for its track.`,
  })
  return reasons
}

async function runningReasons({ pool }: Registry, tenant: string, batch: BatchReport): Promise<Reason[]> {
  const { id, counts, deadline } = batch
  const reasons = [
    {
      code: 'waiting',
      text: `${counts.waiting} of ${counts.total} items have not ended. It times out at ${deadline!.toISOString()}.`,
    },
  ]
  const rows = await read<{ state: string; count: number; error: string | null }>(pool, jobsStatement, { tenant, id })
  for (const { state, count, error } of rows) {
    const last = error === null ? '' : ` The last error: ${error.split('\n')[0]}`
    reasons.push({ code: `items-${state}`, text: `The jobs of ${count} items are ${state}.${last}` })
  }
  return reasons
}

function endedReasons({ state, endedAt, endReason, counts }: BatchReport): Reason[] {
  const { total, done, failed, late, waiting } = counts
  const because = endReason === null ? '' : `: ${endReason.split('\n')[0]!.replace(/\.$/, '')}`
  const said = late === 0 ? '' : ` The results of ${late} came later and were refused.`
  const ended = `${state === 'replaced' || state === 'cancelled' ? 'was ' : ''}${state.replace('-', ' ')}`
  return [
    { code: state, text: `It ${ended} at ${endedAt!.toISOString()}${because}.` },
    { code: 'counts', text: `Of ${total} items ${done} are done, ${failed} failed and ${waiting} have not ended.${said}` },
  ]
}

/** Why the job of its current step has not ended. */
async function stepReasons(registry: Registry, tenant: string, { id, phase }: BatchReport): Promise<Reason[]> {
  const [row] = await read<{ job_id: string | null }>(registry.pool, stateStatement, { tenant, id })
  if (row?.job_id == null) return []
  const { reasons } = await registry.jobs(tenant).why(row.job_id)
  return reasons.map(({ code, text }) => ({
    code: `${phase}-${code}`,
    text: `Its step '${phase}' is job ${row.job_id}. ${text}`,
  }))
}
