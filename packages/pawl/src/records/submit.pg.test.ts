import type { Submission } from 'pawl'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import {
  cancelJobs,
  csv,
  defineLoads,
  ended,
  loadRows,
  readerView,
  startWorker,
  submitted,
  sweepNow,
} from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

const here = { organisation: '17', registration: '4' }

test.each([2, 20])('[R1] of %i concurrent submits one wins, others stay validated, naming it', async (count) => {
  const pawl = db.pawl({ tuning: { callerConnectionsMax: 30 } })
  const set = defineLoads(pawl)
  const scope = pawl.records.in(set, here)
  const other = pawl.records.in(set, { ...here, registration: '5' })
  const uploads = []
  for (let n = 0; n < count; n++) uploads.push(await scope.upload(csv(loadRows(3 + n)), { format: 'csv' }))
  const elsewhere = await other.upload(csv(loadRows(2)), { format: 'csv' })
  const [outside, ...answers] = await Promise.allSettled([
    pawl.records.submit(elsewhere.id),
    ...uploads.map(({ id, revision }) => pawl.records.submit(id, { revision })),
  ])
  expect(outside).toMatchObject({ status: 'fulfilled' })
  const won = uploads.filter((_upload, index) => answers[index]!.status === 'fulfilled')
  expect(won).toHaveLength(1)
  for (const [index, answer] of answers.entries()) {
    if (answer.status === 'fulfilled') continue
    expect(answer.reason).toMatchObject({ code: 'PAWL_SCOPE_BUSY', details: { holder: won[0]!.id } })
    expect(await pawl.records.get(uploads[index]!.id)).toMatchObject({ state: 'validated', revision: uploads[index]!.revision })
  }
  expect(await pawl.records.get(won[0]!.id)).toMatchObject({ state: 'submitting', revision: won[0]!.revision + 1 })
  await startWorker(pawl)
  expect(await ended(pawl, won[0]!.id)).toMatchObject({ state: 'submitted', number: '1' })
  expect(await ended(pawl, elsewhere.id)).toMatchObject({ state: 'submitted' })
  expect((await readerView(scope)).count).toBe(won[0]!.counts.created)
  expect(await db.query("select count(*)::int as n from pawl.submission where state = 'submitted'")).toEqual([{ n: 2 }])
})

test('[R1] a second submitting row of one scope violates a unique index', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const [first, second] = [
    await scope.upload(csv(loadRows(1)), { format: 'csv' }),
    await scope.upload(csv(loadRows(2)), { format: 'csv' }),
  ]
  await pawl.records.submit(first.id)
  await expect(
    db.query(
      "update pawl.submission set state = 'submitting', job_id = 1, number = 9, submitting_at = now(), expires_at = null where id = $1",
      [second.id],
    ),
  ).rejects.toMatchObject({ code: '23505', constraint: 'submission_slot' })
})

test('[R2] a stale revision, unknown id or wrong state refuses submit', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  await expect(pawl.records.submit(upload.id, { revision: 1 })).rejects.toMatchObject({
    code: 'PAWL_REVISION_CONFLICT',
    details: { expected: 1, actual: upload.revision },
  })
  await expect(pawl.records.submit('999999')).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(pawl.records.submit("1'; drop table x")).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  await expect(pawl.for('acme').records.submit(upload.id)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  const invalid = await scope.upload(csv(loadRows(2, (row) => ({ ...row, tonnes: 'many' }))), { format: 'csv' })
  await expect(pawl.records.submit(invalid.id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE', details: { state: 'invalid' } })
  await expect(pawl.records.resume(upload.id)).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    details: { state: 'validated' },
  })
  const [one, two] = await Promise.allSettled([
    pawl.records.submit(upload.id, { revision: upload.revision }),
    pawl.records.submit(upload.id, { revision: upload.revision }),
  ])
  expect([one.status, two.status].sort()).toEqual(['fulfilled', 'rejected'])
  const loser = one.status === 'rejected' ? one : (two as PromiseRejectedResult)
  expect(loser.reason).toMatchObject({
    code: 'PAWL_REVISION_CONFLICT',
    details: { expected: upload.revision, actual: upload.revision + 1 },
  })
  expect(await db.query("select count(*)::int as n from pawl.job where kind = 'pawl.records.apply'")).toEqual([{ n: 1 }])
})

test("[R2] submit commits and rolls back with the caller's transaction", async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await pawl.records.submit(upload.id, { tx: client })
    await client.query('rollback')
    expect(await pawl.records.get(upload.id)).toMatchObject({ state: 'validated', revision: upload.revision })
    expect(await db.query("select count(*)::int as n from pawl.job where kind = 'pawl.records.apply'")).toEqual([{ n: 0 }])
    await client.query('begin')
    await pawl.records.submit(upload.id, { tx: client })
    await client.query('commit')
  } finally {
    client.release()
  }
  await startWorker(pawl)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted' })
})

test.each(['a submission', 'a put'] as const)(
  '[R3] a baseline moved by %s supersedes; rebase makes a new preview',
  async (by) => {
    const pawl = db.pawl()
    const scope = pawl.records.in(defineLoads(pawl), here)
    await startWorker(pawl)
    await submitted(pawl, scope, csv(loadRows(10)))
    // Row 3 changes, row 10 is new; the others are as they are.
    const mine = await scope.upload(csv(loadRows(11, (row, index) => (index === 3 ? { ...row, note: 'mine' } : row))), {
      format: 'csv',
    })
    expect(mine.counts).toMatchObject({ created: 1, updated: 1, unchanged: 9 })
    if (by === 'a put') await scope.put({ data: { ...loadRows(6)[5]!, note: 'theirs' } })
    else await submitted(pawl, scope, csv(loadRows(10, (row, index) => (index === 5 ? { ...row, note: 'theirs' } : row))))
    const before = await readerView(scope)
    await expect(pawl.records.submit(mine.id)).rejects.toMatchObject({
      code: 'PAWL_SUPERSEDED',
      details: { baseline: mine.baseline },
    })
    expect(await pawl.records.get(mine.id)).toMatchObject({ state: 'superseded' })
    expect(await readerView(scope)).toEqual(before)
    expect(await db.query('select count(*)::int as n from pawl.record_version where submission = $1', [mine.id])).toEqual([
      { n: 0 },
    ])
    const rebased = await pawl.records.rebase(mine.id)
    // What was unchanged at the old baseline would now undo their change, and the preview says so.
    expect(rebased).toMatchObject({
      state: 'validated',
      rebasedFrom: mine.id,
      counts: { rows: 11, created: 1, updated: 2, unchanged: 8 },
    })
    const changes = (await pawl.records.rows(rebased.id, 'updated')).items.map(({ key, changes }) => [key, changes])
    expect(changes).toEqual([
      ['row-3', [{ field: 'note', before: 'note 3', after: 'mine' }]],
      ['row-5', [{ field: 'note', before: 'theirs', after: 'note 5' }]],
    ])
    await pawl.records.submit(rebased.id)
    expect(await ended(pawl, rebased.id)).toMatchObject({ state: 'submitted' })
    expect((await scope.get('load', 'row-5'))?.data).toMatchObject({ note: 'note 5' })
    expect((await scope.audit())?.isSound).toBe(true)
  },
)

test('[R5] equal content in any format changes nothing; A, B, A does', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await startWorker(pawl)
  const rows = loadRows(50)
  await submitted(pawl, scope, csv(rows))
  const again = await submitted(pawl, scope, csv(rows))
  expect(again).toMatchObject({ state: 'submitted', counts: { created: 0, updated: 0, unchanged: 50 } })
  const spelt = rows.map((row) => ({
    ...row,
    tonnes: Number(row.tonnes),
    isExport: row.isExport === 'true',
    note: ` ${row.note} `,
  }))
  const elsewise = await scope.upload(
    spelt.map((row) => `${JSON.stringify(row)}\n`),
    { format: 'ndjson' },
  )
  expect(elsewise.counts).toMatchObject({ created: 0, updated: 0, unchanged: 50 })
  expect(await db.query('select count(*)::int as n from pawl.record_version')).toEqual([{ n: 50 }])
  const edited = rows.map((row, index) => (index === 7 ? { ...row, tonnes: '1000', note: '' } : row))
  await submitted(pawl, scope, csv(edited))
  await submitted(pawl, scope, csv(rows))
  const history = (await scope.history('load', 'row-7')).items
  expect(history.map(({ status, changed, data }) => [status, changed, data?.tonnes, data?.note])).toEqual([
    ['UPDATED', ['note', 'tonnes'], '7.5', 'note 7'],
    ['UPDATED', ['note', 'tonnes'], '1000', undefined],
    ['CREATED', null, '7.5', 'note 7'],
  ])
  expect(await db.query('select count(*)::int as n from pawl.record_version')).toEqual([{ n: 52 }])
})

test("[R7] submit applies exactly the preview's rows or is refused", async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { missing: 'tombstone' }), here)
  await startWorker(pawl)
  await submitted(pawl, scope, csv(loadRows(40)))
  const next = loadRows(45, (row, index) => (index % 4 === 0 ? { ...row, note: `changed ${index}` } : row)).filter(
    (_row, index) => index !== 9,
  )
  const upload = await scope.upload(csv(next), { format: 'csv' })
  expect(upload.counts).toMatchObject({ rows: 44, created: 5, updated: 10, unchanged: 29, missing: 1, deleted: 1 })
  const kinds = ['created', 'updated', 'missing'] as const
  const view = async () =>
    Promise.all(
      kinds.map(async (kind) =>
        (await pawl.records.rows(upload.id, kind)).items
          .map(({ type, key, before, after }) => JSON.stringify([type, key, before, after]))
          .sort(),
      ),
    )
  const preview = await view()
  await pawl.records.submit(upload.id)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', counts: upload.counts })
  expect(await view()).toEqual(preview)
  const late = await scope.upload(csv(next), { format: 'csv' })
  await scope.put({ data: { rowId: 'row-1', note: 'put' } })
  await expect(pawl.records.submit(late.id)).rejects.toMatchObject({ code: 'PAWL_SUPERSEDED' })
  expect((await scope.get('load', 'row-1'))?.data).toEqual({ rowId: 'row-1', note: 'put' })
})

test('a submission has its events if and only if it commits', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { events: 'record' }), here)
  const upload = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  expect(await db.query('select count(*)::int as n from pawl.event')).toEqual([{ n: 0 }])
  await startWorker(pawl)
  await ended(pawl, upload.id)
  await scope.put({ data: { rowId: 'row-1', note: 'put' } })
  const events = await db.query<{ type: string; aggregatetype: string; aggregateid: string; key: string | null }>(
    "select type, aggregatetype, aggregateid, payload ->> 'key' as key from pawl.event order by seq",
  )
  expect(events.map(({ type, key }) => [type, key])).toEqual([
    ['submission.committed', null],
    ['record.created', 'row-0'],
    ['record.created', 'row-1'],
    ['record.created', 'row-2'],
    ['submission.committed', null],
    ['record.updated', 'row-1'],
  ])
  expect(new Set(events.map(({ aggregatetype, aggregateid }) => `${aggregatetype} ${aggregateid}`))).toEqual(
    new Set(['loads ["17","4"]']),
  )
})

test('events of a write are found without a scan of the scope', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { events: 'record', missing: 'tombstone' }), here)
  await scope.append(loadRows(2000).map((data) => ({ data })))
  await db.query('analyze')
  const { seq } = (await db.query<{ seq: string }>('select max(seq)::text as seq from pawl.event'))[0]!
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await scope.append([{ data: { rowId: 'row-1', note: 'put' } }, { key: 'row-2', data: null }, { data: { rowId: 'new' } }], {
      tx: client,
    })
    const reads = await client.query<{ relname: string; rows: number }>(
      `select relname, (seq_tup_read + idx_tup_fetch)::int as rows from pg_stat_xact_user_tables
       where schemaname = 'pawl' and relname in ('record', 'record_version')`,
    )
    for (const { relname, rows } of reads.rows) expect(rows, relname).toBeLessThan(100)
    expect(reads.rows).toHaveLength(2)
    await client.query('commit')
  } finally {
    client.release()
  }
  await startWorker(pawl)
  await submitted(pawl, scope, csv(loadRows(2, (row) => ({ ...row, note: 'uploaded' }))))
  const events = await db.query<{ type: string; payload: Record<string, unknown> }>(
    "select type, payload from pawl.event where seq > $1 and type <> 'submission.committed' order by seq",
    [seq],
  )
  expect(events).toHaveLength(3 + 2000)
  const told = events.map(({ payload }) => payload)
  const about = { set: 'loads', scope: ['17', '4'] }
  expect(told.slice(0, 5)).toMatchObject([
    { ...about, type: 'load', key: 'row-1', number: '2', data: { rowId: 'row-1', note: 'put' } },
    { ...about, type: 'load', key: 'row-2', number: '2', changed: null, data: null },
    { ...about, type: 'load', key: 'new', number: '2', changed: null, data: { rowId: 'new' } },
    { ...about, type: 'load', key: 'row-0', number: '3', changed: ['note'], data: { note: 'uploaded' } },
    { ...about, type: 'load', key: 'row-1', number: '3', data: { tonnes: '1.5', note: 'uploaded' } },
  ])
  expect(events.map(({ type }) => type).slice(0, 6)).toEqual([
    'record.updated',
    'record.deleted',
    'record.created',
    'record.updated',
    'record.updated',
    'record.deleted',
  ])
  const deleted = told.slice(5)
  expect(new Set(deleted.map(({ data, number }) => `${String(data)} ${String(number)}`))).toEqual(new Set(['null 3']))
  expect(new Set(deleted.map(({ key }) => key)).size).toBe(1998)
})

test('why predicts the answer of submit and resume', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const uploads = []
  for (let n = 1; n <= 3; n++) uploads.push(await scope.upload(csv(loadRows(n)), { format: 'csv' }))
  const [first, second, third] = uploads as [Submission, Submission, Submission]
  const codes = async (id: string) => (await pawl.records.why(id)).reasons.map(({ code }) => code)
  expect(await codes(third.id)).toEqual(['ready'])
  await db.query('alter table pawl.record_version add constraint refused check (false) not valid')
  const worker = await startWorker(pawl)
  await pawl.records.submit(first.id)
  expect(await ended(pawl, first.id)).toMatchObject({ state: 'failed' })
  expect(await codes(first.id)).toEqual(['failed', 'resumable'])
  await worker.stop()
  await db.query('alter table pawl.record_version drop constraint refused')

  await pawl.records.submit(second.id)
  expect(await pawl.records.why(third.id)).toMatchObject({
    reasons: [{ code: 'scope-busy', text: expect.stringContaining(`Submission ${second.id} `) }],
  })
  await expect(pawl.records.submit(third.id)).rejects.toMatchObject({ code: 'PAWL_SCOPE_BUSY' })
  expect(await codes(first.id)).toEqual(['failed', 'scope-busy'])
  await expect(pawl.records.resume(first.id)).rejects.toMatchObject({ code: 'PAWL_SCOPE_BUSY' })

  await startWorker(pawl)
  await ended(pawl, second.id)
  expect(await codes(third.id)).toEqual(['stale'])
  const [failed, stale] = (await pawl.records.why(first.id)).reasons
  expect(failed).toMatchObject({ code: 'failed', text: expect.stringContaining('refused') })
  expect(stale).toMatchObject({ code: 'stale', text: expect.stringContaining(`records.rebase('${first.id}')`) })
  await expect(pawl.records.resume(first.id)).rejects.toMatchObject({ code: 'PAWL_SUPERSEDED' })
})

test('[R14] an expired submission is removed although every job was cancelled', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { keep: { validated: 1 } }), here)
  const upload = await scope.upload(csv(loadRows(20)), { format: 'csv' })
  // No job does it, so no cancel can stop it.
  await cancelJobs(db)
  await until(
    'its time is over',
    async () => (await db.query('select from pawl.submission where expires_at > pawl.now()')).length === 0,
  )
  await sweepNow(pawl)
  await until('the submission is removed', async () => (await scope.submissions()).items.length === 0)
  await expect(pawl.records.submit(upload.id)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  expect(await db.query('select from pawl.submission_row')).toEqual([])
})
