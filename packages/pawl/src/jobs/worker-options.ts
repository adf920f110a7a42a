// Options of a worker, checked and filled in.

import { hostname } from 'node:os'
import { lookEveryMs } from '../kernel/lease.ts'
import { refused, resolve } from '../kernel/options.ts'
import type { DefinedKind } from './kinds.ts'
import { workerTable } from './options.ts'
import type { WorkerOptions } from './types.ts'

export type ResolvedWorkerOptions = ReturnType<typeof resolveWorkerOptions>

export function resolveWorkerOptions(given: WorkerOptions, kinds: ReadonlyMap<string, DefinedKind>) {
  const { lease: leaseMs, tuning, ...options } = resolve('worker', workerTable, given)
  const queues = options.queues ?? [...kinds.values()].map(({ queue }) => queue)
  if (queues.length === 0)
    throw refused('worker', 'queues must not be empty: name a queue, or leave queues out to work the queues of the kinds')
  return {
    ...options,
    ...tuning,
    ...resolveBeat('worker', leaseMs, tuning.beatMs),
    name: options.name ?? `${hostname()}-${process.pid}`,
    queues: [...new Set(queues)],
    // The shorter the lease, the sooner another may take a job over: the progress that it finds is at most a third of a lease old.
    touchMs: Math.min(tuning.touchMs, Math.floor(leaseMs / 3)),
    handlerConnectionsMax: tuning.handlerConnectionsMax ?? options.concurrency,
  }
}

/** How often a lease is renewed, and how often its keeper checks. */
export function resolveBeat(call: string, leaseMs: number, given: number | undefined) {
  const beatMs = given ?? Math.floor(leaseMs / 4)
  if (beatMs * 3 > leaseMs) throw refused(call, `tuning.beatMs (${beatMs}) must be at most a third of the lease (${leaseMs} ms)`)
  return { leaseMs, beatMs, keeperMs: given ?? lookEveryMs(leaseMs) }
}
