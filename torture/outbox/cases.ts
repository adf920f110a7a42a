// The crash matrix of outbox as data: the probes of appending, sequencing and handing over. Those of projections are its neighbour's.
// Left out: events.rebase.after and events.retain.*, which only a restore or a day's end brings about; their own tests play them.

import type { ProbeName } from 'pawl/testing'
import { crashCases } from '../events/crash-cases.ts'
import type { Case } from '../scenario.ts'

const probes: readonly ProbeName[] = [
  'events.append.sent',
  'events.sequence.before',
  'events.sequence.after',
  'projections.sink.handled',
  'projections.sink.flushed',
]

export const cases: readonly Case[] = crashCases(probes, { 'events.append.sent': 'append' })
