// An application may change the parsers of pg for the whole process. Pawl's own statements do not see it; handlers do.

import { runAll } from 'pawl/testing'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { ownTypes } from './own-session.ts'

let db: TestDatabase
beforeAll(async () => {
  for (const oid of [16, 20, 23, 25, 1184, 1700, 3802]) pg.types.setTypeParser(oid, () => 'another')
  db = await createDatabase()
})
afterAll(() => db.drop())

test("an application's parsers reach its handlers and not Pawl's own statements", async () => {
  const pawl = db.pawl()
  const seen: unknown[] = []
  const look = async (tx: { query(text: string): Promise<{ rows: unknown[] }> }) =>
    seen.push((await tx.query('select 1')).rows[0])
  const kinds = [
    pawl.jobs.define('run', { run: ({ id, payload }) => [id, payload] }),
    pawl.jobs.define('tx', { tx: (_job, tx) => look(tx) }),
    pawl.jobs.define('shared', { tx: (_job, tx) => look(tx), share: 5 }),
  ]
  const ids: string[] = []
  for (const kind of kinds) ids.push(...(await pawl.jobs.enqueueMany(kind, [{ n: 1 }, { n: 2 }])).ids)
  const { done, dead, retrying } = await runAll(pawl)
  expect({ dead, retrying }).toEqual({ dead: [], retrying: [] })
  expect(done.map(({ id }) => id).sort()).toEqual([...ids].sort())
  expect(seen).toEqual(Array(4).fill({ '?column?': 'another' }))
  expect(await pawl.jobs.get(ids[0]!)).toMatchObject({ id: ids[0], result: [ids[0], { n: 1 }], finishedAt: expect.any(Date) })
})

test("a projection and records do not see an application's parsers", async () => {
  const pawl = db.pawl()
  const applied: unknown[] = []
  pawl.projections.define('p', { each: (event) => void applied.push([event.key, event.data]) })
  const { token } = await pawl.events.append({ type: 'Added', aggregateType: 'wallet', key: 'a', data: { n: 1 } })
  const runner = pawl.worker()
  await runner.start()
  await pawl.projections.seen('p', token)
  await runner.stop()
  expect(applied).toEqual([['a', { n: 1 }]])
  const set = pawl.records.define('loads', {
    scope: ['site'],
    types: { load: { key: 'id', columns: { id: 'text', tonnes: 'number' } } },
  })
  const scope = pawl.records.in(set, { site: '1' })
  await scope.put({ data: { id: '1', tonnes: '5.50' } })
  const page = await scope.list()
  expect(page.items).toMatchObject([{ data: { id: '1', tonnes: '5.5' } }])
})

test.each([
  [16, 't', true],
  [20, '9007199254740993', '9007199254740993'],
  [1007, '{1,NULL,-3}', [1, null, -3]],
  [1007, '{}', []],
  [1009, '{a,"b, \\"c\\\\","",NULL,"NULL"}', ['a', 'b, "c\\', '', null, 'NULL']],
  [1184, '2030-01-02 03:04:05.678901+00', new Date('2030-01-02T03:04:05.678Z')],
  [1184, '2030-01-02 03:04:05-05:30', new Date('2030-01-02T08:34:05Z')],
  [1700, '1.10', '1.10'],
  [3802, '{"a": [1]}', { a: [1] }],
])('what has the oid %i is read from %s', (oid, text, value) => {
  expect((ownTypes.getTypeParser(oid) as (text: string) => unknown)(text)).toEqual(value)
})
