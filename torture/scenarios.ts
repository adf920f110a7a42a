// Every scenario there is. A capability that has one is tortured by name, its canaries are listed, and `npm run test:full` plays its seeds.

import type { Canary } from './canary.ts'
import { jobs } from './jobs/scenario.ts'
import { outbox } from './outbox/scenario.ts'
import { projections } from './projections/scenario.ts'
import { records } from './records/scenario.ts'
import type { Scenario, Story } from './scenario.ts'
import { WrongCall } from './wrong-call.ts'

export const scenarios: readonly Scenario[] = [jobs, outbox, projections, records]

export function scenarioNamed(name: string): Scenario {
  return named('scenario', name, scenarios)
}

export function storyNamed(name: string): { scenario: Scenario; story: Story } {
  const all = scenarios.flatMap((scenario) => scenario.stories.map((story) => ({ name: story.name, scenario, story })))
  return named('story', name, all)
}

/** A canary is known by its name alone: no two scenarios have one of the same name. */
export function canaryNamed(name: string): { scenario: Scenario; canary: Canary } {
  const all = scenarios.flatMap((scenario) => scenario.canaries.map((canary) => ({ name: canary.name, scenario, canary })))
  return named('canary', name, all)
}

function named<T extends { readonly name: string }>(what: string, name: string, list: readonly T[]): T {
  const found = list.find((each) => each.name === name)
  if (found !== undefined) return found
  throw new WrongCall(`There is no ${what} '${name}'. There are: ${list.map((each) => each.name).join(', ')}.`)
}
