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
  documents.define('Note', { identity: ['note'], references: { school: 'School' } })
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

/** Each of the writes has found its documents before the first of them is written. */
async function together<T>(...writes: readonly (() => Promise<T>)[]): Promise<PromiseSettledResult<T>[]> {
  const all = deferred()
  let arrived = 0
  installProbe(async (name) => {
    if (name !== 'documents.found' || arrived >= writes.length) return
    if (++arrived === writes.length) all.resolve()
    await all.promise
  })
  onTestFinished(() => installProbe(undefined))
  return Promise.allSettled(writes.map((write) => write()))
}

const codesOf = (results: readonly PromiseSettledResult<unknown>[]) =>
  results.map((each) => (each.status === 'rejected' ? (each.reason as { code: string }).code : 'written'))

test('[D7] renames that cross at one moment are refused without a deadlock', async () => {
  for (let round = 0; round < 5; round++) {
    const ids = [1, 2, 3].map((n) => 10 * round + n)
    const uuids: string[] = []
    for (const schoolId of ids) uuids.push((await documents.post('School', { schoolId })).uuid)
    const rename = (n: number) => () => documents.put('School', uuids[n]!, { schoolId: ids[(n + 1) % 3]! })
    expect(codesOf(await together(rename(0), rename(1), rename(2)))).toEqual(ids.map(() => 'PAWL_KEY_TAKEN'))
  }
})

test('[D7] of two renames to one free key at one moment one wins', async () => {
  const uuids: string[] = []
  for (const schoolId of [1, 2]) uuids.push((await documents.post('School', { schoolId })).uuid)
  const results = await together(...uuids.map((uuid) => () => documents.put('School', uuid, { schoolId: 3 })))
  expect(codesOf(results).sort()).toEqual(['PAWL_KEY_TAKEN', 'written'])
  expect((await documents.list('School')).items.filter(({ key }) => key.schoolId === 3)).toHaveLength(1)
})

const putAll = (...changes: readonly (readonly [uuid: string, schoolId: number])[]) =>
  documents.putAll(changes.map(([uuid, schoolId]) => ({ type: 'School', uuid, body: { schoolId } })))

test('[D7] putAlls of the same documents in other orders never deadlock', async () => {
  const uuids: string[] = []
  for (const schoolId of [1, 2, 3, 4]) uuids.push((await documents.post('School', { schoolId })).uuid)
  const [a, b, c, d] = uuids as [string, string, string, string]
  const results = await together(
    () => putAll([a, 11], [b, 12], [c, 13]),
    () => putAll([c, 21], [b, 22], [a, 23]),
    () => putAll([b, 32], [d, 31]),
  )
  // The receipt of one may be older than what another has stored.
  expect(codesOf(results).filter((code) => code !== 'PAWL_STALE_WRITE' && code !== 'written')).toEqual([])
  expect((await documents.verify()).faults).toEqual([])
})

test('[D7] a taken key whose holder left is asked for five times', async () => {
  const uuids: string[] = []
  for (const schoolId of [1, 2]) uuids.push((await documents.post('School', { schoolId })).uuid)
  const [a] = uuids as [string, string]
  // As if the holder were renamed each time between the claim and this question.
  await db.query(
    "create or replace function pawl.key_holder(p_tenant text, p_id bigint, p_identities jsonb, p_others bigint[] default '{}') returns jsonb language sql return null::jsonb",
  )
  for (const write of [() => documents.put('School', a, { schoolId: 2 }), () => putAll([a, 2])])
    await expect(write()).rejects.toMatchObject({ code: 'PAWL_ROLLED_BACK', message: expect.stringMatching(/changed 5 times/) })
  expect(await documents.get('School', a)).toMatchObject({ key: { schoolId: 1 }, etag: expect.stringMatching(/^1\./) })
})

test('[D2] a target renamed after it was found is referred to', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const child = await between(
    () => documents.post('Note', { note: 1, school: 1 }),
    () => documents.put('School', uuid, { schoolId: 2 }),
  )
  expect(await documents.get('Note', child.uuid)).toMatchObject({ body: { note: 1, school: 2 } })
  expect(await documents.referrers('School', uuid)).toMatchObject({ count: 1 })
  // The keys of sessions are unified in offerings, so what they are made of is found again.
  const bound = between(
    () => documents.post('Session', session('Fall', 2)),
    () => documents.put('School', uuid, { schoolId: 3 }),
  )
  await expect(bound).rejects.toMatchObject({ code: 'PAWL_REFERENCE_UNRESOLVED' })
})

test('[D2] a child insert waits for an open delete, then is unresolved', async () => {
  const { uuid } = await documents.post('School', { schoolId: 1 })
  const client = await begin()
  await documents.delete('School', uuid, { tx: client })
  const child = documents.post('Session', session('Fall'))
  child.catch(() => undefined)
  await waiting()
  await client.query('commit')
  await expect(child).rejects.toMatchObject({ code: 'PAWL_REFERENCE_UNRESOLVED' })
  expect(await db.query('select from pawl.document')).toEqual([])
})

test('[D4] a re-point waits two seconds for an open child at most', async () => {
  for (const schoolId of [1, 2]) await documents.post('School', { schoolId })
  const { uuid } = await documents.post('Session', session('Fall'))
  const [writer, mover] = [await begin(), await begin()]
  await documents.post('Offering', offering('math', 'Fall'), { tx: writer })
  await expect(documents.put('Session', uuid, session('Fall', 2), { tx: mover })).rejects.toMatchObject({
    code: 'PAWL_UNIFIED',
    details: { dependents: [] },
    message: expect.stringMatching(/are being written/),
  })
  await writer.query('rollback')
  // The refusal left the transaction usable.
  expect(await documents.put('Session', uuid, session('Fall', 2), { tx: mover })).toMatchObject({ isKeyChanged: true })
})

test('[D6] a POST delayed after its receipt loses to the later one', async () => {
  await documents.post('School', { schoolId: 1 })
  const write = between(
    () => documents.post('School', { schoolId: 1, name: 'first' }),
    () => documents.post('School', { schoolId: 1, name: 'second' }),
  )
  await expect(write).rejects.toMatchObject({ code: 'PAWL_STALE_WRITE' })
  expect(await documents.get('School', { schoolId: 1 })).toMatchObject({ body: { name: 'second' } })
})

test('[D8] a POST whose key a later POST created is stale', async () => {
  const write = between(
    () => documents.post('School', { schoolId: 1, name: 'late' }),
    () => documents.post('School', { schoolId: 1 }),
  )
  await expect(write).rejects.toMatchObject({ code: 'PAWL_STALE_WRITE' })
  expect((await documents.list('School')).items).toMatchObject([{ body: { schoolId: 1 } }])
})

/** Another process, whose schools have a second field in their key. */
function otherShape(): Documents {
  const other = db.pawl().documents
  other.define('School', { identity: ['schoolId', 'year'], keyChange: 'cascade' })
  return other
}

test('a type that changes while its first document is inserted is refused', async () => {
  const client = await begin()
  await documents.post('School', { schoolId: 1 }, { tx: client })
  const changed = otherShape().post('School', { schoolId: 1, year: 2 })
  changed.catch(() => undefined)
  await waiting()
  await client.query('commit')
  await expect(changed).rejects.toMatchObject({ code: 'PAWL_MODEL_CHANGED', details: { type: 'School', changed: ['identity'] } })
})

/** Stored as another process defines them. */
async function redefined(type: string): Promise<void> {
  const first = await documents.post(type, { schoolId: 1 })
  await documents.delete(type, first.uuid)
  const others = otherShape()
  const other = await others.post(type, { schoolId: 1, year: 2 })
  await others.delete(type, other.uuid)
}

test("a type redefined since: an insert in the caller's transaction goes on", async () => {
  await redefined('School')
  const client = await begin()
  expect(await documents.post('School', { schoolId: 1 }, { tx: client })).toMatchObject({ outcome: 'created' })
  await client.query('commit')
  expect((await documents.verify()).faults).toEqual([])
})

test('above READ COMMITTED an insert of a type redefined since is refused', async () => {
  const client = await db.pool.connect()
  clients.push(client)
  await client.query('begin isolation level repeatable read')
  const first = await documents.post('School', { schoolId: 1 })
  await documents.delete('School', first.uuid)
  await client.query('select from pawl.document')
  const others = otherShape()
  await others.post('School', { schoolId: 1, year: 2 }).then(({ uuid }) => others.delete('School', uuid))
  await expect(documents.post('School', { schoolId: 1 }, { tx: client })).rejects.toMatchObject({ code: '40001' })
})

test('an insert whose type changed since is refused', async () => {
  const write = between(
    () => documents.post('School', { schoolId: 1 }),
    () => otherShape().post('School', { schoolId: 1, year: 2 }),
  )
  await expect(write).rejects.toMatchObject({ code: 'PAWL_MODEL_CHANGED' })
  expect(await db.query('select from pawl.document')).toHaveLength(1)
})

test('a write of a document that another shape created is refused', async () => {
  const first = await documents.post('School', { schoolId: 1 })
  await documents.delete('School', first.uuid)
  const other = otherShape()
  const { uuid } = await other.post('School', { schoolId: 1, year: 2 })
  const refused = { code: 'PAWL_MODEL_CHANGED', details: { type: 'School', changed: ['identity'] } }
  await expect(documents.put('School', uuid, { schoolId: 1 })).rejects.toMatchObject(refused)
  await expect(documents.putAll([{ type: 'School', uuid, body: { schoolId: 1 } }])).rejects.toMatchObject(refused)
  expect(await other.verify()).toEqual({ checked: 1, next: null, faults: [] })
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
