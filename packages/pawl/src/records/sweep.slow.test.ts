import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, until } from '../../test/support/database.ts'
import { csv, defineLoads, loadRows } from '../../test/support/records.ts'

test('[R14] with every job cancelled the slot frees itself, without anyone who wants it', { timeout: 60_000 }, async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const pawl = db.pawl()
  const scope = pawl.for('acme').records.in(defineLoads(pawl), { organisation: '17', registration: '4' })
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  await pawl.for('acme').records.submit(upload.id)
  for (const { id } of await pawl.for('acme').jobs.list({})) await pawl.for('acme').jobs.cancel(id)
  expect(await db.query('select from pawl.job')).toEqual([])
  await until('it has failed', async () => (await pawl.for('acme').records.get(upload.id)).state === 'failed', 30_000)
  expect(await pawl.for('acme').alerts()).toMatchObject([{ code: 'submission.failed' }])
  expect(await scope.put({ data: { rowId: 'x' } })).toMatchObject({ created: 1 })
})
