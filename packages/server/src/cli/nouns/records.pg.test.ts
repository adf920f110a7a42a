import { expect, onTestFinished, test } from 'vitest'
import { createDatabase } from '../../../../pawl/test/support/database.ts'
import { csv, defineLoads, loadRows } from '../../../../pawl/test/support/records.ts'
import { pawl as cli, pawlJson } from '../test-support/cli.ts'

test('[S6] records cancel ends a submission and notes the person', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), { organisation: '17', registration: '4' })
  const upload = await scope.upload(csv(loadRows(2)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  const cancel = ['records', 'cancel', upload.id, '--database-url', db.url, '--reason', 'the wrong file', '--by', 'maria']
  expect(await pawlJson(cancel)).toEqual({ id: upload.id, set: 'loads', state: 'failed' })
  expect(await pawl.records.get(upload.id)).toMatchObject({ state: 'failed', error: 'Cancelled by maria: the wrong file' })
  const { code, stderr } = await cli(cancel)
  expect(code).not.toBe(0)
  expect(stderr).toContain(`Submission ${upload.id} is failed`)
})
