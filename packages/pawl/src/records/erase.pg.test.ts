import { installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { csv, defineLoads, loadRows, startWorker, submitted } from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  installProbe(undefined)
  await db.drop()
})

const here = { organisation: '17', registration: '4' }
const secret = (rows: number) => loadRows(rows, (row, index) => (index === 1 ? { ...row, note: 'secret' } : row))

async function secrets(): Promise<number> {
  const [row] = await db.query<{ n: number }>(
    `select (select count(*) from pawl.submission_row where data::text like '%secret%')::int
      + (select count(*) from pawl.record_version where data::text like '%secret%')::int as n`,
  )
  return row!.n
}

test('[R14] rows sent before an erasure and staged after it are refused', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'row-1', note: 'secret' } })
  const more = deferred()
  async function* body() {
    yield csv(secret(1))[0]!
    await more.promise
    yield csv(secret(3).map((row) => ({ ...row, date: `born ${row.rowId}` })))
      .slice(1)
      .join('')
  }
  const uploading = scope.upload(body(), { format: 'csv' })
  await until('the upload has begun', async () => (await scope.submissions({ state: 'uploading' })).items.length === 1)
  expect(await scope.erase('load', 'row-1', { reason: 'asked' })).toEqual({ versions: 1 })
  more.resolve()
  await expect(uploading).rejects.toMatchObject({ code: 'PAWL_UPLOAD_FAILED', details: { type: 'load', key: 'row-1' } })
  const [failed] = (await scope.submissions({ state: 'upload-failed' })).items
  expect(failed).toMatchObject({ error: expect.stringMatching(/'row-1' was erased after this upload started/) })
  expect(await secrets()).toBe(0)
  expect(await db.query('select value from pawl.submission_error')).toEqual([{ value: 'born row-0' }, { value: 'born row-2' }])
  // What is sent after the erasure is new, whatever it says.
  const again = await scope.upload(csv(loadRows(3)), { format: 'csv', restart: failed!.id })
  expect(again).toMatchObject({ state: 'validated', counts: { created: 2, updated: 1 } })
})

test('[R14] rows erased during a rebase do not return with any rebase', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await startWorker(pawl)
  const mine = await scope.upload(csv(secret(3)), { format: 'csv' })
  await scope.put({ data: { rowId: 'other' } })
  await expect(pawl.records.submit(mine.id)).rejects.toMatchObject({ code: 'PAWL_SUPERSEDED' })
  const [begun, goOn] = [deferred(), deferred()]
  installProbe(async (name) => {
    if (name !== 'records.validate.before') return
    begun.resolve()
    await goOn.promise
  })
  const rebasing = pawl.records.rebase(mine.id).catch((error: unknown) => error)
  await begun.promise
  expect(await scope.erase('load', 'row-1', { reason: 'asked' })).toEqual({ versions: 0 })
  goOn.resolve()
  expect(await rebasing).toMatchObject({ code: 'PAWL_UPLOAD_FAILED' })
  installProbe(undefined)
  await expect(pawl.records.rebase(mine.id)).rejects.toMatchObject({ code: 'PAWL_UPLOAD_FAILED' })
  expect(await secrets()).toBe(0)
  expect(await scope.get('load', 'row-1')).toBeUndefined()
})

test('[R14] an erasure waits for a batch being staged and erases it', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  await scope.put({ data: { rowId: 'row-1', note: 'secret' } })
  const upload = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  await db.query("update pawl.submission set state = 'uploading' where id = $1", [upload.id])
  const stager = await db.pool.connect()
  try {
    await stager.query('begin')
    await stager.query('update pawl.submission set lines = lines + 1 where id = $1', [upload.id])
    await stager.query(
      `insert into pawl.submission_row (submission, line, kind, type, key, hash, data)
        values ($1, 9, 'updated', 'load', 'row-1', gen_random_uuid(), '{"note": "secret"}')`,
      [upload.id],
    )
    const erasing = scope.erase('load', 'row-1', { reason: 'asked' })
    await until(
      'the erasure waits',
      async () =>
        (await db.query("select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")).length >
        0,
    )
    await stager.query('commit')
    expect(await erasing).toEqual({ versions: 1 })
  } finally {
    stager.release()
  }
  expect(await secrets()).toBe(0)
})

test('[R14] an erasure removes what errors quote of the record, of others nothing', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const late = loadRows(3, (row) => ({ ...row, date: `secret ${row.rowId}` }))
  const upload = await scope.upload(csv(late), { format: 'csv' })
  const twice = await scope.upload(csv([...loadRows(2), ...loadRows(2)]), { format: 'csv' })
  await scope.erase('load', 'row-1', { reason: 'asked' })
  const quoted = async (id: string) => (await pawl.records.errors(id)).items.map(({ line, value }) => [line, value])
  expect(await quoted(upload.id)).toEqual([
    [2, 'secret row-0'],
    [4, 'secret row-2'],
  ])
  expect(await quoted(twice.id)).toEqual([[4, 'row-0']])
})

test("[R14] an erasure empties the record's own events and no others", async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { events: 'record' }), here)
  await startWorker(pawl)
  await scope.put({ data: { rowId: 'row-1', note: 'secret' } })
  await submitted(pawl, scope, csv(loadRows(3, (row) => ({ ...row, note: `secret ${row.rowId}` }))))
  const other = pawl.records.in('loads', { ...here, registration: '5' })
  await other.put({ data: { rowId: 'row-1', note: 'secret of another scope' } })
  await scope.erase('load', 'row-1', { reason: 'asked for', by: 'anna' })
  const events = await db.query<{ type: string; note: string | null; headers: unknown }>(
    "select type, payload -> 'data' ->> 'note' as note, headers from pawl.event where type <> 'submission.committed' order by seq",
  )
  expect(events).toEqual([
    { type: 'record.created', note: null, headers: { erased: true } },
    { type: 'record.created', note: 'secret row-0', headers: null },
    { type: 'record.updated', note: null, headers: { erased: true } },
    { type: 'record.created', note: 'secret row-2', headers: null },
    { type: 'record.created', note: 'secret of another scope', headers: null },
  ])
  expect(await db.query('select actor, action, subject, reason, detail from pawl.audit')).toEqual([
    {
      actor: 'anna',
      action: 'records.erase',
      subject: 'loads ["17","4"]',
      reason: 'asked for',
      detail: { type: 'load', key: 'row-1', events: 2 },
    },
  ])
})
