// What every run has: the build of this tree, one PostgreSQL, Redis where a peer needs it, and the priority that the system grants.

import { mkdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Context } from './context.ts'
import { raisePriority } from './machine/priority.ts'
import { type Redis, startRedis } from './machine/redis.ts'
import { Server } from './machine/server.ts'
import type { Options } from './options.ts'
import { buildOwn } from './system/build.ts'

const folder = join(dirname(dirname(dirname(fileURLToPath(import.meta.url)))), '.pawl', 'bench')

export async function withContext<Value>(
  { rounds, isQuick }: Options,
  use: (context: Context) => Promise<Value>,
  needsRedis = false,
): Promise<Value> {
  const log = (line: string) => process.stderr.write(`${line}\n`)
  mkdirSync(folder, { recursive: true })
  await buildOwn()
  const server = await Server.start(folder)
  const redis = needsRedis ? await startRedis(folder) : 'this benchmark has no use for it'
  const restorePriority = raisePriority([process.pid, server.pid, ...(typeof redis === 'string' ? [] : [redis.pid])])
  const end = async () => {
    restorePriority?.()
    if (typeof redis !== 'string') await redis.stop()
    await server.stop()
  }
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void end().finally(() => process.exit(130)))
  try {
    const about = [
      `PostgreSQL ${await server.release()}`,
      ...(needsRedis ? [said(redis)] : []),
      `Node ${process.versions.node}`,
      `priority ${restorePriority === undefined ? 'as usual' : 'raised'}`,
    ]
    log(about.join('; '))
    return await use({ server, redis, rounds, isQuick, log })
  } finally {
    await end()
  }
}

function said(redis: Redis | string): string {
  return typeof redis === 'string' ? `no Redis: ${redis}` : `Redis ${redis.release}, AOF everysec`
}
