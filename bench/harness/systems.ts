import type { System } from './child.ts'
import { node22 } from './node22.ts'

export const pawl: System = { name: 'pawl', module: 'pawl' }
export const graphile: System = { name: 'graphile plain', module: 'graphile' }
export const graphileLocalQueue: System = { name: 'graphile localQueue', module: 'graphile', variant: 'localQueue' }
export const bullmq: System = { name: 'BullMQ', module: 'bullmq' }
export const agenda: System = { name: 'agenda', module: 'agenda' }
export const dbos: System = { name: 'DBOS', module: 'dbos' }

const node = node22()
export const pgBoss: System = { name: 'pg-boss', module: 'pg-boss', ...(node === undefined ? {} : { node }) }

/** Pawl's default for the most jobs of one claim: the raw loop takes as many, so that neither gains by the size of its batches. */
export const pawlBatch = 1_000
export const raw: System = { name: 'raw', module: 'raw', variant: String(pawlBatch) }
export const raw500: System = { name: 'raw batch 500', module: 'raw', variant: '500' }

/** Why a system cannot run here at all, if that is known before it is tried. */
export function whyNot(system: System, redis: unknown): string | undefined {
  if (system.module === 'bullmq' && typeof redis === 'string') return redis
  if (system.module === 'pg-boss' && node === undefined) {
    return `it needs Node 22.12, this is ${process.versions.node}, and npm has no package node-${process.platform}-${process.arch}`
  }
  return undefined
}
