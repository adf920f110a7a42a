// Handlers, and statements of theirs, that take longer than something else may.

import { expect, test } from 'vitest'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

test("a handler's timeout counts for each event, not for its transaction", async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: number[] = []
  // All of them take longer than that; each has seconds to spare, so that a machine that stalls does not end one.
  pawl.projections.define('p', {
    timeout: 4000,
    each: async ({ position }, tx) => {
      got.push(position)
      await tx.query('select pg_sleep(0.4)')
    },
  })
  await append(db, ...Array.from({ length: 12 }, () => ({ key: 'a' })))
  await startRunner(pawl)
  await caughtUp(db, 'p')
  expect(got).toEqual(Array.from({ length: 12 }, (_, n) => n + 1))
})

test("a statement may take as long as its handler's timeout", async () => {
  const db = await createLog()
  // Everything else that a runner asks, from its start on, has this long for its answer, also on a machine that stalls.
  const pawl = db.pawl({ tuning: { queryTimeoutMs: 4000 } })
  const calls: string[] = []
  const names = ['asked', 'sent']
  for (const name of names) {
    pawl.projections.define(name, {
      timeout: '1m',
      each: async (_event, tx) => {
        calls.push(name)
        if (name === 'asked') await tx.query('select pg_sleep(5)')
        else tx.send('select pg_sleep(5)')
      },
    })
  }
  await append(db, { key: 'a' })
  await startRunner(pawl)
  for (const name of names) await caughtUp(db, name)
  expect(calls.sort()).toEqual(names)
})

test('[P3] an event is parked while the server still runs its slow statement', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('p', {
    timeout: 200,
    retry: { attempts: 1 },
    each: async ({ key }, tx) => void (key === 'poison' && (await tx.query('select pg_sleep(7)'))),
  })
  await append(db, { key: 'poison' })
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await caughtUp(db, 'p')
  expect((await pawl.projections.parked('p')).items).toMatchObject([
    { key: 'poison', attempts: 1, reason: expect.stringContaining('took longer than 200 ms') },
  ])
})
