// What a run found, in the one shape that machines read and in the lines that people do.

import type { Entry } from './history.ts'
import type { Judged, Violation } from './scenario.ts'

export interface Report {
  readonly torture: string
  readonly seed: number
  readonly seconds: number
  readonly processes: number
  readonly operations: number
  readonly faults: Readonly<Record<string, number>>
  readonly checks: Readonly<Record<string, number>>
  readonly vacuous: boolean
  readonly violations: readonly Violation[]
}

/** A report, what else people want to know, and where the histories are when there is something to look at. */
export interface RunReport {
  readonly report: Report
  readonly more: Readonly<Record<string, number | string>>
  readonly dir: string | undefined
}

export function makeReport(options: {
  readonly torture: string
  readonly plan: { readonly seed: number; readonly seconds: number }
  readonly processes: number
  readonly judged: Judged
  readonly faults: Readonly<Record<string, number>>
  readonly isVacuous: boolean
}): Report {
  const { torture, plan, processes, judged, faults, isVacuous } = options
  return {
    torture,
    seed: plan.seed,
    seconds: plan.seconds,
    processes,
    operations: judged.operations,
    faults,
    checks: judged.checks,
    vacuous: isVacuous,
    violations: judged.violations,
  }
}

/** Which fault this line tells of, if any. A trap for a commit counts when the commit came. */
export function faultOf(entry: Entry): string | undefined {
  if (entry.op === 'answer lost') return 'commit-unknown'
  return entry.op === 'fault' && entry.kind !== 'commit-unknown' ? String(entry.kind) : undefined
}

/** Faults that happened, by kind. Every kind that was planned is named, so that a zero shows. */
export function firedFaults(entries: readonly Entry[], planned: Iterable<string>): Record<string, number> {
  const fired: Record<string, number> = Object.fromEntries([...planned].map((kind) => [kind, 0]))
  for (const entry of entries) {
    const kind = faultOf(entry)
    if (kind !== undefined) fired[kind] = (fired[kind] ?? 0) + 1
  }
  const poisoned = entries.filter((entry) => entry.op === 'poison').length
  return poisoned > 0 ? { ...fired, poison: poisoned } : fired
}

export function summaryLines(report: Report, more: Readonly<Record<string, string | number>> = {}): string[] {
  const list = (counts: Readonly<Record<string, number>>) =>
    Object.entries(counts)
      .map(([name, count]) => `${name} ${count}`)
      .join(', ')
  return [
    `${report.torture}: seed ${report.seed}, ${report.seconds} s, ${report.processes} processes, ${report.operations} operations`,
    `faults: ${list(report.faults)}`,
    `checked: ${list(report.checks)}`,
    ...(Object.keys(more).length > 0
      ? [
          Object.entries(more)
            .map(([name, value]) => `${name}: ${value}`)
            .join(', '),
        ]
      : []),
    ...report.violations.map(({ check, message }) => `VIOLATION of "${check}": ${message}`),
    report.violations.length > 0
      ? `${report.violations.length} violation(s)`
      : report.vacuous
        ? 'vacuous: this run proves nothing'
        : 'clean',
  ]
}
