// The storm: the processes of a scenario, its traffic, and the faults of the plan. It lasts its seconds, and longer if a planned kind of
// fault has not happened yet; then everything heals, comes to rest and is checked.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Canary } from './canary.ts'
import { finish } from './finish.ts'
import { readHistory } from './history.ts'
import type { Plan } from './plan.ts'
import { faultOf, firedFaults, makeReport, type RunReport } from './report.ts'
import { Rig } from './rig.ts'
import type { Scenario } from './scenario.ts'

export interface StormOptions {
  readonly canary?: Canary | undefined
  readonly say: (line: string) => void
  /** Histories of a clean run are kept when true; those of any other always, unless nobody will look at them. */
  readonly keep: boolean | 'never'
}

export async function runStorm(scenario: Scenario, plan: Plan, options: StormOptions): Promise<RunReport> {
  const { say } = options
  const rig = await Rig.open(scenario, { leaseMs: plan.leaseMs, beatMs: plan.beatMs, canary: options.canary })
  let keep = true
  try {
    const traffic = await scenario.openTraffic(rig, plan)
    for (const slot of plan.workers) {
      await rig.startProcess(slot, { faults: plan.faults[slot] ?? [], keeperFaults: plan.faults[`${slot} keeper`] ?? [] })
    }
    await traffic.start()
    const planned = new Set(plan.workers.flatMap((slot) => (plan.faults[slot] ?? []).map((fault) => fault.kind as string)))
    const { processes } = rig
    say(`storm of ${plan.seconds} s begins`)
    await untilOver(rig, plan, planned, say)
    rig.endPauses()
    await traffic.stop()
    say('healed; waiting until everything is at rest')
    const { judged, restedMs } = await finish(rig)
    await traffic.close()
    const faults = firedFaults(judged.entries, planned)
    const isVacuous = [...Object.values(faults), ...Object.values(judged.shown)].includes(0)
    const report = makeReport({
      torture: scenario.name,
      plan,
      processes,
      judged,
      faults,
      isVacuous,
    })
    keep = options.keep !== 'never' && (options.keep || judged.violations.length > 0 || isVacuous)
    return { report, more: { ...judged.more, 'at rest after ms': restedMs }, dir: keep ? rig.dir : undefined }
  } finally {
    await rig.close({ keep })
  }
}

async function untilOver(rig: Rig, plan: Plan, planned: ReadonlySet<string>, say: (line: string) => void): Promise<void> {
  const began = performance.now()
  // On a busy machine a killed process takes many seconds to come back to its next fault.
  const hardEndMs = plan.seconds * 2000 + 60_000
  let saidMs = 0
  let pauses = 0
  for (;;) {
    await sleep(200)
    const nowMs = performance.now() - began
    if (nowMs < plan.seconds * 1000 && nowMs - saidMs < 5000) continue
    const fired = new Set(readHistory(rig.dir).map(faultOf))
    const missing = [...planned].filter((kind) => !fired.has(kind))
    const isDue = nowMs >= plan.seconds * 1000 && missing.length === 0
    if (isDue && (planned.size === 0 || (await (rig.scenario.hasShown ?? hasRefused)(rig)))) return
    if (nowMs - saidMs >= 5000) {
      saidMs = nowMs
      say(`${Math.round(nowMs / 1000)} s, still to come: ${missing.join(', ') || 'nothing'}`)
    }
    if (nowMs >= hardEndMs) return
    // The plan is used up: one more pause per round, until a write of a paused process was refused.
    if (isDue) await rig.pause(plan.workers[pauses++ % plan.workers.length]!)
  }
}

/** A storm in which no write was refused proves nothing of fences. */
async function hasRefused(rig: Rig): Promise<boolean> {
  const [row] = await rig.query<{ refused: boolean }>('select exists (select from pawl.refusal) as refused')
  return row!.refused
}
