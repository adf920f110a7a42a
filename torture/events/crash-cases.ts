// Probes times everything that can go wrong there, at the first hit and at a later one.

import type { ProbeName } from 'pawl/testing'
import { type FaultKind, purposeOf } from '../faults.ts'
import type { Case } from '../scenario.ts'

const kinds = ['kill', 'pause', 'reset', 'sql-40001', 'commit-unknown'] as const satisfies readonly FaultKind[]
const hits = [1, 3] as const

/** What has to happen around a process before it comes to a probe. */
export type Provocation = 'work' | 'append' | 'stop' | 'bad event' | 'rebuild'

/** No statement runs beside these, so none can fail there: an error would be one that no database gives. */
const withoutStatement: readonly ProbeName[] = [
  'events.sequence.after',
  'projections.acquired',
  'projections.batch.committed',
  'projections.sink.handled',
  'projections.sink.flushed',
]

/** Reached once in the life of a process, or of a case. */
const onlyOnce: readonly ProbeName[] = [
  'projections.release.before',
  'projections.switch.before_commit',
  'projections.rebuild.held',
]

export function crashCases(
  probes: readonly ProbeName[],
  provocations: Readonly<Partial<Record<ProbeName, Provocation>>>,
): Case[] {
  return hits.flatMap((hit) =>
    probes
      .filter((probe) => hit === 1 || !onlyOnce.includes(probe))
      .flatMap((probe) =>
        kinds
          .filter((kind) => kind !== 'sql-40001' || !withoutStatement.includes(probe))
          .filter((kind) => kind !== 'commit-unknown' || purposeOf[probe] !== undefined)
          .map((kind) => ({ probe, kind, hit, provocation: provocations[probe] ?? 'work' })),
      ),
  )
}
