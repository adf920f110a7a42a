import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { hashOfKey, keyHash, keyValue, ownHash } from './canonical.ts'
import type { Key, KeyValue } from './types.ts'

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
})
afterAll(() => db.drop())

const pick = (n: number) => Math.floor(Math.random() * n)
const pieces = [
  '',
  '#',
  '=',
  ':',
  ',',
  '"',
  '\\',
  '\n',
  '\u0001',
  '\u007f',
  '\u2028',
  'é',
  'e\u0301',
  '😀',
  'a',
  'Z',
  '1',
  ' ',
  '/',
]

function randomValue(): KeyValue {
  const kind = pick(5)
  if (kind === 0) return pick(2) === 0
  if (kind === 1) return pick(2_000_001) - 1_000_000
  if (kind === 2) return (Math.random() - 0.5) * 10 ** (pick(40) - 20)
  const text = Array.from({ length: pick(6) }, () => pieces[pick(pieces.length)]).join('')
  return text.normalize('NFC')
}

function randomKey(): Key {
  const names = Array.from({ length: 1 + pick(4) }, () =>
    Array.from({ length: 1 + pick(3) }, () => pieces[1 + pick(18)]).join(''),
  )
  return Object.fromEntries(names.map((name) => [name, randomValue()]))
}

test('[D1] the value hash of TypeScript and of SQL are equal', async () => {
  const keys = Array.from({ length: 2000 }, randomKey).filter((key) =>
    Object.values(key).every((value) => 'value' in keyValue(value)),
  )
  const rows = await db.query<{ hash: string }>(
    "select pawl.document_value_hash('T', k.key) as hash from jsonb_array_elements($1::jsonb) with ordinality k(key, n) order by k.n",
    [JSON.stringify(keys)],
  )
  const wrong = keys.filter((key, index) => hashOfKey('T', key) !== rows[index]!.hash)
  expect(wrong).toEqual([])
})

test('[D1] the hash of an identity equals that of SQL', async () => {
  const own = ownHash('T', { a: 'é#=:' })
  const [row] = await db.query<{ hash: Buffer }>('select sha256($1::bytea || int8send(7) || int8send($2::bigint)) as hash', [
    own,
    '9007199254740993',
  ])
  expect(keyHash(own, ['7', '9007199254740993'])).toEqual(row!.hash)
})

test('[D1] separators, empty parts and types of values do not collide', () => {
  const keys: readonly (readonly [string, Key])[] = [
    ['T', { a: 'x', b: 'y' }],
    ['T', { a: 'x#b=y', b: '' }],
    ['T', { a: '', b: 'x' }],
    ['T', { a: 'x', b: '' }],
    ['T', { a: 1 }],
    ['T', { a: '1' }],
    ['T', { a: true }],
    ['T', { a: 'true' }],
    ['T', { a: '' }],
    ['Ta', { '': '' }],
    ['T', { ab: 'c' }],
    ['T', { a: 'bc' }],
  ]
  expect(new Set(keys.map(([type, key]) => ownHash(type, key).toString('hex'))).size).toBe(keys.length)
  expect(ownHash('T', { b: 1, a: 2 })).toEqual(ownHash('T', { a: 2, b: 1 }))
  expect(keyValue('e\u0301')).toEqual(keyValue('é'))
  for (const bad of ['a\u0000', '\ud800', Number.NaN, 1e21, 2 ** 53, null, undefined, {}, [], 'x'.repeat(501)])
    expect(keyValue(bad)).toHaveProperty('reason')
  expect(keyValue(-0)).toEqual({ value: 0 })
})
