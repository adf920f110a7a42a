// Interleaved rounds: in each round every contender runs once, and each round begins with another one, so that a slow minute of the machine
// or the order of the runs favours nobody.

import type { Context } from './context.ts'
import { foreignShare, readCpu } from './machine/cpu.ts'
import { median, rounded } from './report/stats.ts'

/** Named numbers of one run of one contender. */
export type Sample = Readonly<Record<string, number>>

export interface Entry {
  readonly name: string
  /** Why it cannot run here, if that is known. */
  readonly unavailable?: string | undefined
  run(): Promise<Sample>
}

export interface Results {
  /** The median over the rounds, or null if the contender gave none. */
  value(contender: string, metric?: string): number | null
  samples(contender: string, metric?: string): readonly number[]
  /** One line for each contender that could not be measured. */
  readonly failures: ReadonlyMap<string, string>
  /** The median share of the machine that foreign processes used, in percent. */
  readonly noise: number | undefined
}

const failuresMax = 2

export async function interleave(
  context: Context,
  title: string,
  entries: readonly Entry[],
  rounds = context.rounds,
): Promise<Results> {
  const taken = new Map<string, Sample[]>(entries.map(({ name }) => [name, []]))
  const failures = new Map<string, string>()
  const failed = new Map<string, number>()
  const noises: number[] = []
  const roots = [process.pid, context.server.pid, ...(typeof context.redis === 'string' ? [] : [context.redis.pid])]
  for (const { name, unavailable } of entries) {
    if (unavailable !== undefined) failures.set(name, unavailable)
  }
  for (let round = 0; round < rounds; round++) {
    for (let index = 0; index < entries.length; index++) {
      const entry = entries[(index + round) % entries.length]!
      if (entry.unavailable !== undefined || (failed.get(entry.name) ?? 0) >= failuresMax) continue
      if (typeof context.redis !== 'string') await context.redis.flush()
      const before = readCpu(roots)
      try {
        const sample = await entry.run()
        taken.get(entry.name)!.push(sample)
        const noise = foreignShare(before, readCpu(roots))
        if (noise !== undefined) noises.push(noise)
        context.log(
          `  ${title}, round ${round + 1} of ${rounds}: ${entry.name} ${shown(sample)}${noise === undefined ? '' : `  (others ${noise.toFixed(0)} %)`}`,
        )
      } catch (error) {
        failed.set(entry.name, (failed.get(entry.name) ?? 0) + 1)
        const message = error instanceof Error ? error.message : String(error)
        failures.set(entry.name, message)
        context.log(`  ${title}, round ${round + 1} of ${rounds}: ${entry.name} failed: ${message}`)
      }
    }
  }
  return resultsOf(taken, new Map([...failures].filter(([name]) => taken.get(name)!.length === 0)), noises)
}

export function resultsOf(
  taken: ReadonlyMap<string, readonly Sample[]>,
  failures: ReadonlyMap<string, string>,
  noises: readonly number[],
): Results {
  const samples = (contender: string, metric = 'value') => (taken.get(contender) ?? []).flatMap((sample) => sample[metric] ?? [])
  return {
    samples,
    value: (contender, metric) => {
      const values = samples(contender, metric)
      return values.length === 0 ? null : rounded(median(values))
    },
    failures,
    noise: noises.length === 0 ? undefined : median(noises),
  }
}

function shown(sample: Sample): string {
  return Object.entries(sample)
    .map(([metric, value]) => `${metric === 'value' ? '' : `${metric} `}${rounded(value).toLocaleString('en')}`)
    .join(', ')
}

/** A run that several measures are read from is taken once, whichever of them is asked for first. */
export function takenOnce<Value>(take: (context: Context) => Promise<Value>): (context: Context) => Promise<Value> {
  const taken = new WeakMap<Context, Promise<Value>>()
  return (context) => {
    const found = taken.get(context) ?? take(context)
    taken.set(context, found)
    return found
  }
}
