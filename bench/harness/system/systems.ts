import type { System } from './child.ts'
import { node22 } from './node22.ts'

/** The settings of one system that are tried in the same run; the best of them is published under this name. */
export interface Family {
  readonly name: string
  readonly tried: readonly System[]
}

const node = node22()
const sizes = ['500', '1000', '2000']
const triedBy = (name: string, module: string, variants: readonly string[], more: Partial<System> = {}): Family => ({
  name,
  tried: variants.map((variant) => ({ name: `${name} ${variant}`, module, variant, ...more })),
})

export const pawl: System = { name: 'pawl', module: 'pawl' }
export const graphile: System = { name: 'graphile plain', module: 'graphile' }
export const graphileLocalQueue = triedBy('graphile localQueue', 'graphile', sizes)
export const pgBoss = triedBy('pg-boss', 'pg-boss', sizes, node === undefined ? {} : { node })
export const pgBossNotify: System = { ...pgBoss.tried[0]!, name: 'pg-boss notify', variant: 'notify' }
export const bullmq: System = { name: 'BullMQ', module: 'bullmq' }
export const bullmqPostgres: System = { name: 'BullMQ on PostgreSQL', module: 'bullmq', variant: 'postgres' }
export const agenda: System = { name: 'agenda', module: 'agenda' }
export const dbos: System = { name: 'DBOS', module: 'dbos' }
export const dbosPolls: Family = {
  name: 'DBOS',
  tried: [
    { ...dbos, name: 'DBOS default poll' },
    { ...dbos, name: 'DBOS poll 10 ms', variant: '10' },
  ],
}
export const raw = triedBy('raw', 'raw', sizes)

/** Why a system cannot run here at all, if that is known before it is tried. */
export function whyNot({ module, variant }: System, redis: unknown): string | undefined {
  if (module === 'bullmq' && variant !== 'postgres' && typeof redis === 'string') return redis
  if (module === 'pg-boss' && node === undefined) {
    return `it needs Node 22.12, this is ${process.versions.node}, and npm has no package node-${process.platform}-${process.arch}`
  }
  return undefined
}
