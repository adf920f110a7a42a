// The benchmark of projections: how fast they go through the log, and how soon another process goes on.

import type { Bench } from './harness/bench.ts'
import { failover } from './measures/events/failover.ts'
import { noOp } from './measures/events/no-op.ts'
import { upsert } from './measures/events/upsert.ts'

export const projections: Bench = {
  name: 'projections',
  groups: [noOp, upsert, failover],
  packages: ['@event-driven-io/emmett-postgresql', 'pg', 'pg-logical-replication'],
}
