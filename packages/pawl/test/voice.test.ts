// How Pawl sounds: words that messages never use and comments and docs use less and less, and titles of tests that fit one breath.
// Every number may only fall. Where a test fails: name the thing that acts, and use PostgreSQL's and Node's own words.

import { dirname } from 'node:path'
import { expect, test } from 'vitest'
import { codeOf, commentsOf, isTest, sourcePlaces, textsIn, titlesOf, wordsOf } from './support/measures.ts'

function countOf(word: string, text: string): number {
  return text.match(new RegExp(`\\b${word.replace(' ', '\\s+')}\\b`, 'gi'))?.length ?? 0
}

/** Not the words of a native speaker, and what to say instead. */
const instead = {
  whoever: 'the thing that acts',
  somebody: 'the thing that acts',
  nobody: 'no process, no caller, nothing',
  anew: 'again',
  dear: 'expensive',
  'a text': 'a string',
  texts: 'strings',
  'of no use': 'useless',
  'for ever': 'forever',
  meanwhile: 'since then, in the same time',
  'under way': 'in progress',
  trouble: 'error',
  'so many': 'the number',
  'so long': 'the duration',
  behind: 'after',
  look: 'poll, scan',
  looks: 'polls, scans',
} as const
type Word = keyof typeof instead
const words = Object.keys(instead) as Word[]

/** In comments of the sources, tests included, and in docs/. */
const most: Readonly<Record<Word, { readonly comments: number; readonly docs: number }>> = {
  whoever: { comments: 4, docs: 1 },
  somebody: { comments: 3, docs: 2 },
  nobody: { comments: 9, docs: 6 },
  anew: { comments: 0, docs: 0 },
  dear: { comments: 0, docs: 0 },
  'a text': { comments: 1, docs: 2 },
  texts: { comments: 0, docs: 2 },
  'of no use': { comments: 0, docs: 1 },
  'for ever': { comments: 0, docs: 0 },
  meanwhile: { comments: 1, docs: 6 },
  'under way': { comments: 0, docs: 0 },
  trouble: { comments: 0, docs: 0 },
  'so many': { comments: 5, docs: 6 },
  'so long': { comments: 1, docs: 0 },
  behind: { comments: 13, docs: 6 },
  look: { comments: 4, docs: 4 },
  looks: { comments: 0, docs: 4 },
}

const commentTexts = sourcePlaces
  .flatMap((place) => textsIn(place, /\.(?:ts|mjs|sql)$/))
  .concat(textsIn('packages/pawl/migrations/', /\.sql$/))
  .map(({ file, text }) => ({ file, text: commentsOf(file, text).join('\n') }))
const docs = textsIn('docs/', /\.md$/)

test.each(words)('comments and docs do not use %s more often than before', (word) => {
  for (const [place, texts] of Object.entries({ comments: commentTexts, docs })) {
    const found = texts.map(({ file, text }) => ({ file, count: countOf(word, text) })).filter(({ count }) => count > 0)
    const count = found.reduce((sum, each) => sum + each.count, 0)
    const where = found.map((each) => `${each.file} ${each.count}`).join(', ')
    expect(count, `${word} in ${place}; write: ${instead[word]}. It is in ${where}`).toBeLessThanOrEqual(
      most[word][place as 'comments' | 'docs'],
    )
  }
})

test('the count sees line, block and SQL comments, and no code', () => {
  const ts = "// whoever comes\n// so\n// many\nconst anew = 'dear' // under\tway\n/** a\n * text */"
  expect(commentsOf('a.ts', ts).map((comment) => comment.trim())).toEqual([
    '// whoever comes so many',
    '// under way',
    '/** a text */',
  ])
  expect(countOf('so many', commentsOf('a.ts', ts).join('\n'))).toBe(1)
  expect(
    commentsOf('a.sql', "select 'dear' -- anew\n  -- so\n  -- long\nfrom a;\ncomment on table a is\n  'meanwhile';"),
  ).toEqual(['-- anew', ' so long ', "comment on table a is 'meanwhile';"])
})

/** Words that have a meaning in messages, too. */
const ordinary: readonly Word[] = ['nobody', 'trouble', 'so many', 'so long', 'behind', 'look', 'looks', 'texts']

test('messages use plain English', () => {
  const codes = [
    ...[...textsIn('packages/pawl/src/', /\.ts$/), ...textsIn('packages/server/src/', /\.ts$/)]
      .filter(({ file }) => !isTest(file))
      .map(({ file, text }) => ({ file, code: codeOf(text) })),
    ...[...textsIn('packages/pawl/src/', /\.sql$/), ...textsIn('packages/pawl/migrations/', /\.sql$/)].map(({ file, text }) => ({
      file,
      code: text.replace(/--.*$|^comment on [\s\S]*?;$/gm, ''),
    })),
  ]
  const never = words.filter((word) => !ordinary.includes(word))
  const found = codes.flatMap(({ file, code }) =>
    never.filter((word) => countOf(word, code) > 0).map((word) => `${file}: ${word}`),
  )
  expect(codes.length).toBeGreaterThan(150)
  expect(found).toEqual([])
})

const titleWordsMax = 12

/** Titles of more than twelve words, by folder; where a test moves, its number moves along. */
const longTitlesMax: Readonly<Record<string, number>> = {}

test('no folder has more titles of over twelve words than before', () => {
  const files = [...sourcePlaces, 'packages/pawl/test/'].flatMap((place) => textsIn(place, /\.test\.ts$/))
  const counts = new Map<string, number>()
  for (const { file, text } of files) {
    const long = titlesOf(text).filter((title) => wordsOf(title) > titleWordsMax).length
    counts.set(dirname(file), (counts.get(dirname(file)) ?? 0) + long)
  }
  const over = [...counts].filter(([folder, count]) => count > (longTitlesMax[folder] ?? 0))
  expect(over, 'a title is a promise: condition, then outcome').toEqual([])
})

test('the count of titles sees each way to write one', () => {
  const text = [
    "test('one', () => {})",
    'test("[J3] it\'s two", { timeout: 1 }, async () => {})',
    "test.each([1, 2])('three %s', (n) => {})",
    "test.skipIf(a)(\n  'four',\n  async () => {},\n)",
    'test(`five`, async () => {})',
    "until('no', () => true)",
  ].join('\n')
  expect(titlesOf(text)).toEqual(['one', "[J3] it's two", 'three %s', 'four', 'five'])
  expect(wordsOf("[J3] [K1] it's two")).toBe(2)
})
