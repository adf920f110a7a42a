import type { Document, Pawl, Written } from 'pawl'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../../../pawl/test/support/database.ts'
import { caughtUp, startRunner } from '../../../../pawl/test/support/projections.ts'
import { pawl as cli, pawlJson } from '../test-support/cli.ts'

let db: TestDatabase
let pawl: Pawl
let school: Written
let fall: Written
beforeEach(async () => {
  db = await createDatabase()
  pawl = define(db.pawl())
  const { documents: all } = pawl
  school = await all.post('School', { schoolId: 1, name: 'North' })
  fall = await all.post('Session', { sessionName: 'Fall', schoolReference: { schoolId: 1 } })
})
afterEach(() => db.drop())

function define(pawl: Pawl): Pawl {
  pawl.documents.define('Organization', { identity: ['organizationId'], abstract: true })
  pawl.documents.define('School', {
    identity: ['schoolId'],
    extends: { type: 'Organization', as: { schoolId: 'organizationId' } },
  })
  pawl.documents.define('Session', {
    identity: ['sessionName', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'cascade',
    oldKeys: '7d',
  })
  pawl.documents.define('Section', { identity: ['sectionId', 'session'], references: { session: 'Session' } })
  return pawl
}

const documents = (...args: string[]) => cli(['documents', ...args, '--database-url', db.url])
const json = <T>(...args: string[]) => pawlJson<T>(['documents', ...args, '--database-url', db.url])
const section = (sectionId: string, sessionName = 'Fall') =>
  JSON.stringify({ sectionId, session: { sessionName, schoolId: 1 }, seats: 30 })

test('types lists the stored definitions', async () => {
  expect((await documents('types')).stdout).toMatch(
    /^type +extends +key change .*\nOrganization +abstract .*\nSchool +Organization +refuse .*\nSection .*\nSession +cascade +\S+ ago +schoolReference, sessionName\n$/,
  )
  expect((await cli(['documents', 'types', '--database-url', db.url, '--tenant', 'acme'])).stderr).toMatch(/^No types\./)
})

test('post, get, list and delete act on documents of the stored types', async () => {
  const made = await json<Written>('post', 'Section', section('A'))
  expect(made).toMatchObject({ outcome: 'created', key: { sectionId: 'A', sessionName: 'Fall', schoolId: 1 } })
  expect((await documents('post', 'Section', section('A'))).stdout).toMatch(
    /^uuid +[0-9a-f-]{36}\noutcome +unchanged\nkey +\{.*\}\netag +1\./,
  )
  expect(await documents('post', 'Section', section('A'), '--new')).toMatchObject({ code: 4 })
  const key = JSON.stringify(made.key)
  expect(await json<Document>('get', 'Section', key)).toMatchObject({ uuid: made.uuid, body: { seats: 30 } })
  expect((await documents('get', 'Section', made.uuid)).stdout).toMatch(/^uuid +\S{36}\ntype +Section\nkey +\{[\s\S]*"seats": 30/)
  await json('post', 'Section', section('B'))
  const first = await json<{ items: Document[]; next: string }>('list', 'Section', '--limit', '1')
  expect(first.items).toMatchObject([{ uuid: made.uuid }])
  const rest = await json<{ items: Document[] }>('list', 'Section', '--after', first.next)
  expect(rest.items).toMatchObject([{ key: { sectionId: 'B' } }])
  const where = ['--where', 'session={"sessionName":"Fall","schoolId":1}', '--where', 'sectionId=B', '--where', 'seats=30']
  expect((await json<{ items: Document[] }>('list', 'Section', ...where)).items).toHaveLength(1)
  expect((await documents('list', 'Section', '--where', 'seats="30"')).stderr).toBe('No such documents.\n')
  expect((await documents('delete', 'Section', made.uuid)).stdout).toMatch(/outcome +deleted\n$/)
  expect(await documents('get', 'Section', key)).toMatchObject({
    code: 3,
    stderr: expect.stringMatching(/There is no Section with the key .*\nnext +pawl documents list/),
  })
})

test('[D5] a rename answers the old key too; dependents counts first', async () => {
  await json('post', 'Section', section('A'))
  expect((await documents('dependents', 'School', school.uuid)).stdout).toBe(
    'depth  documents  type\n    1          1  Session\n    2          1  Section\n',
  )
  const spring = JSON.stringify({ sessionName: 'Spring', schoolReference: { schoolId: 1 } })
  expect((await documents('put', 'Session', fall.uuid, spring, '--if-match', fall.etag)).stdout).toMatch(
    /outcome +updated, with a new key\n/,
  )
  expect(
    (await json<Document>('get', 'Section', '{"sectionId": "A", "sessionName": "Spring", "schoolId": 1}')).body,
  ).toMatchObject({
    session: { sessionName: 'Spring' },
  })
  expect((await documents('get', 'Session', '{"sessionName": "Fall", "schoolId": 1}')).stderr).toMatch(/^note .*no longer has/)
  expect(await documents('put', 'Session', fall.uuid, spring, '--if-match', fall.etag)).toMatchObject({
    code: 4,
    stderr: expect.stringMatching(/next +pawl documents get/),
  })
})

test('[D10] delete of a referenced document names the way to its referrers', async () => {
  const refused = await documents('delete', 'School', school.uuid)
  expect(refused).toMatchObject({ code: 4, stderr: expect.stringMatching(/next +pawl documents referrers/) })
  expect(await documents('referrers', 'School', school.uuid)).toMatchObject({
    stdout: expect.stringMatching(new RegExp(`^type +uuid +path\nSession +${fall.uuid} +schoolReference\n$`)),
    stderr: '1 reference\n',
  })
})

test('referrers lists the next page after the last of one', async () => {
  await json('post', 'Session', '{"sessionName": "Spring", "schoolReference": {"schoolId": 1}}')
  const first = await documents('referrers', 'School', school.uuid, '--limit', '1')
  const next = /^2 references\nThere are more: --after (\S+)\n$/.exec(first.stderr)![1]!
  expect(await documents('referrers', 'School', school.uuid, '--limit', '1', '--after', next)).toMatchObject({
    stdout: expect.not.stringContaining(fall.uuid),
    stderr: '2 references\n',
  })
  expect(await json('referrers', 'School', school.uuid, '--after', next)).toMatchObject({
    items: [{ type: 'Session' }],
    next: null,
  })
})

test('verify exits with 6 where a key, reference or body differs', async () => {
  await json('post', 'Section', section('A'))
  await startRunner(pawl)
  await caughtUp(db, 'pawl.documents')
  expect(await documents('verify')).toMatchObject({ code: 0, stdout: '', stderr: '3 documents checked, 0 faults\n' })
  await db.query(`update pawl.document_key set parts = '{"schoolId": 2}' where type = 'School'`)
  const broken = await documents('verify', '--type', 'School')
  expect(broken).toMatchObject({ code: 6, stderr: expect.stringMatching(/^1 document checked, \d+ faults?\n$/) })
  expect(broken.stdout).toContain(school.uuid)
})

test('verify says that stale copies wait for a worker', async () => {
  await json('post', 'Section', section('A'))
  await json('put', 'Session', fall.uuid, JSON.stringify({ sessionName: 'Spring', schoolReference: { schoolId: 1 } }))
  expect(await documents('verify')).toMatchObject({
    code: 6,
    stderr: expect.stringMatching(/\nnote {2}No worker of a process that defines documents has run yet/),
  })
  await startRunner(pawl)
  await until('the copies followed', async () => (await documents('verify')).code === 0)
})

test('a wrong type is answered with the known ones', async () => {
  for (const args of [
    ['list', 'Scool'],
    ['post', 'Scool', '{}'],
    ['verify', '--type', 'Scool'],
  ]) {
    const { code, stderr } = await documents(...args)
    expect(code).toBe(2)
    expect(stderr).toMatch(/^error {2}There is no type 'Scool'\.\n.*the types are Organization, School, Section, Session\n/)
    expect(stderr).not.toContain('define')
  }
})

test('a body and a key that are no JSON are called so', async () => {
  expect((await documents('post', 'School', '{')).stderr).toMatch(/The body is not valid JSON/)
  expect((await documents('get', 'School', '{')).stderr).toMatch(/The key is not valid JSON/)
  expect((await documents('put', 'School', school.uuid, '@nowhere.json')).stderr).toMatch(/The file of the body cannot be read/)
})

test('a wrong uuid or key exits with 1', async () => {
  for (const which of ['17', '{"id": 1}']) expect(await documents('get', 'School', which)).toMatchObject({ code: 1 })
})

test('a wrong type, body or condition exits with 2', async () => {
  const wrong = [
    ['get', 'Scool', '{"schoolId": 1}'],
    ['post', 'School', '{'],
    ['list', 'School', '--where', 'name'],
  ]
  for (const args of wrong) expect({ args, code: (await documents(...args)).code }).toEqual({ args, code: 2 })
})
