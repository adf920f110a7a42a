import { installProbe, type ProbeName } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { cancelJobs, csv, defineLoads, ended, loadRows, readerView, startWorker } from '../../test/support/records.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  installProbe(undefined)
  await db.drop()
})

const here = { organisation: '17', registration: '4' }
/** More than one run of a purge. */
const rows = 6000

test('[R12] a late second end deletes nothing of a resumed submission', {
  timeout: 60_000,
}, async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { tuning: { chunkRows: rows } }), here)
  // Two uploads that the put outruns: who submits one of them finds the slot taken, ends its dead holder, and is superseded then.
  const [one, two] = [
    await scope.upload(csv(loadRows(1)), { format: 'csv' }),
    await scope.upload(csv(loadRows(2)), { format: 'csv' }),
  ]
  await scope.put({ data: { rowId: 'put' } })
  const upload = await scope.upload(csv(loadRows(rows)), { format: 'csv' })
  await pawl.records.submit(upload.id)

  const cancelled = deferred()
  void atProbe('records.commit.before', async () => {
    await cancelJobs(db)
    cancelled.resolve()
  })
  await startWorker(pawl)
  await cancelled.promise
  const [late, purged] = [deferred(), deferred()]
  void atProbe('records.purge.chunk', async () => {
    purged.resolve()
    await late.promise
  })
  const slow = pawl.records.submit(one.id).catch((error: unknown) => error)
  await purged.promise
  await expect(pawl.records.submit(two.id)).rejects.toMatchObject({ code: 'PAWL_SUPERSEDED' })
  expect(await pawl.records.get(upload.id)).toMatchObject({ state: 'failed' })

  const commit = deferred()
  const again = atProbe('records.commit.before', () => commit.promise)
  await pawl.records.resume(upload.id)
  await again
  late.resolve()
  // Its own submit comes now, and finds the slot taken again by one that lives.
  expect(await slow).toMatchObject({ code: 'PAWL_SCOPE_BUSY' })
  commit.resolve()
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', counts: { created: rows } })
  expect((await scope.list({ limit: 10_000 })).items).toHaveLength(rows + 1)
  expect(await scope.audit()).toMatchObject({ isSound: true, live: rows + 1 })
})

test('[R12] a submission that cannot be purged keeps its slot', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { tuning: { chunkRows: 10 } }), here)
  await scope.put({ data: { rowId: 'put' } })
  const upload = await scope.upload(csv(loadRows(30)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  const cancelled = deferred()
  void atProbe('records.apply.chunk', async () => {
    await db.query('delete from pawl.submission_row')
    await cancelJobs(db)
    cancelled.resolve()
  })
  await startWorker(pawl)
  await cancelled.promise
  const other = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  await expect(pawl.records.submit(other.id)).rejects.toThrow(/that its staged rows no longer name/)
  await expect(scope.put({ data: { rowId: 'another' } })).rejects.toMatchObject({ code: 'PAWL_SCOPE_BUSY' })
  expect((await scope.list()).items).toHaveLength(1)
})

/** Does something when a probe is hit next. Resolves as soon as it is hit, whatever is done there. */
function atProbe(probe: ProbeName, act: () => Promise<void>): Promise<void> {
  return new Promise((resolve) => {
    installProbe((name) => {
      if (name !== probe) return
      installProbe(undefined)
      resolve()
      return act()
    })
  })
}

test('[R12] progress resets the failure count, and a commit clears the error', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(
    defineLoads(pawl, { retry: { attempts: 2, initialMs: 1, maxMs: 1 }, tuning: { chunkRows: 10 } }),
    here,
  )
  const upload = await scope.upload(csv(loadRows(50)), { format: 'csv' })
  // A deadlock at the first attempt of every chunk. A sequence remembers what was rolled back.
  await db.query(`
    create sequence public.blips;
    create function public.blip() returns trigger language plpgsql as $$
    begin
      if nextval('public.blips') % 2 = 1 then
        raise exception 'deadlock detected' using errcode = '40P01';
      end if;
      return null;
    end $$;
    create trigger blip after insert on pawl.record_version for each statement execute function public.blip()`)
  await pawl.records.submit(upload.id)
  await startWorker(pawl)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', failureClass: null, error: null })
  expect(await db.query('select last_value::int as tries from public.blips')).toEqual([{ tries: 10 }])
  expect(await db.query('select failures from pawl.submission')).toEqual([{ failures: 0 }])
  // Without progress they are.
  await db.query('alter sequence public.blips increment by 2')
  await db.query("select setval('public.blips', 1)")
  const next = await scope.upload(csv(loadRows(60)), { format: 'csv' })
  await pawl.records.submit(next.id)
  expect(await ended(pawl, next.id)).toMatchObject({ state: 'failed', failureClass: 'transient' })
  expect(await db.query('select last_value::int as tries from public.blips')).toEqual([{ tries: 5 }])
})

test('[R12] an alert raised during a sweep stays open; the sweep goes on', async () => {
  // A statement that waited for the lock would wait longer than this test does.
  const pawl = db.pawl({ tuning: { queryTimeoutMs: 600_000 } })
  const scope = pawl.records.in(defineLoads(pawl), here)
  await db.query("select pawl.raise_alert('', 'submission.failed', 'loads', 'one failed, and is gone by now')")
  const other = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  const raiser = await db.pool.connect()
  await raiser.query('begin')
  await raiser.query("update pawl.submission set state = 'failed', error = 'no', failure_class = 'permanent' where id = $1", [
    other.id,
  ])
  await raiser.query("select pawl.raise_alert('', 'submission.failed', 'loads', 'another failed')")
  await startWorker(pawl)
  await pawl.records.submit(upload.id)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted' })
  await until(
    'it is swept',
    async () => (await db.query('select from pawl.submission where id = $1 and not is_staged', [upload.id])).length > 0,
  )
  await raiser.query('commit')
  raiser.release()
  expect(await pawl.alerts()).toMatchObject([{ code: 'submission.failed', subject: 'loads', count: 2 }])
})

test('[R12] retries of a transient failure double their delay until the last', async () => {
  const pawl = db.pawl()
  const retry = { attempts: 4, initialMs: 60_000, maxMs: 150_000, jitter: false }
  const scope = pawl.records.in(defineLoads(pawl, { retry }), here)
  await db.query(`
    create function public.blip() returns trigger language plpgsql as $$
    begin raise exception 'deadlock detected' using errcode = '40P01'; end $$;
    create trigger blip after insert on pawl.record_version for each statement execute function public.blip()`)
  const upload = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  const { jobId } = await pawl.records.submit(upload.id)
  await startWorker(pawl)
  const waits: number[] = []
  for (let failures = 1; failures < retry.attempts; failures++) {
    const job = await until(`failure ${failures}`, async () => {
      const [row] = await db.query<{ wait_ms: number }>(
        `select (extract(epoch from j.run_at - pawl.now()) * 1000)::int as wait_ms from pawl.job j, pawl.submission u
          where j.id = $1 and j.state = 'scheduled' and u.failures = $2`,
        [jobId, failures],
      )
      return row
    })
    waits.push(Math.round((job.wait_ms + 5000) / 30_000) * 30_000)
    await db.query("update pawl.job set run_at = pawl.now(), due = pawl.now(), state = 'ready' where id = $1", [jobId])
  }
  expect(waits).toEqual([60_000, 120_000, 150_000])
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'failed', failureClass: 'transient' })
  expect(await pawl.alerts()).toMatchObject([{ code: 'submission.failed', count: 1 }])
})

test('[R11] history survives a submission that fails, is purged and resumed', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { missing: 'tombstone', tuning: { chunkRows: 2 } }), here)
  await scope.append(loadRows(6).map((data) => ({ data })))
  await scope.put({ data: { rowId: 'row-1', note: 'put' } })
  const past = async () => ({
    first: await readerView(scope, { number: '1' }),
    second: await readerView(scope, { number: '2' }),
    row: (await scope.history('load', 'row-1')).items.slice(-2),
  })
  const before = await past()
  await db.query(`
    create function public.refuse() returns trigger language plpgsql as $$
    begin raise exception 'not today' using errcode = '22003'; end $$;
    create trigger refuse before insert on pawl.record_version for each row
    when (new.status = 'DELETED') execute function public.refuse()`)
  const upload = await scope.upload(csv(loadRows(5, (row) => ({ ...row, note: 'new' }))), { format: 'csv' })
  await startWorker(pawl)
  await pawl.records.submit(upload.id)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'failed' })
  expect(await past()).toEqual(before)
  expect((await scope.history('load', 'row-1')).items).toHaveLength(2)
  await db.query('drop trigger refuse on pawl.record_version')
  await pawl.records.resume(upload.id)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', counts: { updated: 5, deleted: 1 } })
  expect(await past()).toEqual(before)
  expect((await scope.history('load', 'row-1')).items).toHaveLength(3)
})

test('[R4] a chunk lost by a server crash is written again', async () => {
  const pawl = db.pawl()
  const retry = { initialMs: 1, maxMs: 1 }
  const scope = pawl.records.in(defineLoads(pawl, { retry, tuning: { chunkRows: 10 } }), here)
  const upload = await scope.upload(csv(loadRows(30)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  let chunks = 0
  installProbe(async (name) => {
    if (name !== 'records.apply.chunk' || ++chunks !== 2) return
    // What is left of the second chunk if its commit did not reach the disk.
    await db.query(
      'delete from pawl.record_version v using pawl.submission_row r where v.record_id = r.record_id and r.line > 11',
    )
    await db.query('delete from pawl.record v using pawl.submission_row r where v.id = r.record_id and r.line > 11')
    await db.query('update pawl.submission set applied_line = 11, applied_created = 10')
  })
  await startWorker(pawl)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', counts: { created: 30 } })
  expect(chunks).toBe(4)
  expect(await scope.audit()).toMatchObject({ isSound: true, live: 30 })
})

test('[R4] a batch lost by a server crash fails the upload', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  let batches = 0
  installProbe(async (name) => {
    if (name !== 'records.stage.committed' || ++batches !== 1) return
    await db.query('delete from pawl.submission_row')
    await db.query('update pawl.submission set lines = 0, last_line = 0')
  })
  const uploading = scope.upload(csv(loadRows(2500)), { format: 'csv' })
  await expect(uploading).rejects.toMatchObject({
    code: 'PAWL_UPLOAD_FAILED',
    message: expect.stringMatching(/^Expected 2500 staged rows/),
  })
})
