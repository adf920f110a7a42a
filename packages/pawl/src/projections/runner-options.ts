// Options of a runner, checked and filled in.

import { hostname } from 'node:os'
import { PawlError } from '../errors.ts'
import { keepDaysDefault } from '../events/maintenance.ts'
import { lookEveryMs } from '../kernel/lease.ts'
import { assertKnown, durationIn, whole } from '../kernel/options.ts'
import type { RunnerOptions } from './types.ts'

export const runnerDefaults = {
  leaseMs: 30_000,
  lookMs: 500,
  pollMs: 1000,
  handlerConnectionsMax: 10,
  keepDays: keepDaysDefault,
} as const

const known = new Set(['name', 'lease', 'beatMs', 'lookMs', 'pollMs', 'handlerConnectionsMax', 'keepDays'])

export interface ResolvedRunnerOptions {
  readonly name: string
  readonly leaseMs: number
  readonly beatMs: number
  readonly keeperMs: number
  readonly lookMs: number
  readonly pollMs: number
  readonly handlerConnectionsMax: number
  readonly keepDays: number
}

export function resolveRunnerOptions(options: RunnerOptions): ResolvedRunnerOptions {
  assertKnown('runner()', options, known)
  const leaseMs = durationIn('lease', options.lease ?? runnerDefaults.leaseMs, 100, 3_600_000)
  const beatMs = whole('beatMs', options.beatMs ?? Math.floor(leaseMs / 4), 10, 900_000)
  if (beatMs * 3 > leaseMs)
    throw new PawlError('PAWL_CONFIG', `beatMs (${beatMs}) must be at most a third of the lease (${leaseMs} ms).`)
  return {
    name: options.name ?? `${hostname()}-${process.pid}`,
    leaseMs,
    beatMs,
    keeperMs: options.beatMs ?? lookEveryMs(leaseMs),
    lookMs: whole('lookMs', options.lookMs ?? runnerDefaults.lookMs, 10, 600_000),
    pollMs: whole('pollMs', options.pollMs ?? runnerDefaults.pollMs, 10, 600_000),
    handlerConnectionsMax: whole(
      'handlerConnectionsMax',
      options.handlerConnectionsMax ?? runnerDefaults.handlerConnectionsMax,
      1,
      1000,
    ),
    keepDays: whole('keepDays', options.keepDays ?? runnerDefaults.keepDays, 1, 36_500),
  }
}
