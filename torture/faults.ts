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

export const faultMeanings: Readonly<Record<FaultKind, string>> = {
  kill: 'kill -9 of the process at the probe',
  pause: 'SIGSTOP at the probe until others have taken over, then SIGCONT',
  reset: 'every connection of the process is cut',
  terminate: 'pg_terminate_backend on every session of the process',
  restart: 'kill -9 of the postmaster, then a start with crash recovery',
  'commit-unknown': 'the next commit happens, its answer is swallowed and the connection is cut',
  'sql-40001': 'the statement at the probe fails with a serialization error',
  clock: 'the clock of the database steps forward or back',
  block: 'the event loop of the process is blocked for longer than a lease',
  drain: 'the process is told to stop in order and is started again',
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
export const keeperProbes: readonly ProbeName[] = [
  'keeper.beat.before',
  'keeper.beat.after',
  'keeper.rescue.closed',
  'keeper.rescue.after',
]
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
