// Calls that wait for each other, in transactions of callers: nothing retries a deadlock there. Each test forces an order in which one had occurred.

import { type Documents, type DocumentTypeOptions, isPawlError } from 'pawl'
import type pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { keyHash, ownHash } from './canonical.ts'

const types: Readonly<Record<string, DocumentTypeOptions>> = {
  Organization: { identity: ['organizationId'], abstract: true },
  School: {
    identity: ['schoolId'],
    extends: { type: 'Organization', as: { schoolId: 'organizationId' } },
    keyChange: 'cascade',
  },
  Person: { identity: ['personId'], keyChange: 'cascade', oldKeys: '1h' },
  Session: {
    identity: ['name', 'school'],
    references: { school: 'School', beside: 'Session' },
    keyChange: 'cascade',
  },
  Offering: { identity: ['code', 'school', 'session'], references: { school: 'School', session: 'Session' } },
}

let db: TestDatabase
let documents: Documents
beforeEach(async () => {
  db = await createDatabase()
  documents = db.pawl().documents
  for (const [name, options] of Object.entries(types)) documents.define(name, options)
})
const clients: pg.PoolClient[] = []
afterEach(async () => {
  for (const client of clients.splice(0)) {
    await client.query('rollback').catch(() => undefined)
    client.release()
  }
  await db.drop()
})

async function begin(): Promise<pg.PoolClient> {
  const client = await db.pool.connect()
  clients.push(client)
  await client.query('begin')
  return client
}

/** Resolves when this number of backends waits for a lock. */
async function waiting(count: number): Promise<void> {
  const waits = () => db.query("select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
  await until(`${count} wait`, waits, (rows) => rows.length === count)
}

/** Its call in a transaction of its own: the answer, or the code of the refusal; the transaction is usable in any case. */
async function inTx(call: (tx: pg.PoolClient) => Promise<unknown>): Promise<unknown> {
  const client = await begin()
  const answer = await call(client).catch((error: unknown) => (isPawlError(error) ? error.code : String(error)))
  await client.query('commit')
  return answer
}

const hashOf = (type: string, field: string) => (id: number) => keyHash(ownHash(type, { [field]: id }), []).toString('hex')
const person = hashOf('Person', 'personId')
const school = hashOf('School', 'schoolId')
const organization = hashOf('Organization', 'organizationId')
const ids = Array.from({ length: 200 }, (_, n) => n + 1)

async function people(...given: readonly number[]): Promise<string[]> {
  const uuids: string[] = []
  for (const personId of given) uuids.push((await documents.post('Person', { personId })).uuid)
  return uuids
}

const putPeople = (tx: pg.PoolClient, ...changes: readonly (readonly [uuid: string, personId: number])[]) =>
  documents.putAll(
    changes.map(([uuid, personId]) => ({ type: 'Person', uuid, body: { personId } })),
    { tx },
  )

test('[D7] putAlls that want keys of each other are refused', async () => {
  const [lowest, second, ...others] = [...ids].sort((a, b) => (person(a) < person(b) ? -1 : 1)) as [number, number, ...number[]]
  const [x, y, u, v] = others as [number, number, number, number]
  const [a, b, c, d] = (await people(x, y, u, v)) as [string, string, string, string]
  // Both wait for a key of an open transaction.
  const client = await begin()
  for (const personId of [lowest, second]) await documents.post('Person', { personId }, { tx: client })
  const crossing = Promise.all([
    inTx((tx) => putPeople(tx, [a, y], [c, lowest])),
    inTx((tx) => putPeople(tx, [b, x], [d, second])),
  ])
  await waiting(2)
  await client.query('rollback')
  expect(await crossing).toEqual(['PAWL_KEY_TAKEN', 'PAWL_KEY_TAKEN'])
  expect((await documents.list('Person')).items.map(({ key }) => key.personId)).toEqual([x, y, u, v])
})

test('[D7] putAll waits for no insert after it has moved a key', async () => {
  const [lowest, middle, highest, other] = [...ids].sort((a, b) => (person(a) < person(b) ? -1 : 1)) as [
    number,
    number,
    number,
    number,
  ]
  const [a, b] = (await people(highest, other)) as [string, string]
  const client = await begin()
  await documents.post('Person', { personId: lowest }, { tx: client })
  const moving = inTx((tx) => putPeople(tx, [a, middle], [b, lowest]))
  await waiting(1)
  const posting = inTx((tx) => documents.postMany('Person', [{ personId: middle }, { personId: highest }], { tx }))
  await waiting(2)
  await client.query('rollback')
  const [moved, posted] = await Promise.all([moving, posting])
  expect(moved).toMatchObject([{ isKeyChanged: true }, { isKeyChanged: true }])
  expect(posted).toMatchObject([{ ok: true, outcome: 'unchanged' }, { error: { code: 'PAWL_KEY_RENAMED' } }])
  expect((await documents.verify()).faults).toEqual([])
})

test('[D7] a claim that fails holds no key that a rename gives away', async () => {
  // In order of hash: the old key of the renamed school, its new key, its new key as an organization.
  const [x, y] = ids
    .flatMap((x) => ids.map((y) => [x, y] as const))
    .find(([x, y]) => school(x) < school(y) && school(y) < organization(y))!
  const [e, f] = ids.filter((id) => id !== x && id !== y).slice(-2) as [number, number]
  const uuids: string[] = []
  for (const schoolId of [x, e, f]) uuids.push((await documents.post('School', { schoolId })).uuid)
  const blocker = await begin()
  await blocker.query(
    "insert into pawl.document (id, receipt, type, content, keys, body) values (-1, 1, 'Other', '', '{}', '{}')",
  )
  await blocker.query(
    "insert into pawl.document_key (hash, document_id, type, parts) values (decode($1, 'hex'), -1, 'Other', '{}')",
    [organization(y)],
  )
  const renaming = inTx((tx) => documents.put('School', uuids[0]!, { schoolId: y }, { tx }))
  await waiting(1)
  const claiming = inTx((tx) =>
    documents.putAll(
      [x, y].map((schoolId, n) => ({ type: 'School', uuid: uuids[n + 1]!, body: { schoolId } })),
      { tx },
    ),
  )
  await until(
    'it waits or is refused',
    () =>
      Promise.race([
        claiming,
        db.query("select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"),
      ]),
    (answer) => !Array.isArray(answer) || answer.length === 2,
  )
  await blocker.query('rollback')
  expect(await renaming).toMatchObject({ isKeyChanged: true })
  expect(await claiming).toBe('PAWL_KEY_TAKEN')
})

test('[D4] re-points that wait for each other are refused', async () => {
  for (const schoolId of [1, 2]) await documents.post('School', { schoolId })
  const session = (name: string, school: number, beside?: string) => ({
    name,
    school,
    ...(beside && { beside: { name: beside, schoolId: 1 } }),
  })
  const { uuid: a } = await documents.post('Session', session('a', 1))
  const { uuid: b } = await documents.post('Session', session('b', 1, 'a'))
  await documents.put('Session', a, session('a', 1, 'b'))
  const client = await begin()
  await client.query("select from pawl.document where type = 'Session' for key share")
  const moving = Promise.all([
    inTx((tx) => documents.put('Session', a, session('a', 2, 'b'), { tx })),
    inTx((tx) => documents.put('Session', b, session('b', 2, 'a'), { tx })),
  ])
  await waiting(2)
  await client.query('rollback')
  const answers = await moving
  expect(answers).toContain('PAWL_UNIFIED')
  expect(answers.filter((answer) => typeof answer === 'string' && answer !== 'PAWL_UNIFIED')).toEqual([])
})

test('a definition that waits for an insert holds up no other type', async () => {
  const client = await begin()
  await documents.post('School', { schoolId: 1 }, { tx: client })
  const other = db.pawl().documents
  other.define('Person', { identity: ['personId', 'year'] })
  other.define('School', { identity: ['schoolId', 'year'] })
  const changed = other.post('School', { schoolId: 1, year: 2 })
  changed.catch(() => undefined)
  await waiting(1)
  expect(await documents.post('Person', { personId: 1 }, { tx: client })).toMatchObject({ outcome: 'created' })
  await client.query('commit')
  await expect(changed).rejects.toMatchObject({ code: 'PAWL_MODEL_CHANGED', details: { type: 'School' } })
})

test('[D7] a delete and a claim of its keys do not deadlock', async () => {
  const [low, high, x, y] = [...ids].sort((a, b) => (person(a) < person(b) ? -1 : 1)) as [number, number, number, number]
  const [a, b, c] = (await people(high, x, y)) as [string, string, string]
  await documents.put('Person', a, { personId: low })
  await documents.put('Person', a, { personId: high })
  await db.query("update pawl.document_key set alias_until = now() - interval '1 s' where alias_until is not null")
  const client = await begin()
  await client.query("select from pawl.document_key where hash = decode($1, 'hex') for update", [person(low)])
  const claiming = inTx((tx) => putPeople(tx, [b, low], [c, high]))
  await waiting(1)
  const deleting = inTx((tx) => documents.delete('Person', a, { tx }))
  await waiting(2)
  await client.query('rollback')
  const claimed = await claiming
  // Which of the two comes first is up to the server.
  expect(Array.isArray(claimed) || claimed === 'PAWL_KEY_TAKEN', String(claimed)).toBe(true)
  expect(await deleting).toBeUndefined()
})
