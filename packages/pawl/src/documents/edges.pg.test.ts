// Faults found by reading line by line: names that every JavaScript object has, references that are half there, snapshots that are older than a
// referrer, and calls whose documents bind each other.

import type { Documents } from 'pawl'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
let documents: Documents
let forTenant: (tenant: string) => Documents
let tenant: string
let tenants = 0
beforeAll(async () => {
  db = await createDatabase()
  const pawl = db.pawl()
  defineTypes(pawl.documents)
  forTenant = (name) => pawl.for(name).documents
})
beforeEach(() => {
  tenant = `t${++tenants}`
  documents = forTenant(tenant)
})
afterAll(() => db.drop())

function defineTypes(documents: Documents): void {
  documents.define('School', { identity: ['schoolId'], keyChange: 'cascade' })
  documents.define('Session', {
    identity: ['name', 'school'],
    references: { school: 'School', other: 'School' },
    keyChange: 'cascade',
  })
  documents.define('Offering', {
    identity: ['code', 'school', 'session'],
    references: { school: 'School', session: 'Session' },
    keyChange: 'cascade',
  })
  documents.define('Visit', { identity: ['id', 'at.school'], references: { 'at.school': 'School' } })
  documents.define('Period', { identity: ['period'], keyChange: 'ignore' })
  documents.define('Maker', { identity: ['constructor'] })
  documents.define('Car', { identity: ['number', 'maker'], references: { maker: 'Maker' } })
  documents.define('Race', {
    identity: ['race', 'car'],
    references: { car: { type: 'Car', as: { number: 'carNumber' } }, constructor: 'Maker' },
  })
}

test('filters by names of every object filter, and write to no prototype', async () => {
  await documents.post('Maker', { constructor: 'Ferrari' } as object)
  expect((await documents.list('Maker', { where: { constructor: 'Ferrari' } as never })).items).toHaveLength(1)
  expect(
    (await documents.list('School', { where: { '__proto__.isAdmin': true, 'constructor.prototype.isAdmin': true } })).items,
  ).toEqual([])
  expect('isAdmin' in {}).toBe(false)
})

test("[D4] a key has a field 'constructor' beside one that is renamed", async () => {
  await documents.post('Maker', { constructor: 'Ferrari' } as object)
  await documents.post('Car', { number: 1, maker: 'Ferrari' })
  const key = { race: 'Monza', carNumber: 1, constructor: 'Ferrari' }
  expect(await documents.post('Race', { race: 'Monza', car: { number: 1, constructor: 'Ferrari' } })).toMatchObject({ key })
  expect(await documents.get('Race', key as never)).toMatchObject({ key, body: { car: { number: 1, constructor: 'Ferrari' } } })
})

test('a reference of the identity is missing with its parent: refused', async () => {
  const refused = { code: 'PAWL_DOCUMENT_INVALID', details: { path: 'at.school' } }
  for (const body of [{ id: 1 }, { id: 1, at: null }, { id: 1, at: {} }])
    await expect(documents.post('Visit', body)).rejects.toMatchObject(refused)
  await documents.post('School', { schoolId: 1 })
  const bodies = [{ id: 1 }, { id: 2, at: { school: 1 } }]
  expect(await documents.postMany('Visit', bodies)).toMatchObject([{ ok: false, error: refused }, { ok: true }])
})

test('[D7] putAll with one ignored key for two documents writes the rest', async () => {
  const uuids: string[] = []
  for (const name of ['a', 'b']) uuids.push((await documents.post('Period', { period: name })).uuid)
  await documents.putAll(uuids.map((uuid) => ({ type: 'Period', uuid, body: { period: 'c', room: 1 } })))
  const bodies = (await documents.list('Period')).items.map(({ body }) => body)
  expect(bodies).toEqual([
    { period: 'a', room: 1 },
    { period: 'b', room: 1 },
  ])
})
