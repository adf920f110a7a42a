// Options of a runner, checked and filled in.

import { hostname } from 'node:os'
import { resolveBeat } from '../jobs/worker-options.ts'
import { resolve } from '../kernel/options.ts'
import { runnerTable } from './options.ts'
import type { RunnerOptions } from './types.ts'

export type ResolvedRunnerOptions = ReturnType<typeof resolveRunnerOptions>

export function resolveRunnerOptions(given: RunnerOptions) {
  const { lease, tuning, ...options } = resolve('runner', runnerTable, given)
  return {
    ...options,
    ...tuning,
    ...resolveBeat('runner', lease, tuning.beatMs),
    name: options.name ?? `${hostname()}-${process.pid}`,
  }
}
