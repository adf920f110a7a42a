import { silentLogger } from 'pawl'
import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, until } from '../../test/support/database.ts'
import { cancelJobs, csv, defineLoads, loadRows, startWorker } from '../../test/support/records.ts'

test('[R14] with every job cancelled the sweep frees the slot', { timeout: 60_000 }, async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const pawl = db.pawl()
  const scope = pawl.for('acme').records.in(defineLoads(pawl), { organisation: '17', registration: '4' })
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  await pawl.for('acme').records.submit(upload.id)
  await cancelJobs(db, 'acme')
  expect(await db.query('select from pawl.job')).toEqual([])
  await until('it has failed', async () => (await pawl.for('acme').records.get(upload.id)).state === 'failed', 30_000)
  expect(await pawl.for('acme').alerts()).toMatchObject([{ code: 'submission.failed' }])
  expect(await scope.put({ data: { rowId: 'x' } })).toMatchObject({ created: 1 })
})

test('[R14] a slot that cannot be freed is logged; others are freed', { timeout: 60_000 }, async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const errors: unknown[] = []
  const pawl = db.pawl({ logger: { ...silentLogger, error: (fields) => errors.push(fields) } })
  const set = defineLoads(pawl, { tuning: { chunkRows: 1 } })
  const [first, second] = ['1', '2'].map((registration) => pawl.records.in(set, { organisation: '17', registration }))
  const stuck = await first!.upload(csv(loadRows(2)), { format: 'csv' })
  const upload = await second!.upload(csv(loadRows(2)), { format: 'csv' })
  await pawl.records.submit(stuck.id)
  // What it wrote cannot be taken back without its staged rows.
  const cancelled = deferred()
  installProbe(async (name) => {
    if (name !== 'records.apply.chunk') return
    installProbe(undefined)
    await db.query('delete from pawl.submission_row where submission = $1', [stuck.id])
    await cancelJobs(db)
    cancelled.resolve()
  })
  onTestFinished(() => installProbe(undefined))
  const worker = await startWorker(pawl)
  await cancelled.promise
  await worker.stop()
  await pawl.records.submit(upload.id)
  await cancelJobs(db)
  await until('the other has failed', async () => (await pawl.records.get(upload.id)).state === 'failed', 30_000)
  expect(await pawl.records.get(stuck.id)).toMatchObject({ state: 'submitting' })
  const error = expect.stringMatching(new RegExp(`Submission ${stuck.id} has written versions`)) as string
  await until('it is logged', () => errors.length > 0)
  expect(errors).toEqual([{ loop: 'loop sweep of submissions', inARow: 1, error }])
})
