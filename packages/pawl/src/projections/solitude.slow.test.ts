// A deciding run that a cursor does not let start.

import { expect, onTestFinished, test } from 'vitest'
import { deferred, until } from '../../test/support/database.ts'
import { append, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'

test('[J3] a deciding job goes back after 30 s of one sink call', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const go = deferred()
  const got: string[] = []
  pawl.jobs.define('last', { run: () => undefined })
  pawl.projections.sink('out', {
    timeout: '5m',
    handle: async ({ key }) => {
      got.push(key)
      if (key === 'long') await go.promise
    },
  })
  await startRunner(pawl)
  const worker = pawl.worker({ projections: [] })
  onTestFinished(async () => void (await worker.stop()))
  onTestFinished(() => go.resolve())
  await append(db, { key: 'long' })
  await until('it is handed over', () => got.length === 1)
  await worker.start()
  const { id } = await pawl.jobs.enqueue('last', {}, { delay: '1h' })
  await db.query("update pawl.job set state = 'ready', suspect = true, crashes = 2 where id = $1", [id])
  await db.query("select pawl.wake('default')")
  await until('the job is held', async () => (await pawl.jobs.get(id))?.state === 'running')
  await append(db, { key: 'other' })
  await until('the other key goes on', () => got.length === 2, 60_000)
  await until('the job is back', async () => (await pawl.jobs.get(id))?.state !== 'running')
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 0, crashes: 2, suspect: true })
  expect(await db.query('select postponed from pawl.job where id = $1', [id])).toEqual([{ postponed: 1 }])
  go.resolve()
  await until('it runs when no call is in progress', async () => (await pawl.jobs.get(id))?.state === 'done')
  await until('both are stored', async () => (await cursorOf(db, 'out')).position === 2)
  expect(got).toEqual(['long', 'other'])
}, 120_000)
