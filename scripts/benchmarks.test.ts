import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { currentCommit } from '../bench/harness/commit.ts'
import { toMarkdown } from '../bench/harness/markdown.ts'
import type { Measure } from '../bench/harness/measure.ts'
import type { Published } from '../bench/harness/publish.ts'
import { oldResults, readPublished } from './benchmarks.ts'
import { root } from './phase.ts'

const page = readFileSync(join(root, 'docs', 'benchmarks.md'), 'utf8')

test.each(readPublished().map((published) => [published.bench, published] as const))(
  'the page shows the results of %s as they are stored',
  (name, published) => {
    expect(page).toContain(`<!-- bench ${name}: written by npm run bench -- ${name} --write -->\n${toMarkdown(published)}\n<!--`)
  },
)

test('every published result names the commit that it was measured at', () => {
  const without = readPublished().flatMap(({ bench, measures }) =>
    measures.filter(({ detail }) => !/^[0-9a-f]{10}\+?$/.test(detail.commit ?? '')).map(({ name }) => `${bench}: ${name}`),
  )
  expect(without).toEqual([])
})

test('results of earlier commits are told, those of this one are not', () => {
  const of = (bench: string, commit?: string) =>
    ({ bench, measures: [{ detail: commit === undefined ? {} : { commit } } as Measure] }) as unknown as Published
  const ages: Record<string, number | undefined> = { now: 0, old: 87 }
  expect(oldResults([of('a', 'now'), of('b', 'old'), of('c'), of('d', 'foreign')], (commit) => ages[commit])).toEqual([
    'b: 87 commits older than the code',
    'c: measured at a commit that this clone does not have',
    'd: measured at a commit that this clone does not have',
  ])
})

test('a clone knows its commit', () => {
  expect(currentCommit() ?? '0123456789').toMatch(/^[0-9a-f]{10}\+?$/)
})
