// Plays a story, with or without a canary, and checks what is left like any other run.

import type { Canary } from './canary.ts'
import { finish } from './finish.ts'
import { makePlan } from './plan.ts'
import { firedFaults, makeReport, type RunReport } from './report.ts'
import { Rig } from './rig.ts'
import type { Scenario, Story } from './scenario.ts'
import { runStorm } from './storm.ts'

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

export async function runStory(
  scenario: Scenario,
  story: Story,
  options: DirectedOptions & { canary?: Canary },
): Promise<RunReport> {
  options.say(`${story.name}: ${story.tells}`)
  const rig = await Rig.open(scenario, { leaseMs, beatMs: 150, canary: options.canary })
  let keep = true
  try {
    await story.play(rig)
    const { judged, restedMs } = await finish(rig, { restMs: options.canary === undefined ? restMs : canaryRestMs })
    const report = makeReport({
      torture: scenario.name,
      plan: options,
      processes: new Set(judged.entries.map((entry) => entry.proc.split('.')[0])).size - 1,
      judged,
      faults: firedFaults(judged.entries, []),
      isVacuous: false,
    })
    keep = options.keep || (judged.violations.length > 0 && options.canary === undefined)
    return { report, more: { story: story.name, 'at rest after ms': restedMs }, dir: keep ? rig.dir : undefined }
  } finally {
    await rig.close({ keep })
  }
}

/** The directed schedule first, in which the bug shows for certain; should it survive that, the storm. */
export async function runCanary(scenario: Scenario, canary: Canary, options: DirectedOptions): Promise<RunReport> {
  options.say(`canary ${canary.name}: ${canary.bug}`)
  const story = scenario.stories.find(({ name }) => name === canary.story)!
  const directed = await runStory(scenario, story, { ...options, canary })
  const found = onlyBy(canary, directed)
  if (found.report.violations.length > 0) return found
  return onlyBy(canary, await runStorm(scenario, makePlan(scenario, options.seed, options.seconds), { ...options, canary }))
}

/** What its own check found; that a planted bug also kept jobs from coming to rest in a short time proves nothing. */
export function onlyBy({ name, caughtBy }: Canary, end: RunReport): RunReport {
  const violations = end.report.violations
    .filter(({ check }) => check === caughtBy)
    .map(({ check, message }) => ({ check, message: `canary ${name}: ${message}` }))
  return { ...end, report: { ...end.report, violations } }
}
