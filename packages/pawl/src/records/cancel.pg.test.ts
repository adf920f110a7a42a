import { installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../test/support/incarnation.ts'
import { cancelJobs, csv, defineLoads, ended, loadRows, startWorker, sweepNow } from '../../test/support/records.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { leaseStatements } from '../kernel/lease.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  installProbe(undefined)
  await db.drop()
})

const here = { organisation: '17', registration: '4' }
const why = { by: 'maria', reason: 'the wrong file' }
const cancelled = { failureClass: 'cancelled', error: 'Cancelled by maria: the wrong file' }

function noted() {
  return db.query('select actor, action, subject, reason from pawl.audit')
}

test('[R12] a submission cancelled while it is applied is purged, and resumes', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { tuning: { chunkRows: 10 } }), here)
  const upload = await scope.upload(csv(loadRows(30)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  const [reached, goOn] = [deferred(), deferred()]
  installProbe(async (name) => {
    if (name !== 'records.apply.chunk') return
    installProbe(undefined)
    reached.resolve()
    await goOn.promise
  })
  await startWorker(pawl)
  await reached.promise
  expect(await pawl.records.cancel(upload.id, why)).toMatchObject({ state: 'failed', ...cancelled })
  goOn.resolve()
  expect(await db.query('select from pawl.record_version')).toEqual([])
  expect(await db.query('select from pawl.job')).toEqual([])
  expect(await pawl.alerts()).toEqual([])
  expect(await noted()).toEqual([
    { actor: 'maria', action: 'records.cancel', subject: `submission ${upload.id}`, reason: 'the wrong file' },
  ])
  expect(await db.query("select payload ->> 'failureClass' as class, type from pawl.event")).toEqual([
    { class: 'cancelled', type: 'submission.failed' },
  ])
  await pawl.records.resume(upload.id)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', counts: { created: 30 }, failureClass: null })
})

test('[R12] a cancelled validated submission is failed, and resumes', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  expect(await pawl.records.cancel(upload.id, why)).toMatchObject({ state: 'failed', ...cancelled })
  await expect(pawl.records.submit(upload.id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
  expect((await pawl.records.why(upload.id)).reasons.map(({ code }) => code)).toEqual(['failed', 'resumable'])
  await pawl.records.resume(upload.id)
  await startWorker(pawl)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted' })
})

test('[R14] rows of a cancelled upload are refused, and it restarts', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const [reached, goOn] = [deferred(), deferred()]
  installProbe(async (name) => {
    if (name !== 'records.stage.committed') return
    installProbe(undefined)
    reached.resolve()
    await goOn.promise
  })
  const uploading = scope.upload(csv(loadRows(2000)), { format: 'csv' })
  await reached.promise
  const [id] = (await scope.submissions()).items.map((each) => each.id)
  expect(await pawl.records.cancel(id!, why)).toMatchObject({ state: 'upload-failed', ...cancelled })
  goOn.resolve()
  await expect(uploading).rejects.toMatchObject({ code: 'PAWL_LEASE_LOST' })
  const again = await scope.upload(csv(loadRows(3)), { format: 'csv', restart: id! })
  expect(again).toMatchObject({ id, state: 'validated', failureClass: null, counts: { created: 3 } })
})

test('[R2] cancelling a submission that has ended names its state', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const { submission } = await scope.put({ data: { rowId: 'a' } })
  await expect(pawl.records.cancel(submission!, why)).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: `Submission ${submission} is submitted; it must be uploading, validating, validated or submitting.`,
  })
  await expect(pawl.records.cancel('9', why)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
  expect(await noted()).toEqual([])
})

test('[R12] after a crash in cancel the sweep purges the submission', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  installProbe((name) => {
    if (name !== 'records.fail.written') return
    installProbe(undefined)
    throw new Error('crash')
  })
  await expect(pawl.records.cancel(upload.id, why)).rejects.toThrow('crash')
  expect(await pawl.records.get(upload.id)).toMatchObject({ state: 'submitting', ...cancelled })
  await sweepNow(pawl)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'failed', ...cancelled })
  expect(await pawl.alerts()).toEqual([])
})

const jobsUrl = new URL('../jobs/watch.ts', import.meta.url).href

/** What the watch of a process does that does not define the kind, with a job at its limit. */
const endsOfJobs = {
  'cancelled by SQL': () => cancelJobs(db),
  'rescued at its limit of crashes': async () => {
    const { connection, worker } = await hold()
    await connection.run(leaseStatements.close, { ...asHolder(worker), reason: 'process died' })
    await connection.run(statement(jobsUrl, 'rescue'), { workers: `{${worker.id}}`, limit: 10, max_crashes: 1 })
  },
  'timed out at its last attempt': async () => {
    const { connection, worker } = await hold()
    const none = { running_ids: '{}', running_fences: '{}', ids: '{}', fences: '{}' }
    const times = { before: 'infinity', after: '-infinity', limit: 10, max_attempts: 1 }
    await connection.run(statement(jobsUrl, 'time-out'), { worker: worker.id, ...times, ...none })
  },
}

async function hold() {
  const connection = new Connection(db.pawl().config.database, 'test')
  onTestFinished(() => connection.close())
  const worker = await openIncarnation(connection)
  await db.query(
    `update pawl.job set state = 'running', holder = $1, attempt = 1, claimed_at = pawl.now(), run_until = pawl.now() - interval '1 second'`,
    [worker.id],
  )
  return { connection, worker }
}

test.each(Object.entries(endsOfJobs))('[R14] the sweep ends a submission whose job was %s', async (_end, endJob) => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), here)
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  await endJob()
  expect(await db.query("select from pawl.job where state <> 'dead'")).toEqual([])
  await sweepNow(pawl)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'failed', failureClass: 'unknown' })
  await until('no dead job is left', async () => (await db.query('select from pawl.job')).length === 0)
  expect(await pawl.alerts()).toMatchObject([{ code: 'submission.failed', count: 1 }])
})
