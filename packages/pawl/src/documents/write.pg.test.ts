import type { Documents, Pawl } from 'pawl'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
let documents: Documents
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  documents = pawl.documents
  defineTypes(documents)
})
afterEach(() => db.drop())

function defineTypes(documents: Documents): void {
  documents.define('EducationOrganization', { identity: ['educationOrganizationId'], abstract: true })
  const organization = (field: string) => ({ type: 'EducationOrganization', as: { [field]: 'educationOrganizationId' } })
  documents.define('School', { identity: ['schoolId'], extends: organization('schoolId'), keyChange: 'cascade' })
  documents.define('Agency', { identity: ['agencyId'], extends: organization('agencyId') })
  documents.define('Session', {
    identity: ['sessionName', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'cascade',
    oldKeys: '1d',
  })
  documents.define('Offering', {
    identity: ['code', 'schoolReference', 'sessionReference'],
    references: { schoolReference: 'School', sessionReference: 'Session' },
    keyChange: 'cascade',
  })
  documents.define('Period', {
    identity: ['period', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'ignore',
  })
  documents.define('Section', {
    identity: ['sectionId', 'offeringReference'],
    references: { offeringReference: 'Offering', 'periods[].periodReference': 'Period' },
    unify: [['offeringReference.schoolId', 'periods[].periodReference.schoolId']],
    keyChange: 'cascade',
  })
  documents.define('Employee', { identity: ['employeeId'], references: { manager: 'Employee' }, keyChange: 'cascade' })
  documents.define('Note', { identity: ['noteId'], references: { about: 'EducationOrganization' } })
}

const school = (schoolId: number, more = {}) => ({ schoolId, ...more })
const session = (sessionName: string, schoolId = 1, more = {}) => ({ sessionName, schoolReference: { schoolId }, ...more })
const offering = (code: string, sessionName: string, schoolId = 1) => ({
  code,
  schoolReference: { schoolId },
  sessionReference: { sessionName, schoolId },
})
const period = (name: string, schoolId = 1, more = {}) => ({ period: name, schoolReference: { schoolId }, ...more })
const section = (sectionId: string, of: string, sessionName: string, periods: readonly object[] = [], schoolId = 1) => ({
  sectionId,
  offeringReference: { code: of, schoolId, sessionName },
  periods: periods.map((periodReference) => ({ periodReference })),
})

async function events(type?: string): Promise<{ type: string; payload: Record<string, unknown> }[]> {
  return db.query(
    "select type, payload from pawl.event where channel = 'documents' and ($1::text is null or aggregatetype = $1) order by seq",
    [type],
  )
}

test('[D8] a first POST creates, an equal one changes nothing, another updates', async () => {
  const first = await documents.post('School', school(1, { name: 'North' }))
  expect(first).toMatchObject({ outcome: 'created', isKeyChanged: false, key: { schoolId: 1 } })
  const same = await documents.post('School', { name: 'North', schoolId: 1 })
  expect(same).toEqual({ ...first, outcome: 'unchanged' })
  const other = await documents.post('School', school(1, { name: 'South' }))
  expect(other).toMatchObject({ outcome: 'updated', uuid: first.uuid, isKeyChanged: false })
  expect(await documents.get('School', { schoolId: 1 })).toMatchObject({
    uuid: first.uuid,
    etag: other.etag,
    body: { schoolId: 1, name: 'South' },
  })
  expect((await events()).map(({ type }) => type)).toEqual(['document.created', 'document.updated'])
})

test('[D4] a reference through three levels is found by its flat key', async () => {
  await documents.post('School', school(1))
  await documents.post('Session', session('Fall'))
  await documents.post('Offering', offering('math', 'Fall'))
  await documents.post('Period', period('P1'))
  const written = await documents.post('Section', section('s', 'math', 'Fall', [{ period: 'P1', schoolId: 1 }]))
  expect(written).toMatchObject({ outcome: 'created', key: { sectionId: 's', code: 'math', schoolId: 1, sessionName: 'Fall' } })
  const found = await documents.get('Section', written.key)
  expect(found).toMatchObject({ uuid: written.uuid, etag: written.etag, key: written.key })
})

test('[D10] one good and one bad reference: only the bad one is named', async () => {
  await documents.post('School', school(1))
  await documents.post('Session', session('Fall'))
  await documents.post('Offering', offering('math', 'Fall'))
  await documents.post('Period', period('P1'))
  const body = section('s', 'math', 'Fall', [
    { period: 'P1', schoolId: 1 },
    { period: 'P2', schoolId: 1 },
  ])
  await expect(documents.post('Section', body)).rejects.toMatchObject({
    code: 'PAWL_REFERENCE_UNRESOLVED',
    details: { references: [{ path: 'periods.1.periodReference', type: 'Period', key: { period: 'P2', schoolId: 1 } }] },
  })
})

test('[D3] a PUT that renames keeps the UUID and is seen through references', async () => {
  const { uuid } = await documents.post('School', school(1))
  const child = await documents.post('Session', session('Fall'))
  const renamed = await documents.put('School', uuid, school(2))
  expect(renamed).toMatchObject({ uuid, outcome: 'updated', isKeyChanged: true, key: { schoolId: 2 } })
  expect(await documents.get('Session', child.uuid)).toMatchObject({
    body: session('Fall', 2),
    key: { schoolId: 2, sessionName: 'Fall' },
  })
  expect(await documents.get('School', { schoolId: 1 })).toBeUndefined()
  expect((await events('School')).at(-1)).toMatchObject({
    type: 'document.key-updated',
    payload: { revision: 2, oldKey: { schoolId: 1 }, newKey: { schoolId: 2 }, cause: 'write' },
  })
})

test('[D7] a rename onto a taken key is refused and names the holder', async () => {
  const a = await documents.post('School', school(1))
  const b = await documents.post('School', school(2))
  await expect(documents.put('School', a.uuid, school(2))).rejects.toMatchObject({
    code: 'PAWL_KEY_TAKEN',
    details: { holder: { type: 'School', uuid: b.uuid, key: { schoolId: 2 } } },
  })
  expect(await documents.get('School', a.uuid)).toMatchObject({ key: { schoolId: 1 }, etag: a.etag })
})

test('[D4] two subclasses cannot share the key of their superclass', async () => {
  const { uuid } = await documents.post('School', school(1))
  await expect(documents.post('Agency', { agencyId: 1 })).rejects.toMatchObject({
    code: 'PAWL_KEY_TAKEN',
    details: { holder: { type: 'School', uuid } },
  })
  expect(await db.query("select from pawl.document where type = 'Agency'")).toEqual([])
  const note = await documents.post('Note', { noteId: 1, about: { educationOrganizationId: 1 } })
  await documents.put('School', uuid, school(7))
  expect(await documents.get('Note', note.uuid)).toMatchObject({ body: { about: { educationOrganizationId: 7 } } })
})

test('[D7] two keys change places in one putAll, all or none', async () => {
  const a = await documents.post('School', school(1, { name: 'a' }))
  const b = await documents.post('School', school(2, { name: 'b' }))
  await documents.post('School', school(3))
  const swap = [
    { type: 'School', uuid: a.uuid, body: school(2, { name: 'a' }) },
    { type: 'School', uuid: b.uuid, body: school(1, { name: 'b' }) },
  ]
  expect((await documents.putAll(swap)).map(({ key }) => key)).toEqual([{ schoolId: 2 }, { schoolId: 1 }])
  expect(await documents.get('School', { schoolId: 1 })).toMatchObject({ uuid: b.uuid, body: { name: 'b' } })
  const bad = [swap[1]!, { type: 'School', uuid: a.uuid, body: school(3) }]
  await expect(documents.putAll([{ ...bad[0]!, body: school(9) }, bad[1]!])).rejects.toMatchObject({ code: 'PAWL_KEY_TAKEN' })
  expect(await documents.get('School', { schoolId: 1 })).toMatchObject({ uuid: b.uuid })
  expect(await documents.get('School', { schoolId: 9 })).toBeUndefined()
})

test('[D7] a refused key change names the fields, an ignored one keeps them', async () => {
  await documents.post('School', school(1))
  await documents.post('School', school(2))
  const note = await documents.post('Note', { noteId: 1 })
  await expect(documents.put('Note', note.uuid, { noteId: 2 })).rejects.toMatchObject({
    code: 'PAWL_KEY_IMMUTABLE',
    details: { fields: ['noteId'] },
  })
  const { uuid } = await documents.post('Period', period('P1'))
  const put = await documents.put('Period', uuid, period('P2', 2, { starts: '08:00' }))
  expect(put).toMatchObject({ outcome: 'updated', isKeyChanged: false, key: { period: 'P1', schoolId: 1 } })
  expect(await documents.get('Period', uuid)).toMatchObject({ body: period('P1', 1, { starts: '08:00' }) })
})

test('[D6] of two bare writes the one with the later receipt wins', async () => {
  const { uuid } = await documents.post('School', school(1))
  const early = await documents.receipt()
  const late = await documents.receipt()
  await documents.put('School', uuid, school(1, { name: 'late' }), { receipt: late })
  const delayed = documents.put('School', uuid, school(1, { name: 'early' }), { receipt: early })
  await expect(delayed).rejects.toMatchObject({ code: 'PAWL_STALE_WRITE', details: { receipt: early, stored: late } })
  const posted = documents.post('School', school(1, { name: 'early' }), { receipt: early })
  await expect(posted).rejects.toMatchObject({ code: 'PAWL_STALE_WRITE' })
  expect(await documents.put('School', uuid, school(1, { name: 'late' }), { receipt: early })).toMatchObject({
    outcome: 'unchanged',
  })
  await expect(documents.post('School', school(1), { receipt: '999999' })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
})

test('[D6] a write that changes nothing still raises the receipt', async () => {
  const { uuid } = await documents.post('School', school(1))
  const early = await documents.receipt()
  await documents.put('School', uuid, school(1))
  const delayed = documents.put('School', uuid, school(1, { name: 'x' }), { receipt: early })
  await expect(delayed).rejects.toMatchObject({ code: 'PAWL_STALE_WRITE' })
})

test('[D9] ifMatch and ifNoneMatch refuse what they exclude', async () => {
  const failed = { code: 'PAWL_PRECONDITION_FAILED' }
  const missing = '00000000-0000-4000-8000-000000000000'
  const { uuid: parent } = await documents.post('School', school(1))
  const { uuid, etag } = await documents.post('Session', session('Fall'))
  await expect(documents.put('Session', missing, session('X'), { ifMatch: '*' })).rejects.toMatchObject(failed)
  await expect(documents.put('Session', missing, session('X'))).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(documents.put('School', uuid, school(5))).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(documents.post('Session', session('X'), { ifMatch: '*' })).rejects.toMatchObject(failed)
  await expect(documents.post('Session', session('Fall'), { ifNoneMatch: '*' })).rejects.toMatchObject({
    ...failed,
    details: { etag },
  })
  const next = await documents.put('Session', uuid, session('Fall', 1, { n: 1 }), { ifMatch: etag })
  await expect(documents.put('Session', uuid, session('Fall'), { ifMatch: etag })).rejects.toMatchObject({
    ...failed,
    details: { etag: next.etag },
  })
  await documents.put('School', parent, school(2))
  await expect(documents.delete('Session', uuid, { ifMatch: next.etag })).rejects.toMatchObject(failed)
  const { etag: now } = (await documents.get('Session', uuid))!
  await documents.delete('Session', uuid, { ifMatch: now })
  expect(await documents.get('Session', uuid)).toBeUndefined()
})

test('[D10] a referenced document is not deleted; count and referrers are named', async () => {
  const { uuid } = await documents.post('School', school(1))
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'g']) await documents.post('Session', session(name))
  const error: unknown = await documents.delete('School', uuid).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ code: 'PAWL_REFERENCED', details: { count: 7 } })
  expect((error as { details: { referrers: object[] } }).details.referrers).toHaveLength(5)
  expect((error as { details: { referrers: object[] } }).details.referrers[0]).toMatchObject({
    type: 'Session',
    path: 'schoolReference',
  })
})

test('[D4] a document may refer to itself at creation, and be deleted', async () => {
  const { uuid } = await documents.post('Employee', { employeeId: 1, manager: 1 })
  expect(await documents.put('Employee', uuid, { employeeId: 2, manager: 2 })).toMatchObject({ isKeyChanged: true })
  expect(await documents.get('Employee', uuid)).toMatchObject({ body: { employeeId: 2, manager: 2 } })
  await documents.delete('Employee', uuid)
  expect((await events('Employee')).at(-1)).toMatchObject({ type: 'document.deleted', payload: { key: { employeeId: 2 } } })
})

test('[D4] unified values that differ are refused with both paths', async () => {
  for (const id of [1, 2]) await documents.post('School', school(id))
  await documents.post('Session', session('Fall'))
  const body = { ...offering('math', 'Fall'), schoolReference: { schoolId: 2 } }
  await expect(documents.post('Offering', body)).rejects.toMatchObject({
    code: 'PAWL_DOCUMENT_INVALID',
    details: { paths: ['schoolReference.schoolId', 'sessionReference.schoolId'], values: [2, 1] },
  })
})

test('[D4] Fall to Spring: the offering moves, its sections follow', async () => {
  await documents.post('School', school(1))
  for (const name of ['Fall', 'Spring']) await documents.post('Session', session(name))
  const { uuid } = await documents.post('Offering', offering('math', 'Fall'))
  await documents.post('Period', period('P1'))
  const child = await documents.post('Section', section('s', 'math', 'Fall', [{ period: 'P1', schoolId: 1 }]))
  expect(await documents.put('Offering', uuid, offering('math', 'Spring'))).toMatchObject({ isKeyChanged: true })
  expect(await documents.get('Section', child.uuid)).toMatchObject({
    key: { sectionId: 's', code: 'math', schoolId: 1, sessionName: 'Spring' },
  })
})

test('[D4] a re-point that parts unified references is refused, naming dependents', async () => {
  for (const id of [1, 2]) await documents.post('School', school(id))
  const fall = await documents.post('Session', session('Fall'))
  await documents.post('Session', session('Other', 2))
  const math = await documents.post('Offering', offering('math', 'Fall'))
  await expect(documents.put('Session', fall.uuid, session('Fall', 2))).rejects.toMatchObject({
    code: 'PAWL_UNIFIED',
    details: { dependents: [{ type: 'Offering', uuid: math.uuid, path: 'sessionReference' }] },
  })
  expect(await documents.put('Offering', math.uuid, offering('math', 'Other', 2))).toMatchObject({ isKeyChanged: true })
  expect(await documents.put('Session', fall.uuid, session('Fall', 2))).toMatchObject({ isKeyChanged: true })
})

test('[D7] an old key answers reads, and its POST names the new', async () => {
  await documents.post('School', school(1))
  const { uuid } = await documents.post('Session', session('Fall'))
  await documents.put('Session', uuid, session('Autumn'))
  expect(await documents.get('Session', { sessionName: 'Fall', schoolId: 1 })).toMatchObject({ uuid, byOldKey: true })
  await expect(documents.post('Session', session('Fall'))).rejects.toMatchObject({
    code: 'PAWL_KEY_RENAMED',
    details: { uuid, newKey: { sessionName: 'Autumn', schoolId: 1 } },
  })
  await expect(documents.post('Offering', offering('math', 'Fall'))).rejects.toMatchObject({
    message: expect.stringMatching(
      /Session \{.*"Fall".*\}, which does not exist any more: its key is now \{.*"Autumn".*\}\. Nothing was written\.$/,
    ),
    details: { references: [{ renamedTo: { sessionName: 'Autumn', schoolId: 1 } }] },
  })
  expect(await documents.put('Session', uuid, session('Fall'))).toMatchObject({ isKeyChanged: true })
  await db.query("update pawl.document_key set alias_until = '2000-01-01' where alias_until is not null")
  expect(await documents.post('Session', session('Autumn'))).toMatchObject({ outcome: 'created' })
})

test('[D8] postMany writes new, existing, repeated and self-referring bodies', async () => {
  await documents.post('Employee', { employeeId: 1 })
  const outcomes = await documents.postMany('Employee', [
    { employeeId: 1, name: 'x' },
    { employeeId: 2 },
    { employeeId: 3, manager: 2 },
    { employeeId: 4, manager: 99 },
    { employeeId: 2 },
    { name: 'no key' },
    { employeeId: 5, manager: 1 },
  ])
  expect(outcomes.map((each) => (each.ok ? each.outcome : (each.error as { code?: string }).code))).toEqual([
    'updated',
    'created',
    'created',
    'PAWL_REFERENCE_UNRESOLVED',
    'unchanged',
    'PAWL_DOCUMENT_INVALID',
    'created',
  ])
})

test("a refusal leaves the caller's transaction usable, a rollback leaves nothing", async () => {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await documents.post('School', school(1), { tx: client })
    await expect(documents.post('Session', session('Fall', 2), { tx: client })).rejects.toMatchObject({
      code: 'PAWL_REFERENCE_UNRESOLVED',
    })
    expect(await documents.post('Session', session('Fall', 1), { tx: client })).toMatchObject({ outcome: 'created' })
    await client.query('rollback')
  } finally {
    client.release()
  }
  expect(await documents.get('School', { schoolId: 1 })).toBeUndefined()
})

test('a changed identity of a type with documents is refused', async () => {
  await documents.post('Note', { noteId: 1 })
  const other = db.pawl()
  other.documents.define('Note', { identity: ['noteId', 'year'] })
  await expect(other.documents.post('Note', { noteId: 1, year: 2 })).rejects.toMatchObject({
    code: 'PAWL_MODEL_CHANGED',
    details: { type: 'Note', changed: expect.arrayContaining(['identity']) },
  })
  const third = db.pawl()
  third.documents.define('Employee', { identity: ['employeeId', 'year'] })
  expect(await third.documents.post('Employee', { employeeId: 1, year: 2 })).toMatchObject({ outcome: 'created' })
  await expect(documents.post('Employee', { employeeId: 1 })).rejects.toMatchObject({ code: 'PAWL_MODEL_CHANGED' })
})
