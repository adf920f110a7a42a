// Records and the death of those who apply them: kill -9 at every crash point, a zombie that wakes up, and jobs that end without a word.

import type { Pawl, RecordScope } from 'pawl'
import { installProbe, type ProbeName } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, endLeasesOf, type TestDatabase, until } from '../support/database.ts'
import {
  cancelJobs,
  csv,
  defineLoads,
  ended,
  loadRows,
  loads,
  RecordsProcess,
  readerView,
  startWorker,
} from '../support/records.ts'

const here = { organisation: '17', registration: '4' }
const sets = { loads: { ...loads, missing: 'tombstone', tuning: { chunkRows: 60 } } } as const

async function createScene(): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  return db
}

/** Of 600 rows 300 stay, 240 change and 60 are left out; 60 are new. Six chunks of 60 changes each. */
const first = loadRows(600)
const second = loadRows(660, (row, index) => (index % 2 === 0 ? { ...row, note: `changed ${index}` } : row)).filter(
  (_row, index) => index % 10 !== 0 || index >= 600,
)

/** Puts the first state there without any worker: an append is a submission too. */
async function prepare(pawl: Pawl, scope: RecordScope): Promise<void> {
  await scope.append(first.map((data) => ({ data })))
  const upload = await scope.upload(csv(second), { format: 'csv' })
  expect(upload.state).toBe('validated')
  await pawl.records.submit(upload.id)
}

async function undisturbed(db: TestDatabase): Promise<{ count: number; digest: string }> {
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('loads', sets.loads), { ...here, registration: 'undisturbed' })
  await prepare(pawl, scope)
  const worker = pawl.worker()
  await worker.start()
  const [submission] = (await scope.submissions({ limit: 1 })).items
  await ended(pawl, submission!.id)
  await worker.stop()
  return readerView(scope)
}

const chains: Readonly<Record<string, readonly (readonly [ProbeName, number])[]>> = {
  'after every chunk': Array.from({ length: 6 }, () => ['records.apply.chunk', 1] as const),
  'before and inside chunks': [
    ['records.apply.before', 1],
    ['records.apply.written', 1],
    ['records.apply.written', 2],
    ['records.apply.before', 3],
    ['records.apply.written', 2],
  ],
  'around the commit': [
    ['records.commit.before', 1],
    ['records.commit.written', 1],
    ['records.commit.after', 1],
  ],
}

test.each(Object.keys(chains))(
  '[R4] kill -9 %s: the old state until the commit, then the new',
  { timeout: 240_000 },
  async (name) => {
    const db = await createScene()
    const expected = await undisturbed(db)
    const pawl = db.pawl()
    const set = pawl.records.define('loads', sets.loads)
    const scope = pawl.records.in(set, here)
    const other = pawl.records.in(set, { ...here, registration: '5' })
    await prepare(pawl, scope)
    const { id } = (await scope.submissions({ limit: 1 })).items[0]!
    const old = await readerView(scope)
    let puts = 0
    for (const [probe, hit] of chains[name]!) {
      const victim = new RecordsProcess({ url: db.url, sets, killAt: { probe, hit } })
      await victim.hears('killing')
      expect(await victim.ended()).toBe('SIGKILL')
      await endLeasesOf(db, victim)
      await other.put({ data: { rowId: `put ${puts++}`, note: probe } })
      const { state } = await pawl.records.get(id)
      expect(state).toBe(probe === 'records.commit.after' ? 'submitted' : 'submitting')
      expect(await readerView(scope)).toEqual(state === 'submitted' ? expected : old)
      if (state === 'submitting')
        await expect(scope.put({ data: { rowId: 'row-1' } })).rejects.toMatchObject({
          code: 'PAWL_SCOPE_BUSY',
          details: { holder: id },
        })
    }
    const survivor = new RecordsProcess({ url: db.url, sets })
    expect(await ended(pawl, id, 120_000)).toMatchObject({ state: 'submitted', counts: { created: 60, deleted: 60 } })
    await until(
      'the staged rows are cleared',
      async () => (await db.query('select 1 from pawl.submission_row where submission = $1 limit 1', [id])).length === 0,
      60_000,
    )
    survivor.tell('stop')
    await survivor.hears('stopped')
    expect(await readerView(scope)).toEqual(expected)
    expect(await readerView(scope, { number: '1' })).toEqual(old)
    expect((await readerView(other)).count).toBe(puts)
    const versions = await db.query<{ status: string; n: number; records: number }>(
      'select status, count(*)::int as n, count(distinct record_id)::int as records from pawl.record_version where submission = $1 group by 1 order by 1',
      [id],
    )
    const changed = second.filter((row) => row.note?.startsWith('changed') && Number(row.rowId.slice(4)) < 600).length
    expect(changed).toBe(240)
    expect(versions).toEqual([
      { status: 'CREATED', n: 60, records: 60 },
      { status: 'DELETED', n: 60, records: 60 },
      { status: 'UPDATED', n: changed, records: changed },
    ])
    expect((await scope.audit())?.isSound).toBe(true)
    // Twice 'loads', once 'undisturbed': the append and the submission of each scope, and the puts.
    expect(await db.query("select count(*)::int as n from pawl.event where type = 'submission.committed'")).toEqual([
      { n: 4 + puts },
    ])
  },
)

test('[R4] a zombie applier that wakes up after another took over writes nothing', { timeout: 120_000 }, async () => {
  const db = await createScene()
  const expected = await undisturbed(db)
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('loads', sets.loads), here)
  await prepare(pawl, scope)
  const { id } = (await scope.submissions({ limit: 1 })).items[0]!
  const zombie = new RecordsProcess({ url: db.url, sets, stopAt: { probe: 'records.apply.before', hit: 3 } })
  await zombie.hears('stopping')
  await endLeasesOf(db, zombie)
  // Another takes over and stands before the same chunk when the zombie wakes up.
  const holder = new RecordsProcess({ url: db.url, sets, holdAt: { probe: 'records.apply.before', hit: 1 } })
  await holder.hears('holding')
  const { progress } = await pawl.records.get(id)
  expect(progress.applied).toBe(120)
  await until(
    'the zombie wakes up and is refused',
    () => {
      // Again and again: it said so just before it stopped.
      zombie.resume()
      return zombie.said.some(({ event }) => event === 'job.refused')
    },
    60_000,
  )
  expect(await pawl.records.get(id)).toMatchObject({ state: 'submitting', progress })
  await zombie.kill()
  holder.tell('go')
  expect(await ended(pawl, id, 60_000)).toMatchObject({ state: 'submitted' })
  expect(holder.said.filter(({ event }) => event === 'job.refused')).toEqual([])
  expect(await readerView(scope)).toEqual(expected)
  expect((await scope.audit())?.isSound).toBe(true)
  expect(
    await db.query(
      'select count(*)::int as n from pawl.record_version v where number > (select committed from pawl.record_scope s join pawl.record r on r.scope_id = s.id where r.id = v.record_id)',
    ),
  ).toEqual([{ n: 0 }])
})

test('[R12] a submission whose job is killed too often fails and can resume', {
  timeout: 240_000,
}, async () => {
  const db = await createScene()
  const expected = await undisturbed(db)
  const pawl = db.pawl()
  const scope = pawl.records.in(pawl.records.define('loads', sets.loads), here)
  await prepare(pawl, scope)
  const { id } = (await scope.submissions({ limit: 1 })).items[0]!
  const old = await readerView(scope)
  const victim = new RecordsProcess({ url: db.url, sets, killAt: { probe: 'records.apply.chunk', hit: 3 } })
  expect(await victim.ended()).toBe('SIGKILL')
  expect(await db.query('select count(*)::int as n from pawl.record_version where submission = $1', [id])).not.toEqual([{ n: 0 }])
  // One crash short of its limit: the rescue of this death is the last.
  await db.query("update pawl.job set crashes = 9, max_crashes = 10 where kind = 'pawl.records.apply'")
  await endLeasesOf(db, victim)
  await startWorker(pawl)
  const failed = await ended(pawl, id)
  expect(failed).toMatchObject({ state: 'failed', failureClass: 'unknown' })
  expect(await db.query('select count(*)::int as n from pawl.record_version where submission = $1', [id])).toEqual([{ n: 0 }])
  expect(await readerView(scope)).toEqual(old)
  expect((await scope.audit())?.isSound).toBe(true)
  await until('a worker has resolved the alert of the dead job', async () => (await pawl.alerts()).length === 1)
  expect((await pawl.alerts()).map(({ code, count }) => [code, count])).toEqual([['submission.failed', 1]])
  await pawl.records.resume(id, { revision: failed.revision })
  expect(await ended(pawl, id)).toMatchObject({ state: 'submitted' })
  expect(await readerView(scope)).toEqual(expected)
  await until('the alert is resolved', async () => (await pawl.alerts()).length === 0)
})

test('[R12] a cancelled job does not keep the slot', async () => {
  const db = await createScene()
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const [one, two] = [
    await scope.upload(csv(loadRows(5)), { format: 'csv' }),
    await scope.upload(csv(loadRows(6)), { format: 'csv' }),
  ]
  await pawl.records.submit(one.id)
  await cancelJobs(db)
  expect((await pawl.records.why(one.id)).reasons.map(({ code }) => code)).toContain('job-cancelled')
  await pawl.records.submit(two.id)
  expect(await pawl.records.get(one.id)).toMatchObject({ state: 'failed' })
  await startWorker(pawl)
  expect(await ended(pawl, two.id)).toMatchObject({ state: 'submitted' })
  await expect(pawl.records.resume(one.id)).rejects.toMatchObject({ code: 'PAWL_SUPERSEDED' })
})

/** Fails the apply in this process, so often, with this error. */
function failApply(error: () => unknown, times: number): { readonly failed: () => number } {
  let failed = 0
  installProbe((name) => {
    if (name !== 'records.apply.written' || failed >= times) return
    failed++
    throw error()
  })
  onTestFinished(() => installProbe(undefined))
  return { failed: () => failed }
}

const byClass = {
  permanent: () => Object.assign(new Error('value out of range'), { code: '22003' }),
  transient: () => Object.assign(new Error('deadlock detected'), { code: '40P01' }),
  unknown: () => new Error('something of ours'),
} as const

test.each(['permanent', 'transient', 'unknown'] as const)(
  '[R12] an apply that always fails, %s, frees its slot with one alert',
  async (kind) => {
    const db = await createScene()
    const pawl = db.pawl()
    const scope = pawl.records.in(defineLoads(pawl, { retry: { attempts: 3, initialMs: 5, jitter: false } }), here)
    await scope.put({ data: { rowId: 'row-0', note: 'before' } })
    const upload = await scope.upload(csv(loadRows(8)), { format: 'csv' })
    const { failed } = failApply(byClass[kind], 100)
    await pawl.records.submit(upload.id)
    await startWorker(pawl)
    expect(await ended(pawl, upload.id)).toMatchObject({ state: 'failed', failureClass: kind })
    expect(failed()).toBe(kind === 'permanent' ? 1 : 3)
    expect((await pawl.alerts()).map(({ code, count }) => [code, count])).toEqual([['submission.failed', 1]])
    expect((await scope.audit())?.isSound).toBe(true)
    expect((await scope.list()).items.map(({ key, data }) => [key, data?.note])).toEqual([['row-0', 'before']])
    expect(await db.query("select count(*)::int as n from pawl.job where state = 'dead'")).toEqual([{ n: 0 }])
    installProbe(undefined)
    await pawl.records.resume(upload.id)
    expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted' })
    expect((await scope.list()).items).toHaveLength(8)
  },
)

test('[R12] a transient failure is tried again and goes forward without an alert', async () => {
  const db = await createScene()
  const pawl = db.pawl()
  const scope = pawl.records.in(
    defineLoads(pawl, { retry: { attempts: 3, initialMs: 5, jitter: false }, tuning: { chunkRows: 3 } }),
    here,
  )
  const upload = await scope.upload(csv(loadRows(9)), { format: 'csv' })
  const { failed } = failApply(byClass.transient, 2)
  await pawl.records.submit(upload.id)
  await startWorker(pawl)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted' })
  expect(failed()).toBe(2)
  expect(await pawl.alerts()).toEqual([])
})
