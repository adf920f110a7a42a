// Batches and items as a terminal shows them.

import type { Batch, BatchItem, BatchReport, BatchState, StuckItem } from 'pawl'
import type { Answer } from '../answers.ts'
import { bar, type Progress } from '../progress.ts'
import { type Column, counted, firstLine, oneLine, type Paint, relativeTime, shortDuration, type Terminal } from '../terminal.ts'

export const stateColours: Readonly<Record<BatchState, Paint>> = {
  queued: 'dim',
  running: 'cyan',
  finished: 'green',
  'timed-out': 'red',
  replaced: 'yellow',
  cancelled: 'yellow',
  failed: 'red',
}

export const listColumns: readonly Column<Batch>[] = [
  { title: 'id', value: ({ id }) => id },
  { title: 'name', value: ({ name }) => name },
  { title: 'track', value: ({ track }) => track },
  { title: 'state', value: ({ state }) => state, paint: ({ state }) => stateColours[state] },
  { title: 'phase', value: ({ phase }) => phase ?? '' },
  { title: 'items', value: ({ total }) => String(total), isRight: true },
  { title: 'created', value: ({ createdAt }) => relativeTime(createdAt) },
  { title: 'deadline', value: ({ state, deadline }) => (state === 'running' ? relativeTime(deadline) : '') },
  { title: 'ended', value: ({ endedAt }) => relativeTime(endedAt) },
  { title: 'by', value: ({ by }) => by ?? '' },
]

export function progressOf({ state, phase, counts, deadline, endedAt }: BatchReport): Progress | undefined {
  if (endedAt !== null && phase === null) return undefined
  const failed = counts.failed === 0 ? '' : `, ${counts.failed} failed`
  const until = state === 'running' ? `, deadline ${relativeTime(deadline)}` : ''
  return { step: phase ?? state, ended: counts.done + counts.failed, total: counts.total, more: failed + until }
}

export function batchAnswer(batch: BatchReport): Answer {
  const { id, state, counts, endedAt } = batch
  const next = (count: number, what: string, outcome: string) =>
    count > 0 ? [`${counted(count, 'item')} ${what}: pawl batches items ${id} --outcome ${outcome}`] : []
  const say = [
    ...next(counts.failed, 'failed', 'failed'),
    ...next(endedAt === null ? 0 : counts.waiting, 'did not end', 'waiting'),
    ...(state === 'queued' ? [`It waits for its track: pawl batches why ${id}`] : []),
  ]
  return { json: batch, show: (terminal) => showBatch(terminal, batch), say }
}

function showBatch(terminal: Terminal, batch: BatchReport): void {
  const { counts, startedAt, endedAt } = batch
  const at = (time: Date | null): string => (time === null ? '' : `${time.toISOString()} (${relativeTime(time)})`)
  const json = (value: unknown): string => (value === null ? '' : oneLine(JSON.stringify(value)))
  const sums = Object.entries(batch.sums).map(([name, value]) => `${name} ${value}`)
  const ran = startedAt === null || endedAt === null ? '' : shortDuration(endedAt.getTime() - startedAt.getTime())
  const pairs: [string, string, (Paint | undefined)?][] = [
    ['id', batch.id, 'bold'],
    ['name', oneLine(batch.name)],
    ['track', oneLine(batch.track)],
    ['policy', batch.policy],
    ['state', batch.state, stateColours[batch.state]],
    ['reason', oneLine(firstLine(batch.endReason))],
    ['phase', batch.phase ?? ''],
    ['progress', bar({ ended: counts.done + counts.failed, total: counts.total })],
    ['done', String(counts.done)],
    ['failed', counts.failed === 0 ? '' : String(counts.failed), 'red'],
    ['waiting', counts.waiting === 0 ? '' : String(counts.waiting)],
    ['late', counts.late === 0 ? '' : `${counts.late} of the waiting; their results were refused`, 'yellow'],
    ['restored', counts.restored === 0 ? '' : `${counts.restored} of the waiting`],
    ['sums', oneLine(sums.join(', '))],
    ['by', oneLine(batch.by ?? '')],
    ['created', at(batch.createdAt)],
    ['started', at(startedAt)],
    [
      'boundary',
      batch.boundaryAt === null && endedAt !== null && batch.state !== 'finished' ? 'not crossed' : at(batch.boundaryAt),
    ],
    ['deadline', endedAt === null ? at(batch.deadline) : (batch.deadline?.toISOString() ?? '')],
    ['allowance', shortDuration(batch.allowanceMs)],
    ['ended', at(endedAt)],
    ['ran', ran],
    ['rerun of', batch.rerunOf ?? ''],
    ['prepared', json(batch.prepared)],
    ['meta', json(batch.meta)],
  ]
  terminal.pairs(pairs.filter(([, value]) => value !== ''))
}

const outcomeColours: Readonly<Record<string, Paint>> = { done: 'green', failed: 'red', late: 'yellow', dead: 'red' }
const outcomeOf = ({ outcome, lateAt }: BatchItem): string => outcome ?? (lateAt === null ? 'waiting' : 'late')

export const itemColumns: readonly Column<BatchItem>[] = [
  { title: 'n', value: ({ n }) => String(n), isRight: true },
  { title: 'key', value: ({ key }) => key },
  { title: 'outcome', value: outcomeOf, paint: (item) => outcomeColours[outcomeOf(item)] },
  { title: 'ended', value: ({ endedAt, lateAt }) => relativeTime(endedAt ?? lateAt) },
  { title: 'restored', value: ({ restoredAt }) => relativeTime(restoredAt) },
  { title: 'job', value: ({ jobId }) => jobId },
  { title: 'sums', value: ({ sums }) => (sums === null ? '' : JSON.stringify(sums)) },
  { title: 'error', value: ({ error }) => firstLine(error) },
]

export const stuckColumns: readonly Column<StuckItem>[] = [
  { title: 'batch', value: ({ batch }) => batch },
  { title: 'name', value: ({ name }) => name },
  { title: 'state', value: ({ state }) => state, paint: ({ state }) => stateColours[state] },
  { title: 'key', value: ({ key }) => key },
  { title: 'reason', value: ({ reason }) => reason, paint: ({ reason }) => outcomeColours[reason] },
  { title: 'job', value: ({ jobId }) => jobId },
  { title: 'late', value: ({ lateAt }) => relativeTime(lateAt) },
  { title: 'restored', value: ({ restoredAt }) => relativeTime(restoredAt) },
]

/** What an act made of a batch. */
export function changedAnswer(change: { id: string; state: BatchState; deadline?: Date | null }): Answer {
  const { id, state, deadline } = change
  const pairs: [string, string, (Paint | undefined)?][] = [
    ['id', id, 'bold'],
    ['state', state, stateColours[state]],
    ['deadline', deadline == null ? '' : `${deadline.toISOString()} (${relativeTime(deadline)})`],
  ]
  return { json: change, show: (terminal) => terminal.pairs(pairs.filter(([, value]) => value !== '')) }
}
