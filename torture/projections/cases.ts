// The crash matrix of projections as data. The probes of a sink's calls are in that of outbox.

import type { ProbeName } from 'pawl/testing'
import { crashCases } from '../events/crash-cases.ts'
import type { Case } from '../scenario.ts'

const probes: readonly ProbeName[] = [
  'projections.acquired',
  'projections.release.before',
  'projections.batch.before',
  'projections.batch.moved',
  'projections.event.handled',
  'projections.batch.handled',
  'projections.batch.committed',
  'projections.fail.before',
  'projections.park.before',
  'projections.unpark.handled',
  'projections.state.taken',
  'projections.state.handled',
  'projections.rebuild.held',
  'projections.switch.before_commit',
]

export const cases: readonly Case[] = crashCases(probes, {
  'projections.release.before': 'stop',
  'projections.fail.before': 'bad event',
  'projections.park.before': 'bad event',
  'projections.unpark.handled': 'bad event',
  'projections.rebuild.held': 'rebuild',
  'projections.switch.before_commit': 'rebuild',
})
