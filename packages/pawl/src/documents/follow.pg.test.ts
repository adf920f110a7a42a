// The refresh after writes through the verbs: stored bodies, stored keys and events follow a rename.

import { type Documents, isPawlError, type Pawl } from 'pawl'
import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

interface Schools {
  readonly db: TestDatabase
  readonly pawl: Pawl
  readonly documents: Documents
  /** By name, as posted. */
  readonly uuids: Readonly<Record<'school' | 'session' | 'offering' | 'section' | 'note' | 'other', string>>
}

const school = (schoolId: number) => ({ schoolId })
const session = (sessionName: string, schoolId = 1) => ({ sessionName, school: schoolId })
const offering = (code: string, sessionName: string, schoolId = 1) => ({ code, session: { sessionName, schoolId } })
const section = (sectionId: string, code: string, sessionName: string, schoolId = 1) => ({
  sectionId,
  offering: { code, sessionName, schoolId },
  schools: [{ school: schoolId }, { school: { schoolId } }],
})

function define(documents: Documents): void {
  documents.define('Organization', { identity: ['organizationId'], abstract: true })
  documents.define('School', {
    identity: ['schoolId'],
    extends: { type: 'Organization', as: { schoolId: 'organizationId' } },
    keyChange: 'cascade',
  })
  documents.define('Session', {
    identity: ['sessionName', 'school'],
    references: { school: 'School' },
    keyChange: 'cascade',
  })
  documents.define('Offering', { identity: ['code', 'session'], references: { session: 'Session' } })
  documents.define('Section', {
    identity: ['sectionId', 'offering'],
    references: { offering: 'Offering', 'schools[].school': 'School', student: 'Student' },
    keyChange: 'cascade',
  })
  documents.define('Student', { identity: ['studentId'] })
  documents.define('Note', { identity: ['noteId'], references: { about: 'Organization' } })
}

/** School 1, session A, offering c, section s, a note about the school; another school. All is refreshed. */
async function create(): Promise<Schools> {
  const db = await createLog('select 1')
  const pawl = db.pawl()
  define(pawl.documents)
  const { documents } = pawl
  const post = async (type: string, body: object) => (await documents.post(type, body)).uuid
  const uuids = {
    school: await post('School', school(1)),
    session: await post('Session', session('A')),
    offering: await post('Offering', offering('c', 'A')),
    section: await post('Section', section('s', 'c', 'A')),
    note: await post('Note', { noteId: 1, about: { organizationId: 1 } }),
    other: await post('School', school(100)),
  }
  await startRunner(pawl)
  await refreshed(db)
  return { db, pawl, documents, uuids }
}

async function refreshed(db: TestDatabase): Promise<void> {
  await until('it has begun', async () => (await db.query("select from pawl.cursor where name = 'pawl.documents'"))[0])
  await caughtUp(db, 'pawl.documents')
  await until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)
}

async function stored(db: TestDatabase, uuid: string) {
  return (await db.query<{ body: unknown; keys: unknown }>('select body, keys from pawl.document where uuid = $1', [uuid]))[0]!
}

async function cascades(db: TestDatabase) {
  const rows = await db.query<{ uuid: string; type: string }>(
    "select aggregateid as uuid, type from pawl.event where payload ->> 'cause' = 'cascade' order by seq",
  )
  return rows.map(({ uuid, type }) => [uuid, type])
}

test('[D5] after a PUT that renames, stored bodies and keys of dependents follow', async () => {
  const { db, documents, uuids } = await create()
  await documents.put('School', uuids.school, school(2))
  await refreshed(db)
  expect(await stored(db, uuids.section)).toEqual({
    body: section('s', 'c', 'A', 2),
    keys: { Section: { sectionId: 's', code: 'c', sessionName: 'A', schoolId: 2 } },
  })
  expect(await stored(db, uuids.note)).toMatchObject({ body: { noteId: 1, about: { organizationId: 2 } } })
  expect(await stored(db, uuids.school)).toMatchObject({ keys: { School: { schoolId: 2 }, Organization: { organizationId: 2 } } })
  expect((await documents.verify()).faults).toEqual([])
})

test('[D11] a rename appends one event per dependent and none for others', async () => {
  const { db, documents, uuids } = await create()
  await documents.put('Section', uuids.section, { ...section('s', 'c', 'A'), schools: [] })
  await refreshed(db)
  expect(await cascades(db)).toEqual([])
  await documents.put('School', uuids.school, school(2))
  await refreshed(db)
  const events = await cascades(db)
  expect(events.sort()).toEqual(
    [
      [uuids.session, 'document.key-updated'],
      [uuids.offering, 'document.key-updated'],
      [uuids.section, 'document.key-updated'],
      [uuids.note, 'document.updated'],
    ].sort(),
  )
  const own = await db.query("select from pawl.event where aggregateid = $1 and type <> 'document.created'", [uuids.school])
  expect(own).toHaveLength(1)
  expect(await db.query('select from pawl.event where aggregateid = $1', [uuids.other])).toHaveLength(1)
})

test('[D11] a dependent by ways of different depth has one event', async () => {
  const { db, documents, uuids } = await create()
  await documents.put('School', uuids.school, school(2))
  await refreshed(db)
  const events = (await cascades(db)).filter(([uuid]) => uuid === uuids.section)
  expect(events).toEqual([[uuids.section, 'document.key-updated']])
})

test('[D5] [D11] ways that transactions of the refresh part: one event each', async () => {
  const { db, documents, uuids } = await create()
  await documents.post('Student', { studentId: 1 })
  const schools = Array.from({ length: 80 }, () => ({ school: 1 }))
  const many = Array.from({ length: 120 }, (_, n) => ({ ...section(`s${n}`, 'c', 'A'), schools, student: 1 }))
  expect((await documents.postMany('Section', many)).every(({ ok }) => ok)).toBe(true)
  await refreshed(db)
  let transactions = 0
  installProbe(async (name) => {
    if (name === 'documents.refresh.written') transactions++
  })
  onTestFinished(() => installProbe(undefined))
  await documents.put('School', uuids.school, school(2))
  await refreshed(db)
  expect(transactions).toBeGreaterThan(1)
  const events = await cascades(db)
  // Sections, and the session, the offering and the note.
  expect(events).toHaveLength(121 + 3)
  expect(new Set(events.map(([uuid]) => uuid)).size).toBe(events.length)
  expect((await documents.verify({ type: 'Section', limit: 500 })).faults).toEqual([])
})

test('[D11] renames that wait are one change of each dependent', async () => {
  const { db, pawl, documents, uuids } = await create()
  await pawl.projections.pause('pawl.documents', { reason: 'so that they wait' })
  for (let n = 2; n < 8; n++) await documents.put('School', uuids.school, school(n))
  await documents.put('Session', uuids.session, session('B', 7))
  await pawl.projections.resume('pawl.documents', { reason: 'they have come' })
  await refreshed(db)
  const events = await cascades(db)
  expect(events.filter(([uuid]) => uuid === uuids.section)).toEqual([[uuids.section, 'document.key-updated']])
  expect(events.filter(([uuid]) => uuid === uuids.note)).toEqual([[uuids.note, 'document.updated']])
  expect(await stored(db, uuids.section)).toMatchObject({ body: section('s', 'c', 'B', 7) })
})

test('[D5] another parent with the values of the old one is walked', async () => {
  const { db, pawl, documents, uuids } = await create()
  await pawl.projections.pause('pawl.documents', { reason: 'to order them' })
  await documents.put('School', uuids.school, school(7))
  // By itself: the offering has the new key before the session that it is made of.
  await db.query("select pawl.refresh_documents('', array(select id from pawl.document where uuid = $1))", [uuids.offering])
  expect(await stored(db, uuids.offering)).toMatchObject({ body: offering('c', 'A', 7) })
  await documents.put('School', uuids.other, school(1))
  await documents.put('Session', uuids.session, session('A', 1))
  await pawl.projections.resume('pawl.documents', { reason: 'they are ordered' })
  await refreshed(db)
  expect(await stored(db, uuids.offering)).toMatchObject({ body: offering('c', 'A', 1) })
  expect((await documents.verify()).faults).toEqual([])
})

test('[D11] a write appends one event, of the key only if it changed', async () => {
  const { db, documents, uuids } = await create()
  const [{ seq }] = (await db.query<{ seq: string }>('select max(seq)::text as seq from pawl.event')) as [{ seq: string }]
  await documents.put('Section', uuids.section, { ...section('s', 'c', 'A'), room: 7 })
  await documents.put('Section', uuids.section, section('t', 'c', 'A'))
  await documents.delete('Section', uuids.section)
  await refreshed(db)
  const events = await db.query('select aggregateid as uuid, type, payload from pawl.event where seq > $1 order by seq', [seq])
  const key = (sectionId: string) => ({ sectionId, code: 'c', sessionName: 'A', schoolId: 1 })
  expect(events).toMatchObject([
    { uuid: uuids.section, type: 'document.updated', payload: { revision: 2, key: key('s'), cause: 'write' } },
    { uuid: uuids.section, type: 'document.key-updated', payload: { revision: 3, oldKey: key('s'), newKey: key('t') } },
    { uuid: uuids.section, type: 'document.deleted', payload: { key: key('t') } },
  ])
  expect(events[1]!.payload).toMatchObject({ oldHash: (events[0]!.payload as { hash: string }).hash })
})

test('[D5] a child posted during the refresh keeps its fields and follows', async () => {
  const { db, documents, uuids } = await create()
  const arrived = deferred()
  const go = deferred()
  let hits = 0
  installProbe(async (name) => {
    if (name !== 'documents.refresh.written' || hits++ > 0) return
    arrived.resolve()
    await go.promise
  })
  onTestFinished(() => installProbe(undefined))
  await documents.put('School', uuids.school, school(2))
  await arrived.promise
  // The walk has been written and is not committed: a POST and a second rename come in between.
  const late = await documents.post('Session', { ...session('Late', 2), n: 5 })
  await documents.put('School', uuids.school, school(3))
  const again = documents.post('Session', { ...session('A', 3), n: 6 })
  go.resolve()
  expect(await again).toMatchObject({ uuid: uuids.session, outcome: 'updated' })
  await refreshed(db)
  expect(await stored(db, late.uuid)).toMatchObject({ body: { ...session('Late', 3), n: 5 } })
  expect(await stored(db, uuids.session)).toMatchObject({ body: { ...session('A', 3), n: 6 } })
  expect(await stored(db, uuids.section)).toMatchObject({ body: section('s', 'c', 'A', 3) })
  expect((await documents.list('Session')).items).toHaveLength(2)
  expect((await documents.verify()).faults).toEqual([])
})

test('[D5] keys that change places are stored as they ended', async () => {
  const { db, documents, uuids } = await create()
  const b = await documents.post('Session', session('B'))
  const inB = await documents.post('Offering', offering('c', 'B'))
  await documents.putAll([
    { type: 'Session', uuid: uuids.session, body: session('B') },
    { type: 'Session', uuid: b.uuid, body: session('A') },
  ])
  await refreshed(db)
  expect(await stored(db, uuids.offering)).toMatchObject({ body: offering('c', 'B') })
  expect(await stored(db, inB.uuid)).toMatchObject({ body: offering('c', 'A') })
  expect((await documents.verify()).faults).toEqual([])
})

test('[D4] [D5] random renames and re-points of unified keys converge', async () => {
  const db = await createLog('select 1')
  const pawls = [db.pawl(), db.pawl()]
  for (const { documents } of pawls) {
    documents.define('School', { identity: ['schoolId'], keyChange: 'cascade' })
    for (const type of ['Session', 'Period'])
      documents.define(type, { identity: [`${type}Name`, 'school'], references: { school: 'School' }, keyChange: 'cascade' })
    documents.define('Offering', {
      identity: ['code', 'school', 'session'],
      references: { school: 'School', session: 'Session' },
      keyChange: 'cascade',
    })
    documents.define('Section', {
      identity: ['sectionId', 'offering'],
      references: { offering: 'Offering', 'periods[].period': 'Period' },
      unify: [['offering.schoolId', 'periods[].period.schoolId']],
      keyChange: 'cascade',
    })
  }
  await startRunner(pawls[0]!)
  const seed = Number(process.env.PAWL_TEST_SEED ?? Math.floor(Math.random() * 2 ** 31))
  let state = seed
  const pick = (n: number) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff
    return (state >>> 8) % n
  }
  const bodies: Readonly<Record<string, (schoolId: number) => object>> = {
    School: (schoolId) => ({ schoolId, n: pick(3) }),
    Session: (schoolId) => ({ SessionName: pick(2), school: schoolId }),
    Period: (schoolId) => ({ PeriodName: pick(2), school: { schoolId } }),
    Offering: (schoolId) => ({ code: pick(2), school: schoolId, session: { SessionName: pick(2), schoolId } }),
    Section: (schoolId) => ({
      sectionId: pick(2),
      offering: { code: pick(2), SessionName: pick(2), schoolId },
      periods: [0, 1].slice(pick(3)).map((PeriodName) => ({ period: { PeriodName, schoolId } })),
    }),
  }
  const written: (readonly [type: string, uuid: string])[] = []
  const act = async (documents: Documents) => {
    const [type, uuid] = pick(2) === 0 && written.length > 0 ? written[pick(written.length)]! : [Object.keys(bodies)[pick(5)]!]
    const body = bodies[type]!(1 + pick(3))
    if (uuid === undefined) written.push([type, (await documents.post(type, body)).uuid])
    else if (pick(8) === 0) await documents.delete(type, uuid)
    else await documents.put(type, uuid, body)
  }
  const answers = new Map<string, number>()
  const writer = async ({ documents }: Pawl) => {
    for (let n = 0; n < 50; n++) {
      const answer = await act(documents).then(
        () => 'written',
        (error: unknown) => (isPawlError(error) && error.status < 500 ? error.code : Promise.reject(error)),
      )
      answers.set(answer, 1 + (answers.get(answer) ?? 0))
    }
  }
  await Promise.all([...pawls, ...pawls].map(writer))
  await refreshed(db)
  const { documents } = pawls[1]!
  expect((await documents.verify({ limit: 500 })).faults, `seed ${seed}`).toEqual([])
  type Unified = { schoolId?: number; school?: number; session?: Unified; offering?: Unified; periods?: { period: Unified }[] }
  for (const type of ['Offering', 'Section'])
    for (const { body, key } of (await documents.list<Unified>(type, { limit: 500 })).items) {
      const { school, session, offering, periods = [] } = body
      const ids = [school, session?.schoolId, offering?.schoolId, ...periods.map(({ period }) => period.schoolId)]
      expect(new Set([key.schoolId, ...ids.filter((id) => id !== undefined)]).size, `seed ${seed}`).toBe(1)
    }
  expect(answers.get('written'), `seed ${seed}`).toBeGreaterThan(20)
})
