// Explains the state of a batch, from the rows that decide it.

import { statement } from '../db/statement.ts'
import { read } from '../kernel/retry.ts'
import { hasHandler, type Registry } from './definition.ts'
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
        : endedReasons(batch, boundaryOf(registry, batch))
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
  const [row] = await read<{ is_overdue: boolean }>(pool, stateStatement, { tenant, id })
  const until = row?.is_overdue
    ? `Its deadline passed at ${deadline!.toISOString()}, and the next poll of a worker or the next start ends it.`
    : `It times out at ${deadline!.toISOString()}.`
  const { waiting, total } = counts
  const reasons = [
    { code: 'waiting', text: `${waiting} of ${counted(total, 'item')} ${waiting === 1 ? 'has' : 'have'} not ended. ${until}` },
  ]
  const rows = await read<{ state: string; count: number; error: string | null }>(pool, jobsStatement, { tenant, id })
  for (const { state, count, error } of rows) {
    const last = error === null ? '' : ` The last error: ${error.split('\n')[0]}`
    reasons.push({
      code: `items-${state}`,
      text: `The ${count === 1 ? 'job' : 'jobs'} of ${counted(count, 'item')} ${count === 1 ? 'is' : 'are'} ${state}.${last}`,
    })
  }
  return reasons
}

/** Whether it has a boundary; undefined: this process does not have its handlers. */
function boundaryOf({ batches }: Registry, { name }: BatchReport): boolean | undefined {
  const defined = batches.get(name)
  return defined !== undefined && hasHandler(defined) ? defined.boundary !== undefined : undefined
}

function endedReasons(
  { state, endedAt, endReason, counts, boundaryAt }: BatchReport,
  hasBoundary: boolean | undefined,
): Reason[] {
  const { total, done, failed, late, restored, waiting } = counts
  const because = endReason === null ? '' : `: ${endReason.split('\n')[0]!.replace(/\.$/, '')}`
  const said = late === 0 ? '' : ` The ${late === 1 ? 'result' : 'results'} of ${late} came later and ${were(late)} refused.`
  const ended = `${state === 'replaced' || state === 'cancelled' ? 'was ' : ''}${state.replace('-', ' ')}`
  const reasons = [
    { code: state, text: `It ${ended} at ${endedAt!.toISOString()}${because}.` },
    {
      code: 'counts',
      text: `Of ${counted(total, 'item')} ${done} ${done === 1 ? 'is' : 'are'} done, ${failed} failed and ${waiting} ${waiting === 1 ? 'has' : 'have'} not ended.${said}`,
    },
  ]
  if (state === 'finished') return reasons
  const text =
    boundaryAt === null
      ? `It ended before ${hasBoundary === false ? 'its items began' : 'its boundary'}; ${counted(restored, 'item')} ${were(restored)} restored.`
      : `${crossed(boundaryAt.toISOString(), hasBoundary)}; nothing is reverted.`
  return [...reasons, { code: 'boundary', text }]
}

function crossed(at: string, hasBoundary: boolean | undefined): string {
  if (hasBoundary === true) return `It crossed its boundary at ${at}`
  return `Its items could begin at ${at}${hasBoundary === false ? '' : ', after its boundary if it has one'}`
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

function were(count: number): string {
  return count === 1 ? 'was' : 'were'
}

/** Why the job of its current step has not ended. */
async function stepReasons(registry: Registry, tenant: string, batch: BatchReport): Promise<Reason[]> {
  const { id, phase } = batch
  const [row] = await read<{ job_id: string | null }>(registry.pool, stateStatement, { tenant, id })
  if (row?.job_id == null) return []
  const { reasons } = await registry.jobs(tenant).why(row.job_id)
  // Without a worker it is no matter how many are ahead.
  const isWorked = !reasons.some(({ code }) => code === 'queue-not-worked' || code === 'kind-unknown')
  const isFeed = phase === 'boundary' && boundaryOf(registry, batch) === false
  const step = isFeed ? 'that gives its items their jobs' : `'${phase}'`
  return reasons
    .filter(({ code }) => isWorked || code !== 'behind')
    .map(({ code, text }) => ({ code: `${phase}-${code}`, text: `Its step ${step} is job ${row.job_id}. ${text}` }))
}
