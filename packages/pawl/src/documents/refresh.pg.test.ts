import { installProbe } from 'pawl/testing'
import type pg from 'pg'
import { expect, onTestFinished, test } from 'vitest'
import { deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { defineSchools, plant, replant } from '../../test/support/documents.ts'
import { caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

async function createSchools(): Promise<TestDatabase> {
  return createLog('select 1')
}

function schools(db: TestDatabase) {
  const pawl = db.pawl()
  defineSchools(pawl.documents)
  return pawl
}

async function refreshed(db: TestDatabase): Promise<void> {
  await caughtUp(db, 'pawl.documents')
  await until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)
}

async function stored(db: TestDatabase, id: string): Promise<{ body: unknown; keys: unknown }> {
  const [row] = await db.query<{ body: unknown; keys: unknown }>('select body, keys from pawl.document where id = $1', [id])
  return row!
}

async function open(db: TestDatabase): Promise<pg.PoolClient> {
  const client = await db.pool.connect()
  onTestFinished(async () => {
    await client.query('rollback').catch(() => undefined)
    client.release()
  })
  await client.query('begin')
  return client
}

const school = (schoolId: number) => ({ schoolId })
const session = (sessionName: string, schoolId = 1) => ({ sessionName, schoolReference: { schoolId } })
const offering = (code: string, sessionName: string, schoolId = 1) => ({ code, sessionReference: { sessionName, schoolId } })
const section = (sectionId: string, code: string, sessionName: string, schoolId = 1) => ({
  sectionId,
  offeringReference: { code, sessionName, schoolId },
})

/** School 1, session A, offering c, section s. */
async function plantAll(db: TestDatabase) {
  const schoolId = await plant(db, 'School', school(1))
  const sessionId = await plant(db, 'Session', session('A'))
  const offeringId = await plant(db, 'Offering', offering('c', 'A'))
  const sectionId = await plant(db, 'Section', section('s', 'c', 'A'))
  return { schoolId, sessionId, offeringId, sectionId }
}

test('[D5] after a rename the stored bodies and keys of grandchildren follow', async () => {
  const db = await createSchools()
  const { sessionId, offeringId, sectionId } = await plantAll(db)
  await startRunner(schools(db))
  await refreshed(db)
  await replant(db, sessionId, 'Session', session('B'))
  await refreshed(db)
  expect(await stored(db, offeringId)).toEqual({
    body: offering('c', 'B'),
    keys: { Offering: { code: 'c', sessionName: 'B', schoolId: 1 } },
  })
  expect(await stored(db, sectionId)).toEqual({
    body: section('s', 'c', 'B'),
    keys: { Section: { sectionId: 's', code: 'c', sessionName: 'B', schoolId: 1 } },
  })
})

test('[D11] a rename appends one event per dependent and none for others', async () => {
  const db = await createSchools()
  const { sessionId } = await plantAll(db)
  await plant(db, 'Session', session('Other'))
  await plant(db, 'Employee', { employeeId: 1 })
  await startRunner(schools(db))
  await refreshed(db)
  const [last] = await db.query<{ seq: string }>('select max(seq)::text as seq from pawl.event')
  await replant(db, sessionId, 'Session', session('B'))
  await refreshed(db)
  const events = await db.query(
    `select aggregatetype as of, type, payload, headers from pawl.event where seq > $1 and payload ->> 'cause' = 'cascade' order by seq`,
    [last!.seq],
  )
  expect(events.map(({ of, type }) => [of, type])).toEqual([
    ['Offering', 'document.key-updated'],
    ['Section', 'document.key-updated'],
  ])
  expect(events[0]).toMatchObject({
    payload: { revision: 1, oldKey: { sessionName: 'A' }, newKey: { sessionName: 'B' }, cause: 'cascade' },
    headers: { id: expect.stringMatching(/^\d+$/) },
  })
})

test('[D5] a child that commits its old key after the walk is refreshed', async () => {
  const db = await createSchools()
  const { sessionId } = await plantAll(db)
  await startRunner(schools(db))
  await refreshed(db)
  const writer = await open(db)
  const childId = await plant(writer, 'Offering', offering('late', 'A'))
  await replant(db, sessionId, 'Session', session('B'))
  await refreshed(db)
  await writer.query('commit')
  await refreshed(db)
  expect(await stored(db, childId)).toEqual({
    body: offering('late', 'B'),
    keys: { Offering: { code: 'late', sessionName: 'B', schoolId: 1 } },
  })
})

test('[D5] a grandchild refreshed between two renames back and forth is right', async () => {
  const db = await createSchools()
  const { sessionId, offeringId, sectionId } = await plantAll(db)
  const pawl = schools(db)
  await startRunner(pawl)
  await refreshed(db)
  const isOfferings = async (name: string) => JSON.stringify((await stored(db, offeringId)).keys).includes(`"${name}"`)
  // The child is refreshed to B by itself, before any walk, then to A by itself: a walk that stops where nothing differs leaves the grandchild at B.
  await pawl.projections.pause('pawl.documents', { reason: 'to order them' })
  await replant(db, sessionId, 'Session', session('B'))
  await db.query("select pawl.refresh_documents('', array[$1::bigint])", [offeringId])
  await db.query("select pawl.refresh_documents('', array[$1::bigint])", [sectionId])
  expect(await isOfferings('B')).toBe(true)
  await replant(db, sessionId, 'Session', session('A'))
  await db.query("select pawl.refresh_documents('', array[$1::bigint])", [offeringId])
  expect(await isOfferings('A')).toBe(true)
  await pawl.projections.resume('pawl.documents', { reason: 'they are ordered' })
  await refreshed(db)
  expect((await stored(db, sectionId)).body).toEqual(section('s', 'c', 'A'))
})

test('[D5] a document written during its refresh is left to its own mark', async () => {
  const db = await createSchools()
  const { schoolId, sessionId } = await plantAll(db)
  for (const period of ['p', 'q']) await plant(db, 'Period', { period, schoolReference: { schoolId: 1 } })
  const periods = (...names: string[]) => names.map((period) => ({ periodReference: { period, schoolId: 1 } }))
  const sectionId = await plant(db, 'Section', { ...section('t', 'c', 'A'), periods: periods('p', 'q') })
  await startRunner(schools(db))
  await refreshed(db)
  const writer = await open(db)
  // Takes away the first element while the school is renamed: its index belongs to another reference now.
  await replant(writer, sectionId, 'Section', { ...section('t', 'c', 'A'), periods: periods('q') })
  await replant(db, schoolId, 'School', school(2))
  await until('the rest is refreshed', async () => JSON.stringify((await stored(db, sessionId)).body).includes('"schoolId":2'))
  await writer.query('commit')
  await refreshed(db)
  expect((await stored(db, sectionId)).body).toEqual({
    ...section('t', 'c', 'A', 2),
    periods: [{ periodReference: { period: 'q', schoolId: 2 } }],
  })
})

test('[D5] an open write of one dependent does not hold up the others', async () => {
  const db = await createSchools()
  const { sessionId, offeringId } = await plantAll(db)
  const otherId = await plant(db, 'Offering', offering('other', 'A'))
  await startRunner(schools(db))
  await refreshed(db)
  const writer = await open(db)
  await writer.query('select from pawl.document where id = $1 for no key update', [offeringId])
  await replant(db, sessionId, 'Session', session('B'))
  await until('the other is refreshed', async () => JSON.stringify((await stored(db, otherId)).body).includes('"B"'))
  expect((await stored(db, offeringId)).body).toEqual(offering('c', 'A'))
  await writer.query('rollback')
  await refreshed(db)
  expect((await stored(db, offeringId)).body).toEqual(offering('c', 'B'))
})

test('[D5] a document whose row moves during its walk follows', async () => {
  const db = await createSchools()
  const { sessionId, offeringId } = await plantAll(db)
  await startRunner(schools(db))
  await refreshed(db)
  // A POST of what is stored raises the receipt, and has no event that would mark the document.
  const writer = await open(db)
  await writer.query('update pawl.document set receipt = receipt + 1 where id = $1', [offeringId])
  await replant(db, sessionId, 'Session', session('B'))
  await until(
    'the walk waits',
    () => db.query("select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"),
    (rows) => rows.length > 0,
  )
  await writer.query('commit')
  await refreshed(db)
  expect((await stored(db, offeringId)).body).toEqual(offering('c', 'B'))
})

test('[D4] arrays, superclasses, renamed fields, scalars and self references follow', async () => {
  const db = await createSchools()
  const { schoolId } = await plantAll(db)
  await plant(db, 'School', school(5))
  await plant(db, 'Period', { period: 'p', schoolReference: { schoolId: 1 } })
  const twice = { ...section('two', 'c', 'A'), periods: [1, 2].map(() => ({ periodReference: { period: 'p', schoolId: 1 } })) }
  const twiceId = await plant(db, 'Section', twice)
  const transferId = await plant(db, 'Transfer', { no: 1, from: 1, to: { schoolId: 5 } })
  const roundId = await plant(db, 'Transfer', { no: 2, from: { schoolId: 1 }, to: 1 })
  const stampId = await plant(db, 'Stamp', { stampId: 9, transfer: { no: 1, fromSchoolId: 1, toSchoolId: 5 } })
  const noteId = await plant(db, 'Note', { noteId: 3, about: { educationOrganizationId: 1 } })
  const bossId = await plant(db, 'Employee', { employeeId: 1, manager: 1 })
  const memberId = await plant(db, 'Employee', {
    employeeId: 2,
    manager: { employeeId: 1 },
    team: [{ member: 1 }, { member: 2 }],
  })
  await startRunner(schools(db))
  await refreshed(db)
  await replant(db, schoolId, 'School', school(7))
  await replant(db, bossId, 'Employee', { employeeId: 100, manager: 100 })
  await refreshed(db)
  expect((await stored(db, schoolId)).keys).toEqual({
    School: { schoolId: 7 },
    EducationOrganization: { educationOrganizationId: 7 },
  })
  expect((await stored(db, twiceId)).body).toEqual({
    ...section('two', 'c', 'A', 7),
    periods: [1, 2].map(() => ({ periodReference: { period: 'p', schoolId: 7 } })),
  })
  expect(await stored(db, transferId)).toEqual({
    body: { no: 1, from: 7, to: { schoolId: 5 } },
    keys: { Transfer: { no: 1, fromSchoolId: 7, toSchoolId: 5 } },
  })
  expect(await stored(db, roundId)).toEqual({
    body: { no: 2, from: { schoolId: 7 }, to: 7 },
    keys: { Transfer: { no: 2, fromSchoolId: 7, toSchoolId: 7 } },
  })
  expect((await stored(db, stampId)).body).toEqual({ stampId: 9, transfer: { no: 1, fromSchoolId: 7, toSchoolId: 5 } })
  expect((await stored(db, noteId)).keys).toEqual({ Note: { noteId: 3, educationOrganizationId: 7 } })
  expect((await stored(db, bossId)).body).toEqual({ employeeId: 100, manager: 100 })
  expect((await stored(db, memberId)).body).toEqual({
    employeeId: 2,
    manager: { employeeId: 100 },
    team: [{ member: 100 }, { member: 2 }],
  })
})

test('[D5] a walk goes on where its chunk ended', async () => {
  const db = await createSchools()
  const { sessionId, offeringId } = await plantAll(db)
  await db.query(
    `with new as (insert into pawl.document (id, type, receipt, content, keys, body)
       select nextval('pawl.document_id'), 'Offering', 1, '', d.keys || jsonb_build_object('Offering', (d.keys -> 'Offering') || jsonb_build_object('code', 'c' || n)),
         d.body || jsonb_build_object('code', 'c' || n)
       from pawl.document d cross join generate_series(1, 9500) n where d.id = $1 returning id, body),
     key as (insert into pawl.document_key (hash, document_id, type, parts, refs)
       select int8send(n.id), n.id, 'Offering', jsonb_build_object('code', n.body -> 'code'), array[$2::bigint] from new n)
     insert into pawl.document_ref (from_id, path, to_id, type, in_key) select n.id, '{sessionReference}', $2, 'Session', true from new n`,
    [offeringId, sessionId],
  )
  await replant(db, sessionId, 'Session', session('B'))
  await startRunner(schools(db))
  await until('it has begun', async () => (await db.query("select from pawl.cursor where name = 'pawl.documents'")).length > 0)
  await refreshed(db)
  expect(
    await db.query(
      `select count(*)::integer as all, count(*) filter (where body #>> '{sessionReference,sessionName}' = 'B' and keys #>> '{Offering,sessionName}' = 'B')::integer as new
       from pawl.document where type = 'Offering'`,
    ),
  ).toEqual([{ all: 9501, new: 9501 }])
  expect(
    await db.query(
      "select count(*)::integer as events from pawl.event where type = 'document.key-updated' and payload ->> 'cause' = 'cascade'",
    ),
  ).toEqual([{ events: 9502 }])
})

test('[D5] a refresh killed before its commit is done again', async () => {
  const db = await createSchools()
  const { sessionId, sectionId } = await plantAll(db)
  let kills = 0
  installProbe(async (name) => {
    if (name !== 'documents.refresh.written' || kills++ > 0) return
    await db.query(
      "select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()",
    )
  })
  onTestFinished(() => installProbe(undefined))
  await replant(db, sessionId, 'Session', session('B'))
  await startRunner(schools(db))
  await until('it was killed', () => kills > 0)
  await refreshed(db)
  expect((await stored(db, sectionId)).body).toEqual(section('s', 'c', 'B'))
  expect(await db.query("select from pawl.event where payload ->> 'cause' = 'cascade'")).toHaveLength(2)
})

test('[D5] two processes refresh one after another, and the later key stays', async () => {
  const db = await createSchools()
  const { sessionId, sectionId } = await plantAll(db)
  const hold = deferred()
  let held = 0
  installProbe(async (name) => {
    if (name !== 'documents.refresh.written' || held++ > 0) return
    await hold.promise
  })
  onTestFinished(() => installProbe(undefined))
  await replant(db, sessionId, 'Session', session('B'))
  for (const pawl of [schools(db), schools(db)]) await startRunner(pawl)
  await until('one refreshes', () => held === 1)
  // The second rename is committed while the first one's refresh is not.
  await replant(db, sessionId, 'Session', session('C'))
  await caughtUp(db, 'pawl.documents')
  expect(held).toBe(1)
  hold.resolve()
  await refreshed(db)
  expect((await stored(db, sectionId)).body).toEqual(section('s', 'c', 'C'))
})

test('[D5] documents of a tenant are refreshed, and only these', async () => {
  const db = await createSchools()
  const sessionIds: string[] = []
  for (const tenant of ['', 'a/1>2']) {
    await plant(db, 'School', school(1), tenant)
    sessionIds.push(await plant(db, 'Session', session('A'), tenant))
    await plant(db, 'Offering', offering('c', 'A'), tenant)
  }
  await startRunner(schools(db))
  await refreshed(db)
  await replant(db, sessionIds[1]!, 'Session', session('B'), 'a/1>2')
  await refreshed(db)
  expect(
    await db.query(
      "select tenant, body #>> '{sessionReference,sessionName}' as name from pawl.document where type = 'Offering' order by 1",
    ),
  ).toEqual([
    { tenant: '', name: 'A' },
    { tenant: 'a/1>2', name: 'B' },
  ])
})

test('[D5] the cursor touches no event of a refresh of its process', async () => {
  const db = await createSchools()
  const { schoolId, sessionId } = await plantAll(db)
  const pawl = schools(db)
  await startRunner(pawl)
  await refreshed(db)
  // The refresher that takes the second rename has the answer of the first one's commit.
  for (const name of ['B', 'C']) {
    await replant(db, sessionId, 'Session', session(name))
    await refreshed(db)
  }
  // Touched, they would be gaps.
  const gone = await db.query(
    "delete from pawl.event where payload ->> 'cause' = 'cascade' and payload #>> '{newKey,sessionName}' = 'B' returning xid",
  )
  expect(gone).toHaveLength(2)
  await pawl.projections.pause('pawl.documents', { reason: 'a test' })
  await pawl.projections.resume('pawl.documents', { reason: 'a test', from: 'oldest' })
  await replant(db, schoolId, 'School', school(2))
  const status = async () => (await pawl.projections.status('pawl.documents'))[0]!
  const { state, reason } = await until(
    'it is at the end, or stopped',
    status,
    ({ lag, state }) => lag === 0 || state !== 'running',
  )
  expect({ state, reason }).toEqual({ state: 'running', reason: null })
})
