// References and keys of every shape, through the verbs: one database, a tenant for each test.

import type { Documents, Pawl } from 'pawl'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
let documents: Documents
let tenants = 0
beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  defineTypes(pawl.documents)
})
beforeEach(() => {
  documents = pawl.for(`t${++tenants}`).documents
})
afterAll(() => db.drop())

function defineTypes(documents: Documents): void {
  documents.define('Organization', { identity: ['organizationId'], abstract: true })
  documents.define('School', {
    identity: ['schoolId'],
    extends: { type: 'Organization', as: { schoolId: 'organizationId' } },
    keyChange: 'cascade',
  })
  documents.define('District', {
    identity: ['districtId'],
    references: { seat: 'School' },
    extends: { type: 'Organization', as: { districtId: 'organizationId' } },
    keyChange: 'cascade',
  })
  documents.define('Person', {
    identity: ['name.first', 'name.last'],
    references: { home: 'Room', 'friends[].person': 'Person', employer: 'Organization' },
    keyChange: 'cascade',
  })
  documents.define('Room', {
    identity: ['room', 'school'],
    references: { school: 'School', keeper: 'Person' },
    keyChange: 'cascade',
  })
  documents.define('Class', {
    identity: ['code', 'room', 'school'],
    references: { room: 'Room', school: 'School', 'a.rooms[].b.room': 'Room', 'plain[]': 'School' },
    unify: [['room.schoolId', 'a.rooms[].b.room.schoolId']],
    keyChange: 'cascade',
  })
  documents.define('Move', {
    identity: ['from', 'to'],
    references: {
      from: { type: 'Room', as: { room: 'fromRoom', schoolId: 'fromSchool' } },
      to: { type: 'Room', as: { room: 'toRoom', schoolId: 'toSchool' } },
    },
    keyChange: 'cascade',
  })
  documents.define('Thing', { identity: ['a', 'b'], keyChange: 'cascade' })
}

const school = async (schoolId: number) => (await documents.post('School', { schoolId })).uuid
const room = async (name: string, schoolId: number, more = {}) =>
  (await documents.post('Room', { room: name, school: schoolId, ...more })).uuid

async function verified(): Promise<number> {
  const report = await documents.verify({ limit: 500 })
  expect(report.faults).toEqual([])
  return report.checked
}

test('[D1] forms of one key are one document, and its UUID stays', async () => {
  const { uuid } = await documents.post('Thing', { a: 'e\u0301', b: 1 })
  for (const body of [
    { a: 'é', b: 1 },
    { b: 1.0, a: 'é' },
    JSON.parse('{ "b": 1e0, "a": "\\u00e9" }') as object,
    JSON.parse('{ "a": "é", "b": 10.0e-1 }') as object,
  ])
    expect(await documents.post('Thing', body)).toMatchObject({ uuid, outcome: 'unchanged' })
  expect(await documents.get('Thing', { b: 1, a: 'e\u0301' })).toMatchObject({ uuid, body: { a: 'é', b: 1 } })
  expect((await documents.list('Thing', { where: { a: 'e\u0301' } })).items).toMatchObject([{ uuid }])
  const other = await documents.post('Thing', { a: 'other', b: 1, c: 'e\u0301' })
  expect((await documents.list('Thing', { where: { c: 'e\u0301' } })).items).toMatchObject([{ uuid: other.uuid }])
  expect(await documents.put('Thing', uuid, { a: 'x', b: -0 })).toMatchObject({ uuid, key: { a: 'x', b: 0 } })
  expect(await documents.post('Thing', { a: 'x', b: 0, more: 1 })).toMatchObject({ uuid, outcome: 'updated' })
  expect(await verified()).toBe(2)
})

test('[D1] keys whose parts run into each other are different documents', async () => {
  const keys = [
    ['x', 'y'],
    ['x#b=y', ''],
    ['', 'x#b=y'],
    ['x:y', ''],
    ['x', ':y'],
    ['1', 1],
    [1, '1'],
    [true, 'true'],
    ['true', true],
    ['', ''],
    ['"', '\\'],
    ['\\"', ''],
  ]
  const outcomes = await documents.postMany(
    'Thing',
    keys.map(([a, b]) => ({ a, b })),
  )
  expect(outcomes.map((each) => each.ok && each.outcome)).toEqual(keys.map(() => 'created'))
  for (const [index, [a, b]] of keys.entries())
    expect(await documents.get('Thing', { a: a!, b: b! })).toMatchObject({ uuid: (outcomes[index] as { uuid: string }).uuid })
})

test.each([
  ['NUL', 'a\u0000'],
  ['half a surrogate', '\ud800'],
  ['null', null],
  ['no value', undefined],
  ['an object', {}],
  ['more than 2^53', 2 ** 53],
  ['501 characters', 'x'.repeat(501)],
])('[D1] %s in a key is refused with its path', async (_condition, a) => {
  await expect(documents.post('Thing', { a, b: 1 })).rejects.toMatchObject({
    code: 'PAWL_DOCUMENT_INVALID',
    details: { path: 'a', reason: expect.any(String) },
  })
})

test('[D4] the same target twice, in arrays of arrays and objects, follows', async () => {
  const uuid = await school(1)
  await room('r', 1)
  await room('q', 1)
  const body = {
    code: 'c',
    room: { room: 'r', schoolId: 1 },
    school: { schoolId: 1 },
    a: { rooms: ['r', 'q', 'r'].map((room) => ({ b: { room: { room, schoolId: 1 } }, n: 1 })) },
    plain: [1, { schoolId: 1 }],
  }
  const written = await documents.post('Class', body)
  expect(written.key).toEqual({ code: 'c', room: 'r', schoolId: 1 })
  await documents.put('School', uuid, { schoolId: 2 })
  expect(await documents.get('Class', written.uuid)).toMatchObject({
    key: { code: 'c', room: 'r', schoolId: 2 },
    body: {
      code: 'c',
      room: { room: 'r', schoolId: 2 },
      school: { schoolId: 2 },
      a: { rooms: ['r', 'q', 'r'].map((room) => ({ b: { room: { room, schoolId: 2 } }, n: 1 })) },
      plain: [2, { schoolId: 2 }],
    },
  })
})

test('[D4] a diamond is one field of the key, held by one document', async () => {
  for (const id of [1, 2]) await school(id)
  await room('r', 1)
  const body = (schoolId: number) => ({ code: 'c', room: { room: 'r', schoolId: 1 }, school: schoolId })
  await expect(documents.post('Class', body(2))).rejects.toMatchObject({
    code: 'PAWL_DOCUMENT_INVALID',
    details: { paths: ['room.schoolId', 'school.schoolId'], values: [1, 2] },
  })
  expect(await documents.post('Class', body(1))).toMatchObject({ outcome: 'created' })
})

test('[D4] optional references come and go', async () => {
  await school(1)
  await room('r', 1)
  const name = { first: 'Ann', last: 'Lee' }
  const { uuid } = await documents.post('Person', { name, home: null, friends: [] })
  const home = { room: 'r', schoolId: 1 }
  await documents.put('Person', uuid, { name, home, friends: [{ person: name }] })
  expect(await documents.referrers('Room', (await documents.get('Room', home))!.uuid)).toMatchObject({
    count: 1,
    items: [{ type: 'Person', uuid, path: 'home' }],
  })
  await documents.put('Person', uuid, { name, friends: [{ since: 2 }] })
  expect(await documents.referrers('Room', (await documents.get('Room', home))!.uuid)).toMatchObject({ count: 0 })
  await expect(documents.post('Room', { room: 'x' })).rejects.toMatchObject({
    code: 'PAWL_DOCUMENT_INVALID',
    details: { path: 'school', reason: expect.stringMatching(/part of the key/) },
  })
  expect(await verified()).toBe(3)
})

test('[D4] documents that refer to each other follow, and part again', async () => {
  const uuid = await school(1)
  const name = { first: 'Ann', last: 'Lee' }
  const person = (await documents.post('Person', { name })).uuid
  const key = { first: 'Ann', last: 'Lee' }
  const kept = await room('r', 1, { keeper: key })
  await documents.put('Person', person, { name, home: { room: 'r', schoolId: 1 } })
  await documents.put('School', uuid, { schoolId: 2 })
  const other = { first: 'Ann', last: 'Day' }
  await documents.put('Person', person, { name: other, home: { room: 'r', schoolId: 2 } })
  expect(await documents.get('Room', kept)).toMatchObject({ body: { room: 'r', school: 2, keeper: other } })
  for (const [type, target] of [
    ['Person', person],
    ['Room', kept],
  ] as const)
    await expect(documents.delete(type, target)).rejects.toMatchObject({ code: 'PAWL_REFERENCED' })
  await documents.put('Person', person, { name: other })
  await documents.delete('Room', kept)
  await documents.delete('Person', person)
})

test('[D4] one type by two references has two sets of names', async () => {
  const [first] = [await school(1), await school(2)]
  for (const [name, id] of [
    ['a', 1],
    ['b', 2],
  ] as const)
    await room(name, id)
  const move = (from: number, to: number) => ({ from: { room: 'a', schoolId: from }, to: { room: 'b', schoolId: to } })
  const { uuid, key } = await documents.post('Move', move(1, 2))
  expect(key).toEqual({ fromRoom: 'a', fromSchool: 1, toRoom: 'b', toSchool: 2 })
  await documents.put('School', first, { schoolId: 3 })
  expect(await documents.get('Move', { ...key, fromSchool: 3 })).toMatchObject({ uuid, body: move(3, 2) })
  const around = await documents.post('Move', { from: { room: 'a', schoolId: 3 }, to: { room: 'a', schoolId: 3 } })
  await documents.put('School', first, { schoolId: 4 })
  expect(await documents.get('Move', around.uuid)).toMatchObject({
    key: { fromRoom: 'a', fromSchool: 4, toRoom: 'a', toSchool: 4 },
  })
})

test('[D4] a reference to a superclass holds any of its types', async () => {
  const uuid = await school(1)
  const district = await documents.post('District', { districtId: 9, seat: 1 })
  const body = (organizationId: number) => ({ name: { first: 'A', last: 'B' }, employer: { organizationId } })
  const person = await documents.post('Person', body(1))
  await documents.put('School', uuid, { schoolId: 5 })
  expect(await documents.get('Person', person.uuid)).toMatchObject({ body: body(5) })
  await documents.put('Person', person.uuid, body(9))
  await documents.put('District', district.uuid, { districtId: 8, seat: 5 })
  expect(await documents.get('Person', person.uuid)).toMatchObject({ body: body(8) })
  await expect(documents.put('District', district.uuid, { districtId: 5 })).rejects.toMatchObject({
    code: 'PAWL_KEY_TAKEN',
    details: { holder: { type: 'School', uuid } },
  })
  await expect(documents.post('Organization', { organizationId: 7 })).rejects.toMatchObject({ code: 'PAWL_DOCUMENT_INVALID' })
})

test('[D10] each bad reference is named once with its path, good ones not', async () => {
  await school(1)
  await room('r', 1)
  const body = {
    code: 'c',
    room: { room: 'r', schoolId: 1 },
    school: 1,
    a: { rooms: ['r', 'no', 'r'].map((room) => ({ b: { room: { room, schoolId: 1 } } })) },
    plain: [1, 7],
  }
  const error: unknown = await documents.post('Class', body).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ code: 'PAWL_REFERENCE_UNRESOLVED', status: 409 })
  expect((error as { details: { references: object[] } }).details.references).toEqual([
    { path: 'a.rooms.1.b.room', type: 'Room', key: { room: 'no', schoolId: 1 } },
    { path: 'plain.1', type: 'School', key: { schoolId: 7 } },
  ])
})
