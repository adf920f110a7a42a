// Every scenario there is.

import { WrongCall } from './arguments.ts'
import { batches } from './batches/scenario.ts'
import type { Canary } from './canary.ts'
import { documents } from './documents/scenario.ts'
import { jobs } from './jobs/scenario.ts'
import { log } from './log/scenario.ts'
import { records } from './records/scenario.ts'
import type { Scenario } from './scenario.ts'

export const scenarios: readonly Scenario[] = [jobs, log, records, batches, documents]

export function scenarioNamed(name: string): Scenario {
  return named('scenario', name, scenarios)
}

export function storyNamed(name: string): { name: string; scenario: Scenario } {
  const all = scenarios.flatMap((scenario) => Object.keys(scenario.stories).map((each) => ({ name: each, scenario })))
  return named('story', name, all)
}

/** The bugs that the stories of a scenario show. */
export function canariesOf({ stories }: Pick<Scenario, 'stories'>): Canary[] {
  return Object.entries(stories).flatMap(([story, { shows = {} }]) => {
    return Object.entries(shows).map(([name, bug]) => ({ name, story, ...bug }))
  })
}

/** No two scenarios have a canary of the same name. */
export function canaryNamed(name: string): { scenario: Scenario; canary: Canary } {
  const all = scenarios.flatMap((scenario) => canariesOf(scenario).map((canary) => ({ name: canary.name, scenario, canary })))
  return named('canary', name, all)
}

function named<T extends { readonly name: string }>(what: string, name: string, list: readonly T[]): T {
  const found = list.find((each) => each.name === name)
  if (found !== undefined) return found
  throw new WrongCall(`There is no ${what} '${name}'. There are: ${list.map((each) => each.name).join(', ')}.`)
}
