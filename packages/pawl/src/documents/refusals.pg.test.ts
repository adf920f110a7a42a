import { expect, test } from 'vitest'
import { defineSchools } from '../../test/support/documents.ts'
import { createLog, startRunner } from '../../test/support/projections.ts'

async function create() {
  const db = await createLog('select 1')
  const pawl = db.pawl()
  defineSchools(pawl.documents)
  return { db, pawl, documents: pawl.documents }
}

test('the refresh that no process runs cannot be forgotten', async () => {
  const { pawl } = await create()
  await (await startRunner(pawl)).stop()
  await expect(pawl.projections.forget('pawl.documents', { reason: 'a test' })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringMatching(
      /^'pawl\.documents' is a projection that Pawl runs for itself.* worker of a process that defines documents/,
    ),
  })
  expect(await pawl.projections.status('pawl.documents')).toMatchObject([{ state: 'running' }])
})
