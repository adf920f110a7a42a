// One benchmark: its measures on one embedded server, reported and, if asked for, kept.

import type { Group } from '../measures/group.ts'
import type { Context } from './context.ts'
import type { Options } from './options.ts'
import type { Measure } from './report/measure.ts'
import { publish } from './report/publish.ts'
import { shown, toJson, toTable, verdict } from './report/report.ts'
import { withContext } from './run.ts'

export interface Bench {
  readonly name: string
  readonly groups: readonly Group[]
  /** The packages of bench/package.json that it runs, whose releases are kept with its results. */
  readonly packages: readonly string[]
  readonly needsRedis?: boolean
}

export async function runBench({ name, groups, packages, needsRedis = false }: Bench, options: Options): Promise<void> {
  const chosen = choose(groups, options.only)
  await withContext(
    options,
    async (context) => {
      const measures = await runAll(context, chosen)
      if (options.mayWrite) {
        const order = groups.flatMap((group) => group.measures)
        publish(name, measures, { servers: await serversOf(context), order, packages })
      }
      process.stdout.write(`${options.isJson ? toJson(name, measures) : toTable(measures)}\n`)
    },
    needsRedis,
  )
}

async function serversOf({ server, redis }: Context): Promise<Record<string, string>> {
  return { PostgreSQL: await server.release(), ...(typeof redis === 'string' ? {} : { Redis: redis.release }) }
}

async function runAll(context: Context, chosen: readonly Group[]): Promise<Measure[]> {
  const measures: Measure[] = []
  for (const group of chosen) {
    context.log(group.name)
    const taken = await group.run(context)
    measures.push(...taken)
    for (const one of taken) context.log(`${verdict(one).padEnd(8)}${one.name}: ${shown(one.pawl)} ${one.unit}  [${one.bar}]`)
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
