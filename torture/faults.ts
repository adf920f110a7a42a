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
  'events.append.sent': 'own',
  'events.sequence.before': 'sequencer',
  'projections.acquired': 'acquire',
  'projections.release.before': 'acquire',
  'projections.batch.before': 'handler',
  'projections.batch.moved': 'handler',
  'projections.event.handled': 'handler',
  'projections.batch.handled': 'handler',
  'projections.fail.before': 'projections',
  'projections.park.before': 'handler',
  'projections.unpark.handled': 'handler',
  'projections.sink.handled': 'projections',
  'projections.state.taken': 'handler',
  'projections.state.handled': 'handler',
  'projections.switch.before_commit': 'caller commit',
  'records.stage.committed': 'caller commit',
  'records.validate.before': 'caller commit',
  'records.submit.written': 'caller commit',
  'records.append.written': 'caller commit',
  'records.apply.before': 'caller commit',
  'records.apply.written': 'caller commit',
  'records.apply.chunk': 'caller commit',
  'records.commit.before': 'caller commit',
  'records.commit.written': 'caller commit',
  'records.purge.chunk': 'caller commit',
  'records.fail.written': 'caller commit',
}
