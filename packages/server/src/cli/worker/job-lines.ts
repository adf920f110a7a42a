// One line for each attempt of a job that ended, from the events of a worker.

import type { Pawl } from 'pawl'
import { clockTime, oneLine, type Paint, shortDuration, type Terminal } from '../terminal.ts'

export interface JobLine {
  readonly at: string
  readonly kind: string
  readonly id: string
  readonly tenant: string
  /** null: the process that ran it is dead, and the process that reports it does not know. */
  readonly attempt: number | null
  readonly outcome: 'done' | 'failed' | 'dead' | 'lost'
  readonly ms: number | null
  readonly note: string
}

/** Without `isEach` only failures are reported: an event without a listener costs nothing. */
export function watchJobs(pawl: Pawl, isEach: boolean, tell: (line: JobLine) => void): void {
  const startedMs = new Map<string, number>()
  const saidDead = new Set<string>()
  const end = (
    job: { tenant: string; id: string; kind: string; attempt?: number },
    outcome: JobLine['outcome'],
    note: string,
    ranMs?: number,
  ): void => {
    const started = startedMs.get(job.id)
    startedMs.delete(job.id)
    const ms = ranMs ?? (started === undefined ? null : Math.round(performance.now() - started))
    tell({
      at: new Date().toISOString(),
      kind: job.kind,
      id: job.id,
      tenant: job.tenant,
      attempt: job.attempt ?? null,
      outcome,
      ms,
      note,
    })
  }
  if (isEach) {
    pawl.on('job.started', ({ id }) => startedMs.set(id, performance.now()))
    pawl.on('job.done', (job) => end(job, 'done', '', job.ranMs))
  }
  pawl.on('job.failed', (job) => {
    const isDead = job.retryInMs === undefined
    if (isDead) saidDead.add(job.id)
    end(
      job,
      isDead ? 'dead' : 'failed',
      isDead ? firstLine(job.error) : `retry in ${shortDuration(job.retryInMs!)}: ${firstLine(job.error)}`,
    )
  })
  pawl.on('job.dead', (job) => {
    if (!saidDead.delete(job.id)) end(job, 'dead', job.reason)
  })
  pawl.on('job.lost', (job) => end(job, 'lost', job.reason))
}

function firstLine(error: unknown): string {
  return String(error ?? '').split('\n')[0]!
}

const outcomeColours: Readonly<Record<JobLine['outcome'], Paint>> = {
  done: 'green',
  failed: 'yellow',
  dead: 'red',
  lost: 'yellow',
}
const widths = { time: 12, kind: 14, id: 19, attempt: 3, outcome: 7, ms: 5, by: 2 }

/** `isByWorker`: the lines say which of several workers it was. */
export function jobLineHeader(terminal: Terminal, isByWorker = false): string {
  const cells = [
    'time'.padEnd(widths.time),
    'kind'.padEnd(widths.kind),
    'job'.padEnd(widths.id),
    'try'.padStart(widths.attempt),
    'outcome'.padEnd(widths.outcome),
    'ms'.padStart(widths.ms),
    ...(isByWorker ? ['by'] : []),
  ]
  return terminal.paint(cells.join('  '), 'dim')
}

export function jobLineText(terminal: Terminal, line: JobLine, worker?: number): string {
  const cells = [
    clockTime(new Date(line.at)).padEnd(widths.time),
    oneLine(line.kind).padEnd(widths.kind),
    line.id.padEnd(widths.id),
    String(line.attempt ?? '').padStart(widths.attempt),
    line.outcome.padEnd(widths.outcome),
    String(line.ms ?? '').padStart(widths.ms),
    ...(worker === undefined ? [] : [`w${worker}`.padEnd(widths.by)]),
  ]
  const taken = cells.reduce((sum, cell) => sum + cell.length + 2, 0)
  const paints: Readonly<Record<number, Paint>> = { 0: 'dim', 4: outcomeColours[line.outcome] }
  // People need not read the word that every error begins with.
  const note = terminal.paint(terminal.clipped(oneLine(line.note.replace(/(^|: )Error: /, '$1')), taken), 'dim')
  return [...cells.map((cell, index) => terminal.paint(cell, paints[index])), note].join('  ').trimEnd()
}
