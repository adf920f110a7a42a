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
