import { type Documents, isPawlError } from 'pawl'
import { installProbe } from 'pawl/testing'
import type pg from 'pg'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
let documents: Documents
beforeEach(async () => {
  db = await createDatabase()
  documents = db.pawl().documents
  documents.define('School', { identity: ['schoolId'], keyChange: 'cascade' })
  documents.define('Session', { identity: ['name', 'school'], references: { school: 'School' }, keyChange: 'cascade' })
  documents.define('Offering', {
    identity: ['code', 'school', 'session'],
    references: { school: 'School', session: 'Session' },
    keyChange: 'cascade',
  })
})
const clients: pg.PoolClient[] = []
afterEach(async () => {
  for (const client of clients.splice(0)) {
    await client.query('rollback').catch(() => undefined)
    client.release()
  }
  await db.drop()
})

const session = (name: string, school = 1) => ({ name, school })
const offering = (code: string, name: string, schoolId = 1) => ({ code, school: schoolId, session: { name, schoolId } })

/** The first write that has found its documents waits there while the other runs. */
async function between<T>(write: () => Promise<T>, other: () => Promise<unknown>): Promise<T> {
  const arrived = deferred()
  const go = deferred()
  let isFirst = true
  installProbe(async (name) => {
    if (name !== 'documents.found' || !isFirst) return
    isFirst = false
    arrived.resolve()
    await go.promise
  })
  onTestFinished(() => installProbe(undefined))
  const writing = write()
  writing.catch(() => undefined)
  await arrived.promise
  await other()
  go.resolve()
  return writing
}

async function begin(): Promise<pg.PoolClient> {
  const client = await db.pool.connect()
  clients.push(client)
  await client.query('begin')
  return client
}

/** Resolves when a backend waits for a lock. */
async function waiting(): Promise<void> {
  const look = () => db.query("select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
  await until('a write waits', look, (rows) => rows.length > 0)
}

test('[D8] twenty concurrent POSTs of one identity: one document', async () => {
  const written = await Promise.all(Array.from({ length: 20 }, () => documents.post('School', { schoolId: 1, name: 'x' })))
  expect(written.filter(({ outcome }) => outcome === 'created')).toHaveLength(1)
  expect(written.filter(({ outcome }) => outcome === 'unchanged')).toHaveLength(19)
  expect(new Set(written.map(({ uuid }) => uuid)).size).toBe(1)
})

test('[D8] a POST whose document was renamed since creates a new one', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const written = await between(
    () => documents.post('School', { schoolId: 1, name: 'x' }),
    () => documents.put('School', uuid, { schoolId: 2 }),
  )
  expect(written).toMatchObject({ outcome: 'created', key: { schoolId: 1 } })
  expect(await documents.get('School', uuid)).toMatchObject({ body: { schoolId: 2 } })
})

test('[D2] a target deleted after it was found: unresolved, nothing dangles', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const write = between(
    () => documents.post('Session', session('Fall')),
    () => documents.delete('School', uuid),
  )
  await expect(write).rejects.toMatchObject({ code: 'PAWL_REFERENCE_UNRESOLVED' })
  expect(await db.query('select from pawl.document')).toEqual([])
})

test('[D2] a delete waits for an open child insert, then is refused', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const client = await begin()
  await documents.post('Session', session('Fall'), { tx: client })
  const deleted = documents.delete('School', uuid)
  deleted.catch(() => undefined)
  await waiting()
  await client.query('commit')
  await expect(deleted).rejects.toMatchObject({ code: 'PAWL_REFERENCED', details: { count: 1 } })
})

test('[D2] [D3] a rename and child inserts do not wait for each other', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const [renaming, inserting] = [await begin(), await begin()]
  await documents.post('Session', session('Open'), { tx: inserting })
  await documents.put('School', uuid, { schoolId: 2 }, { tx: renaming })
  const child = await documents.post('Session', session('Fall'))
  await renaming.query('commit')
  await inserting.query('commit')
  expect(await documents.get('Session', child.uuid)).toMatchObject({ key: { name: 'Fall', schoolId: 2 } })
  expect(await documents.get('Session', { name: 'Open', schoolId: 2 })).toBeDefined()
})

test('[D7] two renames that cross are refused without a deadlock', async () => {
  const a = await documents.post('School', { schoolId: 1 })
  const b = await documents.post('School', { schoolId: 2 })
  const client = await begin()
  await expect(documents.put('School', a.uuid, { schoolId: 2 }, { tx: client })).rejects.toMatchObject({ code: 'PAWL_KEY_TAKEN' })
  await expect(documents.put('School', b.uuid, { schoolId: 1 })).rejects.toMatchObject({ code: 'PAWL_KEY_TAKEN' })
})

test('[D4] a bound re-point waits for an open child, then is refused', async () => {
  for (const schoolId of [1, 2]) await documents.post('School', { schoolId })
  const { uuid } = await documents.post('Session', session('Fall'))
  const client = await begin()
  const child = await documents.post('Offering', offering('math', 'Fall'), { tx: client })
  const moved = documents.put('Session', uuid, session('Fall', 2))
  moved.catch(() => undefined)
  await waiting()
  await client.query('commit')
  await expect(moved).rejects.toMatchObject({ code: 'PAWL_UNIFIED', details: { dependents: [{ uuid: child.uuid }] } })
})

test('[D4] a child of a parent re-pointed since is refused', async () => {
  for (const schoolId of [1, 2]) await documents.post('School', { schoolId })
  const { uuid } = await documents.post('Session', session('Fall'))
  const write = between(
    () => documents.post('Offering', offering('math', 'Fall')),
    () => documents.put('Session', uuid, session('Fall', 2)),
  )
  await expect(write).rejects.toMatchObject({ code: 'PAWL_REFERENCE_UNRESOLVED' })
})

test('[D6] a PUT delayed after its receipt loses to the later one', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const write = between(
    () => documents.put('School', uuid, { schoolId: 1, name: 'first' }),
    () => documents.put('School', uuid, { schoolId: 1, name: 'second' }),
  )
  await expect(write).rejects.toMatchObject({ code: 'PAWL_STALE_WRITE' })
  expect(await documents.get('School', uuid)).toMatchObject({ body: { name: 'second' } })
})

test('bulk posts of the same keys in other orders never deadlock', async () => {
  const bodies = Array.from({ length: 200 }, (_, index) => ({ schoolId: index }))
  const all = await Promise.all([bodies, [...bodies].reverse(), bodies].map((each) => documents.postMany('School', each)))
  expect(all.flat().filter((each) => !each.ok)).toEqual([])
  expect(all.flat().filter((each) => each.ok && each.outcome === 'created')).toHaveLength(200)
})

test('[D2] [D4] random concurrent writes part no unified key', async () => {
  const refused: string[] = []
  const pick = (n: number) => 1 + Math.floor(Math.random() * n)
  const uuids = new Set<string>()
  const act = async () => {
    const school = pick(5)
    const written = await [
      () => documents.post('School', { schoolId: school, n: pick(3) }),
      () => documents.post('Session', session(`s${pick(3)}`, school)),
      () => documents.post('Offering', offering(`c${pick(3)}`, `s${pick(3)}`, school)),
      () => documents.put('School', [...uuids][pick(uuids.size) - 1]!, { schoolId: school }),
      () => documents.put('Session', [...uuids][pick(uuids.size) - 1]!, session(`s${pick(3)}`, school)),
      () => documents.delete('Offering', [...uuids][pick(uuids.size) - 1]!),
    ][pick(6) - 1]!()
    if (written !== undefined) uuids.add(written.uuid)
  }
  uuids.add((await documents.post('School', { schoolId: 1 })).uuid)
  const writer = async () => {
    for (let n = 0; n < 40; n++)
      await act().catch((error: unknown) => {
        if (!isPawlError(error) || error.status >= 500) throw error
        refused.push(error.code)
      })
  }
  await Promise.all([writer(), writer(), writer(), writer()])
  expect(refused.length).toBeGreaterThan(0)
  const owners = await db.query(`
    select k.document_id from pawl.document_key k
    join pawl.document d on d.id = k.document_id and d.type = 'Offering'
    join pawl.document_key s on s.document_id = k.refs[2] and s.type = 'Session' and s.alias_until is null
    where k.refs[1] <> s.refs[1]`)
  expect(owners).toEqual([])
  const unkeyed = await db.query(
    'select from pawl.document d where (select count(*) from pawl.document_key k where k.document_id = d.id) <> 1',
  )
  expect(unkeyed).toEqual([])
})
