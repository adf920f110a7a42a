// close(): a Pawl stops what it started before its connections end.

import type { Logger } from 'pawl'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase } from '../test/support/database.ts'

async function created(): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  return db
}

test('[J13] close lets running jobs finish and stops the worker and runner', async () => {
  const db = await created()
  const pawl = db.pawl()
  const [started, go] = [deferred(), deferred()]
  pawl.jobs.define('work', {
    run: async () => {
      started.resolve()
      await go.promise
      await pawl.jobs.enqueue('later', {})
    },
  })
  pawl.projections.define('seen', { each: () => undefined })
  await pawl.worker().start()
  await pawl.worker().start()
  const { id } = await pawl.jobs.enqueue('work', {})
  await started.promise
  const closed = pawl.close()
  go.resolve()
  await closed
  expect(pawl.running).toEqual([])
  expect(await db.query('select outcome, attempt from pawl.job_history where id = $1', [id])).toEqual([
    { outcome: 'done', attempt: 1 },
  ])
  expect(await db.query('select distinct close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
})

test('close also ends a worker and a runner that never started', async () => {
  const db = await created()
  const pawl = db.pawl()
  pawl.jobs.define('work', { run: () => undefined })
  pawl.projections.define('seen', { each: () => undefined })
  pawl.worker()
  pawl.worker()
  await pawl.close()
  expect(pawl.running).toEqual([])
})

test('a projection defined after the runner is logged with the fix', async () => {
  const db = await created()
  const said: string[] = []
  const logger: Logger = { debug() {}, info() {}, error() {}, warn: (_fields, message) => void said.push(message) }
  const pawl = db.pawl({ logger })
  pawl.projections.define('early', { each: () => undefined })
  const runner = pawl.worker()
  pawl.projections.define('late', { each: () => undefined })
  expect(said).toEqual([expect.stringMatching(/^'late' was defined after a worker was created, .* create another worker$/)])
  await runner.stop()
  pawl.projections.define('later', { each: () => undefined })
  expect(said).toHaveLength(1)
})
