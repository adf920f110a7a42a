// The faults. One fires at a logical event, "the third hit of jobs.settle.after in w2", so that a plan replays although no two runs have the
// same timing.

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
  /** Counted from the last fault of the same slot. */
  readonly hit: number
  readonly kind: FaultKind
  /** How far a clock steps, or for how long a loop is blocked. */
  readonly ms?: number
}

/** Which connection carries the commit that follows a probe, for commit-unknown. */
export const purposeOf: Readonly<Partial<Record<ProbeName, string>>> = {
  'jobs.enqueue.sent': 'own',
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
