// Where the faults of a storm of jobs strike. The crash matrix (cases.ts) covers every probe with every kind that makes sense there.

import type { FaultKind, PlannedFault } from '../faults.ts'
import { stream } from '../random.ts'
import type { Aims } from '../scenario.ts'

/** The storm's own producer, in the rig's process: its enqueues lose their answers. */
export const producerSlot = 'producer'
/** A producer in a process of its own, which can be killed. */
export const producerProcess = 'p1'
const slots = ['w1', 'w2', 'w3'] as const
/** In the keeper's thread, which has its own connections. */
const keeperKinds: readonly FaultKind[] = ['kill', 'reset', 'sql-40001', 'commit-unknown']

export const aims: Aims = {
  slots,
  probes: {
    kill: [
      'jobs.claim.after',
      'jobs.run.before',
      'jobs.run.after',
      'jobs.settle.before',
      'jobs.settle.after',
      'jobs.tx.begun',
      'jobs.tx.before_commit',
      'jobs.tx.after_commit',
      'jobs.fail.after',
    ],
    pause: ['jobs.settle.before', 'jobs.tx.before_commit', 'jobs.run.after'],
    reset: ['jobs.claim.before', 'jobs.settle.before', 'jobs.tx.begun', 'jobs.tx.before_commit', 'jobs.run.before'],
    terminate: ['jobs.claim.before', 'jobs.settle.before', 'jobs.tx.handled', 'jobs.run.before'],
    restart: ['jobs.settle.before', 'jobs.tx.before_commit', 'jobs.claim.before'],
    'commit-unknown': ['jobs.settle.before', 'jobs.tx.before_commit', 'jobs.claim.before', 'jobs.fail.before'],
    'sql-40001': ['jobs.claim.before', 'jobs.settle.before', 'jobs.tx.begun', 'jobs.tx.before_commit', 'jobs.fail.before'],
    clock: ['jobs.claim.after', 'jobs.run.before', 'jobs.settle.before'],
    block: ['jobs.run.before', 'jobs.settle.after'],
    drain: ['jobs.run.before', 'jobs.tx.begun'],
  },
  hitsMax: (probe) => (probe.startsWith('jobs.fail') ? 2 : 6),
  more: (seed, seconds) => ({
    ...Object.fromEntries(slots.map((slot) => [`${slot} keeper`, keeperFaults(seed, slot, seconds)])),
    [producerProcess]: producerFaults(seed, seconds),
    [producerSlot]: lostAnswers(seed, seconds),
  }),
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

/** No 40001: without a transaction the enqueue has committed here, and no database would say so. */
function producerFaults(seed: number, seconds: number): PlannedFault[] {
  const random = stream(seed, producerProcess)
  return Array.from({ length: Math.ceil(seconds / 4) }, () => ({
    probe: 'jobs.enqueue.sent',
    hit: random.whole(3, 12),
    kind: random.pick(['kill', 'kill', 'pause', 'reset', 'commit-unknown']),
  }))
}

/** At which of the enqueues without a transaction the answer is lost. */
function lostAnswers(seed: number, seconds: number): PlannedFault[] {
  const random = stream(seed, 'enqueues')
  return Array.from({ length: Math.max(1, Math.ceil(seconds / 4)) }, () => ({
    probe: 'jobs.enqueue.sent',
    hit: random.whole(3, 12),
    kind: 'commit-unknown',
  }))
}
