import { existsSync, readdirSync } from 'node:fs'
import { expect, test } from 'vitest'
import { statement } from '../packages/pawl/src/db/statement.ts'
import { checks } from './jobs/checks.ts'
import { nameOfCase } from './scenario.ts'
import { canaryNamed, scenarios } from './scenarios.ts'

test('a canary is known by its name alone, and its story is there', () => {
  const names = scenarios.flatMap((scenario) => scenario.canaries.map((canary) => canary.name))
  expect(new Set(names).size).toBe(names.length)
  for (const scenario of scenarios) {
    for (const canary of scenario.canaries) {
      expect(canaryNamed(canary.name)).toEqual({ name: canary.name, scenario, canary })
      expect(scenario.stories.map((story) => story.name)).toContain(canary.story)
    }
  }
})

/** Statements, whichever capability has them, as they are sent. */
function sentText(file: string): string {
  const folder = new URL('../packages/pawl/src/', import.meta.url)
  const owner = readdirSync(folder).find((name) => existsSync(new URL(`${name}/sql/${file}.sql`, folder)))
  return statement(new URL(`${owner}/any.ts`, folder).href, file).text
}

test.each(scenarios.flatMap((scenario) => scenario.canaries))(
  'the canary $name finds what it rewrites',
  ({ statements = {} }) => {
    for (const [file, rewrite] of Object.entries(statements)) {
      const text = sentText(file)
      expect(rewrite(text, 'w1')).not.toBe(text)
    }
  },
)

test('every check of jobs has a planted bug that it alone must find', () => {
  const { canaries } = scenarios.find((scenario) => scenario.name === 'jobs')!
  const caught = new Set(canaries.map((canary) => canary.caughtBy))
  expect(Object.keys(checks).filter((check) => !caught.has(check))).toEqual([])
})

test('no two cases of a matrix are the same', () => {
  for (const { matrix } of scenarios) {
    const names = matrix.cases.map(nameOfCase)
    expect(new Set(names).size).toBe(names.length)
  }
})
