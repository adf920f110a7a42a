// The crash matrix of records as data: every probe of records, times everything that can go wrong there, at its first hit and at a later one.

import { type ProbeName, probeNames } from 'pawl/testing'
import { type FaultKind, purposeOf } from '../faults.ts'
import type { Case } from '../scenario.ts'

const kinds = ['kill', 'pause', 'reset', 'sql-40001', 'commit-unknown'] as const satisfies readonly FaultKind[]
/** At the first hit nothing has been written yet; a later one is in the middle of a file, or after others. */
const hits = [1, 3] as const
const alsoLater = /^records\.(stage|apply|commit\.(before|written))/

/** What has to happen before a process comes to a probe: files are submitted, or such that the database refuses; the rest users do. */
export type Provocation = 'work' | 'doomed files' | 'restart' | 'upload' | 'submit' | 'put' | 'append'

const provocations: Readonly<Partial<Record<ProbeName, readonly Provocation[]>>> = {
  'records.restart.committed': ['restart'],
  'records.stage.committed': ['upload'],
  'records.validate.before': ['upload'],
  'records.validate.after': ['upload'],
  'records.submit.written': ['submit'],
  'records.append.written': ['put', 'append'],
  'records.purge.chunk': ['doomed files'],
  'records.fail.written': ['doomed files'],
}

/** Something was just committed there and no statement is under way that could fail. */
const withoutStatement: readonly ProbeName[] = [
  'records.restart.committed',
  'records.stage.committed',
  'records.validate.after',
  'records.apply.chunk',
  'records.commit.after',
  'records.purge.chunk',
]

export const isUsers = (provocation: string): boolean => provocation !== 'work' && provocation !== 'doomed files'

export const cases: readonly Case[] = hits.flatMap((hit) =>
  probeNames
    .filter((probe) => probe.startsWith('records.') && (hit === 1 || alsoLater.test(probe)))
    .flatMap((probe) => (provocations[probe] ?? ['work']).map((provocation) => ({ probe, provocation })))
    .flatMap(({ probe, provocation }) =>
      kinds
        .filter((kind) => kind !== 'sql-40001' || !withoutStatement.includes(probe))
        .filter((kind) => kind !== 'commit-unknown' || purposeOf[probe] !== undefined)
        .map((kind) => ({
          probe,
          kind,
          hit,
          provocation,
          ...(probe === 'records.append.written' ? { variant: provocation } : {}),
        })),
    ),
)
