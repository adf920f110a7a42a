// Where the faults of a storm of outbox strike.

import { faultsBeside, runnerSlots } from '../events/aims.ts'
import type { Aims } from '../scenario.ts'

export const aims: Aims = {
  slots: runnerSlots,
  probes: {
    kill: [
      'events.sequence.before',
      'events.sequence.after',
      'projections.acquired',
      'projections.batch.before',
      'projections.batch.moved',
      'projections.batch.handled',
      'projections.batch.committed',
      'projections.sink.handled',
      'projections.sink.flushed',
    ],
    pause: ['projections.batch.before', 'projections.sink.handled', 'events.sequence.before'],
    reset: ['events.sequence.before', 'projections.batch.moved', 'projections.sink.handled', 'projections.batch.handled'],
    terminate: ['events.sequence.before', 'projections.batch.handled', 'projections.sink.handled'],
    restart: ['events.sequence.after', 'projections.batch.handled', 'projections.sink.flushed'],
    'commit-unknown': ['events.sequence.before', 'projections.batch.handled', 'projections.sink.handled'],
    'sql-40001': ['events.sequence.before', 'projections.batch.before', 'projections.batch.handled', 'projections.sink.flushed'],
    clock: ['events.sequence.after', 'projections.sink.handled'],
    block: ['projections.batch.before', 'projections.sink.handled'],
    drain: ['projections.batch.before', 'projections.sink.flushed'],
  },
  hitsMax: (probe) => (probe === 'projections.acquired' ? 1 : 8),
  more: faultsBeside,
}
