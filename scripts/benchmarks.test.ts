import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { bestOf } from '../bench/harness/report/best.ts'
import { currentCommit } from '../bench/harness/report/commit.ts'
import { olderThanCode, toMarkdown } from '../bench/harness/report/markdown.ts'
import { measure } from '../bench/harness/report/measure.ts'
import { isOld, type Published, readPublished } from '../bench/harness/report/publish.ts'
import { resultsOf } from '../bench/harness/rounds.ts'
import type { Family } from '../bench/harness/system/systems.ts'
import { root } from './phase.ts'

const page = readFileSync(join(root, 'docs', 'benchmarks.md'), 'utf8')
const results = (samples: Readonly<Record<string, readonly number[]>>) =>
  resultsOf(new Map(Object.entries(samples).map(([name, values]) => [name, values.map((value) => ({ value }))])), new Map(), [])
const publishedAt = (...commits: (string | undefined)[]): Published => ({
  bench: 'a',
  machine: { cpu: 'CPU', cores: 2, memoryGb: 8, system: 'linux' },
  releases: {},
  measures: commits.map((commit, index) => {
    const one = measure({ name: `m${index}`, unit: 's', better: 'lower', results: results({ pawl: [1.234, 1.1, 99] }) })
    return { ...one, detail: { ...one.detail, ...(commit === undefined ? {} : { commit }), date: '2026-01-01' } }
  }),
})

test.skipIf(currentCommit() === undefined).each(readPublished().map((published) => [published.bench, published] as const))(
  'the page shows the results of %s and whether they are old',
  (name, published) => {
    const table = toMarkdown(published, isOld(published))
    expect(page, 'run `npm run bench -- page`').toContain(
      `<!-- bench ${name}: written by npm run bench -- ${name} --write -->\n${table}\n<!--`,
    )
  },
)

test('every published result names the commit that it was measured at', () => {
  const without = readPublished().flatMap(({ bench, measures }) =>
    measures.filter(({ detail }) => !/^[0-9a-f]{10}\+?$/.test(detail.commit ?? '')).map(({ name }) => `${bench}: ${name}`),
  )
  expect(without).toEqual([])
})

test('results of an earlier, unknown or unstored commit are old', () => {
  const ages: Record<string, number | undefined> = { now: 0, old: 87 }
  const old = (...commits: (string | undefined)[]) => isOld(publishedAt(...commits), (commit) => ages[commit])
  expect([old('now', 'now'), old('now', 'old'), old('foreign'), old(undefined)]).toEqual([false, true, true, true])
})

test('a table says that it is old, its commit, medians and spread', () => {
  const table = toMarkdown(publishedAt('0123456789'), true)
  expect(table.startsWith(olderThanCode)).toBe(true)
  expect(toMarkdown(publishedAt('0123456789'), false)).not.toContain(olderThanCode)
  expect(table).toContain('commit 0123456789 on 2026-01-01')
  expect(table).toContain('| **1.2** (1.1–99) |')
})

test('of the settings that were tried, the best median is published', () => {
  const family: Family = {
    name: 'peer',
    tried: ['500', '1000'].map((variant) => ({ name: `peer ${variant}`, module: 'x', variant })),
  }
  const { results: best, notes } = bestOf(results({ pawl: [5], 'peer 500': [1, 9, 2], 'peer 1000': [3, 3, 4] }), [family])
  expect([best.value('peer'), best.samples('peer'), best.value('pawl')]).toEqual([3, [3, 3, 4], 5])
  expect(notes).toEqual(['peer 1000 is shown; 500 had 2'])
})

test('a clone knows its commit', () => {
  expect(currentCommit() ?? '0123456789').toMatch(/^[0-9a-f]{10}\+?$/)
})
