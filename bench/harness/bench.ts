// One benchmark: its measures on one embedded server, reported and, if asked for, kept.

import { mkdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Group } from '../measures/group.ts'
import type { Context } from './context.ts'
import type { Measure } from './measure.ts'
import type { Options } from './options.ts'
import { raisePriority } from './priority.ts'
import { publish } from './publish.ts'
import { type Redis, startRedis } from './redis.ts'
import { shown, toJson, toTable } from './report.ts'
import { Server } from './server.ts'

const folder = join(dirname(dirname(dirname(fileURLToPath(import.meta.url)))), '.pawl', 'bench')

export interface Bench {
  readonly name: string
  readonly groups: readonly Group[]
  /** The packages of bench/package.json that it runs, whose releases are kept with its results. */
  readonly packages: readonly string[]
  readonly needsRedis?: boolean
}

/** True if every bar was met. */
export async function runBench({ name, groups, packages, needsRedis = false }: Bench, options: Options): Promise<boolean> {
  const chosen = choose(groups, options.only)
  const log = (line: string) => process.stderr.write(`${line}\n`)
  mkdirSync(folder, { recursive: true })
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
    const servers = { PostgreSQL: await server.release(), ...(typeof redis === 'string' ? {} : { Redis: redis.release }) }
    log(
      [
        `PostgreSQL ${servers.PostgreSQL}`,
        ...(needsRedis ? [said(redis)] : []),
        `Node ${process.versions.node}`,
        `priority ${restorePriority === undefined ? 'as usual' : 'raised'}`,
      ].join('; '),
    )
    const context: Context = { server, redis, rounds: options.rounds, isQuick: options.isQuick, log }
    const measures = await runAll(context, chosen)
    if (options.mayWrite) {
      const order = groups.flatMap((group) => group.measures)
      publish(name, measures, { rounds: options.rounds, servers, order, packages })
    }
    process.stdout.write(`${options.isJson ? toJson(name, measures) : toTable(measures)}\n`)
    return measures.every(({ met }) => met)
  } finally {
    await end()
  }
}

function said(redis: Redis | string): string {
  return typeof redis === 'string' ? `no Redis: ${redis}` : `Redis ${redis.release}, AOF everysec`
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

function choose(groups: readonly Group[], only: readonly string[]): readonly Group[] {
  if (only.length === 0) return groups
  const unknown = only.filter((name) => !groups.some((group) => group.name === name || group.measures.includes(name)))
  if (unknown.length > 0) {
    throw new Error(
      `There is no measure '${unknown.join("', '")}'. There are: ${groups.flatMap(({ measures }) => measures).join(', ')}.`,
    )
  }
  return groups.filter((group) => only.some((name) => group.name === name || group.measures.includes(name)))
}
