import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { type Guarantee, guaranteesFile, idsIn, idsInTree, isBroken, judge, readGuarantees, titlesIn } from './guarantees.ts'
import { root } from './phase.ts'

const guarantees = readGuarantees()
const sizes: Readonly<Record<string, number>> = { K: 19, J: 36, O: 15, P: 12, R: 15, D: 11, B: 9, G: 2, S: 7 }

describe('docs/guarantees.md', () => {
  test('lists every id once', () => {
    const wanted = Object.entries(sizes).flatMap(([letter, size]) =>
      Array.from({ length: size }, (_, index) => `${letter}${index + 1}`),
    )
    expect(guarantees.map(({ id }) => id)).toEqual(wanted)
  })

  test('every table has the row under its head that makes it one', () => {
    const lines = readFileSync(guaranteesFile, 'utf8').split('\n')
    const heads = lines.flatMap((line, index) => (line.startsWith('| id ') ? [index] : []))
    expect(heads).toHaveLength(Object.keys(sizes).length)
    expect(heads.filter((index) => !/^\|( -+ \|){3}$/.test(lines[index + 1]!)).map((index) => lines[index - 2])).toEqual([])
  })

  test('every promise of a built capability has a test that names it', () => {
    const named = idsInTree()
    expect(guarantees.filter(({ id, state }) => state === 'built' && !named.has(id)).map(({ id }) => id)).toEqual([])
  })

  test('no test names a promise that is not listed', () => {
    const listed = new Set(guarantees.map(({ id }) => id))
    expect([...idsInTree()].filter(([id]) => !listed.has(id)).map(([id, files]) => `${id} in ${[...files].join(', ')}`)).toEqual(
      [],
    )
  })
})

test('the README names built promises for what happens, row by row', () => {
  const readme = readFileSync(join(root, 'README.md'), 'utf8')
  const [, table] = /^\| situation .*\n\| -.*\n((?:\|.*\n)+)/m.exec(readme)!
  const rows = table!
    .trimEnd()
    .split('\n')
    .map((row) => row.split('|').map((cell) => cell.trim()))
  const built = new Set(guarantees.filter(({ state }) => state === 'built').map(({ id }) => id))
  const unproved = rows.filter((cells) => !cells[4]!.split(', ').every((id) => built.has(id))).map((cells) => cells[1])
  // It promises nothing but a rough order.
  expect(unproved).toEqual(['order of jobs'])
})

describe('titles', () => {
  test('are found in every form of call', () => {
    // Put together here, so that this file does not itself name promises.
    const id = (name: string) => `[${name}]`
    const source = [
      `test('${id('A1')} plain', () => {})`,
      `test.each([1, 2])("${id('A2')} each %i", () => {})`,
      `test.skipIf(isOld)(\n  \`${id('A3')} \${name} on another line\`, async () => {})`,
      `it('${id('A4')} ${id('A5')} two, and a quote \\' in it', fn)`,
      `describe.for(cases)('${id('A6')} suite', fn)`,
      `// ${id('A7')} in a comment is no test`,
    ].join('\n')
    expect(titlesIn(source).flatMap(idsIn)).toEqual(['A1', 'A2', 'A3', 'A4', 'A5', 'A6'])
  })
})

describe('verdicts', () => {
  const promises: Guarantee[] = ['A1', 'A2', 'A3', 'A4'].map((id) => ({ id, state: 'built', text: id }))
  const result = (title: string, state: 'passed' | 'failed' | 'skipped') => ({ file: 'f', title, state, ms: 1 })
  const bracketed = (id: string, rest: string) => `[${id}] ${rest}`

  test('a promise is failed, skipped or missing as its tests are', () => {
    const verdicts = judge(promises, [
      result(bracketed('A1', 'first'), 'passed'),
      result(bracketed('A1', 'second'), 'passed'),
      result(bracketed('A2', 'first'), 'passed'),
      result(bracketed('A2', 'second'), 'failed'),
      result(bracketed('A2', 'third'), 'skipped'),
      result(bracketed('A3', 'first'), 'passed'),
      result(bracketed('A3', 'second'), 'skipped'),
    ])
    expect(Object.fromEntries(verdicts)).toEqual({ A1: 'pass', A2: 'fail', A3: 'skipped', A4: 'missing' })
  })

  test('a built promise breaks unless passed, a later one if failed', () => {
    const broken = (state: Guarantee['state']) =>
      (['pass', 'fail', 'skipped', 'missing'] as const).filter((verdict) => isBroken({ id: 'A1', state, text: 'A1' }, verdict))
    expect(broken('built')).toEqual(['fail', 'skipped', 'missing'])
    expect(broken('later')).toEqual(['fail'])
  })
})
