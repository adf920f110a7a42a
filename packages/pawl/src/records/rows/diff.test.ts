import { expect, test } from 'vitest'
import { changedFields } from './diff.ts'
import { canonicalField, canonicalRow } from './json-text.ts'

/** By parsing both, as anyone would. */
function byParsing(before: string, after: string): string[] {
  const [old, next] = [JSON.parse(before), JSON.parse(after)] as Record<string, unknown>[]
  const names = new Set([...Object.keys(old!), ...Object.keys(next!)])
  const text = (data: Record<string, unknown>, name: string) =>
    Object.hasOwn(data, name) ? canonicalField(data[name]) : undefined
  return [...names].filter((name) => text(old!, name) !== text(next!, name)).sort()
}

const names = ['', 'a', 'A', 'aa', 'a"b', 'a\\', 'ä', '\u007f', '\n', '￿', '😀', 'z{', ',', '__proto__']
const values = [
  '',
  'x',
  '"',
  '\\',
  '",',
  '{}',
  ',}',
  true,
  false,
  {},
  [],
  { a: { b: ['x,', { '}': '"' }] } },
  [[], ['"']],
  ['a', 'b'],
  5,
]

test('the changed fields of any names and values equal those parsing finds', () => {
  let seed = 1
  const random = (below: number) => {
    seed = (seed * 48_271) % 2_147_483_647
    return seed % below
  }
  const data = () =>
    canonicalRow(Object.fromEntries(names.flatMap((name) => (random(3) === 0 ? [] : [[name, values[random(values.length)]]]))))
  for (let n = 0; n < 5000; n++) {
    const [before, after] = [data(), data()]
    expect({ before, after, changed: changedFields(before, after) }).toEqual({ before, after, changed: byParsing(before, after) })
  }
})

test('of a version without data every field is new or gone', () => {
  expect(changedFields(null, '{"a":"1","b":{}}')).toEqual(['a', 'b'])
  expect(changedFields('{"a":"1"}', null)).toEqual(['a'])
  expect(changedFields(null, '{}')).toEqual([])
})
