import { installProbe, type ProbeName } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase } from '../../test/support/database.ts'
import { csv, defineLoads, ended, loadRows, startWorker } from '../../test/support/records.ts'

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

test('[R12] of two who end one submission the later takes nothing from it after it was resumed', {
  timeout: 60_000,
}, async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { chunkRows: rows }), here)
  // Two uploads that the put outruns: who submits one of them finds the slot taken, ends its dead holder, and is superseded then.
  const [one, two] = [
    await scope.upload(csv(loadRows(1)), { format: 'csv' }),
    await scope.upload(csv(loadRows(2)), { format: 'csv' }),
  ]
  await scope.put({ data: { rowId: 'put' } })
  const upload = await scope.upload(csv(loadRows(rows)), { format: 'csv' })
  const { jobId } = await pawl.records.submit(upload.id)

  const cancelled = deferred()
  void atProbe('records.commit.before', async () => {
    await pawl.jobs.cancel(jobId)
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

test('[R12] one whose staged rows are gone keeps its slot: what it wrote cannot be taken back, and a later commit would show it', async () => {
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl, { chunkRows: 10 }), here)
  await scope.put({ data: { rowId: 'put' } })
  const upload = await scope.upload(csv(loadRows(30)), { format: 'csv' })
  const { jobId } = await pawl.records.submit(upload.id)
  const cancelled = deferred()
  void atProbe('records.apply.chunk', async () => {
    await db.query('delete from pawl.submission_row')
    await pawl.jobs.cancel(jobId)
    cancelled.resolve()
  })
  await startWorker(pawl)
  await cancelled.promise
  const other = await scope.upload(csv(loadRows(1)), { format: 'csv' })
  await expect(pawl.records.submit(other.id)).rejects.toThrow(/do not name any more/)
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
