// The conflicts of the guide's table that span the write and the refresh: a client writes after a rename, and before the stored copies follow.

import { type Documents, isPawlError, type Pawl, type Written } from 'pawl'
import { installProbe } from 'pawl/testing'
import { beforeEach, expect, onTestFinished, test } from 'vitest'
import { deferred, type TestDatabase, until } from './support/database.ts'
import { caughtUp, createLog, startRunner } from './support/projections.ts'

let db: TestDatabase
let pawl: Pawl
let documents: Documents
let fall: Written
let section: Written
beforeEach(async () => {
  db = await createLog('select 1')
  pawl = db.pawl()
  documents = pawl.documents
  documents.define('School', { identity: ['schoolId'] })
  documents.define('Session', {
    identity: ['sessionName', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'cascade',
  })
  // Its key may not change by itself.
  documents.define('Section', { identity: ['sectionId', 'sessionReference'], references: { sessionReference: 'Session' } })
  documents.define('Grade', { identity: ['gradeId', 'sectionReference'], references: { sectionReference: 'Section' } })
  await documents.post('School', { schoolId: 1 })
  fall = await documents.post('Session', sessionOf('Fall'))
  section = await documents.post('Section', sectionOf('Fall', 20))
  await documents.post('Grade', { gradeId: 'G', sectionReference: { sectionId: 'A', sessionName: 'Fall', schoolId: 1 } })
})

const sessionOf = (sessionName: string) => ({ sessionName, schoolReference: { schoolId: 1 } })
const sectionOf = (sessionName: string, seats: number) => ({
  sectionId: 'A',
  sessionReference: { sessionName, schoolId: 1 },
  seats,
})
const rename = (sessionName: string) => documents.put('Session', fall.uuid, sessionOf(sessionName))

async function refreshed(): Promise<void> {
  await caughtUp(db, 'pawl.documents')
  await until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)
}

/** What the tables have, which is not what readers see until the refresh ran. */
async function storedBodies(type: string): Promise<unknown[]> {
  const rows = await db.query<{ body: unknown }>('select body from pawl.document where type = $1 order by id', [type])
  return rows.map(({ body }) => body)
}

const storedGrade = (sessionName: string) => ({ gradeId: 'G', sectionReference: { sectionId: 'A', sessionName, schoolId: 1 } })

async function refreshCleanly(): Promise<void> {
  await startRunner(pawl)
  await refreshed()
  expect(await documents.verify()).toMatchObject({ next: null, faults: [] })
}

test('[D5] a child posted before the refresh with the new key is updated', async () => {
  await rename('Autumn')
  expect(await storedBodies('Section')).toEqual([sectionOf('Fall', 20)])
  expect(await documents.post('Section', sectionOf('Autumn', 25))).toMatchObject({ uuid: section.uuid, outcome: 'updated' })
  await refreshCleanly()
  expect(await storedBodies('Section')).toEqual([sectionOf('Autumn', 25)])
  expect(await storedBodies('Grade')).toEqual([storedGrade('Autumn')])
})

test('[D5] a child put before the refresh keeps what was put', async () => {
  await rename('Autumn')
  const put = await documents.put('Section', section.uuid, sectionOf('Autumn', 30))
  expect(put).toMatchObject({ outcome: 'updated', isKeyChanged: false, key: { sessionName: 'Autumn' } })
  await refreshCleanly()
  expect(await storedBodies('Section')).toEqual([sectionOf('Autumn', 30)])
})

test('[D5] a child put during the refresh keeps its fields and the key', async () => {
  const hold = deferred()
  let held = 0
  installProbe(async (name) => {
    if (name === 'documents.refresh.written' && held++ === 0) await hold.promise
  })
  onTestFinished(() => installProbe(undefined))
  await rename('Autumn')
  await startRunner(pawl)
  await until('the refresh has written', () => held > 0)
  const putting = documents.put('Section', section.uuid, sectionOf('Autumn', 31))
  await rename('Winter')
  hold.resolve()
  expect(await putting).toMatchObject({ outcome: 'updated' })
  await refreshed()
  expect(await storedBodies('Section')).toEqual([sectionOf('Winter', 31)])
  expect(await storedBodies('Grade')).toEqual([storedGrade('Winter')])
})

test('[D10] a child posted with the old key is refused, naming it', async () => {
  await rename('Autumn')
  const error = await documents.post('Section', { ...sectionOf('Fall', 20), sectionId: 'B' }).catch((each: unknown) => each)
  expect(isPawlError(error, 'PAWL_REFERENCE_UNRESOLVED') && error.details.references).toEqual([
    { path: 'sessionReference', type: 'Session', key: { sessionName: 'Fall', schoolId: 1 } },
  ])
})

test('a freed key goes to a new document, and old children stay', async () => {
  await rename('Autumn')
  const second = await documents.post('Session', sessionOf('Fall'))
  expect(second).toMatchObject({ outcome: 'created' })
  const child = await documents.post('Section', sectionOf('Fall', 5))
  expect(child).toMatchObject({ outcome: 'created' })
  await refreshCleanly()
  expect(await storedBodies('Section')).toEqual([sectionOf('Autumn', 20), sectionOf('Fall', 5)])
  expect(await documents.referrers('Session', second.uuid)).toMatchObject({ items: [{ uuid: child.uuid }] })
})

test('[D7] a type that refuses key changes still follows its parents', async () => {
  const moved = documents.put('Section', section.uuid, { ...sectionOf('Fall', 20), sectionId: 'B' })
  await expect(moved).rejects.toMatchObject({ code: 'PAWL_KEY_IMMUTABLE', details: { fields: ['sectionId'] } })
  await rename('Autumn')
  await refreshCleanly()
  expect((await documents.get('Section', section.uuid))!.key).toEqual({ sectionId: 'A', sessionName: 'Autumn', schoolId: 1 })
  expect(await storedBodies('Grade')).toEqual([storedGrade('Autumn')])
})
