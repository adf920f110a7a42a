import { expect, onTestFinished, test } from 'vitest'
import { type TestDatabase, until } from '../../test/support/database.ts'
import { defineSchools, plant, replant } from '../../test/support/documents.ts'
import { caughtUp, createLog, startRunner } from '../../test/support/projections.ts'
import type { Key } from './types.ts'

const school = (schoolId: number) => ({ schoolId, name: `School ${schoolId}` })
const session = (sessionName: string, schoolId = 1) => ({ sessionName, schoolReference: { schoolId } })
const offering = (code: string, sessionName: string, schoolId = 1) => ({ code, sessionReference: { sessionName, schoolId } })
const section = (sectionId: string, code: string, sessionName: string, schoolId = 1) => ({
  sectionId,
  offeringReference: { code, sessionName, schoolId },
})

async function create() {
  const db = await createLog('select 1')
  const pawl = db.pawl()
  defineSchools(pawl.documents)
  const schoolId = await plant(db, 'School', school(1))
  const sessionId = await plant(db, 'Session', session('A'))
  await plant(db, 'Offering', offering('c', 'A'))
  const sectionId = await plant(db, 'Section', section('s', 'c', 'A'))
  return { db, pawl, documents: pawl.documents, schoolId, sessionId, sectionId }
}

async function uuidOf(db: TestDatabase, id: string): Promise<string> {
  return (await db.query<{ uuid: string }>('select uuid from pawl.document where id = $1', [id]))[0]!.uuid
}

test('[D3] after a rename a grandchild reads with the new key at once', async () => {
  const { db, documents, sessionId, sectionId } = await create()
  const uuid = await uuidOf(db, sectionId)
  const before = await documents.get('Section', uuid)
  expect(before).toMatchObject({ uuid, type: 'Section', body: section('s', 'c', 'A'), byOldKey: false })
  expect(before!.key).toEqual({ sectionId: 's', code: 'c', sessionName: 'A', schoolId: 1 })
  await replant(db, sessionId, 'Session', session('B'))
  const after = await documents.get('Section', uuid)
  expect(after!.body).toEqual(section('s', 'c', 'B'))
  expect(after!.key).toEqual({ sectionId: 's', code: 'c', sessionName: 'B', schoolId: 1 })
  expect(after!.etag).not.toBe(before!.etag)
  expect(after!.keyHash).not.toBe(before!.keyHash)
  expect(await documents.get('Section', { sectionId: 's', code: 'c', sessionName: 'B', schoolId: 1 })).toEqual(after)
  expect(await documents.get('Section', { sectionId: 's', code: 'c', sessionName: 'A', schoolId: 1 })).toBeUndefined()
})

test('the value hash of a read is the one of events', async () => {
  const { db, documents } = await create()
  const { key, keyHash } = (await documents.list('Session')).items[0]!
  expect(await db.query("select pawl.document_value_hash('Session', $1) as hash", [JSON.stringify(key)])).toEqual([
    { hash: keyHash },
  ])
})

test('an old key answers while its time lasts, and says so', async () => {
  const { db, documents, sessionId } = await create()
  await db.query("update pawl.document_key set alias_until = now() + interval '1 hour' where document_id = $1", [sessionId])
  const [old] = await db.query<{ hash: Buffer; parts: unknown; refs: string[] }>(
    'delete from pawl.document_key where document_id = $1 returning hash, parts, refs',
    [sessionId],
  )
  await replant(db, sessionId, 'Session', session('B'))
  await db.query(
    "insert into pawl.document_key (hash, document_id, type, parts, refs, alias_until) values ($1, $2, 'Session', $3, $4, now() + interval '1 hour')",
    [old!.hash, sessionId, JSON.stringify(old!.parts), old!.refs],
  )
  const found = await documents.get('Session', { sessionName: 'A', schoolId: 1 })
  expect(found).toMatchObject({ body: session('B'), byOldKey: true })
  // The section's own key did not change: the key of its session did.
  expect(await documents.get('Section', { sectionId: 's', code: 'c', sessionName: 'A', schoolId: 1 })).toMatchObject({
    byOldKey: true,
    body: section('s', 'c', 'B'),
  })
  await db.query("update pawl.document_key set alias_until = now() - interval '1 hour' where alias_until is not null")
  expect(await documents.get('Session', { sessionName: 'A', schoolId: 1 })).toBeUndefined()
})

test('[D4] a document is found by its superclass, and listed with it', async () => {
  const { db, documents, schoolId } = await create()
  await plant(db, 'Note', { noteId: 1, about: { educationOrganizationId: 1 } })
  const found = await documents.get('EducationOrganization', { educationOrganizationId: 1 })
  expect(found).toMatchObject({ type: 'School', key: { schoolId: 1 }, byOldKey: false })
  expect(await documents.get('EducationOrganization', found!.uuid)).toEqual(found)
  expect((await documents.list('EducationOrganization')).items).toEqual([found])
  expect(await documents.get('Session', found!.uuid)).toBeUndefined()
  await replant(db, schoolId, 'School', school(9))
  expect((await documents.list('Note')).items).toMatchObject([
    { body: { noteId: 1, about: { educationOrganizationId: 9 } }, key: { noteId: 1, educationOrganizationId: 9 } },
  ])
})

test('[D4] renamed fields, scalars, arrays and self references read current keys', async () => {
  const { db, documents, schoolId } = await create()
  await plant(db, 'School', school(5))
  await plant(db, 'Transfer', { no: 1, from: 1, to: { schoolId: 5 } })
  await plant(db, 'Stamp', { stampId: 9, transfer: { no: 1, fromSchoolId: 1, toSchoolId: 5 } })
  await plant(db, 'Employee', { employeeId: 1, manager: 1, team: [{ member: { employeeId: 1 } }] })
  await replant(db, schoolId, 'School', school(7))
  expect((await documents.list('Transfer')).items[0]).toMatchObject({
    body: { no: 1, from: 7, to: { schoolId: 5 } },
    key: { no: 1, fromSchoolId: 7, toSchoolId: 5 },
  })
  expect((await documents.list('Stamp')).items[0]!.body).toEqual({
    stampId: 9,
    transfer: { no: 1, fromSchoolId: 7, toSchoolId: 5 },
  })
  expect((await documents.list('Employee')).items[0]!.body).toEqual({
    employeeId: 1,
    manager: 1,
    team: [{ member: { employeeId: 1 } }],
  })
})

test('a list is read in pages, by scalars and by references', async () => {
  const { db, documents } = await create()
  await plant(db, 'Session', session('B'))
  for (const [code, name] of ['dA', 'eB', 'fB', 'gB'].map((each) => [...each]))
    await plant(db, 'Offering', offering(code!, name!))
  for (const period of ['p', 'q']) await plant(db, 'Period', { period, schoolReference: { schoolId: 1 } })
  const periods = ['p', 'q'].map((period) => ({ periodReference: { period, schoolId: 1 }, room: 3 }))
  await plant(db, 'Section', { ...section('t', 'c', 'A'), periods })
  const codes = (page: { items: readonly { body: unknown }[] }) => page.items.map(({ body }) => (body as { code: string }).code)
  const first = await documents.list('Offering', { limit: 2 })
  const second = await documents.list('Offering', { limit: 2, after: first.next! })
  const third = await documents.list('Offering', { limit: 2, after: second.next! })
  expect([codes(first), codes(second), codes(third), third.next]).toEqual([['c', 'd'], ['e', 'f'], ['g'], null])
  expect(codes(await documents.list('Offering', { where: { code: 'e' } }))).toEqual(['e'])
  const inB = { sessionReference: { sessionName: 'B', schoolId: 1 } }
  expect(codes(await documents.list('Offering', { where: inB }))).toEqual(['e', 'f', 'g'])
  expect(codes(await documents.list('Offering', { where: { ...inB, code: 'f' } }))).toEqual(['f'])
  const page = await documents.list('Offering', { where: inB, limit: 2 })
  expect(codes(page)).toEqual(['e', 'f'])
  expect(codes(await documents.list('Offering', { where: inB, limit: 2, after: page.next! }))).toEqual(['g'])
  expect(codes(await documents.list('Offering', { where: { sessionReference: { sessionName: 'X', schoolId: 1 } } }))).toEqual([])
  expect((await documents.list('Session', { where: { schoolReference: 1 } })).items).toHaveLength(2)
  const taught = { 'periods[].periodReference': { period: 'q', schoolId: 1 } }
  expect((await documents.list('Section', { where: taught })).items).toMatchObject([{ key: { sectionId: 't' } }])
  const both = { ...taught, offeringReference: { code: 'c', sessionName: 'A', schoolId: 1 }, 'periods[].room': 3 }
  expect((await documents.list('Section', { where: both })).items).toHaveLength(1)
  const other = { ...taught, offeringReference: { code: 'd', sessionName: 'A', schoolId: 1 } }
  expect((await documents.list('Section', { where: other })).items).toHaveLength(0)
})

test('[G2] reads refuse keys, paths and pages that cannot be', async () => {
  const { documents } = await create()
  const refused = (message: RegExp) => ({ code: 'PAWL_CONFIG', message: expect.stringMatching(message) })
  const invalid = (message: RegExp) => ({ code: 'PAWL_DOCUMENT_INVALID', status: 422, message: expect.stringMatching(message) })
  await expect(documents.get('Session', 'abc')).rejects.toMatchObject(invalid(/uuid must be the UUID of a document, got 'abc'/))
  const key = (given: unknown) => expect(documents.get('Session', given as Key)).rejects
  const fields = 'the key of Session has schoolId, sessionName\\.$'
  await key({ sessionName: 'A' }).toMatchObject(invalid(new RegExp(`^documents.get: key lacks schoolId: ${fields}`)))
  await key({ sessionName: 'A', school: 1 }).toMatchObject(
    invalid(new RegExp(`key lacks schoolId, and has school, which is not in it: ${fields}`)),
  )
  await key({ sessionName: 'A', schoolId: 1, a: 2, b: 3 }).toMatchObject(
    invalid(new RegExp(`key has a, b, which is not in it: ${fields}`)),
  )
  await key(['A']).toMatchObject(invalid(/key must be an object with schoolId, sessionName, got an array/))
  await key({ sessionName: 'A', schoolId: Number.NaN }).toMatchObject(invalid(/schoolId must be/))
  await expect(documents.get('Nothing', 'abc')).rejects.toMatchObject(refused(/Call documents.define first/))
  for (const after of ['x', '', '9'.repeat(200)])
    await expect(documents.list('Session', { after })).rejects.toMatchObject(invalid(/after must be/))
  const inside = { where: { 'sessionReference.sessionName': 'A' } }
  await expect(documents.list('Offering', inside)).rejects.toMatchObject(refused(/inside of a reference/))
  await expect(documents.list('Offering', { where: { sessionReference: 'A' } })).rejects.toMatchObject(
    invalid(/^documents.list: where.sessionReference must be an object with schoolId, sessionName, got 'A'/),
  )
  const half = { where: { sessionReference: { sessionName: 'A' } } }
  await expect(documents.list('Offering', half)).rejects.toMatchObject(invalid(/where.sessionReference lacks schoolId/))
  await expect(documents.list('Session', { wher: {} } as never)).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  const missing = '00000000-0000-4000-8000-000000000000'
  await expect(documents.referrers('Session', missing)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  for (const after of ['x.a', '1.\u0000', '1.\ud800'])
    await expect(documents.referrers('Session', missing, { after })).rejects.toMatchObject(invalid(/after must be/))
  await expect(documents.dependents('Session', missing)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  const put = documents.put('Session', missing, session('A'), { ifMatch: 'x'.repeat(500) })
  await expect(put).rejects.toMatchObject({ code: 'PAWL_PRECONDITION_FAILED' })
})

test('[D10] referrers and dependents count what a delete or a rename meets', async () => {
  const { db, documents, schoolId, sectionId } = await create()
  const bossId = await plant(db, 'Employee', { employeeId: 1, manager: 1 })
  expect(await documents.referrers('Employee', await uuidOf(db, bossId))).toEqual({
    count: 0,
    isComplete: true,
    items: [],
    next: null,
  })
  const uuid = await uuidOf(db, schoolId)
  await plant(db, 'Period', { period: 'p', schoolReference: { schoolId: 1 } })
  await plant(db, 'Section', { ...section('t', 'c', 'A'), periods: [{ periodReference: { period: 'p', schoolId: 1 } }] })
  expect(await documents.referrers('School', uuid, { limit: 1 })).toEqual({
    count: 2,
    isComplete: true,
    items: [{ type: 'Session', uuid: expect.any(String), path: 'schoolReference' }],
    next: expect.any(String),
  })
  // The second section has the school by its offering and by its period; it counts at the first level that reaches it.
  expect(await documents.dependents('School', uuid)).toEqual({
    levels: [
      { depth: 1, type: 'Period', count: 1 },
      { depth: 1, type: 'Session', count: 1 },
      { depth: 2, type: 'Offering', count: 1 },
      { depth: 2, type: 'Section', count: 1 },
      { depth: 3, type: 'Section', count: 1 },
    ],
    isComplete: true,
  })
  expect(await documents.dependents('Section', await uuidOf(db, sectionId))).toEqual({ levels: [], isComplete: true })
})

test('[D10] pages of referrers list every reference once, also within one document', async () => {
  const { db, documents } = await create()
  const periodReference = { period: 'p', schoolId: 1 }
  const periodId = await plant(db, 'Period', { period: 'p', schoolReference: { schoolId: 1 } })
  for (const name of ['t', 'u'])
    await plant(db, 'Section', { ...section(name, 'c', 'A'), periods: Array.from({ length: 3 }, () => ({ periodReference })) })
  const uuid = await uuidOf(db, periodId)
  const { items, ...all } = await documents.referrers('Period', uuid)
  expect(items).toHaveLength(6)
  expect(all).toEqual({ count: 6, isComplete: true, next: null })
  for (const limit of [1, 2, 3, 4, 6]) {
    const paged: unknown[] = []
    for (let next: string | null | undefined; next !== null; ) {
      const page = await documents.referrers('Period', uuid, { limit, ...(next === undefined ? {} : { after: next }) })
      expect(page).toMatchObject({ count: 6, isComplete: true })
      paged.push(...page.items)
      next = page.next
    }
    expect(paged).toEqual(items)
  }
})

test("a read in the caller's transaction sees its writes, another does not", async () => {
  const { db, documents, sessionId } = await create()
  const client = await db.pool.connect()
  onTestFinished(async () => {
    await client.query('rollback')
    client.release()
  })
  await client.query('begin')
  await replant(client, sessionId, 'Session', session('B'))
  const key = { sessionName: 'B', schoolId: 1 }
  expect(await documents.get('Session', key, { tx: client })).toMatchObject({ body: session('B') })
  expect((await documents.list('Offering', { tx: client })).items[0]!.body).toEqual(offering('c', 'B'))
  expect(await documents.get('Session', key)).toBeUndefined()
})

test('a tenant reads its own documents only', async () => {
  const { db, pawl } = await create()
  await plant(db, 'School', school(1), 'acme')
  const acme = pawl.for('acme').documents
  expect((await acme.list('School')).items).toHaveLength(1)
  expect((await acme.list('Session')).items).toHaveLength(0)
  expect(await acme.get('Session', { sessionName: 'A', schoolId: 1 })).toBeUndefined()
  expect((await acme.types()).map(({ name }) => name)).toEqual(['School'])
})

test('verify names what is stale or broken, and nothing else', async () => {
  const { db, documents, sessionId, sectionId } = await create()
  expect(await documents.verify()).toEqual({ checked: 4, next: null, faults: [] })
  const page = await documents.verify({ limit: 2 })
  expect(page.checked).toBe(2)
  expect(await documents.verify({ limit: 2, after: page.next! })).toMatchObject({ checked: 2, faults: [] })
  await replant(db, sessionId, 'Session', session('B'))
  const stale = await documents.verify()
  expect(new Set(stale.faults.map(({ type }) => type))).toEqual(new Set(['Offering', 'Section']))
  await replant(db, sessionId, 'Session', session('A'))
  expect((await documents.verify()).faults).toEqual([])
  await db.query("update pawl.document_key set hash = 'x' where document_id = $1", [sectionId])
  expect((await documents.verify({ type: 'Section' })).faults).toMatchObject([
    { type: 'Section', fault: "the hash of its key as Section is another one's" },
  ])
})

test('documents of another shape: reads are refused, verify names them', async () => {
  const { db, schoolId, sessionId } = await create()
  const uuids = [await uuidOf(db, schoolId), await uuidOf(db, sessionId)] as const
  const { documents } = db.pawl()
  documents.define('District', { identity: ['districtId'] })
  documents.define('Organization', { identity: ['sessionName', 'schoolReference'], references: { schoolReference: 'School' } })
  documents.define('EducationOrganization', { identity: ['educationOrganizationId'], abstract: true })
  documents.define('School', { identity: ['schoolId', 'district'], references: { district: 'District' } })
  documents.define('Session', { identity: ['sessionName'], references: { schoolReference: 'School', term: 'District' } })
  const refused = { code: 'PAWL_MODEL_CHANGED', details: { type: expect.stringMatching(/^(School|Session)$/) } }
  await expect(documents.get('School', uuids[0])).rejects.toMatchObject(refused)
  await expect(documents.get('Session', uuids[1])).rejects.toMatchObject(refused)
  await expect(documents.list('School')).rejects.toMatchObject(refused)
  await expect(documents.get('EducationOrganization', { educationOrganizationId: 1 })).rejects.toMatchObject(refused)
  expect(new Set((await documents.verify()).faults.map(({ type }) => type))).toEqual(new Set(['School', 'Session']))
})

test('without a key row reads are refused, and verify names it', async () => {
  const { db, documents, sessionId, sectionId } = await create()
  const uuids = [await uuidOf(db, sessionId), await uuidOf(db, sectionId)]
  await db.query('delete from pawl.document_key where document_id = $1', [sessionId])
  for (const [index, type] of ['Session', 'Section'].entries())
    await expect(documents.get(type, uuids[index]!)).rejects.toMatchObject({
      code: 'PAWL_MODEL_CHANGED',
      message: expect.stringContaining(`document ${sessionId} has no key as Session`),
    })
  expect((await documents.list('School')).items).toHaveLength(1)
  const { faults } = await documents.verify()
  expect(faults).toMatchObject([
    { type: 'Session', fault: 'it has 0 keys instead of 1' },
    { type: 'Offering', fault: `document ${sessionId} has no key as Session` },
    { type: 'Section', fault: `document ${sessionId} has no key as Session` },
  ])
})

test("a body without a reference's place is read, and verify names it", async () => {
  const { db, documents, sectionId } = await create()
  await db.query(`update pawl.document set body = '{"sectionId": "s"}' where id = $1`, [sectionId])
  expect(await documents.get('Section', await uuidOf(db, sectionId))).toMatchObject({ body: { sectionId: 's' } })
  expect((await documents.verify()).faults).toMatchObject([
    { type: 'Section', fault: 'its body has nothing at offeringReference, where it has a reference' },
  ])
})

test('[D5] with several writers every body converges and verify is clean', async () => {
  const { db, pawl, documents, schoolId, sessionId } = await create()
  const other = db.pawl()
  defineSchools(other.documents)
  for (const each of [pawl, other]) await startRunner(each)
  let names = 0
  const writer = async (n: number) => {
    const client = await db.pool.connect()
    try {
      for (let i = 0; i < 20; i++) {
        await client.query('begin isolation level read committed')
        try {
          // Renames hold the parent's row until their commit; children are written with the keys that they see.
          if (n === 0) await renameSession(client, sessionId, `S${names++ % 3}`)
          else if (n === 1) await renameSchool(client, schoolId, 1 + (i % 3))
          else await plantChild(client, `${n}-${i}`)
          await client.query(i % 5 === 4 ? 'rollback' : 'commit')
        } catch {
          await client.query('rollback')
          // The parent was renamed since: the child is written once more.
          if (n > 1) i--
        }
      }
    } finally {
      client.release()
    }
  }
  await Promise.all([0, 1, 2, 3, 4].map(writer))
  await caughtUp(db, 'pawl.documents')
  await until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)
  const report = await documents.verify({ limit: 500 })
  expect(report).toMatchObject({ next: null, faults: [] })
  expect(report.checked).toBe(4 + 2 * 3 * 16)
})

type Client = { query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }> }

async function currentKeys(client: Client): Promise<{ schoolId: number; sessionName: string }> {
  const { rows } = await client.query(
    "select (select parts from pawl.document_key where type = 'School') || (select parts from pawl.document_key where type = 'Session') as key",
  )
  return rows[0]!.key as { schoolId: number; sessionName: string }
}

async function renameSession(client: Client, id: string, sessionName: string): Promise<void> {
  await client.query('select from pawl.document where id = $1 for no key update', [id])
  const { schoolId } = await currentKeys(client)
  await replant(client, id, 'Session', session(sessionName, schoolId))
}

async function renameSchool(client: Client, id: string, schoolId: number): Promise<void> {
  await client.query('select from pawl.document where id = $1 for no key update', [id])
  await replant(client, id, 'School', school(schoolId))
}

async function plantChild(client: Client, code: string): Promise<void> {
  const { schoolId, sessionName } = await currentKeys(client)
  await plant(client, 'Offering', offering(code, sessionName, schoolId))
  await plant(client, 'Section', section(code, code, sessionName, schoolId))
}
