// What a run found, in the one shape that machines read and in the lines that people do.

import type { Violation } from './checker.ts'
import type { Facts } from './facts.ts'
import type { Entry } from './history.ts'
import type { Plan } from './plan.ts'

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

const violationsShown = 50

export function makeReport(options: {
  readonly torture: string
  readonly plan: Pick<Plan, 'seed' | 'seconds'>
  readonly processes: number
  readonly facts: Facts
  readonly faults: Readonly<Record<string, number>>
  readonly checks: Readonly<Record<string, number>>
  readonly violations: readonly Violation[]
  readonly isVacuous: boolean
}): Report {
  const { torture, plan, processes, facts, faults, checks, violations, isVacuous } = options
  const asked = facts.entries.filter((entry) => entry.ph === 'invoke').length
  return {
    torture,
    seed: plan.seed,
    seconds: plan.seconds,
    processes,
    operations: asked + facts.transitions.length,
    faults,
    checks,
    vacuous: isVacuous,
    violations: violations.slice(0, violationsShown),
  }
}

/** Which fault this line tells of, if any. A trap for a commit counts when the commit came. */
export function faultOf(entry: Entry): string | undefined {
  if (entry.op === 'answer lost') return 'commit-unknown'
  return entry.op === 'fault' && entry.kind !== 'commit-unknown' ? String(entry.kind) : undefined
}

/** Faults that happened, by kind. Every kind that was planned is named, so that a zero shows. */
export function firedFaults(facts: Facts, planned: Iterable<string>): Record<string, number> {
  const fired: Record<string, number> = Object.fromEntries([...planned].map((kind) => [kind, 0]))
  for (const entry of facts.entries) {
    const kind = faultOf(entry)
    if (kind !== undefined) fired[kind] = (fired[kind] ?? 0) + 1
  }
  const poisoned = facts.entries.filter((entry) => entry.op === 'poison').length
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
