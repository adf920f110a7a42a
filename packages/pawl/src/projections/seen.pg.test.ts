import { expect, test } from 'vitest'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

test('[P8] who waits in vain is told that no worker holds the projection', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('p', { each: () => undefined })
  const runner = await startRunner(pawl)
  await pawl.projections.seen('p', await append(db, { key: 'a' }))
  await caughtUp(db, 'p')
  await runner.stop()
  await expect(pawl.projections.seen('p', await append(db, { key: 'a' }), { timeout: 20 })).rejects.toMatchObject({
    code: 'PAWL_TIMED_OUT',
    message: expect.stringContaining('No worker holds it'),
  })
})
