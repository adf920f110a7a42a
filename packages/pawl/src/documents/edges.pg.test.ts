// Faults found by reading line by line: names that every JavaScript object has, references that are half there, snapshots that are older than a
// referrer, and calls whose documents bind each other.

import type { Documents, Written } from 'pawl'
import { installProbe } from 'pawl/testing'
import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest'
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
  documents.define('Organization', { identity: ['organizationId'], keyChange: 'cascade' })
  const parent = { type: 'Organization', as: { agencyId: 'organizationId' } }
  documents.define('Agency', { identity: ['agencyId'], extends: parent, keyChange: 'cascade', oldKeys: '1d' })
  documents.define('Note', { identity: ['note'], references: { about: 'Organization' } })
  documents.define('Survey', { identity: ['survey'], references: { [`${longName}[]`]: 'Organization' } })
  documents.define('Maker', { identity: ['constructor'] })
  documents.define('Car', { identity: ['number', 'maker'], references: { maker: 'Maker' } })
  documents.define('Race', {
    identity: ['race', 'car'],
    references: { car: { type: 'Car', as: { number: 'carNumber' } }, constructor: 'Maker' },
  })
}

/** As long as a path may be, with its []. */
const longName = 'x'.repeat(498)
const session = (name: string, schoolId = 1) => ({ name, school: { schoolId } })
const offering = (code: string, name: string, schoolId = 1) => ({ code, school: { schoolId }, session: { name, schoolId } })

/** A transaction whose snapshot is taken. */
async function begin(isolation: string): Promise<pg.PoolClient> {
  const client = await db.pool.connect()
  onTestFinished(async () => {
    await client.query('rollback').catch(() => undefined)
    client.release()
  })
  await client.query(`begin isolation level ${isolation}`)
  await client.query('select count(*) from pawl.document')
  return client
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

test('[D2] a delete cannot see a younger referrer: it fails as not serializable', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const tx = await begin('repeatable read')
  await documents.post('Session', session('Fall'))
  await expect(documents.delete('School', uuid, { tx })).rejects.toMatchObject({ code: '40001' })
  await tx.query('rollback')
  await expect(documents.delete('School', uuid)).rejects.toMatchObject({ code: 'PAWL_REFERENCED' })
})

test.each(['repeatable read', 'serializable'])('[D4] %s: a re-point that a younger child binds is refused', async (isolation) => {
  for (const schoolId of [1, 2]) await documents.post('School', { schoolId })
  const { uuid } = await documents.post('Session', session('Fall'))
  const tx = await begin(isolation)
  await documents.post('Offering', offering('math', 'Fall'))
  await expect(documents.put('Session', uuid, session('Fall', 2), { tx })).rejects.toMatchObject({
    code: 'PAWL_UNIFIED',
    message: expect.stringContaining(`a ${isolation.toUpperCase()} transaction cannot see every document that binds it`),
  })
  // A rename moves no owner.
  expect(await documents.put('Session', uuid, session('Autumn'), { tx })).toMatchObject({ isKeyChanged: true })
  await tx.query('commit')
  expect((await documents.list('Offering')).items).toMatchObject([{ body: offering('math', 'Autumn') }])
})

test('[D4] [D7] putAll re-points what another of it comes to refer to: refused', async () => {
  for (const schoolId of [1, 2]) await documents.post('School', { schoolId })
  const fall = await documents.post('Session', session('Fall'))
  await documents.post('Session', session('Spring'))
  const math = await documents.post('Offering', offering('math', 'Spring'))
  const changes = [
    { type: 'Session', uuid: fall.uuid, body: session('Fall', 2) },
    { type: 'Offering', uuid: math.uuid, body: offering('math', 'Fall') },
  ]
  for (const each of [changes, changes.toReversed()])
    await expect(documents.putAll(each)).rejects.toMatchObject({
      code: 'PAWL_UNIFIED',
      details: { uuid: fall.uuid, dependents: [{ type: 'Offering', uuid: math.uuid }] },
    })
  expect(await documents.get('Session', fall.uuid)).toMatchObject({ body: session('Fall') })
  expect((await documents.list('Offering')).items).toMatchObject([{ body: offering('math', 'Spring') }])
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

test('[D9] ifMatch with the etag of another that had the key is refused', async () => {
  const first = await documents.post('School', { schoolId: 1, name: 'first' })
  await documents.put('School', first.uuid, { schoolId: 2, name: 'first' })
  const second = await documents.post('School', { schoolId: 1, name: 'second' })
  expect(second.etag).not.toBe(first.etag)
  expect((await documents.get('School', { schoolId: 1 }))!.etag).toBe(second.etag)
  const write = documents.post('School', { schoolId: 1, name: 'third' }, { ifMatch: first.etag })
  await expect(write).rejects.toMatchObject({ code: 'PAWL_PRECONDITION_FAILED', details: { etag: second.etag } })
  expect(await documents.get('School', { schoolId: 1 })).toMatchObject({ body: { name: 'second' } })
})

test('[D9] ifMatch of a POST whose key goes to another meanwhile is refused', async () => {
  const first = await documents.post('School', { schoolId: 1, name: 'first' })
  let second: Written | undefined
  const tx = await begin('read committed')
  const query = tx.query.bind(tx) as (...given: unknown[]) => unknown
  const betweenReadAndFind = async (...given: unknown[]) => {
    if (second === undefined && JSON.stringify(given).includes('document_receipt')) {
      await documents.put('School', first.uuid, { schoolId: 2, name: 'first' })
      second = await documents.post('School', { schoolId: 1, name: 'second' })
    }
    return query(...given)
  }
  Object.assign(tx, { query: betweenReadAndFind })
  const write = documents.post('School', { schoolId: 1, name: 'third' }, { ifMatch: first.etag, tx })
  await expect(write).rejects.toMatchObject({ code: 'PAWL_PRECONDITION_FAILED' })
  Object.assign(tx, { query })
  await tx.query('commit')
  expect(await documents.get('School', second!.uuid)).toMatchObject({ body: { name: 'second' } })
  expect(await documents.get('School', first.uuid)).toMatchObject({ body: { name: 'first' } })
})

test("[D4] a POST of a subclass's key is refused with its holder", async () => {
  const { uuid } = await documents.post('Agency', { agencyId: 1 })
  const taken = {
    code: 'PAWL_KEY_TAKEN',
    details: { type: 'Organization', holder: { type: 'Agency', uuid, key: { agencyId: 1 } } },
  }
  await expect(documents.post('Organization', { organizationId: 1 })).rejects.toMatchObject(taken)
  const outcomes = await documents.postMany('Organization', [{ organizationId: 1 }, { organizationId: 2 }])
  expect(outcomes).toMatchObject([{ ok: false, error: taken }, { ok: true }])
})

test("a reference by a superclass's old key names the new one", async () => {
  const { uuid } = await documents.post('Agency', { agencyId: 1 })
  await documents.put('Agency', uuid, { agencyId: 2 })
  const renamedTo = { organizationId: 2 }
  await expect(documents.post('Note', { note: 1, about: { organizationId: 1 } })).rejects.toMatchObject({
    details: { references: [{ path: 'about', type: 'Organization', key: { organizationId: 1 }, renamedTo }] },
  })
  expect(await documents.post('Note', { note: 1, about: renamedTo })).toMatchObject({ outcome: 'created' })
})

test("in any DateStyle of the caller's transaction, times are read", async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const { createdAt, changedAt } = (await documents.get('School', uuid))!
  const tx = await begin('read committed')
  await tx.query("set local datestyle = 'German, DMY'")
  expect(await documents.get('School', uuid, { tx })).toMatchObject({ createdAt, changedAt })
  expect((await documents.list('School', { tx })).items).toMatchObject([{ createdAt, changedAt }])
})

test('[D8] postMany writes a thousand existing documents whose keys are bound', async () => {
  await documents.post('School', { schoolId: 1 })
  const numbers = [...Array(1000).keys()]
  await documents.postMany(
    'Session',
    numbers.map((n) => session(`s${n}`)),
  )
  await documents.postMany(
    'Offering',
    numbers.map((n) => offering(`o${n}`, `s${n}`)),
  )
  const outcomes = await documents.postMany(
    'Offering',
    numbers.map((n) => ({ ...offering(`o${n}`, `s${n}`), seats: n })),
  )
  expect(outcomes.filter((each) => !(each.ok && each.outcome === 'updated'))).toEqual([])
  expect(outcomes).toHaveLength(1000)
})

test('postMany sends 30,000 references with long paths in two parts', async () => {
  await documents.post('Organization', { organizationId: 1 })
  let parts = 0
  installProbe((name) => {
    if (name === 'documents.found') parts++
  })
  onTestFinished(() => installProbe(undefined))
  const ids = Array<number>(1000).fill(1)
  const bodies = Array.from({ length: 30 }, (_, survey) => ({ survey, [longName]: ids }))
  const outcomes = await documents.postMany('Survey', bodies)
  expect([parts, outcomes.filter(({ ok }) => ok).length]).toEqual([2, 30])
})

test('[D10] dependents reached twice each: a count that was cut says so', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  await db.query(
    `with school as (select d.id from pawl.document d where d.tenant = $1),
     session as (
       insert into pawl.document (tenant, id, type, receipt, content, keys, body)
       select $1, nextval('pawl.document_id'), 'Session', 1, '', '{}', '{}' from generate_series(1, 51000)
       returning id
     )
     insert into pawl.document_ref (tenant, from_id, path, to_id, type, in_key)
     select $1, s.id, r.path, t.id, 'School', r.in_key
     from school t cross join session s cross join (values ('{school}'::text[], true), ('{other}', false)) r(path, in_key)`,
    [tenant],
  )
  const { levels, isComplete } = await documents.dependents('School', uuid)
  expect(levels).toMatchObject([{ depth: 1, type: 'Session' }])
  expect([levels[0]!.count < 51_000, isComplete]).toEqual([true, false])
})
