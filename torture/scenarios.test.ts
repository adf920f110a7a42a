import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { checks as batchesChecks } from './batches/checks.ts'
import { sentTexts } from './canary.ts'
import { checks as documentsChecks } from './documents/checks.ts'
import { checks as jobsChecks } from './jobs/checks.ts'
import { checks as logChecks } from './log/checks.ts'
import { checks as recordsChecks } from './records/checks.ts'
import { nameOfCase } from './scenario.ts'
import { canariesOf, canaryNamed, scenarioNamed, scenarios } from './scenarios.ts'

const canaries = scenarios.flatMap(canariesOf)

test('canaries have different names, and the README has each', () => {
  const names = canaries.map(({ name }) => name)
  expect(new Set(names).size).toBe(names.length)
  const readme = readFileSync(new URL('./README.md', import.meta.url), 'utf8')
  expect(names.filter((name) => readme.split(`\n| ${name} `).length !== 2)).toEqual([])
})

test('a canary is found by its name alone', () => {
  for (const scenario of scenarios)
    for (const canary of canariesOf(scenario)) expect(canaryNamed(canary.name)).toEqual({ name: canary.name, scenario, canary })
})

test.each(canaries)('the canary $name finds what it rewrites', ({ statements = {} }) => {
  for (const [file, rewrite] of Object.entries(statements)) {
    const texts = sentTexts(file)
    expect(texts.length).toBeGreaterThan(0)
    for (const text of texts) expect(rewrite(text, 'w1')).not.toBe(text)
  }
})

test.each([
  ['jobs', jobsChecks],
  ['log', logChecks],
  ['records', recordsChecks],
  ['batches', batchesChecks],
  ['documents', documentsChecks],
])('every check of %s has a canary that it alone finds', (name, checks) => {
  const caught = new Set(canariesOf(scenarioNamed(name)).map(({ caughtBy }) => caughtBy))
  expect(Object.keys(checks).filter((check) => !caught.has(check))).toEqual([])
})

test('no two cases of a matrix are the same', () => {
  for (const { matrix } of scenarios) {
    const names = matrix.cases.map(nameOfCase)
    expect(new Set(names).size).toBe(names.length)
  }
})
