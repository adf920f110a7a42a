// A plan: everything that a run draws from its seed, as data. It is saved before each storm, and a saved plan replays the storm.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { type ProbeName, probeNames } from 'pawl/testing'
import { WrongCall } from './arguments.ts'

export type FaultKind =
  | 'kill'
  | 'pause'
  | 'reset'
  | 'terminate'
  | 'restart'
  | 'commit-unknown'
  | 'sql-40001'
  | 'clock'
  | 'block'
  | 'drain'
const faultKinds = 'kill pause reset terminate restart commit-unknown sql-40001 clock block drain'.split(' ') as FaultKind[]

/** It fires at a logical event, "the third hit of jobs.settle.after in w2", so a plan replays although no two runs have the same timing. */
export interface PlannedFault {
  readonly probe: ProbeName
  /** Counted from the last fault of the same slot. */
  readonly hit: number
  readonly kind: FaultKind
  /** How far the clock steps, or how long the event loop is blocked. */
  readonly ms?: number
}

export interface Plan {
  /** The scenario. */
  readonly torture: string
  readonly seed: number
  readonly seconds: number
  readonly workers: readonly string[]
  readonly leaseMs: number
  readonly beatMs: number
  /** By slot, in order. `w1 keeper` is the keeper's thread of w1. */
  readonly faults: Readonly<Record<string, readonly PlannedFault[]>>
}

type Storm = Pick<Plan, 'seed' | 'seconds'>

/** Where the faults of a storm strike. */
export interface Aims {
  readonly slots: readonly string[]
  readonly probes: Readonly<Partial<Record<FaultKind, readonly ProbeName[]>>>
  /** The hit of a fault is drawn from 1 to this. */
  hitsMax(probe: ProbeName): number
  /** Faults of other slots: keeper threads, processes of users, the rig's own traffic. */
  more(storm: Storm): Record<string, readonly PlannedFault[]>
}

/** 'jobs: claim.before claim.after keeper: asked' as names of probes. A name that does not exist fails when the module is loaded. */
export function probes(words: string): ProbeName[] {
  let folder = ''
  return words.split(' ').flatMap((word) => {
    if (word.endsWith(':')) folder = word.slice(0, -1)
    const name = `${folder}.${word}` as ProbeName
    if (!word.endsWith(':') && !probeNames.includes(name)) throw new Error(`There is no probe '${name}'.`)
    return word.endsWith(':') ? [] : [name]
  })
}

/** Which connection carries the commit that follows a probe. */
const commits: Readonly<Record<string, readonly ProbeName[]>> = {
  own: probes('jobs: enqueue.sent events: append.sent'),
  claim: probes('jobs: claim.before'),
  settle: probes('jobs: settle.before fail.before release.before'),
  engine: probes('jobs: touch.before'),
  handler: probes(
    'jobs: tx.begun tx.handled tx.before_commit batches: boundary.written feed.written end.written projections: batch.before batch.moved batch.handled event.handled park.before unpark.handled state.taken state.handled documents: refresh.written',
  ),
  caller: probes('batches: settled end.before documents: found'),
  keeper: probes('keeper: beat.before'),
  sweep: probes('keeper: rescue.closed'),
  sequencer: probes('events: sequence.before'),
  acquire: probes('projections: acquired release.before'),
  projections: probes('projections: fail.before sink.handled'),
  'caller commit': [
    ...probes('projections: switch.before_commit records: stage.committed validate.before submit.written append.written'),
    ...probes('records: apply.before apply.written apply.chunk commit.before commit.written purge.chunk fail.written'),
    ...probes('batches: start.written prepared'),
  ],
}

export function purposeOf(probe: ProbeName): string | undefined {
  return Object.keys(commits).find((purpose) => commits[purpose]!.includes(probe))
}

// ---- drawing

export class Random {
  #state: bigint

  constructor(seed: string) {
    this.#state = createHash('sha256').update(seed).digest().readBigUInt64LE()
  }

  /** From 0 up to, not including, 1 (splitmix64). */
  next(): number {
    this.#state = BigInt.asUintN(64, this.#state + 0x9e3779b97f4a7c15n)
    let z = this.#state
    z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n)
    z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn)
    return Number((z ^ (z >> 31n)) >> 11n) / 2 ** 53
  }

  /** An integer from `low` to `high`, both included. */
  whole(low: number, high: number): number {
    return low + Math.floor(this.next() * (high - low + 1))
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }

  pick<T>(list: readonly T[]): T {
    return list[Math.floor(this.next() * list.length)]!
  }

  weighted<T extends string>(weights: Readonly<Record<T, number>>): T {
    const entries = Object.entries(weights) as [T, number][]
    let left = this.next() * entries.reduce((sum, [, weight]) => sum + weight, 0)
    for (const [name, weight] of entries) {
      left -= weight
      if (left < 0) return name
    }
    return entries[0]![0]
  }

  shuffled<T>(list: readonly T[]): T[] {
    const result = [...list]
    for (let index = result.length - 1; index > 0; index--) {
      const other = this.whole(0, index)
      ;[result[index], result[other]] = [result[other]!, result[index]!]
    }
    return result
  }
}

/** Each concern draws from a stream of its own name, so that a further draw in one does not shift the others. */
export function stream(seed: number, name: string): Random {
  return new Random(`${seed}/${name}`)
}

/** A slot takes at most about one fault in this time: a killed process needs as long to come back. */
const faultEveryMs = 1500

type Aimed = { readonly name: string; readonly aims: Aims }

export function makePlan(scenario: Aimed, seed: number, seconds: number): Plan {
  const { aims } = scenario
  const faults: Record<string, PlannedFault[]> = Object.fromEntries(aims.slots.map((slot) => [slot, []]))
  const kinds = faultKinds.filter((kind) => aims.probes[kind] !== undefined)
  const random = stream(seed, 'faults')
  // Dealt like cards, kind by kind, so that every kind comes early in a short run.
  let deck: FaultKind[] = []
  for (let round = 0; round < Math.max(4, Math.ceil((seconds * 1000) / faultEveryMs)); round++) {
    for (const slot of aims.slots) {
      if (deck.length === 0) deck = random.shuffled(kinds)
      faults[slot]!.push(drawFault(random, aims, deck.pop()!))
    }
  }
  const all = { ...faults, ...aims.more({ seed, seconds }) }
  return { torture: scenario.name, seed, seconds, workers: aims.slots, leaseMs: 2000, beatMs: 200, faults: all }
}

function drawFault(random: Random, aims: Aims, kind: FaultKind): PlannedFault {
  const probe = random.pick(aims.probes[kind]!)
  const hit = random.whole(1, aims.hitsMax(probe))
  if (kind === 'clock') return { probe, hit, kind, ms: random.pick([-1, 1]) * random.whole(1000, 4000) }
  return { probe, hit, kind, ...(kind === 'block' ? { ms: random.whole(2200, 3000) } : {}) }
}

/** One fault for every `everySeconds` of the storm, drawn from the stream of that name. */
export function drawFaults(name: string, { seed, seconds }: Storm, everySeconds: number, draw: (random: Random) => PlannedFault) {
  const random = stream(seed, name)
  return Array.from({ length: Math.ceil(seconds / everySeconds) }, () => draw(random))
}

/** In the threads of keepers, which have their own connections. `rare` probes are hit about once. */
export function keeperFaults(slots: readonly string[], storm: Storm, everySeconds: number, rare: readonly ProbeName[] = []) {
  const draw = (random: Random): PlannedFault => {
    const kind = random.pick(['kill', 'reset', 'sql-40001', 'commit-unknown'] as const)
    if (kind === 'commit-unknown') return { probe: 'keeper.beat.before', hit: random.whole(10, 40), kind }
    if (rare.length > 0 && random.chance(0.3)) return { probe: random.pick(rare), hit: 1, kind }
    return { probe: random.pick(probes('keeper: beat.before beat.after')), hit: random.whole(10, 40), kind }
  }
  return Object.fromEntries(slots.map((slot) => [`${slot} keeper`, drawFaults(`keeper ${slot}`, storm, everySeconds, draw)]))
}

export function calmPlan(scenario: Aimed, seed: number): Plan {
  return { ...makePlan(scenario, seed, 1), faults: {} }
}

export function readPlan(path: string): Plan {
  let plan: Partial<Plan>
  try {
    plan = JSON.parse(readFileSync(path, 'utf8')) as Partial<Plan>
  } catch (error) {
    throw new WrongCall(`The plan ${path} cannot be read: ${error}`)
  }
  if (typeof plan.torture !== 'string' || !Array.isArray(plan.workers) || typeof plan.faults !== 'object')
    throw new WrongCall(`${path} is not a plan of this rig.`)
  return plan as Plan
}
