// The benchmark of jobs: Pawl, peers and raw loops in one run on one embedded server.

import { mkdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Context } from './harness/context.ts'
import type { Measure } from './harness/measure.ts'
import type { Options } from './harness/options.ts'
import { raisePriority } from './harness/priority.ts'
import { publish } from './harness/publish.ts'
import { startRedis } from './harness/redis.ts'
import { shown, toJson, toTable } from './harness/report.ts'
import { Server } from './harness/server.ts'
import { bulk } from './measures/bulk.ts'
import { conflicts } from './measures/conflicts.ts'
import { drain } from './measures/drain.ts'
import { drainTwo } from './measures/drain-two.ts'
import { drainTx } from './measures/drain-tx.ts'
import type { Group } from './measures/group.ts'
import { kill } from './measures/kill.ts'
import { memory } from './measures/memory.ts'
import { oneByOne } from './measures/one-by-one.ts'
import { pickUp } from './measures/pick-up.ts'
import { stranger } from './measures/stranger.ts'
import { sustained } from './measures/sustained.ts'

const groups: readonly Group[] = [drain, drainTwo, drainTx, stranger, bulk, oneByOne, sustained, pickUp, kill, conflicts, memory]
const folder = join(dirname(dirname(fileURLToPath(import.meta.url))), '.pawl', 'bench')

/** True if every bar was met. */
export async function jobs(options: Options): Promise<boolean> {
  const chosen = choose(options.only)
  const log = (line: string) => process.stderr.write(`${line}\n`)
  mkdirSync(folder, { recursive: true })
  const server = await Server.start(folder)
  const redis = await startRedis(folder)
  const restorePriority = raisePriority([process.pid, server.pid, ...(typeof redis === 'string' ? [] : [redis.pid])])
  const end = async () => {
    restorePriority?.()
    if (typeof redis !== 'string') await redis.stop()
    await server.stop()
  }
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void end().finally(() => process.exit(130)))
  try {
    const servers = { PostgreSQL: await server.release(), ...(typeof redis === 'string' ? {} : { Redis: redis.release }) }
    log(
      `PostgreSQL ${servers.PostgreSQL}; ${typeof redis === 'string' ? `no Redis: ${redis}` : `Redis ${redis.release}, AOF everysec`}; Node ${process.versions.node}; priority ${restorePriority === undefined ? 'as usual' : 'raised'}`,
    )
    const context: Context = { server, redis, rounds: options.rounds, isQuick: options.isQuick, log }
    const measures = await runAll(context, chosen)
    if (options.mayWrite)
      publish('jobs', measures, { rounds: options.rounds, servers, order: groups.flatMap((group) => group.measures) })
    process.stdout.write(`${options.isJson ? toJson('jobs', measures) : toTable(measures)}\n`)
    return measures.every(({ met }) => met)
  } finally {
    await end()
  }
}

async function runAll(context: Context, chosen: readonly Group[]): Promise<Measure[]> {
  const measures: Measure[] = []
  for (const group of chosen) {
    context.log(group.name)
    const taken = await group.run(context)
    measures.push(...taken)
    for (const { name, pawl, unit, bar, met, detail } of taken) {
      context.log(`${met ? 'met    ' : 'NOT MET'} ${name}: ${shown(pawl)} ${unit}  [${bar}]`)
      for (const note of detail.notes) context.log(`        ${note}`)
    }
  }
  return measures
}

function choose(only: readonly string[]): readonly Group[] {
  if (only.length === 0) return groups
  const unknown = only.filter((name) => !groups.some((group) => group.name === name || group.measures.includes(name)))
  if (unknown.length > 0) {
    throw new Error(
      `There is no measure '${unknown.join("', '")}'. There are: ${groups.flatMap(({ measures }) => measures).join(', ')}.`,
    )
  }
  return groups.filter((group) => only.some((name) => group.name === name || group.measures.includes(name)))
}
