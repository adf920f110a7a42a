import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { root } from '../phase.ts'
import { fullSteps, partOf, type Step } from './full.ts'
import { smoke, smokePattern, tierOf } from './tiers.ts'

test('the tier of a test follows from its file name', () => {
  expect(['a/x.test.ts', 'a/x.pg.test.ts', 'a/x.slow.test.ts'].map(tierOf)).toEqual(['unit', 'pg', 'slow'])
})

test('the smoke names files of the slow tier that exist', () => {
  expect(smoke.filter(({ file }) => tierOf(file) !== 'slow' || !existsSync(join(root, file)))).toEqual([])
})

test('the smoke pattern matches its titles, inside suites too, and no others', () => {
  const pattern = new RegExp(smokePattern([{ file: 'f', titles: ['suite: a > [K8] (one)', 'two.'] }]))
  expect(
    ['suite: a > [K8] (one) more', 'suite: a [K8] (one)', 'two.', 'twos', '[K8] (one)'].map((title) => pattern.test(title)),
  ).toEqual([true, true, true, false, false])
})

const noTests = () => Promise.resolve({ passed: 0, failed: 0, skipped: 0 })
const step = (name: string, minutes: number): Step => ({ name, about: 'all', minutes, run: noTests })

test('the parts of a full run hold each step once, evenly', () => {
  const steps = [5, 20, 14, 14, 3, 9, 7, 6].map((minutes, index) => step(`s${index}`, minutes))
  const parts = [1, 2, 3].map((number) => partOf(steps, `${number}/3`))
  expect(
    parts
      .flat()
      .map(({ name }) => name)
      .sort(),
  ).toEqual(steps.map(({ name }) => name))
  const minutes = parts.map((part) => part.reduce((sum, each) => sum + each.minutes, 0))
  expect(Math.max(...minutes) - Math.min(...minutes)).toBeLessThanOrEqual(5)
})

test.each(['0/3', '4/3', '2', 'a/b', '1/0'])('a part like %s is refused with an example', (part) => {
  expect(() => partOf([], part)).toThrow(`--part must be like 2/3, got '${part}'.`)
})

test('a full run of one folder has its tests and torture scenario', () => {
  const names = fullSteps(['--full', '--only', 'jobs'], noTests).map(({ name }) => name)
  expect(names).toEqual(['tests', 'slow tests', 'seeds', 'stories', 'matrix', 'canaries'])
})

test.each(['events', 'projections', 'log'])('a full run of %s has the torture scenario log', (only) => {
  const about = fullSteps(['--full', '--only', only], noTests).map((step) => `${step.about} ${step.name}`)
  expect(about).toContain('log seeds')
})

test('a full run of an unknown folder runs tests by path', () => {
  expect(fullSteps(['--full', '--only', 'kernel'], noTests).map(({ name }) => name)).toEqual(['tests', 'slow tests'])
})
