// Plays a scenario, with or without a canary, and checks what is left like any other run.

import { type Canary, canaryNamed } from '../canaries/canaries.ts'
import { finish } from '../finish.ts'
import { makePlan } from '../plan.ts'
import { firedFaults, makeReport } from '../report.ts'
import { Rig } from '../rig.ts'
import { runStorm, type StormEnd } from '../storm.ts'
import { Workload } from '../workload.ts'
import { type Scenario, scenarios } from './scenarios.ts'

export interface DirectedOptions {
  readonly seed: number
  readonly seconds: number
  readonly say: (line: string) => void
  readonly keep: boolean
}

const leaseMs = 1500
/** Long enough for a sound run to come to rest; a planted bug may keep it from that for ever. */
const restMs = 20_000
const canaryRestMs = 7000

export function scenarioNamed(name: string): Scenario {
  const scenario = scenarios.find((candidate) => candidate.name === name)
  if (scenario === undefined)
    throw new Error(`There is no scenario '${name}'. There are: ${scenarios.map((each) => each.name).join(', ')}.`)
  return scenario
}

export async function runScenario(scenario: Scenario, options: DirectedOptions & { canary?: string }): Promise<StormEnd> {
  const plan = { ...makePlan(options.seed, options.seconds), enqueuesUnknown: [] }
  options.say(`${scenario.name}: ${scenario.tells}`)
  const rig = await Rig.open({ leaseMs, beatMs: 150, canary: options.canary })
  let keep = true
  try {
    const workload = await Workload.open(rig, plan)
    await scenario.play({ rig, workload })
    const { facts, checks, violations, restedMs } = await finish(rig, {
      restMs: options.canary === undefined ? restMs : canaryRestMs,
    })
    await workload.close()
    const processes = new Set(facts.entries.map((entry) => entry.proc.split('.')[0])).size - 1
    const report = makeReport({
      torture: 'jobs',
      plan,
      processes,
      facts,
      faults: firedFaults(facts, []),
      checks,
      violations,
      isVacuous: false,
    })
    keep = options.keep || (violations.length > 0 && options.canary === undefined)
    return { report, more: { scenario: scenario.name, 'at rest after ms': restedMs }, dir: keep ? rig.dir : undefined }
  } finally {
    await rig.close({ keep })
  }
}

/** The directed schedule first, in which the bug shows for certain; should it survive that, the storm. */
export async function runCanary(name: string, options: DirectedOptions): Promise<StormEnd> {
  const canary = canaryNamed(name)
  options.say(`canary ${name}: ${canary.bug}`)
  const directed = await runScenario(scenarioNamed(canary.scenario), { ...options, canary: name })
  const found = onlyBy(canary, directed)
  if (found.report.violations.length > 0) return found
  return onlyBy(
    canary,
    await runStorm(makePlan(options.seed, options.seconds), { canary: name, say: options.say, keep: options.keep }),
  )
}

/** What its own check found; that a planted bug also kept jobs from coming to rest in a short time proves nothing. */
function onlyBy({ name, caughtBy }: Canary, end: StormEnd): StormEnd {
  const violations = end.report.violations
    .filter(({ check }) => check === caughtBy)
    .map(({ check, message }) => ({ check, message: `canary ${name}: ${message}` }))
  return { ...end, report: { ...end.report, violations } }
}
