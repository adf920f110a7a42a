// The benchmark of batches: a batch from its start to its end beside as many plain jobs, and what its parts cost.

import type { Bench } from './harness/bench.ts'
import { completion } from './measures/batches/completion.ts'
import { endToEnd } from './measures/batches/end-to-end.ts'
import { start } from './measures/batches/start.ts'
import { track } from './measures/batches/track.ts'

export const batches: Bench = {
  name: 'batches',
  groups: [endToEnd, completion, start, track],
  packages: ['bullmq', 'graphile-worker', 'ioredis', 'pg', 'pg-copy-streams'],
  needsRedis: true,
}
