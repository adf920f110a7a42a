// What keeps the sources tidy: which way imports point, what does not belong in the library, and how long files and functions are.

import { readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import { probeNames } from 'pawl/testing'
import { expect, test } from 'vitest'

const folder = new URL('../src/', import.meta.url)
const sources = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
  .map((file) => file.replaceAll('\\', '/'))
  .sort()
  .map((file) => ({ file, text: readFileSync(new URL(file, folder), 'utf8') }))

interface Import {
  readonly from: string
  readonly to: string
  readonly isType: boolean
}

const imports: readonly Import[] = sources.flatMap(({ file, text }) =>
  [...text.matchAll(/^(?:import|export) (type )?[^'"();]*?from '([^']+)'/gm)].map(([, type, to]) => ({
    from: file,
    to: to!.startsWith('.') ? posix.join(posix.dirname(file), to!) : to!,
    isType: type !== undefined,
  })),
)

/** errors, config <- db <- kernel <- jobs <- events <- projections <- records <- pawl. A file may import from its own rank and below. */
function rankOf(file: string): number {
  const order = [
    /^(errors|config|release)\.ts$/,
    /^db\//,
    /^kernel\//,
    /^jobs\//,
    /^events\//,
    /^projections\//,
    /^records\//,
    /^(pawl|pawl-options|worker|worker-options|keeper-thread|new-thread|index)\.ts$/,
    /^(testing|admin)\//,
  ]
  return order.findIndex((pattern) => pattern.test(file))
}

/** Type-only, so that nothing is loaded: the shape of an option belongs to who uses it. */
const upward = ['config.ts -> db/driver.ts', 'config.ts -> db/login.ts']

test('every file has a place in the stack', () => {
  expect(sources.filter(({ file }) => rankOf(file) < 0).map(({ file }) => file)).toEqual([])
})

test('imports point one way', () => {
  const wrong = imports
    .filter(({ to }) => to.endsWith('.ts'))
    .filter(({ from, to }) => rankOf(to) > rankOf(from))
    .filter(({ from, to, isType }) => !(isType && upward.includes(`${from} -> ${to}`)))
  expect(wrong.map(({ from, to }) => `${from} -> ${to}`)).toEqual([])
})

const outside = imports.filter(({ to }) => !to.endsWith('.ts') && !to.startsWith('node:'))
/** Which folder imports which package; nothing else comes from outside. */
const packagesOf: Readonly<Record<string, readonly string[]>> = { 'db/': ['pg'], 'records/formats/xlsx/': ['saxes', 'yauzl'] }

test('only db/ imports the driver, and only a subpath its own packages', () => {
  const isAllowed = ({ from, to }: Import) =>
    Object.entries(packagesOf).some(([place, names]) => from.startsWith(place) && names.includes(to))
  expect(outside.filter((each) => !isAllowed(each))).toEqual([])
  expect(new Set(outside.map(({ to }) => to))).toEqual(new Set(Object.values(packagesOf).flat()))
})

test('the library loads no optional package: nothing that index.ts reaches imports one', () => {
  const reached = new Set(['index.ts'])
  for (const file of reached) for (const { from, to } of imports) if (from === file && to.endsWith('.ts')) reached.add(to)
  expect(reached).toContain('records/formats/readers.ts')
  expect([...reached].filter((file) => file.startsWith('records/formats/xlsx/'))).toEqual([])
  expect(outside.filter(({ from, to }) => reached.has(from) && to !== 'pg')).toEqual([])
})

test('what is for tests is not loaded by the library', () => {
  expect(imports.filter(({ from, to }) => to.startsWith('testing/') && !from.startsWith('testing/'))).toEqual([])
})

/** The code without its comments. */
const codeOf = (text: string) => text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '')

test.each([
  ['console', /\bconsole\b/, 'a library says things through its logger'],
  ['any', /[:<|&,(]\s*any\b(?!\s*\()|\bas any\b/, 'unknown, or the type'],
  [
    'Date.now',
    /\bDate\.now\b|\bnew Date\(\)/,
    'when something is due is decided by the database; durations are measured with monotonicMs()',
  ],
  ['process.env', /\bprocess\.env\b/, 'the environment is read by the server, not by the library'],
])('the library uses no %s', (_what, pattern, reason) => {
  expect(
    sources.filter(({ text }) => pattern.test(codeOf(text))).map(({ file }) => file),
    reason,
  ).toEqual([])
})

const repository = new URL('../../../', import.meta.url)

function textsIn(place: string, pattern: RegExp): { file: string; text: string }[] {
  return readdirSync(new URL(place, repository), { recursive: true, encoding: 'utf8' })
    .filter((file) => pattern.test(file) && !/\.test\.ts$|test-support/.test(file))
    .map((file) => ({ file: place + file, text: readFileSync(new URL(place + file, repository), 'utf8') }))
}

/** Not the words of a native speaker: say string, again, forever, in progress, and name the thing that acts. */
const foreignWords = ['whoever', 'somebody', 'anew', 'dear', 'a text', 'of no use', 'for ever', 'meanwhile', 'under way'] as const

function countOf(word: string, text: string): number {
  return text.match(new RegExp(`\\b${word.replace(' ', '\\s+')}\\b`, 'gi'))?.length ?? 0
}

test('messages use plain English', () => {
  const sql = [...textsIn('packages/pawl/src/', /\.sql$/), ...textsIn('packages/pawl/migrations/', /\.sql$/)]
  const codes = [
    ...[...textsIn('packages/pawl/src/', /\.ts$/), ...textsIn('packages/server/src/', /\.ts$/)].map(({ file, text }) => ({
      file,
      code: codeOf(text),
    })),
    ...sql.map(({ file, text }) => ({ file, code: text.replace(/--.*$|^comment on [\s\S]*?;$/gm, '') })),
  ]
  const found = codes.flatMap(({ file, code }) =>
    foreignWords.filter((word) => countOf(word, code) > 0).map((word) => `${file}: ${word}`),
  )
  expect(codes.length).toBeGreaterThan(200)
  expect(found).toEqual([])
})

/** A number here may only fall. */
const foreignInDocsMax: Readonly<Record<(typeof foreignWords)[number], number>> = {
  whoever: 6,
  somebody: 5,
  anew: 2,
  dear: 0,
  'a text': 7,
  'of no use': 1,
  'for ever': 1,
  meanwhile: 10,
  'under way': 4,
}

test.each(foreignWords)('docs/ does not use %s more often than before', (word) => {
  const count = textsIn('docs/', /\.md$/).reduce((sum, { text }) => sum + countOf(word, text), 0)
  expect(count).toBeLessThanOrEqual(foreignInDocsMax[word])
})

test('nothing is left to do in comments', () => {
  expect(sources.filter(({ text }) => /\b(?:TODO|FIXME|XXX|HACK)\b/.test(text)).map(({ file }) => file)).toEqual([])
})

test('no folder or file is named after nothing', () => {
  expect(sources.filter(({ file }) => /(?:^|\/)(?:utils?|helpers?|common|managers?|misc)(?:\/|\.ts$)/.test(file))).toEqual([])
})

test('every probe is hit somewhere in the library', () => {
  const text = sources
    .filter(({ file }) => file !== 'kernel/probe.ts')
    .map((source) => source.text)
    .join('\n')
  expect(probeNames.filter((name) => !text.includes(`'${name}'`))).toEqual([])
})

test('every probe that is hit has a name in the table', () => {
  const hit = sources.flatMap(({ text }) => [...text.matchAll(/probe\.hit\('([^']+)'/g)].map(([, name]) => name!))
  expect(hit.filter((name) => !(probeNames as readonly string[]).includes(name))).toEqual([])
})

/** Names in the first column of the crash tables. */
const crashTables = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('README.md'))
  .flatMap((file) => readFileSync(new URL(file, folder), 'utf8').split('\n'))
  .flatMap((line) => [...(/^\|([^|]*)\|/.exec(line)?.[1] ?? '').matchAll(/`([a-z]+(?:\.[a-z_]+)+)`/g)].map(([, name]) => name!))
  .filter((name) => !name.startsWith('pawl.'))

test('the crash tables of the READMEs have every probe, and nothing else', () => {
  expect([...crashTables].sort()).toEqual([...probeNames].sort())
})

test('the code map names every file of jobs', () => {
  const map = readFileSync(new URL('../../../ARCHITECTURE.md', import.meta.url), 'utf8').split('\n')
  const from = map.findIndex((line) => line.includes('src/jobs/ '))
  const text = map
    .slice(
      from,
      map.findIndex((line) => line.includes('src/events/ ')),
    )
    .join('\n')
  const files = sources.flatMap(({ file }) => (file.startsWith('jobs/') ? [posix.basename(file)] : []))
  expect(files.filter((file) => !text.includes(file))).toEqual([])
})

const fileLinesMax = 600
const functionLinesMax = 70

test(`no file is longer than ${fileLinesMax} lines`, () => {
  const long = sources.filter(({ text }) => text.split('\n').length - 1 > fileLinesMax).map(({ file }) => file)
  expect(long).toEqual([])
})

/** Functions and methods by their first line, as the formatter writes them: the end is the first `}` at the same indent. */
function functionsOf(text: string): { name: string; lines: number }[] {
  const lines = text.split('\n')
  const start = /^(\s*)(?:export )?(?:(?:static|async|private|get|set) )*(?:function\*? (\w+)|(#?\w+)(?=[(<]))/
  return lines.flatMap((line, index) => {
    const [, indent, named, method] = start.exec(line) ?? []
    if (indent === undefined || /^\s*(?:if|for|while|switch|return|await|catch|super)\b/.test(line)) return []
    const opens = lines
      .slice(index, index + 12)
      .findIndex((each) => each.endsWith('{') && (each === line || each.startsWith(`${indent})`)))
    if (opens < 0 || (opens > 0 && !line.endsWith('('))) return []
    const ends = lines.slice(index + opens + 1).findIndex((each) => each.startsWith(`${indent}}`))
    return ends < 0 ? [] : [{ name: (named ?? method)!, lines: ends + opens + 2 }]
  })
}

test('the measure of functions sees functions and methods', () => {
  const names = sources.flatMap(({ text }) => functionsOf(text).map(({ name }) => name))
  expect(names).toEqual(
    expect.arrayContaining(['createPawl', 'resolveConfig', 'enqueueMany', '#connect', 'migrate', 'compareTables', 'constructor']),
  )
  expect(names.length).toBeGreaterThan(200)
})

test(`no function is longer than ${functionLinesMax} lines`, () => {
  const long = sources.flatMap(({ file, text }) =>
    functionsOf(text)
      .filter(({ lines }) => lines > functionLinesMax)
      .map(({ name }) => `${file}: ${name}`),
  )
  expect(long).toEqual([])
})
