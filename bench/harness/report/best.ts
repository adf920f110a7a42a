// Peers run with several settings in the same rounds, and the best of them is published.

import type { Results } from '../rounds.ts'
import type { Family } from '../system/systems.ts'
import { shown } from './report.ts'

/** The same results with each family as one contender: the member with the best median of a metric. */
export function bestOf(
  results: Results,
  families: readonly Family[],
  { metric, better = 'higher' }: { metric?: string; better?: 'higher' | 'lower' } = {},
): { readonly results: Results; readonly notes: readonly string[] } {
  const ranked = new Map(families.map((family) => [family.name, rank(results, family, metric, better)]))
  const of = (contender: string) => ranked.get(contender)?.[0]?.name ?? contender
  const failures = new Map(results.failures)
  for (const { name, tried } of families) {
    const why = results.failures.get(tried[0]!.name)
    if (ranked.get(name)!.length === 0 && why !== undefined) failures.set(name, why)
  }
  return {
    results: {
      samples: (contender, name) => results.samples(of(contender), name),
      value: (contender, name) => results.value(of(contender), name),
      failures,
      noise: results.noise,
    },
    notes: [...ranked].flatMap(([name, [best, ...others]]) =>
      best === undefined || others.length === 0
        ? []
        : [
            `${best.name} is shown; ${others.map((other) => `${other.name.slice(name.length + 1)} had ${shown(other.value)}`).join(', ')}`,
          ],
    ),
  }
}

/** Those that were measured, best first. */
function rank(results: Results, { tried }: Family, metric: string | undefined, better: 'higher' | 'lower') {
  const sign = better === 'higher' ? -1 : 1
  return tried
    .flatMap(({ name }) => {
      const value = results.value(name, metric)
      return value === null ? [] : [{ name, value }]
    })
    .sort((a, b) => sign * (a.value - b.value))
}
