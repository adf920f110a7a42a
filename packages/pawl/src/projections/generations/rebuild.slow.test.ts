import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { add, balanceSql, reason, runBoth } from '../../../test/support/balances.ts'
import { deferred, until } from '../../../test/support/database.ts'
import { addCursor, append, caughtUp, createLog, startRunner } from '../../../test/support/projections.ts'

test('[P7] the server ends a hanging switch, and the live generation continues', async () => {
  const { db, pawl } = await runBoth()
  await add(db, 1)
  await pawl.projections.rebuild('balances', { reason })
  await caughtUp(db, 'balances', 1)
  await caughtUp(db, 'balances', 2)
  const hung = deferred()
  const end = deferred()
  installProbe(async (name) => {
    if (name !== 'projections.switch.before_commit') return
    hung.resolve()
    await end.promise
  })
  onTestFinished(() => installProbe(undefined))
  const switching = expect(pawl.projections.switchTo('balances', { generation: 2, reason })).rejects.toThrow()
  await hung.promise
  // It holds the cursors' rows, so this waits until the server has ended it; its hold would end by itself within a minute.
  await db.query('update pawl.cursor set hold_until = pawl.now()')
  await add(db, 2)
  await caughtUp(db, 'balances', 1)
  end.resolve()
  await switching
  expect(await pawl.projections.status('balances')).toMatchObject([{ isLive: true }, { isLive: false }])
})

test('[P7] a comparison may take longer than other calls', async () => {
  const db = await createLog('create table slow (id text primary key, amount numeric)')
  // Every other call has this long for its answer, also on a machine that stalls.
  const pawl = db.pawl({ tuning: { queryTimeoutMs: 4000 } })
  const by = (generation: number) =>
    pawl.projections.define('p', {
      generation,
      tables: [{ name: 'slow', key: ['id'], columns: ['id', 'amount'] }],
      each: (event, tx, { table }) => tx.send(`insert into ${table('slow')} values ($1, 1)`, [event.key]),
    })
  by(1)
  const first = await startRunner(pawl)
  await first.stop()
  by(2)
  await append(db, { key: 'a' })
  await pawl.projections.rebuild('p', { reason })
  await startRunner(pawl)
  for (const generation of [1, 2]) await caughtUp(db, 'p', generation)
  // It stands in for tables that take as long to read.
  const reader = await db.pool.connect()
  await reader.query('begin')
  await reader.query('lock table slow in access exclusive mode')
  const switching = pawl.projections.switchTo('p', { generation: 2, reason })
  await until('it waits for the table', async () => {
    const rows = await db.query<{ waits: boolean }>(
      `select coalesce(max(clock_timestamp() - query_start) > interval '4500 milliseconds', false) as waits from pg_stat_activity
       where datname = current_database() and wait_event_type = 'Lock' and query like '%differing%' and pid <> pg_backend_pid()`,
    )
    return rows[0]!.waits
  })
  await reader.query('rollback')
  reader.release()
  expect(await switching).toMatchObject({ isEqual: true })
})

test('[P7] a roll-back waits for a handler longer than a statement may take', async () => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl({ tuning: { queryTimeoutMs: 4000 } })
  const entered = deferred()
  const end = deferred()
  for (const generation of [1, 2])
    pawl.projections.define('p', {
      generation,
      each: async (event, tx, { isLive }) => {
        // From here on the server sees a transaction that is at work.
        if (event.key !== 'long' || !isLive) return
        entered.resolve()
        await end.promise
        await tx.query('select 1')
      },
    })
  await addCursor(db, 'p')
  await startRunner(pawl)
  await pawl.projections.rebuild('p', { reason })
  await append(db, { key: 'long' })
  await entered.promise
  const rolling = pawl.projections.rollBack('p', { generation: 2, reason })
  let isOver = false
  void rolling.then(
    () => (isOver = true),
    () => (isOver = true),
  )
  const since = async () => {
    const [row] = await db.query<{ since: string }>(
      "select query_start::text as since from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%for update of p, c%'",
    )
    return row?.since
  }
  const tries = new Set<string>()
  await until(
    'it waits for the third time',
    async () => {
      const at = await since()
      if (at !== undefined) tries.add(at)
      return isOver || tries.size >= 3
    },
    20_000,
  )
  end.resolve()
  await rolling
  expect(await pawl.projections.status('p')).toMatchObject([{ isLive: false }, { isLive: true }])
})

test('[P7] a roll-back waits for readers of its tables and names them', async () => {
  const { db, pawl } = await runBoth()
  await add(db, 1)
  await pawl.projections.rebuild('balances', { reason })
  await caughtUp(db, 'balances', 2)
  const reader = await db.pool.connect()
  try {
    await reader.query('begin; select from balance')
    const [{ pid }] = (await reader.query<{ pid: number }>('select pg_backend_pid() as pid')).rows as [{ pid: number }]
    const switching = pawl.projections.switchTo('balances', { generation: 2, reason, timeout: 1 })
    await expect(switching).rejects.toMatchObject({
      code: 'PAWL_TIMED_OUT',
      message: expect.stringContaining(`pg_terminate_backend(${pid})`),
      details: { holders: [expect.objectContaining({ pid, state: 'idle in transaction' })] },
    })
    // The first try gives up; a later one goes on when the reader has ended.
    const waiting = async () => {
      const [row] = await db.query<{ since: string }>(
        "select query_start::text as since from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like 'lock table%'",
      )
      return row?.since
    }
    const rolling = pawl.projections.rollBack('balances', { generation: 2, reason })
    const first = await until('it waits', waiting)
    await until('it tries again', async () => ![undefined, first].includes(await waiting()))
    await reader.query('rollback')
    await rolling
  } finally {
    reader.release()
  }
  expect(await pawl.projections.status('balances')).toMatchObject([{ isLive: false }, { isLive: true }])
  await pawl.projections.retire('balances', { generation: 1, reason })
  expect(await pawl.projections.status('balances')).toMatchObject([{ generation: 2, isLive: true }])
})
