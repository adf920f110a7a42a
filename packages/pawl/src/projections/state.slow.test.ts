import { expect, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { append, createLog, startRunner } from '../../test/support/projections.ts'

test('[O7] a refresh that takes too long is counted also while the server is still at its statement', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('search', {
    kind: 'state',
    timeout: 200,
    retry: { attempts: 1 },
    // With the end of its statement the entity's lock is gone: with others at it one of them might try before the failure is counted.
    concurrency: 1,
    entity: (event) => event.key,
    refresh: async (_entity, tx) => void (await tx.query('select pg_sleep(7)')),
  })
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('search')).length === 1, 30_000)
  expect(await pawl.projections.parked('search')).toMatchObject([{ key: 'a', attempts: 1 }])
})
