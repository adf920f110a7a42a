import { expect, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { addCursor, append, createLog, startRunner } from '../../test/support/projections.ts'

test('[O7] a refresh past its timeout is counted while its statement runs', async () => {
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
  await until('it is parked', async () => (await pawl.projections.parked('search')).items.length === 1, 30_000)
  expect((await pawl.projections.parked('search')).items).toMatchObject([{ key: 'a', attempts: 1 }])
})

test('[P7] a roll-back waits for no refresh that starts after it', async () => {
  const db = await createLog('create table copy (id text primary key, n integer not null)')
  const pawl = db.pawl()
  const tables = [{ name: 'copy', key: ['id'], columns: ['id'] }]
  let begun = 0
  const holds: (() => void)[] = []
  let isHolding = false
  for (const generation of [1, 2])
    pawl.projections.define('copies', {
      kind: 'state',
      generation,
      tables,
      concurrency: 2,
      entity: (event) => event.key,
      refresh: async (id, tx, { table }) => {
        begun++
        await tx.query(`insert into ${table('copy')} values ($1, 1) on conflict (id) do nothing`, [id])
        if (isHolding) await new Promise<void>((resolve) => holds.push(resolve))
      },
    })
  await addCursor(db, 'copies', { kind: 'state' })
  await append(db, ...Array.from({ length: 10 }, (_, n) => ({ key: `k${n}` })))
  await startRunner(pawl)
  await pawl.projections.rebuild('copies', { reason: 'a test' })
  expect(await pawl.projections.switchTo('copies', { generation: 2, reason: 'a test' })).toMatchObject({ isEqual: true })
  // Each refresh ends only when another one has begun: there is no moment without one.
  isHolding = true
  await append(db, ...Array.from({ length: 200 }, (_, n) => ({ key: `k${n}` })))
  await until('refreshes of both generations run', () => holds.length >= 4)
  const rollingBack = pawl.projections.rollBack('copies', { generation: 1, reason: 'a test' })
  let isBack = false
  void rollingBack.then(() => {
    isBack = true
  })
  const before = begun
  await until('it is rolled back', () => {
    holds.shift()?.()
    return isBack
  })
  expect(begun - before).toBeLessThan(50)
  isHolding = false
  for (const release of holds) release()
  await rollingBack
  expect(await db.query("select live_generation from pawl.projection where name = 'copies'")).toEqual([{ live_generation: 1 }])
})
