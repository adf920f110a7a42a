// Definitions that make no model are refused before anything is written: with the type, the path and the fix.

import { expect, test } from 'vitest'
import { compileModel, defineType, hasWays } from './model.ts'
import type { DocumentTypeOptions } from './types.ts'

type Types = Readonly<Record<string, DocumentTypeOptions>>

function compile(types: Types) {
  return compileModel(new Map(Object.entries(types).map(([name, options]) => [name, defineType(name, options as never)])))
}

const chain = (length: number): Types =>
  Object.fromEntries(
    Array.from({ length }, (_, n) => [
      `T${n}`,
      n === 0 ? { identity: ['id0'] } : { identity: [`id${n}`, 'ref'], references: { ref: `T${n - 1}` } },
    ]),
  )

test.each<readonly [condition: string, types: Types, message: RegExp]>([
  [
    'a cycle of identities',
    {
      A: { identity: ['a', 'b'], references: { b: 'B' } },
      B: { identity: ['bId', 'c'], references: { c: 'C' } },
      C: { identity: ['cId', 'a'], references: { a: 'A' } },
    },
    /define\('A'\): its identity contains itself: A -> B -> C -> A\. Leave one out of identity/,
  ],
  ['an identity of itself', { A: { identity: ['id', 'a'], references: { a: 'A' } } }, /A -> A/],
  [
    'a cycle through a subclass',
    {
      Base: { identity: ['baseId'], abstract: true },
      Part: { identity: ['partId', 'base'], references: { base: 'Base' } },
      Whole: {
        identity: ['wholeId', 'part'],
        references: { part: { type: 'Part', as: { baseId: 'partBaseId' } } },
        extends: { type: 'Base', as: { wholeId: 'baseId' } },
      },
    },
    /its identity contains itself: (Part -> Whole -> Part|Whole -> Part -> Whole)/,
  ],
  ['more than 16 levels', chain(17), /more than 16 types deep: T16 -> .* -> T0/],
  [
    'an unknown target',
    { A: { identity: ['id'], references: { b: 'B' } } },
    /the reference 'b' needs the type 'B', which is not/,
  ],
  ['an unknown superclass', { A: { identity: ['id'], extends: { type: 'B' } } }, /it extends 'B', which is not defined/],
  ['one name by two scalars', { A: { identity: ['id', 'b.id'] } }, /its key has 'id' twice, by 'id' and by 'b.id'\. Rename one/],
  [
    'one name by a scalar and a reference',
    { B: { identity: ['id'] }, A: { identity: ['id', 'b'], references: { b: 'B' } } },
    /its key has 'id' twice, by 'id' and by 'b'/,
  ],
  [
    'one name held by two types',
    {
      B: { identity: ['id'] },
      C: { identity: ['id'] },
      A: { identity: ['b', 'c'], references: { b: 'B', c: 'C' } },
    },
    /'b.id' and 'c.id' are one value, but B holds the first and C the second\. Rename one with 'as'/,
  ],
  [
    "'as' of an unknown field",
    { B: { identity: ['id'] }, A: { identity: ['b'], references: { b: { type: 'B', as: { no: 'x' } } } } },
    /'as' of the reference 'b' names 'no', but the key of B has id/,
  ],
  [
    "'as' with one name for two fields",
    { B: { identity: ['x', 'y'] }, A: { identity: ['b'], references: { b: { type: 'B', as: { x: 'y' } } } } },
    /'as' of the reference 'b' gives two fields one name/,
  ],
  [
    "'as' outside of the identity",
    { B: { identity: ['id'] }, A: { identity: ['a'], references: { b: { type: 'B', as: { id: 'x' } } } } },
    /the reference 'b' has 'as', but is not in identity/,
  ],
  [
    "'as' of extends with an unknown field",
    { B: { identity: ['id'] }, A: { identity: ['a'], extends: { type: 'B', as: { no: 'id' } } } },
    /'as' of extends names 'no', which is not in its key/,
  ],
  [
    "a superclass's field that it lacks",
    { B: { identity: ['id', 'year'] }, A: { identity: ['id'], extends: { type: 'B' } } },
    /it extends B, but its key has no 'year'\. Name it with 'as'/,
  ],
  [
    "a superclass's scalar by a reference",
    { S: { identity: ['id'] }, B: { identity: ['id'] }, A: { identity: ['s'], references: { s: 'S' }, extends: { type: 'B' } } },
    /'id' must be a scalar of its own, as it is in B/,
  ],
  [
    "a superclass's reference by another path",
    {
      S: { identity: ['id'] },
      B: { identity: ['n', 's'], references: { s: 'S' } },
      A: { identity: ['n', 't'], references: { t: 'S' }, extends: { type: 'B' } },
    },
    /its identity needs the reference 's' to S, as B has it/,
  ],
  [
    'a reference inside of a reference',
    { B: { identity: ['id'] }, A: { identity: ['a'], references: { b: 'B', 'b.c': 'B' } } },
    /the reference 'b.c' is inside of the reference 'b'/,
  ],
  [
    'an identity inside of a reference',
    { B: { identity: ['id'] }, A: { identity: ['b.id'], references: { b: 'B' } } },
    /identity has 'b.id', which is inside of the reference 'b'\. Name the reference/,
  ],
  ['an identity in an array', { A: { identity: ['list[].id'] } }, /identity has 'list\[\]\.id', which is in an array/],
  [
    'an identity by references in an array',
    { B: { identity: ['id'] }, A: { identity: ['list[].b'], references: { 'list[].b': 'B' } } },
    /identity has 'list\[\]\.b', which is in an array/,
  ],
  ['a path without a name', { A: { identity: ['a..b'] } }, /'a\.\.b' must be a path such as 'a\.b' or 'list\[\]\.reference'/],
  ['a path to a prototype', { A: { identity: ['__proto__.id'] } }, /must be a path such as/],
  ['no identity', { A: { identity: [] } }, /identity must name at least one path/],
  [
    'unify of no reference',
    { B: { identity: ['id'] }, A: { identity: ['a'], references: { b: 'B' }, unify: [['a', 'b.id']] } },
    /unify has 'a', which is not a field of one of its references/,
  ],
  [
    'unify of an unknown field',
    { B: { identity: ['id'] }, A: { identity: ['a'], references: { b: 'B', c: 'B' }, unify: [['b.no', 'c.id']] } },
    /unify has 'b.no', but the key of B has id/,
  ],
])('[D4] %s is refused at definition', (_condition, types, message) => {
  expect(() => compile(types)).toThrow(expect.objectContaining({ code: 'PAWL_CONFIG', message: expect.stringMatching(message) }))
})

test('[D4] cycles of other references and identities of sixteen levels are a model', () => {
  const model = compile({
    ...chain(16),
    A: { identity: ['a'], references: { b: 'B', self: 'A' } },
    B: { identity: ['b', 'a'], references: { a: { type: 'A', as: { a: 'aId' } } } },
  })
  expect(model.get('T15')!.key).toHaveLength(16)
  expect(model.get('B')!.key).toEqual(['aId', 'b'])
})

const schools: Types = {
  Organization: { identity: ['organizationId'], abstract: true },
  School: { identity: ['schoolId'], extends: { type: 'Organization', as: { schoolId: 'organizationId' } } },
  Session: { identity: ['name', 'school'], references: { school: 'School' } },
  Student: { identity: ['studentId'] },
}

test.each<readonly [condition: string, references: Readonly<Record<string, string>>, hasWays: boolean]>([
  ['one reference', { a: 'Session' }, false],
  ['references without a common part', { a: 'Session', b: 'Student' }, false],
  ['two references to one type without parts', { a: 'School', b: 'School', 'c[].d': 'School' }, false],
  ['a reference to a part of another', { a: 'Session', b: 'School' }, true],
  ['a reference to a superclass of a part', { a: 'Session', b: 'Organization' }, true],
  ['two references with a common part', { a: 'Session', b: 'Session' }, true],
  ['an array of references with parts', { 'a[].b': 'Session' }, true],
])('[D11] %s: whether a rename has several ways is known', (_condition, references, expected) => {
  const model = compile({ ...schools, Type: { identity: ['id'], references } })
  expect(hasWays(model, model.get('Type')!)).toBe(expected)
})
