import type { LogEvent, ProjectionTx } from 'pawl'
import { expect, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { defineSchools } from '../../test/support/documents.ts'
import { caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

const session = (sessionName: string, schoolId = 1) => ({ sessionName, schoolReference: { schoolId } })

async function create() {
  const db = await createLog('select 1')
  const pawl = db.pawl()
  defineSchools(pawl.documents)
  return { db, pawl, documents: pawl.documents }
}

test('the refresh that no process runs cannot be forgotten', async () => {
  const { pawl } = await create()
  await (await startRunner(pawl)).stop()
  await expect(pawl.projections.forget('pawl.documents', { reason: 'a test' })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringMatching(
      /^'pawl\.documents' is a projection that Pawl runs for itself.* worker of a process that defines documents/,
    ),
  })
  expect(await pawl.projections.status('pawl.documents')).toMatchObject([{ state: 'running' }])
})

test('reads take the transaction of a projection, writes do not', async () => {
  const { db, pawl, documents } = await create()
  await db.query('create table roll (uuid text primary key, name text, listed integer, referrers integer)')
  const { uuid } = await documents.post('School', { schoolId: 1, name: 'North' })
  await documents.post('Session', session('Fall'))
  const refused: unknown[] = []
  const state = { kind: 'state', channel: 'documents', from: 'oldest' } as const
  const entity = ({ aggregateType, key }: LogEvent) => `${aggregateType}/${key}`
  pawl.projections.define('rolls', {
    ...{ ...state, entity, tables: [{ name: 'roll', key: ['uuid'], columns: ['name', 'listed', 'referrers'] }] },
    refresh: async (changed: string, tx: ProjectionTx) => {
      if (!changed.startsWith('School/')) return
      const school = await documents.get<{ name: string }>('School', changed.slice(7), { tx })
      const same = await documents.get('School', { schoolId: 1 }, { tx })
      const { items } = await documents.list('Session', { where: { schoolReference: 1 }, tx })
      const { count } = await documents.referrers('School', uuid, { tx })
      await tx.query('insert into roll values ($1, $2, $3, $4)', [same!.uuid, school!.body.name, items.length, count])
    },
  })
  const writes: Record<string, (tx: ProjectionTx) => Promise<unknown>> = {
    delete: (tx) => documents.delete('School', uuid, { tx }),
    post: (tx) => documents.post('School', { schoolId: 2 }, { tx }),
    postMany: (tx) => documents.postMany('School', [], { tx }),
    put: (tx) => documents.put('School', uuid, { schoolId: 1 }, { ifMatch: 'other', tx }),
    putAll: (tx) => documents.putAll([], { tx }),
  }
  for (const [name, write] of Object.entries(writes))
    pawl.projections.define(name, {
      ...{ channel: 'documents', from: 'oldest', retry: { attempts: 1 } },
      each: (_, tx) =>
        write(tx).then(
          () => undefined,
          (error) => void refused.push([name, error.code]),
        ),
    })
  await startRunner(pawl)
  await until(
    'all have run',
    async () => (await db.query('select from roll')).length === 1 && new Set(refused.map(String)).size === 5,
  )
  expect(await db.query('select * from roll')).toEqual([{ uuid, name: 'North', listed: 1, referrers: 1 }])
  expect([...new Set(refused.map(String))].sort()).toEqual(Object.keys(writes).map((name) => `${name},PAWL_TX_UNSUPPORTED`))
  expect((await documents.list('School')).items).toMatchObject([{ uuid, body: { name: 'North' } }])
})

test('with another identity than the stored one every verb is refused', async () => {
  const { db, documents } = await create()
  const { uuid } = await documents.post('School', { schoolId: 1 })
  await documents.post('Session', session('Fall'))
  const { documents: other } = db.pawl()
  other.define('School', { identity: ['name'] })
  other.define('Session', { identity: ['sessionName', 'school'], references: { school: 'School' } })
  const refused = {
    code: 'PAWL_MODEL_CHANGED',
    message: expect.stringMatching(
      /^School has documents that were written with identity \["schoolId"\], which is \["name"\] in this process, .* `pawl documents delete`/,
    ),
    details: { type: 'School', changed: expect.arrayContaining(['identity']) },
  }
  await expect(other.get('School', { name: 'North' })).rejects.toMatchObject(refused)
  await expect(other.list('School', { where: { name: 'North' } })).rejects.toMatchObject(refused)
  await expect(other.get('Session', { sessionName: 'Fall', name: 'North' })).rejects.toMatchObject(refused)
  await expect(other.list('Session', { where: { school: 'North' } })).rejects.toMatchObject(refused)
  await expect(other.delete('School', uuid)).rejects.toMatchObject(refused)
  await expect(other.post('School', { name: 'North' })).rejects.toMatchObject(refused)
  const unreadable = {
    code: 'PAWL_MODEL_CHANGED',
    message: expect.stringMatching(/has schoolId of its own, name as School is defined/),
  }
  await expect(other.get('School', uuid)).rejects.toMatchObject(unreadable)
  await expect(other.list('School')).rejects.toMatchObject(unreadable)
  expect((await documents.list('School')).items).toHaveLength(1)
})

test('a delete of none where the stored type differs: not found', async () => {
  const { db, documents } = await create()
  const { uuid } = await documents.post('School', { schoolId: 1 })
  await documents.delete('School', uuid)
  const { documents: other } = db.pawl()
  other.define('School', { identity: ['name'] })
  expect(await other.get('School', { name: 'North' })).toBeUndefined()
  await expect(other.delete('School', uuid)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
})

test('a write without a body says that it must be an object', async () => {
  const { documents } = await create()
  for (const body of [undefined, null, 17])
    await expect(documents.post('School', body)).rejects.toMatchObject({
      code: 'PAWL_DOCUMENT_INVALID',
      message: `School: the body must be an object, got ${body}.`,
    })
})

test('events have the data that the guide names, by write and refresh', async () => {
  const { db, pawl, documents } = await create()
  await documents.post('School', { schoolId: 1 })
  const { uuid } = await documents.post('Session', session('Fall'))
  await documents.put('Session', uuid, { ...session('Fall'), weeks: 16 })
  await documents.put('Session', uuid, session('Autumn'))
  const offering = await documents.post('Offering', { code: 'c', sessionReference: { sessionName: 'Autumn', schoolId: 1 } })
  await startRunner(pawl)
  await caughtUp(db, 'pawl.documents')
  await documents.put('Session', uuid, session('Winter'))
  await until(
    'it was refreshed',
    async () => (await db.query("select from pawl.event where payload ->> 'cause' = 'cascade'")).length > 0,
  )
  await documents.delete('Offering', offering.uuid)
  const events = await db.query<{ type: string; payload: Record<string, unknown> }>(
    'select type, payload from pawl.event where aggregateid = any ($1) order by seq',
    [[uuid, offering.uuid]],
  )
  const key = (sessionName: string) => ({ sessionName, schoolId: 1 })
  const ofOffering = (sessionName: string) => ({ code: 'c', ...key(sessionName) })
  const hash = expect.stringMatching(/^[0-9a-f]{64}$/)
  const keys = (oldKey: object, newKey: object) => ({ oldKey, newKey, oldHash: hash, newHash: hash })
  const write = { cause: 'write' }
  expect(events.map(({ type, payload }) => [type, payload])).toEqual([
    ['document.created', { revision: 1, key: key('Fall'), hash }],
    ['document.updated', { revision: 2, ...write, key: key('Fall'), hash }],
    ['document.key-updated', { revision: 3, ...write, ...keys(key('Fall'), key('Autumn')) }],
    ['document.created', { revision: 1, key: ofOffering('Autumn'), hash }],
    ['document.key-updated', { revision: 4, ...write, ...keys(key('Autumn'), key('Winter')) }],
    ['document.key-updated', { revision: 1, cause: 'cascade', ...keys(ofOffering('Autumn'), ofOffering('Winter')) }],
    ['document.deleted', { key: ofOffering('Winter'), hash }],
  ])
})
