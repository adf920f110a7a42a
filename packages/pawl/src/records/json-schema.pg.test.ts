import { afterEach, beforeEach, expect, test } from 'vitest'
import { z } from 'zod'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { defineLoads } from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

test('a process without the set reads its stored JSON Schemas', async () => {
  const types = (charsMax: number) => ({
    load: {
      key: ['site', 'rowId'],
      columns: {
        site: { type: 'text' as const, oneOf: ['north', 'south'] },
        rowId: { type: 'text' as const, charsMax, pattern: /^[A-Z]\d+$/ },
        code: { type: 'text' as const, pattern: /^ab$/i },
        tonnes: { type: 'number' as const, required: true, min: 0, max: '99.5', scale: 2 },
        count: 'integer' as const,
        isExport: 'boolean' as const,
        day: 'date' as const,
        at: 'timestamp' as const,
        more: 'json' as const,
      },
      schema: z.object({ tonnes: z.string() }),
    },
    note: {
      key: 'id',
      columns: { id: 'text' as const },
      schema: z.object({ id: z.string(), chars: z.string().default('0').transform(Number) }),
    },
  })
  const define = (schemaVersion: number, charsMax: number) => {
    const pawl = db.pawl()
    const scope = ['organisation', 'registration']
    pawl.records.define('waste', {
      scope,
      attributes: ['accreditation'],
      types: types(charsMax),
      schemaVersion,
      missing: 'reject',
    })
    return pawl.records.in('waste', here)
  }
  const reader = db.pawl()
  expect(await reader.records.sets()).toEqual([])
  const put = { type: 'note', data: { id: 'a' } }
  await define(1, 10).put(put)
  await define(2, 20).put({ type: 'note', data: { id: 'b' } })
  const [kept] = await reader.records.sets()
  expect(kept).toEqual({
    name: 'waste',
    schemaVersion: 2,
    scope: ['organisation', 'registration'],
    attributes: ['accreditation'],
    typeColumn: 'type',
    missing: 'reject',
    types: {
      load: {
        key: ['site', 'rowId'],
        schema: {
          $schema: 'https://json-schema.org/draft/2020-12/schema',
          type: 'object',
          properties: {
            site: { type: 'string', enum: ['north', 'south'] },
            rowId: { type: 'string', maxLength: 20, pattern: '^[A-Z]\\d+$' },
            code: { type: 'string' },
            tonnes: { type: ['number', 'string'], pattern: expect.any(String), minimum: 0, maximum: 99.5 },
            count: { type: ['integer', 'string'], pattern: '^\\s*[+-]?\\d+\\s*$' },
            isExport: { type: 'boolean' },
            day: { type: 'string', format: 'date' },
            at: { type: 'string', format: 'date-time' },
            more: {},
          },
          required: ['rowId', 'site', 'tonnes'],
          additionalProperties: false,
          allOf: [{ type: 'object', properties: { tonnes: { type: 'string' } }, required: ['tonnes'] }],
        },
      },
      note: expect.objectContaining({ key: ['id'] }),
    },
  })
  // The same version declared again: the last one counts. Another tenant has its own.
  await define(2, 30).put({ type: 'note', data: { id: 'c' } })
  expect((await reader.records.sets())[0]?.types.load?.schema).toMatchObject({ properties: { rowId: { maxLength: 30 } } })
  expect(await reader.for('other').records.sets()).toEqual([])
})

test('a scope locked by an open transaction still takes uploads', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'a', tonnes: 1 } })
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await scope.put({ data: { rowId: 'b', tonnes: 1 } }, { tx: client })
    expect(await scope.upload(['rowId,tonnes\na,2\n'], { format: 'csv' })).toMatchObject({ state: 'validated' })
  } finally {
    await client.query('rollback')
    client.release()
  }
})
