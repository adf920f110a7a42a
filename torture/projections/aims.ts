// Where the faults of a storm of projections strike. Parking and replaying are met too seldom by each process: the matrix strikes there.

import type { ProbeName } from 'pawl/testing'
import { faultsBeside, runnerSlots } from '../events/aims.ts'
import type { PlannedFault } from '../faults.ts'
import { stream } from '../random.ts'
import type { Aims } from '../scenario.ts'

export const operatorSlot = 'op'

/** What a process comes to more seldom than to the others: all three refresh, and each meets a third of it. */
const hitsMax: Readonly<Partial<Record<ProbeName, number>>> = { 'projections.acquired': 1, 'projections.state.handled': 3 }

export const aims: Aims = {
  slots: runnerSlots,
  probes: {
    kill: [
      'projections.acquired',
      'projections.batch.before',
      'projections.batch.moved',
      'projections.batch.handled',
      'projections.batch.committed',
      'projections.sink.handled',
      'projections.state.handled',
    ],
    pause: ['projections.batch.before', 'projections.batch.before', 'projections.state.handled'],
    reset: ['projections.batch.moved', 'projections.batch.handled', 'projections.state.handled', 'projections.sink.handled'],
    terminate: ['projections.batch.handled', 'projections.state.handled'],
    restart: ['projections.batch.handled', 'projections.batch.committed', 'projections.sink.handled'],
    'commit-unknown': ['projections.batch.handled', 'projections.batch.moved', 'projections.state.handled'],
    'sql-40001': ['projections.batch.before', 'projections.batch.handled', 'projections.state.handled'],
    clock: ['projections.batch.committed', 'projections.sink.handled'],
    block: ['projections.batch.before', 'projections.batch.handled'],
    drain: ['projections.batch.before', 'projections.batch.committed'],
  },
  hitsMax: (probe) => hitsMax[probe] ?? 8,
  more: (seed, seconds) => ({ ...faultsBeside(seed, seconds), [operatorSlot]: operatorFaults(seed, seconds) }),
}

function operatorFaults(seed: number, seconds: number): PlannedFault[] {
  const random = stream(seed, operatorSlot)
  return Array.from({ length: Math.ceil(seconds / 6) }, () => ({
    probe: random.pick(['projections.switch.before_commit', 'projections.rebuild.held']),
    hit: random.whole(1, 2),
    kind: random.pick(['kill', 'reset', 'commit-unknown']),
  }))
}
