// kill -9 at the crash points of records before and after the apply: while rows are staged, validated and submitted, and while a
// submission that is given up is purged. The apply and its commit are in records.pg.test.ts.

import type { ProbeName } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, endLeasesOf, type TestDatabase, until } from '../support/database.ts'
import { csv, ended, loadRows, loads, RecordsProcess, startWorker } from '../support/records.ts'

const here = { organisation: '17', registration: '4' }
const sets = { loads: { ...loads, tuning: { chunkRows: 1000 } } } as const

async function createScene(): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  return db
}

/** Six batches of an upload. */
const staged = 5200

function* file(rows: number): Generator<string> {
  yield 'rowId,note\n'
  for (let index = 0; index < rows; index++) yield `row-${index},sent\n`
}

const whileStaging: readonly (readonly [ProbeName, number, string, number])[] = [
  ['records.stage.committed', 1, 'uploading', 1000],
  ['records.stage.committed', 6, 'uploading', staged],
  ['records.validate.before', 1, 'validating', staged],
  ['records.validate.after', 1, 'validated', staged],
  ['records.submit.written', 1, 'validated', staged],
]

test.each(whileStaging)(
  '[R4] kill -9 at %s, hit %i: %s with %i rows, restartable',
  { timeout: 120_000 },
  async (probe, hit, state, lines) => {
    const db = await createScene()
    const pawl = db.pawl()
    const scope = pawl.records.in(pawl.records.define('loads', sets.loads), here)
    await scope.put({ data: { rowId: 'row-0', note: 'before' } })
    const victim = new RecordsProcess({
      url: db.url,
      sets,
      upload: { set: 'loads', scope: here, rows: staged, submits: true },
      killAt: { probe, hit },
    })
    await victim.hears('killing')
    expect(await victim.ended()).toBe('SIGKILL')
    const [left] = (await scope.submissions({ limit: 1 })).items
    expect(left).toMatchObject({ state, counts: { rows: lines } })
    const { id } = left!
    expect(await db.query('select count(*)::int as n from pawl.submission_row where submission = $1', [id])).toEqual([
      { n: lines },
    ])
    expect((await scope.list()).items.map(({ key, data }) => [key, data?.note])).toEqual([['row-0', 'before']])
    expect(await db.query("select count(*)::int as n from pawl.job where kind = 'pawl.records.apply'")).toEqual([{ n: 0 }])
    if (state !== 'validated') {
      await expect(pawl.records.submit(id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE', details: { state } })
      await scope.upload(file(staged), { format: 'csv', restart: id })
    }
    const whole = await pawl.records.get(id)
    expect(whole).toMatchObject({ state: 'validated', counts: { rows: staged, created: staged - 1, updated: 1, unchanged: 0 } })
    await startWorker(pawl)
    await pawl.records.submit(id, { revision: whole.revision })
    expect(await ended(pawl, id)).toMatchObject({ state: 'submitted' })
    expect((await scope.list({ limit: 10_000 })).items.filter(({ data }) => data?.note === 'sent')).toHaveLength(staged)
    expect((await scope.audit())?.isSound).toBe(true)
    expect(await db.query('select count(*)::int as n from pawl.record_version where submission = $1', [id])).toEqual([
      { n: staged },
    ])
  },
)

test('[R4] kill -9 before a restarted upload clears the old rows: restart again', { timeout: 120_000 }, async () => {
  const db = await createScene()
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('loads', sets.loads), here)
  const upload = { set: 'loads', scope: here, rows: staged }
  const first = new RecordsProcess({ url: db.url, sets, upload, killAt: { probe: 'records.stage.committed', hit: 2 } })
  expect(await first.ended()).toBe('SIGKILL')
  const [{ id } = { id: '' }] = (await scope.submissions({ limit: 1 })).items
  const killAt = { probe: 'records.restart.committed', hit: 1 } as const
  const second = new RecordsProcess({ url: db.url, sets, upload: { ...upload, restart: id }, killAt })
  await second.hears('killing')
  expect(await second.ended()).toBe('SIGKILL')
  expect(await pawl.records.get(id)).toMatchObject({ state: 'uploading', counts: { rows: 0 } })
  expect(await db.query('select count(*)::int as n from pawl.submission_row')).toEqual([{ n: 2000 }])
  const whole = await scope.upload(file(staged), { format: 'csv', restart: id })
  expect(whole).toMatchObject({ state: 'validated', counts: { rows: staged, created: staged } })
  await startWorker(pawl)
  await pawl.records.submit(id)
  expect(await ended(pawl, id)).toMatchObject({ state: 'submitted' })
  expect(await scope.audit()).toMatchObject({ isSound: true, live: staged })
})

test("[R4] kill -9 before an append's commit leaves nothing, no once key", { timeout: 120_000 }, async () => {
  const db = await createScene()
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('loads', sets.loads), here)
  await scope.put({ data: { rowId: 'row-0', note: 'before' } })
  const victim = new RecordsProcess({
    url: db.url,
    sets,
    upload: { set: 'loads', scope: here, rows: 3, once: 'k' },
    killAt: { probe: 'records.append.written', hit: 1 },
  })
  await victim.hears('killing')
  expect(await victim.ended()).toBe('SIGKILL')
  expect((await scope.list()).items.map(({ key, data }) => [key, data?.note])).toEqual([['row-0', 'before']])
  expect(await scope.audit()).toMatchObject({ isSound: true, live: 1 })
  const again = ['row-0', 'row-1', 'row-2'].map((rowId) => ({ data: { rowId, note: 'sent' } }))
  expect(await scope.append(again, { once: 'k' })).toMatchObject({ created: 2, updated: 1, number: '2' })
})

/** Six chunks are written before the seventh is refused; they are purged in two runs. */
const refused = 6300
const refuseSql = `
  create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not today' using errcode = '22003'; end $$;
  create trigger refuse before insert on pawl.record_version for each row
  when (new.data ->> 'rowId' = 'row-${refused - 1}') execute function refuse()`

const whilePurging: readonly (readonly [ProbeName, number])[] = [
  ['records.purge.chunk', 1],
  ['records.purge.chunk', 2],
  ['records.fail.written', 1],
]

test.each(whilePurging)('[R12] kill -9 at %s, hit %i: the slot waits for the purge', { timeout: 120_000 }, async (probe, hit) => {
  const db = await createScene()
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('loads', sets.loads), here)
  await scope.put({ data: { rowId: 'row-0', note: 'before' } })
  await db.query(refuseSql)
  const { id } = await scope.upload(file(refused), { format: 'csv' })
  await pawl.records.submit(id)
  const victim = new RecordsProcess({ url: db.url, sets, killAt: { probe, hit } })
  await victim.hears('killing')
  expect(await victim.ended()).toBe('SIGKILL')
  expect(await pawl.records.get(id)).toMatchObject({ state: 'submitting' })
  await expect(scope.put({ data: { rowId: 'row-1' } })).rejects.toMatchObject({ code: 'PAWL_SCOPE_BUSY' })
  const seen = async () => (await scope.list({ limit: 10_000 })).items.map(({ key, data }) => [key, data?.note])
  expect(await seen()).toEqual([['row-0', 'before']])
  await endLeasesOf(db, victim)
  const survivor = new RecordsProcess({ url: db.url, sets })
  expect(await ended(pawl, id, 60_000)).toMatchObject({ state: 'failed', failureClass: 'permanent' })
  expect(await db.query('select count(*)::int as n from pawl.record_version where submission = $1', [id])).toEqual([{ n: 0 }])
  expect(await db.query('select count(*)::int as n from pawl.record')).toEqual([{ n: 1 }])
  expect((await pawl.alerts()).map(({ code, count }) => [code, count])).toEqual([['submission.failed', 1]])
  expect(await seen()).toEqual([['row-0', 'before']])
  await db.query('drop trigger refuse on pawl.record_version')
  await pawl.records.resume(id)
  expect(await ended(pawl, id, 60_000)).toMatchObject({ state: 'submitted', counts: { created: refused - 1, updated: 1 } })
  await until('the alert is resolved', async () => (await pawl.alerts()).length === 0)
  survivor.tell('stop')
  await survivor.hears('stopped')
  expect((await seen()).filter(([, note]) => note === 'sent')).toHaveLength(refused)
  expect((await scope.audit())?.isSound).toBe(true)
})

test('[R15] ended resolves in a process that neither submitted nor applied', { timeout: 120_000 }, async () => {
  const db = await createScene()
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('loads', sets.loads), here)
  const sender = new RecordsProcess({ url: db.url, sets, upload: { set: 'loads', scope: here, rows: 3, submits: true } })
  await sender.hears('uploaded')
  const [{ id } = { id: '' }] = (await scope.submissions({ limit: 1 })).items
  const waiting = pawl.records.ended(id)
  const applier = new RecordsProcess({ url: db.url, sets })
  expect(await waiting).toMatchObject({ id, state: 'submitted', counts: { created: 3 } })
  // And one that fails there.
  await db.query(refuseSql)
  const refusedRow = loadRows(1, (row) => ({ ...row, rowId: `row-${refused - 1}` }))
  const failing = await scope.upload(csv(refusedRow), { format: 'csv' })
  await pawl.records.submit(failing.id)
  expect(await pawl.records.ended(failing.id)).toMatchObject({ state: 'failed', failureClass: 'permanent' })
  applier.tell('stop')
  await applier.hears('stopped')
})
