// The result of a run, as one JSON object for programs and as lines for people.

import type { Judged, Violation } from './checks.ts'
import type { Entry } from './history.ts'

export interface Report {
  readonly torture: string
  readonly seed: number
  readonly seconds: number
  readonly processes: number
  readonly operations: number
  readonly faults: Readonly<Record<string, number>>
  /** How many things each check looked at. */
  readonly checks: Judged['checks']
  readonly vacuous: boolean
  readonly violations: readonly Violation[]
}

export interface RunReport {
  readonly report: Report
  readonly more: Readonly<Record<string, number | string>>
  /** Where the histories are, when they were kept. */
  readonly dir: string | undefined
}

/** The fault that this line records, if any. A trap for a commit counts when the commit came. */
export function faultOf(entry: Entry): string | undefined {
  if (entry.op === 'answer lost') return 'commit-unknown'
  if (entry.op === 'poison') return 'poison'
  return entry.op === 'fault' && entry.kind !== 'commit-unknown' ? String(entry.kind) : undefined
}

/** Faults that happened, by kind. Every kind that was planned is named, so that a zero shows. */
export function firedFaults(entries: readonly Entry[], planned: Iterable<string>): Record<string, number> {
  const fired: Record<string, number> = Object.fromEntries([...planned].map((kind) => [kind, 0]))
  for (const kind of entries.map(faultOf)) if (kind !== undefined) fired[kind] = (fired[kind] ?? 0) + 1
  return fired
}

export function summaryLines(report: Report, more: RunReport['more']): string[] {
  const list = (values: Readonly<Record<string, number | string>>, colon = '') =>
    Object.entries(values)
      .map(([name, value]) => `${name}${colon} ${value}`)
      .join(', ')
  const { torture, seed, seconds, processes, operations, faults, checks, violations, vacuous } = report
  return [
    `${torture}: seed ${seed}, ${seconds} s, ${processes} processes, ${operations} operations`,
    `faults: ${list(faults)}`,
    `checked: ${list(checks)}`,
    ...(Object.keys(more).length > 0 ? [list(more, ':')] : []),
    ...violations.map(({ check, message }) => `VIOLATION of "${check}": ${message}`),
    violations.length > 0 ? `${violations.length} violation(s)` : vacuous ? 'vacuous: this run proves nothing' : 'clean',
  ]
}
