// A plan: everything that was drawn from the seed, as data. It is saved with each run, and a saved plan replays the run.

import { readFileSync } from 'node:fs'
import { type FaultKind, faultKinds, type PlannedFault } from './faults.ts'
import { type Random, stream } from './random.ts'
import type { Aims } from './scenario.ts'
import { WrongCall } from './wrong-call.ts'

export interface Plan {
  /** The scenario. */
  readonly torture: string
  readonly seed: number
  readonly seconds: number
  readonly workers: readonly string[]
  readonly leaseMs: number
  readonly beatMs: number
  /** By slot; each list is worked off in order. `w1 keeper` is the keeper's thread of w1. */
  readonly faults: Readonly<Record<string, readonly PlannedFault[]>>
}

/** A slot cannot take more than about one fault in this time: a killed process needs about as long to come back. */
const faultEveryMs = 1500

export function makePlan(scenario: { readonly name: string; readonly aims: Aims }, seed: number, seconds: number): Plan {
  const { aims } = scenario
  const perSlot = Math.max(4, Math.ceil((seconds * 1000) / faultEveryMs))
  const faults: Record<string, PlannedFault[]> = Object.fromEntries(aims.slots.map((slot) => [slot, []]))
  const kinds = faultKinds.filter((kind) => aims.probes[kind] !== undefined)
  const random = stream(seed, 'faults')
  // Dealt out like cards, kind by kind, so that every kind comes early in a short run.
  let deck: FaultKind[] = []
  for (let round = 0; round < perSlot; round++) {
    for (const slot of aims.slots) {
      if (deck.length === 0) deck = random.shuffled(kinds)
      faults[slot]!.push(drawFault(random, aims, deck.pop()!))
    }
  }
  return {
    torture: scenario.name,
    seed,
    seconds,
    workers: aims.slots,
    leaseMs: 2000,
    beatMs: 200,
    faults: { ...faults, ...aims.more(seed, seconds) },
  }
}

function drawFault(random: Random, aims: Aims, kind: FaultKind): PlannedFault {
  const probe = random.pick(aims.probes[kind]!)
  const hit = random.whole(1, aims.hitsMax(probe))
  if (kind === 'clock') return { probe, hit, kind, ms: random.pick([-1, 1]) * random.whole(1000, 4000) }
  if (kind === 'block') return { probe, hit, kind, ms: random.whole(2200, 3000) }
  return { probe, hit, kind }
}

/** The plan without any fault. */
export function calmPlan(scenario: { readonly name: string; readonly aims: Aims }, seed: number): Plan {
  return { ...makePlan(scenario, seed, 1), faults: {} }
}

export function readPlan(path: string): Plan {
  let plan: Partial<Plan>
  try {
    plan = JSON.parse(readFileSync(path, 'utf8')) as Partial<Plan>
  } catch (error) {
    throw new WrongCall(`The plan ${path} cannot be read: ${String(error)}`)
  }
  if (typeof plan.torture !== 'string' || !Array.isArray(plan.workers) || typeof plan.faults !== 'object')
    throw new WrongCall(`${path} is not a plan that this rig wrote.`)
  return plan as Plan
}
