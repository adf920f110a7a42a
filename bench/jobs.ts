// The benchmark of jobs: Pawl, peers and raw loops in one run on one embedded server.

import type { Bench } from './harness/bench.ts'
import { bulk } from './measures/bulk.ts'
import { drain } from './measures/drain.ts'
import { drainTwo } from './measures/drain-two.ts'
import { drainTx } from './measures/drain-tx.ts'
import { idle } from './measures/idle.ts'
import { kill } from './measures/kill.ts'
import { memory } from './measures/memory.ts'
import { oneByOne } from './measures/one-by-one.ts'
import { pickUp } from './measures/pick-up.ts'
import { scale } from './measures/scale.ts'
import { stranger } from './measures/stranger.ts'
import { sustained } from './measures/sustained.ts'

export const jobs: Bench = {
  name: 'jobs',
  groups: [drain, drainTwo, drainTx, scale, stranger, bulk, oneByOne, sustained, pickUp, idle, kill, memory],
  packages: [
    '@agendajs/postgres-backend',
    '@dbos-inc/dbos-sdk',
    'agenda',
    'bullmq',
    'graphile-worker',
    'ioredis',
    'pg',
    'pg-boss',
    'pg-copy-streams',
  ],
  needsRedis: true,
}
