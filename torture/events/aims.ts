// Faults that both scenarios plan beside those of their runners: in the keepers' threads, and in the processes that append.

import type { FaultKind, PlannedFault } from '../faults.ts'
import { stream } from '../random.ts'

export const runnerSlots = ['w1', 'w2', 'w3'] as const
export const writerSlots = ['p1', 'p2'] as const

/** In the keeper's thread, which has its own connections. */
const keeperKinds: readonly FaultKind[] = ['kill', 'reset', 'sql-40001', 'commit-unknown']
const writerKinds: readonly FaultKind[] = ['kill', 'kill', 'kill', 'reset', 'commit-unknown', 'commit-unknown', 'pause']

export function faultsBeside(seed: number, seconds: number): Record<string, readonly PlannedFault[]> {
  return {
    ...Object.fromEntries(runnerSlots.map((slot) => [`${slot} keeper`, keeperFaults(seed, slot, seconds)])),
    ...Object.fromEntries(writerSlots.map((slot) => [slot, writerFaults(seed, slot, seconds)])),
  }
}

function keeperFaults(seed: number, slot: string, seconds: number): PlannedFault[] {
  const random = stream(seed, `keeper ${slot}`)
  return Array.from({ length: Math.ceil(seconds / 10) }, () => {
    const kind = random.pick(keeperKinds)
    const probe =
      kind === 'commit-unknown' ? 'keeper.beat.before' : random.pick(['keeper.beat.before', 'keeper.beat.after'] as const)
    return { probe, hit: random.whole(10, 40), kind }
  })
}

/** No 40001: without a transaction the append has committed here, and no database would say so. */
function writerFaults(seed: number, slot: string, seconds: number): PlannedFault[] {
  const random = stream(seed, slot)
  return Array.from({ length: Math.ceil(seconds / 3) }, () => ({
    probe: 'events.append.sent',
    hit: random.whole(5, 25),
    kind: random.pick(writerKinds),
  }))
}
