// The types of rows follow from the columns: what the compiler refuses here is marked, so that it is an error if it does not.

import { afterEach, beforeEach, expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import type { RecordScope } from './scope.ts'
import type { RecordData } from './types.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

test('rows that are given and read have the types of their columns', async () => {
  const pawl = db.pawl()
  const set = pawl.records.define('waste', {
    scope: ['organisation'],
    types: {
      received: {
        key: ['site', 'rowId'],
        columns: {
          site: 'text',
          rowId: 'integer',
          day: { type: 'date', required: true },
          tonnes: { type: 'number', min: 0 },
          isExport: 'boolean',
          more: 'json',
        },
      },
      sent: { key: 'id', columns: { id: 'text' }, schema: z.object({ id: z.string() }) },
    },
  })
  const scope = pawl.records.in(set, { organisation: '1' })
  await scope.put({ type: 'received', data: { site: 'a', rowId: 1, day: new Date('2026-01-31'), tonnes: '0.10', more: [1] } })
  await scope.append([{ type: 'sent', data: { id: 'x' } }])
  const found = await scope.get('received', '["a","1"]')
  expectTypeOf(found!.data!.site).toEqualTypeOf<string>()
  expectTypeOf(found!.data!.rowId).toEqualTypeOf<string>()
  expectTypeOf(found!.data!.tonnes).toEqualTypeOf<string | undefined>()
  expectTypeOf(found!.data!.isExport).toEqualTypeOf<boolean | undefined>()
  expectTypeOf(found!.type).toEqualTypeOf<'received'>()
  expect(found?.data).toEqual({ site: 'a', rowId: '1', day: '2026-01-31', tonnes: '0.1', more: [1] })
  const { items } = await scope.list({ type: 'sent' })
  // A schema may give back anything.
  expectTypeOf(items[0]!.data).toEqualTypeOf<RecordData | null>()
  const all = await scope.list()
  expectTypeOf(all.items[0]!.type).toEqualTypeOf<'received' | 'sent'>()

  // @ts-expect-error a column that is required
  await expect(scope.put({ type: 'received', data: { site: 'a', rowId: 1 } })).rejects.toThrow(/day/)
  // @ts-expect-error a column that is not declared
  await expect(scope.put({ type: 'sent', data: { id: 'x', ton: 1 } })).rejects.toThrow(/ton/)
  // @ts-expect-error a value that is no number
  await expect(scope.put({ type: 'received', data: { site: 'a', rowId: true, day: '2026-01-31' } })).rejects.toThrow(/rowId/)
  // @ts-expect-error a type that is not declared
  await expect(scope.put({ type: 'lost', data: { id: 'x' } })).rejects.toThrow(/lost/)
  // @ts-expect-error a type that is not declared
  expect(await scope.get('lost', 'x')).toBeUndefined()
})

test('a set of unknown types takes any object', async () => {
  const pawl = db.pawl()
  const set = pawl.records.define('s', {
    scope: ['o'],
    unknownColumns: 'keep',
    types: { t: { key: 'id', columns: { id: 'text', n: 'number' } } },
  })
  const scope = pawl.records.in(set, { o: '1' })
  await scope.put({ data: { id: 'a', n: 1, kept: 'as it is' } })
  const any: RecordScope = scope
  await any.put({ type: 't', data: { id: 'b' } })
  await pawl.records.in('s', { o: '1' }).put({ data: { id: 'c', other: 'x' } })
  const { items } = await any.list()
  expectTypeOf(items[0]!.data).toEqualTypeOf<RecordData | null>()
  expect(items.map(({ data }) => data)).toEqual([{ id: 'a', n: '1', kept: 'as it is' }, { id: 'b' }, { id: 'c', other: 'x' }])
})
