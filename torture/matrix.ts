// Plays the crash matrix of a scenario, one case after the other on one server. After each case everything must be at rest, and everything
// so far is checked.

import { finish } from './finish.ts'
import { firedFaults, makeReport, type RunReport } from './report.ts'
import { Rig } from './rig.ts'
import { type Case, nameOfCase, type Scenario, type Violation } from './scenario.ts'

export interface MatrixOptions {
  readonly cases: readonly Case[]
  readonly seed: number
  readonly say: (line: string) => void
  readonly keep: boolean
}

export async function runMatrix(scenario: Scenario, options: MatrixOptions): Promise<RunReport> {
  const began = performance.now()
  const rig = await Rig.open(scenario, { leaseMs: 1500, beatMs: 150 })
  let keep = true
  try {
    const stage = await scenario.matrix.open(rig, options.seed)
    const violations: Violation[] = []
    const unreached: string[] = []
    for (const [index, each] of options.cases.entries()) {
      const name = nameOfCase(each)
      const startedMs = performance.now()
      const { isReached, isAtRest, isOrderly } = await stage.play(each, index)
      if (!isReached) unreached.push(name)
      const found = await newViolations(rig, violations)
      if (!isAtRest) found.push({ check: 'all at rest', message: 'not everything came to an end after the fault' })
      if (!isOrderly) found.push({ check: 'all at rest', message: 'the process that met the fault did not stop in order' })
      violations.push(...found.map(({ check, message }) => ({ check, message: `${name}: ${message}` })))
      options.say(
        `${name}: ${isReached ? '' : 'NOT REACHED, '}${found.length === 0 ? 'clean' : `${found.length} violation(s): ${found[0]!.message}`} (${Math.round(performance.now() - startedMs)} ms)`,
      )
    }
    const { judged } = await finish(rig)
    await stage.close()
    violations.push(...judged.violations.filter((violation) => !isKnown(violation, violations)))
    const report = makeReport({
      torture: `${scenario.name} matrix`,
      plan: { seed: options.seed, seconds: Math.round((performance.now() - began) / 1000) },
      processes: 2,
      judged: { ...judged, violations, checks: { ...judged.checks, cases: options.cases.length - unreached.length } },
      faults: firedFaults(judged.entries, new Set(options.cases.map((each) => each.kind))),
      isVacuous: unreached.length > 0,
    })
    keep = options.keep || violations.length > 0
    return {
      report,
      more: { cases: options.cases.length, 'not reached': unreached.join(', ') || 'none' },
      dir: keep ? rig.dir : undefined,
    }
  } finally {
    await rig.close({ keep })
  }
}

/** A job that is still live, or a worker that still runs, is looked at apart. */
async function newViolations(rig: Rig, known: readonly Violation[]): Promise<Violation[]> {
  const { violations } = await rig.scenario.judge(rig, { isDrained: true, notStopped: [] })
  return violations.filter((violation) => !isKnown(violation, known))
}

function isKnown(violation: Violation, known: readonly Violation[]): boolean {
  return known.some((other) => other.check === violation.check && other.message.endsWith(violation.message))
}
