// The module of the keeper's thread: the keeper of the kernel, with the watch and the sweeps of jobs.

import { type SweepLimits, Watch } from './jobs/watch.ts'
import { keep } from './kernel/keeper/thread.ts'

keep(({ limits, ...options }) => new Watch({ ...options, ...(limits as SweepLimits) }))
