import { expect, test } from 'vitest'
import { sentTexts } from './canary.ts'
import { checks as jobsChecks } from './jobs/checks.ts'
import { checks as outboxChecks } from './outbox/checks.ts'
import { checks as projectionsChecks } from './projections/checks.ts'
import { checks as recordsChecks } from './records/checks.ts'
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

test.each(scenarios.flatMap((scenario) => scenario.canaries))(
  'the canary $name finds what it rewrites',
  ({ statements = {} }) => {
    for (const [file, rewrite] of Object.entries(statements)) {
      const texts = sentTexts(file)
      expect(texts.length).toBeGreaterThan(0)
      for (const text of texts) expect(rewrite(text, 'w1')).not.toBe(text)
    }
  },
)

test.each([
  ['jobs', jobsChecks],
  ['outbox', outboxChecks],
  ['projections', projectionsChecks],
  ['records', recordsChecks],
])('every check of %s has a planted bug that it alone must find', (name, checks) => {
  const { canaries } = scenarios.find((scenario) => scenario.name === name)!
  const caught = new Set(canaries.map((canary) => canary.caughtBy))
  expect(Object.keys(checks).filter((check) => !caught.has(check))).toEqual([])
})

test('no two cases of a matrix are the same', () => {
  for (const { matrix } of scenarios) {
    const names = matrix.cases.map(nameOfCase)
    expect(new Set(names).size).toBe(names.length)
  }
})
