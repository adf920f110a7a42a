// What an upload may be given, and what a file without rows says.

import { xlsx } from 'pawl/records/xlsx'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { defineLoads } from '../../test/support/records.ts'
import { workbook } from '../../test/support/xlsx.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

test('[R10] a header without the key column is invalid, also without rows', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { missing: 'tombstone', formats: [xlsx()] }), here)
  await scope.put({ data: { rowId: 'a' } })
  const error = /must have the column\(s\) 'rowId', got 'date, row id'/
  const table = await scope.upload(['date,row id\n'], { format: 'csv' })
  expect(table).toMatchObject({ state: 'invalid', error: expect.stringMatching(error), counts: { deleted: 0 } })
  const book = await scope.upload([workbook([{ name: 'Sheet1', rows: [['date', 'row id']] }])], { format: 'xlsx' })
  expect(book).toMatchObject({ state: 'invalid', error: expect.stringMatching(error), counts: { deleted: 0 } })
  const empty = await scope.upload(['rowId,date\n'], { format: 'csv' })
  expect(empty).toMatchObject({ state: 'validated', counts: { deleted: 1 } })
})

test('[R10] with several types a header needs the type and one key', async () => {
  const pawl = db.pawl()
  const types = { a: { key: 'id', columns: { id: 'text' } }, b: { key: ['x', 'y'], columns: { x: 'text', y: 'text' } } } as const
  const scope = pawl.records.in(pawl.records.define('both', { scope: ['s'], types, missing: 'tombstone' }), { s: '1' })
  const states = []
  for (const header of ['type,id', 'type,x,y', 'type,x', 'id,x,y'])
    states.push((await scope.upload([`${header}\n`], { format: 'csv' })).state)
  expect(states).toEqual(['validated', 'validated', 'invalid', 'invalid'])
})

test.each([
  ['csv', './prices.csv'],
  ['ndjson', 'C:\\files\\prices.ndjson'],
  ['json', '/srv/prices.json'],
  ['xlsx', './prices.xlsx'],
] as const)('a path as the body of a %s is refused', async (format, path) => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { missing: 'tombstone', formats: [xlsx()] }), here)
  await expect(scope.upload(path, { format })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/must be the content of the file, got '.*prices\..*createReadStream\(path\)/),
  })
  expect(await scope.submissions()).toEqual({ items: [], next: null })
})

test("a string, Buffer or Uint8Array as the body is the file's content", async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const text = 'rowId,note\na,ü\n'
  for (const body of [text, Buffer.from(text), new TextEncoder().encode(text)])
    expect(await scope.upload(body, { format: 'csv' })).toMatchObject({ state: 'validated', counts: { created: 1 } })
  const signal = new AbortController().signal
  expect(await scope.upload(Buffer.from(text), { format: 'csv', signal })).toMatchObject({ counts: { created: 1 } })
  expect(await scope.upload('"rowId"', { format: 'csv' })).toMatchObject({ state: 'validated' })
  expect(await scope.upload('', { format: 'csv' })).toMatchObject({ state: 'invalid' })
})

test('a body that is neither stream nor content is refused', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  for (const body of [undefined, null, 5, {}, new ArrayBuffer(3), () => 'x'])
    await expect(scope.upload(body as never, { format: 'csv' })).rejects.toMatchObject({
      code: 'PAWL_CONFIG',
      message: expect.stringMatching(/^upload: body must be a stream, string, Buffer or Uint8Array, got /),
    })
  expect(await scope.submissions()).toEqual({ items: [], next: null })
  await expect(scope.upload([{ rowId: 'a' }] as never, { format: 'csv' })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/each chunk of the body must be a string, Buffer or Uint8Array, got an object/),
  })
})

test('a wrong argument is refused with the expected value', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  for (const [call, message] of [
    [() => scope.get('load', 5 as never), /^get: key must be a string, got 5/],
    [() => scope.history('load', undefined as never), /^history: key must be a string, got undefined/],
    [() => scope.erase('load', 5 as never, { reason: 'asked' }), /^erase: key must be a string, got 5/],
    [() => scope.append({ data: { rowId: 'a' } } as never), /^append: rows must be an array .*call put/],
    [() => scope.append([{ key: 5, data: null }] as never), /row 1: key must be a string, got 5/],
    [() => scope.put(undefined as never), /row 1 must be \{ data/],
    [() => scope.put({ rowId: 'a' } as never), /row 1 must be \{ data/],
    [async () => pawl.records.in(undefined as never, here), /A record set must be .*got undefined/],
    [
      async () => pawl.records.define(5 as never, {} as never),
      /^records\.define: name must be a string of 1 to 200 characters .*got 5/,
    ],
  ] as const)
    await expect(call()).rejects.toMatchObject({ code: 'PAWL_CONFIG', message: expect.stringMatching(message) })
})
