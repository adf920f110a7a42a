// The crash matrix of jobs as data: every probe, times everything that can go wrong there, at its first hit and at a later one.

import { type ProbeName, probeNames } from 'pawl/testing'
import { type FaultKind, purposeOf } from '../faults.ts'
import type { Case } from '../scenario.ts'

const kinds = ['kill', 'pause', 'reset', 'sql-40001', 'commit-unknown'] as const satisfies readonly FaultKind[]
/** The first hit meets a process that has done nothing yet; by the third it has a buffer, a warm pool, and something behind it. */
const hits = [1, 3] as const

/** What has to happen around a process before it comes to a probe. Enqueues are those of a process that does nothing else. */
export type Provocation =
  | 'work'
  | 'stop'
  | 'pause'
  | 'death of another'
  | 'burst'
  | 'enqueue in a transaction'
  | 'enqueue without a transaction'

const provocations: Readonly<Partial<Record<ProbeName, Provocation>>> = {
  'jobs.release.before': 'stop',
  'worker.closed': 'stop',
  'jobs.incarnation.lost': 'pause',
  'keeper.asked': 'death of another',
  'keeper.rescue.closed': 'death of another',
  'keeper.rescue.after': 'death of another',
}

/** No statement runs beside these, so none can fail there: an error would be one that no database gives. */
const withoutStatement: readonly ProbeName[] = [
  'jobs.run.before',
  'jobs.run.after',
  'jobs.incarnation.lost',
  'worker.closed',
  'worker.opened',
]

/** Reached when a process stops, and then there is no later. */
const onlyOnce: readonly ProbeName[] = ['jobs.release.before', 'worker.closed']

const enqueueing = (kinds: readonly FaultKind[], provocation: Provocation): Omit<Case, 'hit'>[] =>
  kinds.map((kind) => ({ probe: 'jobs.enqueue.sent', kind, provocation, variant: provocation }))

const enqueueCases: readonly Omit<Case, 'hit'>[] = [
  ...enqueueing(kinds, 'enqueue in a transaction'),
  // Here it is committed already: its statement cannot fail any more, and its answer has come.
  ...enqueueing(['kill', 'pause', 'reset'], 'enqueue without a transaction'),
]

const workerCases: readonly Omit<Case, 'hit'>[] = probeNames
  .filter((probe) => /^(jobs|keeper|worker)\./.test(probe) && probe !== 'jobs.enqueue.sent')
  .flatMap((probe) =>
    kinds
      .filter((kind) => kind !== 'sql-40001' || !withoutStatement.includes(probe))
      .filter((kind) => kind !== 'commit-unknown' || purposeOf[probe] !== undefined)
      .map((kind) => ({ probe, kind, provocation: provocations[probe] ?? 'work' })),
  )

/** What it takes to come there again. */
const provocationsAgain: Readonly<Partial<Record<ProbeName, Provocation>>> = {
  // A process opens a further incarnation only after it has lost one.
  'worker.opened': 'pause',
  // The flag of a sleeper stays until there is continuous work.
  'jobs.sleep.flagged': 'burst',
}

export const cases: readonly Case[] = hits.flatMap((hit) =>
  [...enqueueCases, ...workerCases]
    .filter(({ probe }) => hit === 1 || !onlyOnce.includes(probe))
    .map((each) => ({ ...each, hit, provocation: (hit > 1 && provocationsAgain[each.probe]) || each.provocation })),
)
