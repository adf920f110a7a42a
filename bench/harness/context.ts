import type { Redis } from './machine/redis.ts'
import type { Database, Server } from './machine/server.ts'
import type { Setup } from './system/protocol.ts'

/** Everything a measure needs from the run that it is part of. */
export interface Context {
  readonly server: Server
  readonly redis: Redis | string
  readonly rounds: number
  /** Small numbers, to see that everything works; the results mean nothing. */
  readonly isQuick: boolean
  readonly log: (line: string) => void
}

/** A count of jobs: the real one, or a tenth or less of it in a quick run. */
export function sized(context: Context, full: number, quick: number): number {
  return context.isQuick ? quick : full
}

/** Pools for enqueuing have ten connections, which is the default of Pawl and of every peer that has a pool. */
export const poolSize = 10

export function setupOf(context: Context, database: Database): Setup {
  return {
    url: database.url,
    redisPort: typeof context.redis === 'string' ? undefined : context.redis.port,
    connections: poolSize,
  }
}
