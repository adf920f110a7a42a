// The storm: three worker processes, a producer and an operator, and the faults of the plan. It lasts its seconds, and longer if a planned
// kind of fault has not happened yet; then everything heals, comes to rest and is checked.

import { setTimeout as sleep } from 'node:timers/promises'
import { finish } from './finish.ts'
import { readHistory } from './history.ts'
import type { Plan } from './plan.ts'
import { faultOf, firedFaults, makeReport, type Report } from './report.ts'
import { Rig } from './rig.ts'
import { Workload } from './workload.ts'

export interface StormEnd {
  readonly report: Report
  readonly more: Record<string, number | string>
  /** Where the histories are, when there is something to look at. */
  readonly dir: string | undefined
}

export async function runStorm(
  plan: Plan,
  options: { canary?: string | undefined; say: (line: string) => void; keep: boolean },
): Promise<StormEnd> {
  const { say } = options
  const rig = await Rig.open({ leaseMs: plan.leaseMs, beatMs: plan.beatMs, canary: options.canary })
  let keep = true
  try {
    const workload = await Workload.open(rig, plan)
    for (const slot of plan.workers) {
      await rig.startWorker(slot, { faults: plan.faults[slot] ?? [], keeperFaults: plan.faults[`${slot} keeper`] ?? [] })
    }
    workload.start()
    const planned = new Set(plan.workers.flatMap((slot) => (plan.faults[slot] ?? []).map((fault) => fault.kind as string)))
    say(`storm of ${plan.seconds} s begins`)
    await untilOver(rig, plan, planned, say)
    await workload.stop()
    say('healed; waiting until everything is at rest')
    const { facts, checks, violations, restedMs } = await finish(rig)
    await workload.close()
    const faults = firedFaults(facts, planned)
    const reclaims = facts.attempts.filter((attempt) => attempt.outcome === 'crashed').length
    const isVacuous = Object.values(faults).some((count) => count === 0) || reclaims === 0 || facts.refusals === 0
    const report = makeReport({
      torture: 'jobs',
      plan,
      processes: plan.workers.length,
      facts,
      faults,
      checks,
      violations,
      isVacuous,
    })
    const done = facts.finished.filter((job) => job.state === 'done').length
    const more = {
      jobs: facts.finished.length + facts.live.length,
      done,
      cancelled: facts.finished.length - done,
      dead: facts.live.length,
      reclaims,
      refused: facts.refusals,
      'at rest after ms': restedMs,
    }
    keep = options.keep || violations.length > 0 || isVacuous
    return { report, more, dir: keep ? rig.dir : undefined }
  } finally {
    await rig.close({ keep })
  }
}

async function untilOver(rig: Rig, plan: Plan, planned: ReadonlySet<string>, say: (line: string) => void): Promise<void> {
  const began = performance.now()
  const hardEndMs = plan.seconds * 2000 + 20_000
  let saidMs = 0
  for (;;) {
    await sleep(200)
    const nowMs = performance.now() - began
    if (nowMs < plan.seconds * 1000 && nowMs - saidMs < 5000) continue
    const fired = new Set(readHistory(rig.dir).map(faultOf))
    const missing = [...planned].filter((kind) => !fired.has(kind))
    if (nowMs - saidMs >= 5000) {
      saidMs = nowMs
      say(`${Math.round(nowMs / 1000)} s, still to come: ${missing.join(', ') || 'nothing'}`)
    }
    if (nowMs >= hardEndMs || (nowMs >= plan.seconds * 1000 && missing.length === 0 && (await hasRefused(rig)))) return
  }
}

/** A storm in which no write was refused proves nothing of fences; one comes with the next pause. */
async function hasRefused(rig: Rig): Promise<boolean> {
  const [row] = await rig.query<{ refused: boolean }>('select exists (select from pawl.refusal) as refused')
  return row!.refused
}
