// A school corrects natural keys that thousands of documents contain: a section is renamed, another moves from fall to spring, a session is renamed under
// load, and a worker is killed in the middle of the refresh. Then the conflicts, each with its answer. Run it with:
// node scripts/run.mjs examples/school-documents/main.ts
// It starts a PostgreSQL of its own, unless DATABASE_URL names one.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { startEmbedded } from '@pawl/server/embedded'
import { createPawl, isPawlError, type Key, type ListDocumentsOptions, silentLogger, type WriteOptions, type Written } from 'pawl'
import pg from 'pg'
import {
  absence,
  attendance,
  attendanceEvent,
  days,
  type SectionKey,
  schoolId,
  schoolYear,
  section,
  sectionKey,
  seed,
  session,
  students,
} from './glendale.ts'
import { renameUnderLoad } from './load.ts'
import { defineTypes } from './types.ts'

const say = (line: string) => process.stdout.write(`${line}\n`)

const dir = await mkdtemp(join(tmpdir(), 'pawl-example-'))
const embedded =
  process.env.DATABASE_URL === undefined ? await startEmbedded({ dir: join(dir, 'pg'), database: 'pawl' }) : undefined
const databaseUrl = process.env.DATABASE_URL ?? embedded!.url
const pawl = createPawl({ databaseUrl, logger: silentLogger })
await pawl.migrate()
defineTypes(pawl)
const { documents } = pawl
const pool = new pg.Pool({ connectionString: databaseUrl })
// Of a connection that is still closing when the embedded server stops.
pool.on('error', () => undefined)
const children: ChildProcess[] = []

function startWorker(...stopAt: string[]): ChildProcess {
  const file = fileURLToPath(new URL('./worker.ts', import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', '--conditions=@pawl/source', file, databaseUrl, ...stopAt], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  children.push(child)
  return child
}

/** As a web service would answer. */
async function answer(call: Promise<Written>, updated = 200): Promise<string> {
  try {
    const { outcome } = await call
    return `${outcome === 'created' ? 201 : updated} ${outcome}`
  } catch (error) {
    if (!isPawlError(error)) throw error
    const { fields, count, references } = error.details as { fields?: string[]; count?: number; references?: { path: string }[] }
    const details = [fields, count && `${count} references`, references?.map(({ path }) => path)].flat().filter(Boolean)
    return [`${error.status} ${error.code}`, ...details].join(', ')
  }
}

const put = (type: string, uuid: string, body: object, options: WriteOptions = {}) =>
  answer(documents.put(type, uuid, body, options), 204)
const get = async (type: string, which: string | Key) => ((await documents.get(type, which)) === undefined ? '404' : '200')

const referring = ['StudentSectionAssociation', 'StudentSectionAttendanceEvent', 'GradebookEntry', 'StaffSectionAssociation']

/** What readers find of those that refer to a section. */
async function readReferring(key: Key): Promise<number> {
  let count = 0
  for (const type of referring) {
    for (let after: string | null | undefined; after !== null; ) {
      const options: ListDocumentsOptions = {
        where: { sectionReference: key },
        limit: 500,
        ...(after === undefined ? {} : { after }),
      }
      const { items, next } = await documents.list<{ sectionReference: Key }>(type, options)
      count += items.filter(({ body }) => isSame(body.sectionReference, key)).length
      after = next
    }
  }
  return count
}

function isSame(a: Key, b: Key): boolean {
  return Object.keys(a).length === Object.keys(b).length && Object.entries(a).every(([name, value]) => b[name] === value)
}

/** Documents whose stored key has this value: no reader sees them, but what reads the tables does. */
async function stored(field: string, value: string): Promise<number> {
  const { rows } = await pool.query('select count(*)::integer as count from pawl.document where keys -> type ->> $1 = $2', [
    field,
    value,
  ])
  return rows[0].count
}

async function refreshed(): Promise<void> {
  for (;;) {
    const [status] = await pawl.projections.status('pawl.documents')
    if (status?.lag === 0 && status.dirty === 0) return
    await sleep(20)
  }
}

async function verified(): Promise<string> {
  let [checked, faults, after] = [0, 0, undefined as string | undefined]
  do {
    const report = await documents.verify({ limit: 500, ...(after === undefined ? {} : { after }) })
    checked += report.checked
    faults += report.faults.length
    after = report.next ?? undefined
  } while (after !== undefined)
  return `${checked} documents, ${faults} faults`
}

try {
  const sections = Array.from({ length: 12 }, (_, index) => `ALG-1-${String(index + 1).padStart(2, '0')}`)
  say('A school with twelve sections, each with 730 documents of four types that refer to it.')
  say(`  created: ${await seed(pawl, sections, ['Fall', 'Spring'])} documents`)
  const first = (await documents.get('Section', sectionKey('ALG-1-01', 'Fall')))!
  const { count } = await documents.referrers('Section', first.uuid, { limit: 1 })
  const { levels } = await documents.dependents('Section', first.uuid)
  say(`  referrers of ALG-1-01: ${count}`)
  for (const { depth, type, count } of levels) say(`  a rename reaches, level ${depth}: ${count} ${type}`)

  say('Its identifier is wrong. PUT, then GET: no worker runs yet.')
  const [before, after] = [sectionKey('ALG-1-01', 'Fall'), sectionKey('ALG-1-A', 'Fall')]
  const childOf = async (key: SectionKey, day: string) => (await documents.get(attendanceEvent, { ...key, ...absence(day) }))!
  const [child, sibling] = [await childOf(before, days[0]!), await childOf(before, days[1]!)]
  say(`  PUT /sections/{uuid}: ${await put('Section', first.uuid, section('ALG-1-A', 'Fall'))}`)
  say(`  GET /sections/{uuid}: ${await get('Section', first.uuid)}`)
  say(`  GET by the new key: ${await get('Section', after)}`)
  say(`  GET by the old key: ${await get('Section', before)}`)
  say(`  readers find ${await readReferring(after)} referrers with the new key`)
  say(`  stored with the old key: ${await stored('sectionIdentifier', 'ALG-1-01')}`)

  say('Clients write referrers before the refresh.')
  const posted = await documents.post(attendanceEvent, attendance(after, students[0]!, days[0]!, 'Excused by phone'))
  say(`  POST with the new key: 200 ${posted.outcome}, the same document: ${posted.uuid === child.uuid}`)
  const late = attendance(after, students[0]!, days[1]!, 'Late bus')
  say(`  PUT with the new key: ${await put(attendanceEvent, sibling.uuid, late)}`)
  const old = attendance(before, students[0]!, days[2]!)
  say(`  POST with the old key: ${await answer(documents.post(attendanceEvent, old))}`)

  say('A worker starts.')
  const worker = pawl.worker({ name: 'first' })
  await worker.start()
  await refreshed()
  const names = ['ALG-1-01', 'ALG-1-A'] as const
  const [withOld, withNew] = await Promise.all(names.map((name) => stored('sectionIdentifier', name)))
  say(`  stored with the old key: ${withOld}, with the new one: ${withNew}`)
  const { rows } = await pool.query(
    "select body ->> 'attendanceEventReason' as reason from pawl.document where uuid = any ($1) order by id",
    [[child.uuid, sibling.uuid]],
  )
  say(`  what clients wrote is kept: ${rows.map(({ reason }) => reason).join(', ')}`)

  say('ALG-1-02 was meant for spring.')
  const moved = (await documents.get('Section', sectionKey('ALG-1-02', 'Fall')))!
  say(`  PUT: ${await put('Section', moved.uuid, section('ALG-1-02', 'Spring'))}`)
  const [inSpring, inFall] = [sectionKey('ALG-1-02', 'Spring'), sectionKey('ALG-1-02', 'Fall')]
  say(`  readers find ${await readReferring(inSpring)} referrers in spring, ${await readReferring(inFall)} in fall`)

  say('The session is renamed twenty times while four clients write and two read.')
  const fall = (await documents.get('Session', { sessionName: 'Fall', schoolId, schoolYear }))!
  const target = (await documents.get('Section', sectionKey('ALG-1-03', 'Fall')))!
  const renames = ['Fall', ...Array.from({ length: 20 }, (_, index) => `Fall ${index + 1}`)]
  const { reads, wrong } = await renameUnderLoad(pawl, {
    session: fall,
    section: target,
    child: await childOf(sectionKey('ALG-1-03', 'Fall'), days[0]!),
    names: renames,
    clients: 4,
    eventsPerClient: 25,
  })
  const written = (await readReferring(sectionKey('ALG-1-03', 'Fall 20'))) - 730
  say(`  written: ${written} of 100; wrong keys read: ${reads === 0 ? 'nothing was read' : wrong}`)
  await refreshed()
  let older = 0
  for (const name of renames.slice(0, -1)) older += await stored('sessionName', name)
  say(`  stored with an older name: ${older}`)
  await worker.stop()

  say('The session gets its final name. The worker that refreshes is killed with -9 in the middle of it.')
  await documents.put('Session', fall.uuid, session('Fall Semester'))
  const total = await stored('sessionName', 'Fall 20')
  const victim = startWorker('2')
  await once(victim.stdout!, 'data')
  victim.kill('SIGKILL')
  await once(victim, 'exit')
  const half = await stored('sessionName', 'Fall 20')
  say(`  of ${total} dependents some are stored with the new name: ${half > 0 && half < total}`)
  startWorker()
  await refreshed()
  say(`  another worker goes on; stored with the old name: ${await stored('sessionName', 'Fall 20')}`)
  say(`  verify: ${await verified()}`)

  say('Conflicts have answers.')
  const [early, later] = [await documents.receipt(), await documents.receipt()]
  say(`  the later of two PUTs: ${await put('Session', fall.uuid, session('Fall Term'), { receipt: later })}`)
  say(`  the earlier one, delayed: ${await put('Session', fall.uuid, session('Autumn'), { receipt: early })}`)
  const school = (await documents.get('School', { schoolId }))!
  say(`  a new key for a school: ${await put('School', school.uuid, { schoolId: 1 })}`)
  say(`  a key that another has: ${await put('Session', fall.uuid, session('Spring'))}`)
  const current = section('ALG-1-03', 'Fall Term')
  say(`  an etag from before the rename: ${await put('Section', target.uuid, current, { ifMatch: target.etag })}`)
  say(`  DELETE of a section: ${await answer(documents.delete('Section', first.uuid) as Promise<never>)}`)
  const bad = { ...section('ALG-1-99', 'Spring'), locationReference: { classroomIdentificationCode: '999', schoolId } }
  say(`  good references and a bad one: ${await answer(documents.post('Section', bad))}`)
  const periods = (await documents.list<{ classPeriodName: string }>('ClassPeriod')).items
  const swapped = periods.map(({ type, uuid, body }, index) => ({
    type,
    uuid,
    body: { ...body, classPeriodName: periods[1 - index]!.body.classPeriodName },
  }))
  const swap = await documents.putAll(swapped)
  say(`  two class periods change names: ${swap.map(({ outcome, key }) => `${outcome} to ${key.classPeriodName}`).join(', ')}`)
  await refreshed()
  say(`  verify: ${await verified()}`)
} finally {
  for (const child of children) child.kill('SIGKILL')
  await pool.end()
  await pawl.close()
  await embedded?.stop('fast')
  await rm(dir, { recursive: true, force: true })
}
