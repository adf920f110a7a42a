// Options of a worker, checked and filled in.

import { hostname } from 'node:os'
import { lookEveryMs } from '../kernel/lease.ts'
import { refused, resolve } from '../kernel/options.ts'
import type { Deciding } from './fetcher.ts'
import type { DefinedKind } from './kinds.ts'
import { workerTable } from './options.ts'
import type { WorkerOptions } from './types.ts'

export interface ResolvedWorkerOptions {
  readonly name: string
  readonly queues: readonly string[]
  readonly concurrency: number
  readonly batchMax: number
  readonly leaseMs: number
  readonly beatMs: number
  readonly keeperMs: number
  readonly pollMs: number
  readonly bufferMs: number
  readonly touchMs: number
  readonly handlerConnectionsMax: number
  readonly exitWhenBlocked: boolean
  readonly keepDays: number
  readonly deciding: Deciding
}

export function resolveWorkerOptions(given: WorkerOptions, kinds: ReadonlyMap<string, DefinedKind>): ResolvedWorkerOptions {
  const { lease: leaseMs, ...options } = resolve('worker', workerTable, given)
  const beatMs = options.beatMs ?? Math.floor(leaseMs / 4)
  if (beatMs * 3 > leaseMs) throw refused('worker', `beatMs (${beatMs}) must be at most a third of the lease (${leaseMs} ms)`)
  const queues = options.queues ?? [...kinds.values()].map(({ queue }) => queue)
  if (queues.length === 0)
    throw refused('worker', 'queues must not be empty: name a queue, or leave queues out to work the queues of the kinds')
  return {
    ...options,
    name: options.name ?? `${hostname()}-${process.pid}`,
    queues: [...new Set(queues)],
    leaseMs,
    beatMs,
    keeperMs: options.beatMs ?? lookEveryMs(leaseMs),
    // The shorter the lease, the sooner another may take a job over: the progress that it finds is at most a third of a lease old.
    touchMs: Math.min(options.touchMs, Math.floor(leaseMs / 3)),
    handlerConnectionsMax: options.handlerConnectionsMax ?? options.concurrency,
  }
}
