// Seed 001's own tests: rapid transfers, decided by the projection in the order of the log.

import { expect, test } from 'vitest'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

async function scene() {
  const db = await createLog(`
    create table wallet (id text primary key, balance bigint not null check (balance >= 0));
    create table refused (position bigint not null)`)
  const pawl = db.pawl()
  pawl.projections.define('wallets', {
    each: async (event, tx) => {
      const { from, to, amount } = event.data as { from: string; to: string; amount: number }
      const taken = await tx.query('update wallet set balance = balance - $2 where id = $1 and balance >= $2', [from, amount])
      if (taken.rowCount === 0) return tx.send('insert into refused values ($1)', [event.position])
      await tx.query('update wallet set balance = balance + $2 where id = $1', [to, amount])
    },
  })
  return { db, pawl }
}

test('[P6] under ten concurrent transfers sum and non-negative balances hold at every commit', async () => {
  const { db, pawl } = await scene()
  await db.query("insert into wallet select 'w' || n, 100 from generate_series(0, 4) n")
  await startRunner(pawl)
  let isDone = false
  const sums = new Set<number>()
  const watching = (async () => {
    while (!isDone) sums.add(Number((await db.query<{ sum: string }>('select sum(balance) from wallet'))[0]!.sum))
  })()
  for (let round = 0; round < 10; round++) {
    await Promise.all(
      Array.from({ length: 10 }, (_, n) =>
        append(db, { key: `t${round}-${n}`, data: { from: `w${n % 5}`, to: `w${(n * 3 + round) % 5}`, amount: 17 * (n + 1) } }),
      ),
    )
  }
  await caughtUp(db, 'wallets')
  isDone = true
  await watching
  expect([...sums]).toEqual([500])
  expect(await db.query('select from wallet where balance < 0')).toEqual([])
})

test('[P6] of two transfers of 80 from a balance of 100 one succeeds', async () => {
  const { db, pawl } = await scene()
  await db.query("insert into wallet values ('a', 100), ('b', 0), ('c', 0)")
  await startRunner(pawl)
  await Promise.all(['b', 'c'].map((to) => append(db, { key: to, data: { from: 'a', to, amount: 80 } })))
  await caughtUp(db, 'wallets')
  expect(await db.query('select sum(balance)::integer as sum, min(balance)::integer as min from wallet')).toEqual([
    { sum: 100, min: 0 },
  ])
  expect(await db.query("select balance::integer from wallet where id = 'a'")).toEqual([{ balance: 20 }])
  expect(await db.query('select from refused')).toHaveLength(1)
})
