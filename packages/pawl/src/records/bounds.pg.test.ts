// What must not bind, block or last: a scope's attributes, its key, its types, its slot.

import { moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { z } from 'zod'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { cancelJobs, csv, defineLoads, ended, loadRows, startWorker, submitted, sweepNow } from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

test("[R14] a schema that changes a row's key makes the row invalid", async () => {
  const pawl = db.pawl()
  const row = z.object({ id: z.string().transform((id) => id.toUpperCase()), n: z.coerce.number() })
  pawl.records.define('s', { scope: ['o'], types: { t: { key: 'id', columns: { id: 'text', n: 'integer' }, schema: row } } })
  const scope = pawl.records.in('s', { o: '1' })
  const upload = await scope.upload(['id,n\nA,1\na,2\n'], { format: 'csv' })
  expect(upload).toMatchObject({ state: 'invalid', counts: { errors: 1 } })
  expect((await pawl.records.errors(upload.id)).items).toMatchObject([
    { line: 3, code: 'key', column: 'id', value: 'a', reason: expect.stringMatching(/to A, but must not change a key/) },
  ])
  await expect(scope.put({ data: { id: 'a', n: 1 } })).rejects.toMatchObject({ code: 'PAWL_RECORD_INVALID' })
  // A number that comes back as a number is the same key.
  const numbered = z.object({ id: z.coerce.number() })
  pawl.records.define('n', { scope: ['o'], types: { t: { key: 'id', columns: { id: 'integer' }, schema: numbered } } })
  expect(await pawl.records.in('n', { o: '1' }).put({ data: { id: '7' } })).toMatchObject({ created: 1 })
})

test('[R14] a schema that gives back no object makes its row invalid', async () => {
  const pawl = db.pawl()
  const schema = z.object({ id: z.string() }).transform(({ id }) => [id])
  pawl.records.define('s', { scope: ['o'], types: { t: { key: 'id', columns: { id: 'text' }, schema } } })
  await expect(pawl.records.in('s', { o: '1' }).put({ data: { id: 'a' } })).rejects.toMatchObject({
    code: 'PAWL_RECORD_INVALID',
    details: { errors: [{ code: 'schema', reason: expect.stringMatching(/must return an object/) }] },
  })
})

test('[R14] attributes of a scope are bound by a commit only', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { attributes: ['accreditation'] }), here)
  const as = (accreditation: string) => ({ attributes: { accreditation } })
  const bad = loadRows(1, (row) => ({ ...row, tonnes: 'many' }))
  expect(await scope.upload(csv(bad), { format: 'csv', ...as('A1') })).toMatchObject({ state: 'invalid' })
  const two = await scope.upload(csv(loadRows(1)), { format: 'csv', ...as('A2') })
  const three = await scope.upload(csv(loadRows(1)), { format: 'csv', ...as('A3') })
  expect(await scope.state()).toMatchObject({ attributes: {} })
  await pawl.records.submit(two.id)
  const client = await db.pool.connect()
  await client.query('begin')
  await expect(scope.put({ data: { rowId: 'x' } }, { tx: client, ...as('A4') })).rejects.toMatchObject({
    code: 'PAWL_SCOPE_BUSY',
  })
  await client.query('commit')
  client.release()
  expect(await scope.state()).toMatchObject({ attributes: {} })
  await startWorker(pawl)
  expect(await ended(pawl, two.id)).toMatchObject({ state: 'submitted' })
  expect(await scope.state()).toMatchObject({ attributes: { accreditation: 'A2' } })
  const other = { code: 'PAWL_SCOPE_ATTRIBUTES', details: { given: { accreditation: 'A3' }, stored: { accreditation: 'A2' } } }
  await expect(pawl.records.submit(three.id)).rejects.toMatchObject(other)
  await expect(scope.upload(csv(loadRows(1)), { format: 'csv', ...as('A3') })).rejects.toMatchObject(other)
  await expect(pawl.records.rebase(three.id).then(({ id }) => pawl.records.submit(id))).rejects.toMatchObject(other)
})

test.each(['reject', 'tombstone'] as const)('[R14] a type can be removed from a set with missing: %s', async (missing) => {
  const column = { key: 'id', columns: { id: 'text' as const, n: 'number' as const } }
  const before = db.pawl()
  before.records.define('s', { scope: ['o'], missing, types: { kept: column, removed: column } })
  await before.records
    .in('s', { o: '1' })
    .append([
      ...['a', 'b', 'c'].map((id) => ({ type: 'kept', data: { id } })),
      ...['x', 'y'].map((id) => ({ type: 'removed', data: { id } })),
    ])
  const pawl = db.pawl()
  pawl.records.define('s', { scope: ['o'], missing, types: { kept: column } })
  const scope = pawl.records.in('s', { o: '1' })
  await startWorker(pawl)
  const whole = await submitted(pawl, scope, ['id,n\na,1\nb,\nc,\n'])
  expect(whole).toMatchObject({ state: 'submitted', counts: { updated: 1, unchanged: 2, missing: 0, deleted: 0 } })
  // Another one that is left out is still missing.
  const part = await scope.upload(['id,n\na,1\nb,\n'], { format: 'csv' })
  expect(part).toMatchObject({ state: missing === 'reject' ? 'invalid' : 'validated', counts: { missing: 1 } })
  expect((await pawl.records.rows(part.id, 'missing')).items.map(({ key }) => key)).toEqual(['c'])
  // What is left of the removed type can be read and deleted, and an export can be uploaded again.
  expect((await scope.list({ type: 'removed' })).items.map(({ key }) => key)).toEqual(['x', 'y'])
  let text = ''
  for await (const each of scope.export({ format: 'csv' })) text += each
  expect(text).toBe('id,n\r\na,1\r\nb,\r\nc,\r\n')
  expect(await scope.append([{ type: 'removed', key: 'x', data: null }])).toMatchObject({ deleted: 1 })
  expect(await scope.audit()).toMatchObject({ isSound: true, live: 4 })
})

test.each(['put', 'append', 'erase', 'submit'] as const)(
  '[R14] with every job cancelled the next %s frees the slot',
  async (verb) => {
    const pawl = db.pawl()
    const scope = pawl.records.in(defineLoads(pawl), here)
    await scope.put({ data: { rowId: 'row-1' } })
    const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
    const next = await scope.upload(csv(loadRows(3)), { format: 'csv' })
    await pawl.records.submit(upload.id)
    await cancelJobs(db)
    expect(await db.query('select from pawl.job')).toEqual([])
    if (verb === 'put') await scope.put({ data: { rowId: 'x' } })
    if (verb === 'append') await scope.append([{ data: { rowId: 'x' } }])
    if (verb === 'erase') await scope.erase('load', 'row-1', { reason: 'asked' })
    if (verb === 'submit') await pawl.records.submit(next.id)
    expect(await pawl.records.get(upload.id)).toMatchObject({ state: 'failed', error: expect.stringMatching(/cancelled/) })
  },
)

test("[R10] of a scope's invalid uploads the newest ten stay a day", async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const bad = csv(loadRows(1, (row) => ({ ...row, tonnes: 'many' })))
  const uploads = []
  for (let n = 0; n < 12; n++) uploads.push(await scope.upload(n % 2 === 0 ? bad : ['rowId\n"'], { format: 'csv' }))
  for (const { state, endedAt, expiresAt } of uploads) {
    expect(state).toBe('invalid')
    expect(expiresAt!.getTime() - endedAt!.getTime()).toBe(86_400_000)
  }
  await until('two are gone', async () => (await scope.submissions()).items.length === 10)
  expect((await scope.submissions()).items.map(({ id }) => id)).toEqual(
    uploads
      .slice(2)
      .map(({ id }) => id)
      .reverse(),
  )
})

test("[R10] what a caller's open transaction has locked does not stop the sweep", async () => {
  // A statement that waited for a lock would wait longer than this test does.
  const pawl = db.pawl({ tuning: { queryTimeoutMs: 600_000 } })
  const set = defineLoads(pawl)
  const upload = async (registration: string) =>
    (await pawl.records.in(set, { organisation: '17', registration }).upload(csv(loadRows(2)), { format: 'csv' })).id
  const [locked, orphan, due] = [await upload('1'), await upload('2'), await upload('3')]
  await pawl.records.submit(orphan)
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await pawl.records.submit(locked, { tx: client })
    const scopeSql =
      'select from pawl.record_scope where id = (select scope_id from pawl.submission where id = $1) for no key update'
    await client.query(scopeSql, [orphan])
    await cancelJobs(db)
    await moveClock(db.pool, 365 * 86_400_000)
    await sweepNow(pawl)
    await until(
      'the third has expired',
      async () => (await db.query('select from pawl.submission where id = $1', [due])).length === 0,
    )
  } finally {
    await client.query('rollback')
    client.release()
  }
  await sweepNow(db.pawl())
  await until(
    'the first has expired',
    async () => (await db.query('select from pawl.submission where id = $1', [locked])).length === 0,
  )
})

test.each([
  ['csv', 'rowId,tonnes\na,many\nb,1\nc,"x\n'],
  ['ndjson', '{"rowId":"a","tonnes":"many"}\n{"rowId":"b"}\n{"rowId":\n'],
  ['json', '[{"rowId":"a","tonnes":"many"},{"rowId":"b"},{"rowId":}]'],
] as const)('[R10] row errors before a malformed row of one chunk are kept: %s', async (format, text) => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload([text], { format })
  expect(upload).toMatchObject({ state: 'invalid', counts: { rows: 2, errors: 2 } })
  const { items } = await pawl.records.errors(upload.id)
  expect(items.map(({ code, column }) => [code, column])).toEqual([
    ['number', 'tonnes'],
    [format === 'csv' ? 'quote' : 'json', null],
  ])
})

test('[R12] an alert of a failed submission stays until its set commits one', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { keep: { ended: 1 } }), here)
  const upload = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  await cancelJobs(db)
  await expect(scope.erase('load', 'none', { reason: 'frees the slot' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  expect(await pawl.alerts()).toMatchObject([{ code: 'submission.failed', subject: 'loads' }])
  await sweepNow(pawl)
  await until('it has expired', async () => (await scope.submissions()).items.length === 0)
  expect(await pawl.alerts()).toMatchObject([{ code: 'submission.failed', subject: 'loads' }])
  await startWorker(pawl)
  await submitted(pawl, scope, csv(loadRows(1)))
  await until('the alert is resolved', async () => (await pawl.alerts()).length === 0)
})

test('[R5] a submission that changes nothing is committed by submit itself', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.append(loadRows(3).map((data) => ({ data })))
  const upload = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  const answer = await pawl.records.submit(upload.id, { revision: upload.revision })
  expect(answer).toEqual({ id: upload.id, revision: upload.revision + 1, number: '2', jobId: null })
  expect(await pawl.records.get(upload.id)).toMatchObject({ state: 'submitted', number: '2', counts: { unchanged: 3 } })
  expect(await scope.state()).toMatchObject({ number: '2', revision: 3, live: 3 })
  expect(await db.query("select payload ->> 'number' as number, type from pawl.event order by seq offset 1")).toEqual([
    { number: '2', type: 'submission.committed' },
  ])
  await until('its rows are cleared', async () => (await db.query('select from pawl.submission_row')).length === 0)
})
