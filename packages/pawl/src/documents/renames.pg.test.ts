// Renames through the verbs: their cost, what readers see during one, old keys, keys that change places, receipts and etags.

import type { Documents, Pawl } from 'pawl'
import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { costOf, plantDependents } from '../../test/support/documents.ts'

let db: TestDatabase
let pawl: Pawl
let documents: Documents
let tenant: string
let tenants = 0
beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  defineTypes(pawl.documents)
})
beforeEach(() => {
  tenant = `t${++tenants}`
  documents = pawl.for(tenant).documents
})
afterAll(() => db.drop())

function defineTypes(documents: Documents): void {
  documents.define('School', { identity: ['schoolId'], keyChange: 'cascade' })
  documents.define('Session', {
    identity: ['name', 'school'],
    references: { school: 'School' },
    keyChange: 'cascade',
    oldKeys: '1d',
  })
  documents.define('Offering', {
    identity: ['code', 'school', 'session'],
    references: { school: 'School', session: 'Session' },
    keyChange: 'cascade',
  })
  documents.define('Period', { identity: ['period', 'school'], references: { school: 'School' }, keyChange: 'ignore' })
}

const school = async (schoolId: number) => (await documents.post('School', { schoolId })).uuid
const session = (name: string, schoolId = 1, more = {}) => ({ name, school: schoolId, ...more })
const offering = (code: string, name: string, schoolId = 1) => ({ code, school: { schoolId }, session: { name, schoolId } })

const eventsOf = () =>
  db.query<{ type: string }>('select type from pawl.event where tenant = $1 order by seq', [tenant]).then((rows) => rows.length)

async function begin(isolation = ''): Promise<pg.PoolClient> {
  const client = await db.pool.connect()
  onTestFinished(async () => {
    await client.query('rollback').catch(() => undefined)
    client.release()
  })
  await client.query(`begin ${isolation}`)
  return client
}

// ---- the cost

test('[D3] renames with 0, 730 and 10,000 dependents write and read alike', async () => {
  const client = await begin()
  const rename = (uuid: string, schoolId: number) =>
    costOf(client, () => documents.put('School', uuid, { schoolId }, { tx: client }))
  const uuids: string[] = []
  for (const schoolId of [1, 2, 3]) uuids.push(await school(schoolId))
  for (const [index, count] of [0, 730, 10_000].entries()) await plantDependents(db, tenant, uuids[index]!, count)
  // The first ones plan, and read the catalogue for it.
  for (let n = 10; n < 20; n++) await rename(await school(n), n + 10)
  const costs: { rows: number; pages: number }[] = []
  for (const [index, uuid] of uuids.entries()) costs.push(await rename(uuid, 100 + index))
  expect(new Set(costs.map(({ rows }) => rows)).size).toBe(1)
  expect(costs[0]!.rows).toBeLessThan(10)
  const pages = costs.map((cost) => cost.pages)
  expect(Math.max(...pages) - Math.min(...pages)).toBeLessThanOrEqual(5)
  const key = { name: 's7', schoolId: 102 }
  expect((await documents.list('Session', { where: { school: { schoolId: 102 } }, limit: 7, tx: client })).items[6]!.key).toEqual(
    key,
  )
})

test('[D3] during renames no reader sees an old or mixed key', async () => {
  const uuid = await school(1)
  await documents.post('Session', session('Fall'))
  const child = (await documents.post('Offering', offering('c', 'Fall'))).uuid
  let begun = 1
  let done = 1
  const renames = async () => {
    for (let n = 2; n <= 40; n++) {
      begun = n
      await documents.put('School', uuid, { schoolId: n })
      done = n
    }
  }
  const seen = new Set<number>()
  const wrong: unknown[] = []
  const readers = async (read: () => Promise<{ body: unknown; key: unknown } | undefined>) => {
    while (done < 40) {
      const from = done
      const found = await read()
      const { school, session } = found!.body as ReturnType<typeof offering>
      const ids = [school.schoolId, session.schoolId, (found!.key as { schoolId: number }).schoolId]
      seen.add(ids[0]!)
      if (new Set(ids).size > 1 || ids[0]! < from || ids[0]! > begun) wrong.push({ ids, from, begun })
    }
  }
  await Promise.all([
    renames(),
    readers(() => documents.get('Offering', child)),
    readers(async () => (await documents.list('Offering')).items[0]),
  ])
  expect(wrong).toEqual([])
  expect(seen.size).toBeGreaterThan(3)
})

// ---- receipts

test('[D6] of many writes in any order the last receipt stands', async () => {
  const uuid = await school(1)
  const receipts = await Promise.all(Array.from({ length: 12 }, () => documents.receipt()))
  const last = receipts.reduce((a, b) => (BigInt(a) > BigInt(b) ? a : b))
  const mixed = [...receipts].sort((a, b) => ((Number(a) * 7) % 12) - ((Number(b) * 7) % 12))
  const written = await Promise.allSettled(
    mixed.map((receipt, n) =>
      n % 2 === 0
        ? documents.put('School', uuid, { schoolId: 1, by: receipt }, { receipt })
        : documents.post('School', { schoolId: 1, by: receipt }, { receipt }),
    ),
  )
  const refused = written.flatMap((each) => (each.status === 'rejected' ? [each.reason as { code: string }] : []))
  expect(refused.every(({ code }) => code === 'PAWL_STALE_WRITE')).toBe(true)
  const document = await documents.get('School', uuid)
  expect(document).toMatchObject({ body: { by: last } })
  expect(document!.etag).toMatch(new RegExp(`^${1 + 12 - refused.length}\\.`))
})

test('[D6] clocks that are an hour off change no order', async () => {
  const uuid = await school(1)
  const [first, second] = [await documents.receipt(), await documents.receipt()]
  const clock = (by: string) =>
    db.query(
      `create or replace function pawl.now() returns timestamptz language sql volatile parallel safe return clock_timestamp() + interval '${by}'`,
    )
  onTestFinished(async () => void (await clock('0')))
  await clock('-1 hour')
  await documents.put('School', uuid, { schoolId: 1, n: 2 }, { receipt: second })
  await clock('1 hour')
  for (const write of [
    () => documents.put('School', uuid, { schoolId: 1, n: 1 }, { receipt: first }),
    () => documents.post('School', { schoolId: 1, n: 1 }, { receipt: first }),
  ])
    await expect(write()).rejects.toMatchObject({ code: 'PAWL_STALE_WRITE', status: 409 })
  const document = await documents.get('School', uuid)
  expect(document).toMatchObject({ body: { n: 2 }, etag: expect.stringMatching(/^2\./) })
  expect(document!.changedAt.getTime()).toBeLessThan(Date.now() - 3_000_000)
  expect(await documents.put('School', uuid, { schoolId: 1, n: 3 })).toMatchObject({ outcome: 'updated' })
})

test('[D6] two key changes out of order: the later receipt has the key', async () => {
  const uuid = await school(1)
  const [first, second] = [await documents.receipt(), await documents.receipt()]
  await documents.put('School', uuid, { schoolId: 3 }, { receipt: second })
  await expect(documents.put('School', uuid, { schoolId: 2 }, { receipt: first })).rejects.toMatchObject({
    code: 'PAWL_STALE_WRITE',
  })
  expect(await documents.get('School', uuid)).toMatchObject({ key: { schoolId: 3 } })
  expect(await documents.get('School', { schoolId: 2 })).toBeUndefined()
  const { etag } = (await documents.get('School', uuid))!
  expect(await documents.put('School', uuid, { schoolId: 2 }, { receipt: first, ifMatch: etag })).toMatchObject({
    outcome: 'updated',
  })
})

// ---- keys that change places

test('[D7] three keys rotate in one putAll, with old keys and dependents', async () => {
  await school(1)
  const names = ['a', 'b', 'c']
  const uuids: string[] = []
  for (const name of names) uuids.push((await documents.post('Session', session(name))).uuid)
  const child = await documents.post('Offering', offering('m', 'a'))
  const rotated = uuids.map((uuid, n) => ({ type: 'Session', uuid, body: session(names[(n + 1) % 3]!) }))
  expect((await documents.putAll(rotated)).map(({ isKeyChanged }) => isKeyChanged)).toEqual([true, true, true])
  for (const [n, name] of names.entries())
    expect(await documents.get('Session', { name, schoolId: 1 })).toMatchObject({ uuid: uuids[(n + 2) % 3], byOldKey: false })
  expect(await documents.get('Offering', child.uuid)).toMatchObject({ body: offering('m', 'b') })
  const moved = [
    { type: 'Session', uuid: uuids[0]!, body: session('z') },
    { type: 'Session', uuid: uuids[2]!, body: session('b') },
  ]
  await documents.putAll(moved)
  // 'b' is a key of the third again, so only 'a' is an old one.
  expect(await documents.get('Session', { name: 'b', schoolId: 1 })).toMatchObject({ uuid: uuids[2], byOldKey: false })
  expect(await documents.get('Session', { name: 'a', schoolId: 1 })).toMatchObject({ uuid: uuids[2], byOldKey: true })
  expect(await db.query('select from pawl.document_key where tenant = $1 and alias_until is not null', [tenant])).toHaveLength(1)
})

test('[D7] putAll onto an old key of another is refused, and writes nothing', async () => {
  await school(1)
  const a = await documents.post('Session', session('a'))
  const b = await documents.post('Session', session('b'))
  await documents.put('Session', a.uuid, session('c'))
  const changes = [
    { type: 'Session', uuid: b.uuid, body: session('a') },
    { type: 'Session', uuid: a.uuid, body: session('d') },
  ]
  await expect(documents.putAll(changes)).rejects.toMatchObject({
    code: 'PAWL_KEY_TAKEN',
    details: { holder: { uuid: a.uuid } },
  })
  expect(await documents.get('Session', a.uuid)).toMatchObject({ key: { name: 'c' } })
  expect(await documents.get('Session', b.uuid)).toMatchObject({ key: { name: 'b' }, etag: b.etag })
})

test('[D7] putAll keeps the keys of many documents whose type ignores changes', async () => {
  await school(1)
  const posted = await documents.postMany(
    'Period',
    Array.from({ length: 12 }, (_, n) => ({ period: `p${n}`, school: 1 })),
  )
  const changes = posted.map((each, n) => ({
    type: 'Period',
    uuid: (each as { uuid: string }).uuid,
    body: { period: `q${n}`, school: 1, n },
  }))
  expect((await documents.putAll(changes)).map(({ key }) => key.period)).toEqual(changes.map((_, n) => `p${n}`))
  expect(await documents.get('Period', changes[11]!.uuid)).toMatchObject({ body: { period: 'p11', school: 1, n: 11 } })
})

test('[D7] putAll names two documents with one key, and one UUID twice', async () => {
  const [a, b] = [await school(1), await school(2)]
  const put = (...changes: readonly (readonly [string, number])[]) =>
    documents.putAll(changes.map(([uuid, schoolId]) => ({ type: 'School', uuid, body: { schoolId } })))
  await expect(put([a, 3], [b, 3])).rejects.toMatchObject({ code: 'PAWL_KEY_TAKEN' })
  await expect(put([a, 3], [a, 4])).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  await expect(put(['abc', 3])).rejects.toMatchObject({
    code: 'PAWL_DOCUMENT_INVALID',
    message: expect.stringMatching(/uuid must be/),
  })
  await expect(put(['00000000-0000-4000-8000-000000000000', 3])).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  expect(await put()).toEqual([])
})

test('[D7] sixteen old keys answer, older ones are free', async () => {
  await school(1)
  const { uuid } = await documents.post('Session', session('s0'))
  for (let n = 1; n <= 18; n++) await documents.put('Session', uuid, session(`s${n}`))
  const found = (n: number) => documents.get('Session', { name: `s${n}`, schoolId: 1 })
  for (const n of [2, 17]) expect(await found(n)).toMatchObject({ uuid, byOldKey: true })
  for (const n of [0, 1]) expect(await found(n)).toBeUndefined()
  expect(await documents.post('Session', session('s1'))).toMatchObject({ outcome: 'created' })
  expect(await documents.put('Session', uuid, session('s2'))).toMatchObject({ isKeyChanged: true })
  expect(await found(2)).toMatchObject({ uuid, byOldKey: false })
})

// ---- etags, and writes that change nothing

test('[D9] a rename changes the etags of all dependents and no others', async () => {
  const [first, second] = [await school(1), await school(2)]
  const fall = await documents.post('Session', session('Fall'))
  const child = await documents.post('Offering', offering('c', 'Fall'))
  const other = await documents.post('Session', session('Fall', 2))
  await documents.put('School', first, { schoolId: 3 })
  const etag = async (type: string, uuid: string) => (await documents.get(type, uuid))!.etag
  expect(await etag('Session', fall.uuid)).not.toBe(fall.etag)
  expect(await etag('Offering', child.uuid)).not.toBe(child.etag)
  expect(await etag('Session', other.uuid)).toBe(other.etag)
  const current = await etag('Offering', child.uuid)
  await expect(documents.put('Offering', child.uuid, offering('d', 'Fall', 3), { ifMatch: child.etag })).rejects.toMatchObject({
    code: 'PAWL_PRECONDITION_FAILED',
    status: 412,
    details: { etag: current },
  })
  await documents.put('School', first, { schoolId: 1 })
  expect(await etag('Offering', child.uuid)).toBe(child.etag)
  expect(await documents.get('School', second)).toMatchObject({ etag: expect.stringMatching(/^1\./) })
})

test('[D9] writes that change nothing store nothing and append no event', async () => {
  await school(1)
  const posted = await documents.post('Session', session('Fall', 1, { n: 1, list: [1, { a: 2 }] }))
  const before = await documents.get('Session', posted.uuid)
  const events = await eventsOf()
  const same = { list: [1, { a: 2 }], school: { schoolId: 1 }, n: 1, name: 'Fall' }
  const scalar = { ...same, school: 1 }
  const all = [
    await documents.post('Session', scalar),
    await documents.put('Session', posted.uuid, scalar),
    await documents.put('Session', posted.uuid, scalar, { ifMatch: posted.etag }),
    ...(await documents.putAll([{ type: 'Session', uuid: posted.uuid, body: scalar }])),
    ...((await documents.postMany('Session', [scalar])) as unknown as (typeof posted)[]),
  ]
  expect(all.map(({ outcome, etag }) => [outcome, etag])).toEqual(all.map(() => ['unchanged', posted.etag]))
  expect(await documents.get('Session', posted.uuid)).toEqual(before)
  expect(await eventsOf()).toBe(events)
})

test('[D8] a POST with another key is another document', async () => {
  const uuid = await school(1)
  const other = await documents.post('School', { schoolId: 2 })
  expect(other).toMatchObject({ outcome: 'created', isKeyChanged: false })
  expect(other.uuid).not.toBe(uuid)
  expect(await documents.get('School', uuid)).toMatchObject({ key: { schoolId: 1 }, etag: expect.stringMatching(/^1\./) })
})

// ---- above READ COMMITTED

test('[D2] above READ COMMITTED a write by an old key is refused', async () => {
  const uuid = await school(1)
  for (const isolation of ['repeatable read', 'serializable']) {
    const schoolId = (await documents.get('School', uuid))!.key.schoolId as number
    const client = await begin(`isolation level ${isolation}`)
    expect(await documents.get('School', { schoolId }, { tx: client })).toBeDefined()
    await documents.put('School', uuid, { schoolId: schoolId + 1 })
    const write = documents.post('School', { schoolId, name: 'x' }, { tx: client })
    await expect(write).rejects.toMatchObject({ code: '40001' })
    await client.query('rollback')
  }
  expect(await documents.get('School', uuid)).toMatchObject({ key: { schoolId: 3 } })
  expect((await documents.list('School')).items).toHaveLength(1)
})

test('[D2] above READ COMMITTED a child of a renamed document follows', async () => {
  const uuid = await school(1)
  const client = await begin('isolation level repeatable read')
  await documents.get('School', uuid, { tx: client })
  await documents.put('School', uuid, { schoolId: 2 })
  const { uuid: child } = await documents.post('Session', session('Fall'), { tx: client })
  await client.query('commit')
  expect(await documents.get('Session', child)).toMatchObject({ key: { name: 'Fall', schoolId: 2 } })
})
