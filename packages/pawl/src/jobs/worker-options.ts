// Options of a worker, checked and filled in.

import { hostname } from 'node:os'
import { assertKnown, whole } from '../config.ts'
import { PawlError } from '../errors.ts'
import { durationMs } from '../kernel/clock.ts'
import type { DefinedKind } from './kinds.ts'
import type { WorkerOptions } from './types.ts'

export const workerDefaults = {
  concurrency: 20,
  batchMax: 1000,
  leaseMs: 30_000,
  beatMs: 500,
  pollMs: 2000,
  bufferMs: 10_000,
  touchMs: 5000,
  keepDays: 14,
  graceMs: 30_000,
} as const

const known = new Set([
  'name',
  'queues',
  'concurrency',
  'batchMax',
  'lease',
  'beatMs',
  'pollMs',
  'bufferMs',
  'touchMs',
  'handlerConnectionsMax',
  'exitWhenBlocked',
  'keepDays',
])

export interface ResolvedWorkerOptions {
  readonly name: string
  readonly queues: readonly string[]
  readonly concurrency: number
  readonly batchMax: number
  readonly leaseMs: number
  readonly beatMs: number
  readonly pollMs: number
  readonly bufferMs: number
  readonly touchMs: number
  readonly handlerConnectionsMax: number
  readonly exitWhenBlocked: boolean
  readonly keepDays: number
}

export function resolveWorkerOptions(options: WorkerOptions, kinds: ReadonlyMap<string, DefinedKind>): ResolvedWorkerOptions {
  assertKnown('worker()', options, known)
  const concurrency = whole('concurrency', options.concurrency ?? workerDefaults.concurrency, 1, 10_000)
  const leaseMs = whole('lease', durationMs(options.lease ?? workerDefaults.leaseMs), 100, 3_600_000)
  const beatMs = whole('beatMs', options.beatMs ?? Math.min(workerDefaults.beatMs, Math.floor(leaseMs / 4)), 10, 600_000)
  if (beatMs * 3 > leaseMs)
    throw new PawlError('PAWL_CONFIG', `beatMs (${beatMs}) must be at most a third of the lease (${leaseMs} ms).`)
  return {
    name: options.name ?? `${hostname()}-${process.pid}`,
    queues: checkedQueues(options.queues ?? [...kinds.values()].map((kind) => kind.queue)),
    concurrency,
    batchMax: whole('batchMax', options.batchMax ?? workerDefaults.batchMax, 1, 5000),
    leaseMs,
    beatMs,
    pollMs: whole('pollMs', options.pollMs ?? workerDefaults.pollMs, 10, 3_600_000),
    bufferMs: whole('bufferMs', options.bufferMs ?? workerDefaults.bufferMs, 10, 3_600_000),
    // Longer than the lease it would say nothing in time; the interval shrinks with it.
    touchMs: Math.min(whole('touchMs', options.touchMs ?? workerDefaults.touchMs, 1, 3_600_000), Math.floor(leaseMs / 3)),
    handlerConnectionsMax: whole('handlerConnectionsMax', options.handlerConnectionsMax ?? concurrency, 1, 10_000),
    exitWhenBlocked: options.exitWhenBlocked ?? false,
    keepDays: whole('keepDays', options.keepDays ?? workerDefaults.keepDays, 1, 36_500),
  }
}

function checkedQueues(names: readonly string[]): string[] {
  if (names.length === 0)
    throw new PawlError(
      'PAWL_CONFIG',
      'queues is empty, so this worker would do nothing: name one, or leave it out for those of the kinds.',
    )
  // No job gets into another: an enqueue has the same limit.
  const wrong = names.find((name) => name.length === 0 || name.length > 100)
  if (wrong !== undefined)
    throw new PawlError('PAWL_CONFIG', `The name of a queue has 1 to 100 characters; this one has ${wrong.length}.`)
  return [...new Set(names)]
}
