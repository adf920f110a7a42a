// The faults, and where a storm lets each of them happen. A fault fires at a logical event, "the third hit of jobs.settle.after in w2",
// so that a plan replays although no two runs have the same timing.

import type { ProbeName } from 'pawl/testing'

export const faultKinds = [
  'kill',
  'pause',
  'reset',
  'terminate',
  'restart',
  'commit-unknown',
  'sql-40001',
  'clock',
  'block',
  'drain',
] as const
export type FaultKind = (typeof faultKinds)[number]

export interface PlannedFault {
  readonly probe: ProbeName
  /** Counted from the last fault of the same process slot. */
  readonly hit: number
  readonly kind: FaultKind
  /** How far a clock steps, or for how long a loop is blocked. */
  readonly ms?: number
}

/** Where each kind strikes in a storm. The crash matrix (matrix/) covers every probe with every kind that makes sense there. */
export const stormProbes: Readonly<Record<FaultKind, readonly ProbeName[]>> = {
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
}

/** In the keeper's thread, which has its own connections. */
export const keeperKinds: readonly FaultKind[] = ['kill', 'reset', 'sql-40001', 'commit-unknown']

/** Which connection carries the commit that follows a probe, for commit-unknown. */
export const purposeOf: Readonly<Partial<Record<ProbeName, string>>> = {
  'jobs.claim.before': 'claim',
  'jobs.settle.before': 'settle',
  'jobs.fail.before': 'settle',
  'jobs.release.before': 'settle',
  'jobs.touch.before': 'engine',
  'jobs.tx.begun': 'handler',
  'jobs.tx.handled': 'handler',
  'jobs.tx.before_commit': 'handler',
  'keeper.beat.before': 'keeper',
  'keeper.rescue.closed': 'sweep',
}
