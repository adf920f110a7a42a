// What keeps the sources tidy: which way imports point, what does not belong in the library, and how much state and how many files are in one place.
// Statements that cross tables are in sql-layers.test.ts, words and titles in voice.test.ts.

import { readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import { probeNames } from 'pawl/testing'
import { expect, test } from 'vitest'
import {
  callbackNames,
  callbacksOf,
  codeOf,
  isTest,
  type Measured,
  mutableFields,
  sourcePlaces,
  textsIn,
} from './support/measures.ts'

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

/** errors, config <- db <- kernel <- jobs <- events <- projections <- records, batches, documents <- pawl. A file may import from its own rank and below. */
function rankOf(file: string): number {
  const order = [
    /^(errors|config|release)\.ts$/,
    /^db\//,
    /^kernel\//,
    /^jobs\//,
    /^events\//,
    /^projections\//,
    /^(records|batches|documents)\//,
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

/** Every source outside of tests, by its path in the repository. */
const everySource = sourcePlaces.flatMap((place) => textsIn(place, /\.ts$/)).filter(({ file }) => !isTest(file))

/**
 * What is over its limit today. A number here may only fall, and a row goes when its place is within the limit. No row is added:
 * give the class one value for its state, pass an object with methods instead of callbacks, make a subfolder for an idea of its own.
 */
const known = {
  mutableFields: {},
  callbacks: {},
  files: {},
} satisfies Record<string, Readonly<Record<string, number>>>

/** What is over the limit and not known, or known with more than there is. */
function overLimit(
  measured: ReadonlyMap<string, number>,
  limitOf: (place: string) => number,
  table: Readonly<Record<string, number>>,
) {
  const over = [...measured].flatMap(([place, count]) => {
    const max = Math.max(limitOf(place), table[place] ?? 0)
    return count > max ? [`${place}: ${count}, at most ${max}`] : []
  })
  const stale = Object.entries(table).flatMap(([place, count]) => {
    const now = measured.get(place) ?? 0
    if (now >= count) return []
    return [`${place}: ${now} now: ${now > limitOf(place) ? 'lower its number' : 'remove its row'} in the table \`known\``]
  })
  return [...over, ...stale]
}

/** The largest count of each place: two pieces may begin with the same line. */
function measured(measure: (text: string) => readonly Measured[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const { file, text } of everySource) {
    for (const { name, count } of measure(text)) {
      const place = `${file} ${name}`
      counts.set(place, Math.max(counts.get(place) ?? 0, count))
    }
  }
  return counts
}

test('a class has at most five mutable fields', () => {
  expect(
    overLimit(measured(mutableFields), () => 5, known.mutableFields),
    'one value for one state, or a class of its own',
  ).toEqual([])
})

test('the measure of fields sees each way to write one', () => {
  const text = [
    'export class Five extends Base<{ a: 1 }> {',
    '  static readonly no = 1',
    '  readonly #no = new Set<string>()',
    '  #one = 0',
    '  two: string',
    '  three!: string',
    '  protected four?: number',
    '  #five:',
    '    | string',
    '    | number = 5',
    '  constructor(private six: string, private readonly no: string, no2: string) {',
    '    this.no = 1',
    '  }',
    '  get no3(): number {',
    '    let no4 = 1',
    '  }',
    '  no5 = () => 1',
    '  async no6() {}',
    '}',
    'export interface No {',
    '  no: string',
    '}',
  ].join('\n')
  expect(mutableFields(text)).toEqual([{ name: 'Five', count: 6 }])
})

test('a piece has at most three on... options', () => {
  expect(
    overLimit(measured(callbacksOf), () => 3, known.callbacks),
    'return the result, or pass one object with methods',
  ).toEqual([])
})

test('the measure of callbacks sees interfaces, types, options and parameters', () => {
  expect(callbacksOf('interface A {\n  readonly onA: () => void\n  onB?(b: string): void\n  // onC: no\n}')).toEqual([
    { name: 'interface A {', count: 2 },
  ])
  expect(callbacksOf('type A = { onA: () => void; readonly onB?: (b: { onC: 1 }) => void }').map(({ count }) => count)).toEqual([
    1, 2,
  ])
  expect(callbacksOf('start({\n  onA: () => {\n    onB()\n  },\n  onC,\n  onD() {\n  },\n})').map(({ count }) => count)).toEqual([
    3,
  ])
  expect(callbacksOf('function a(onA: () => void, b = 1, onB?: () => void) {\n  onA()\n}').map(({ count }) => count)).toEqual([2])
  expect(callbacksOf('const { onA, onB } = options\nonA(1)\nthis.onB(2)')).toEqual([])
})

test('the jobs folder has at most ten on... callbacks', () => {
  const names = new Set(sources.filter(({ file }) => file.startsWith('jobs/')).flatMap(({ text }) => callbackNames(text)))
  expect(names.size, [...names].join(' ')).toBeLessThanOrEqual(10)
})

const filesMax = (folder: string) => (/\/src\/(?:jobs|records)$/.test(folder) ? 20 : 15)

test('a folder has at most fifteen source files, jobs and records twenty', () => {
  const counts = new Map<string, number>()
  for (const { file } of everySource) counts.set(posix.dirname(file), (counts.get(posix.dirname(file)) ?? 0) + 1)
  expect(overLimit(counts, filesMax, known.files), 'a subfolder for an idea of its own').toEqual([])
})

test('a planted case, an increase and a stale number break a limit', () => {
  const limit = () => 5
  expect(overLimit(new Map([['a', 5]]), limit, {})).toEqual([])
  expect(overLimit(new Map([['a', 6]]), limit, {})).toEqual(['a: 6, at most 5'])
  expect(overLimit(new Map([['a', 8]]), limit, { a: 7 })).toEqual(['a: 8, at most 7'])
  expect(overLimit(new Map([['a', 6]]), limit, { a: 7 })).toEqual(['a: 6 now: lower its number in the table `known`'])
  expect(overLimit(new Map([['a', 5]]), limit, { a: 7 })).toEqual(['a: 5 now: remove its row in the table `known`'])
  expect(overLimit(new Map(), limit, { a: 7 })).toEqual(['a: 0 now: remove its row in the table `known`'])
})
