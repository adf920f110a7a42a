// The crash matrix as data: every probe that jobs reach, times everything that can go wrong there.

import { type ProbeName, probeNames } from 'pawl/testing'
import { type FaultKind, purposeOf } from '../faults.ts'

export const matrixKinds = ['kill', 'pause', 'reset', 'sql-40001', 'commit-unknown'] as const satisfies readonly FaultKind[]
export type MatrixKind = (typeof matrixKinds)[number]

/** What has to happen around a worker before it comes to a probe. */
export type Provocation = 'work' | 'stop' | 'pause' | 'death of another'

export interface Case {
  readonly probe: ProbeName
  readonly kind: MatrixKind
  readonly provocation: Provocation
}

const provocations: Readonly<Partial<Record<ProbeName, Provocation>>> = {
  'jobs.release.before': 'stop',
  'worker.closed': 'stop',
  'jobs.incarnation.lost': 'pause',
  'keeper.rescue.closed': 'death of another',
  'keeper.rescue.after': 'death of another',
}

/** Not a worker's: the producer of the storm loses answers of its own enqueues instead. */
const elsewhere: readonly ProbeName[] = ['jobs.enqueue.sent']

/** No statement runs beside these, so none can fail there: an error would be one that no database gives. */
const withoutStatement: readonly ProbeName[] = [
  'jobs.run.before',
  'jobs.run.after',
  'jobs.incarnation.lost',
  'worker.closed',
  'worker.opened',
]

export const cases: readonly Case[] = probeNames
  .filter((probe) => !elsewhere.includes(probe))
  .flatMap((probe) =>
    matrixKinds
      .filter((kind) => kind !== 'sql-40001' || !withoutStatement.includes(probe))
      .filter((kind) => kind !== 'commit-unknown' || purposeOf[probe] !== undefined)
      .map((kind) => ({ probe, kind, provocation: provocations[probe] ?? 'work' })),
  )
