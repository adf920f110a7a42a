// A plan: everything that was drawn from the seed, as data. It is saved with each run, and a saved plan replays the run.

import { readFileSync } from 'node:fs'
import { type FaultKind, faultKinds, keeperKinds, type PlannedFault, stormProbes } from './faults.ts'
import { stream } from './random.ts'

export interface Plan {
  readonly torture: 'jobs'
  readonly seed: number
  readonly seconds: number
  readonly workers: readonly string[]
  readonly leaseMs: number
  readonly beatMs: number
  /** By process slot; each list is worked off in order. `w1 keeper` is the keeper's thread of w1. */
  readonly faults: Readonly<Record<string, readonly PlannedFault[]>>
  /** At which of the producer's enqueues without a transaction the answer is lost. */
  readonly enqueuesUnknown: readonly number[]
}

const workers = ['w1', 'w2', 'w3'] as const
/** A slot cannot take more than about one fault in this time: a killed process needs about as long to come back. */
const faultEveryMs = 1500

export function makePlan(seed: number, seconds: number): Plan {
  const perSlot = Math.max(4, Math.ceil((seconds * 1000) / faultEveryMs))
  const faults: Record<string, PlannedFault[]> = Object.fromEntries(workers.map((slot) => [slot, []]))
  const random = stream(seed, 'faults')
  // Dealt out like cards, kind by kind, so that every kind comes early in a short run.
  let deck: FaultKind[] = []
  for (let round = 0; round < perSlot; round++) {
    for (const slot of workers) {
      if (deck.length === 0) deck = random.shuffled(faultKinds)
      faults[slot]!.push(drawFault(random, deck.pop()!))
    }
  }
  for (const slot of workers) faults[`${slot} keeper`] = keeperFaults(seed, slot, seconds)
  const enqueues = stream(seed, 'enqueues')
  const enqueuesUnknown = Array.from(
    { length: Math.max(1, Math.ceil(seconds / 4)) },
    (_, index) => 2 + index * 8 + enqueues.whole(0, 4),
  )
  return { torture: 'jobs', seed, seconds, workers, leaseMs: 2000, beatMs: 200, faults, enqueuesUnknown }
}

type Draw = ReturnType<typeof stream>

function drawFault(random: Draw, kind: FaultKind): PlannedFault {
  const probe = random.pick(stormProbes[kind])
  const hit = random.whole(1, probe.startsWith('jobs.fail') ? 2 : 6)
  if (kind === 'clock') return { probe, hit, kind, ms: random.pick([-1, 1]) * random.whole(1000, 4000) }
  if (kind === 'block') return { probe, hit, kind, ms: random.whole(2200, 3000) }
  return { probe, hit, kind }
}

function keeperFaults(seed: number, slot: string, seconds: number): PlannedFault[] {
  const random = stream(seed, `keeper ${slot}`)
  return Array.from({ length: Math.ceil(seconds / 8) }, () => {
    const kind = random.pick(keeperKinds)
    const rare = kind !== 'commit-unknown' && random.chance(0.3)
    const probe = rare
      ? random.pick(['keeper.rescue.closed', 'keeper.rescue.after'] as const)
      : kind === 'commit-unknown'
        ? 'keeper.beat.before'
        : random.pick(['keeper.beat.before', 'keeper.beat.after'] as const)
    return { probe, hit: rare ? 1 : random.whole(10, 40), kind }
  })
}

export function readPlan(path: string): Plan {
  const plan = JSON.parse(readFileSync(path, 'utf8')) as Plan
  if (plan.torture !== 'jobs' || !Array.isArray(plan.workers)) throw new Error(`${path} is not a plan that this rig wrote.`)
  return plan
}
