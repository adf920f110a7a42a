import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { add, applied, balanceSql, define, reason, runBoth, tables } from '../../../test/support/balances.ts'
import { until } from '../../../test/support/database.ts'
import { addCursor, append, caughtUp, createLog, cursorOf, startRunner } from '../../../test/support/projections.ts'

test('[P7] a rebuild under writes is switched to and rolled back', async () => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  define(pawl, 1)
  for (let n = 0; n < 60; n++) await add(db, n)
  const old = await startRunner(pawl)
  await applied(db, 1)

  // The new code, beside the old.
  const next = db.pawl()
  define(next, 1)
  define(next, 2)
  await startRunner(next)
  await expect(pawl.projections.rebuild('balances', { reason })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  expect(await next.projections.rebuild('balances', { reason })).toEqual({ generation: 2 })
  await expect(next.projections.rebuild('balances', { reason })).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
  let n = 60
  let isWriting = true
  const writing = (async () => {
    while (isWriting) await add(db, n++)
  })()
  await until('the new one has begun', async () => (await cursorOf(db, 'balances', { generation: 2 }))?.position > 30)

  // A reader asks all the time: it never sees a missing table, and never fewer events than before.
  const totals: number[] = []
  const reading = (async () => {
    while (isWriting) totals.push(Number((await db.query<{ events: string }>('select events from total'))[0]!.events))
  })()
  const comparison = await next.projections.switchTo('balances', { generation: 2, reason, timeout: '60s' })
  expect(comparison).toMatchObject({
    isEqual: true,
    tables: [
      { table: 'balance', differing: 0 },
      { table: 'total', rows: 1 },
    ],
  })
  expect(await next.projections.status('balances')).toMatchObject([
    { generation: 1, isLive: false },
    { generation: 2, isLive: true },
  ])
  const switched = n
  await until('writes have gone on', () => n > switched + 30)
  // Up to here it is never taken back; a roll-back takes the old generation wherever it stands.
  expect(totals).toEqual([...totals].sort((a, b) => a - b))
  await next.projections.rollBack('balances', { generation: 1, reason })
  const back = n
  await until('writes have gone on', () => n > back + 30)
  isWriting = false
  await Promise.all([writing, reading])
  await old.stop()
  await applied(db, 1)
  await applied(db, 2)

  expect(await next.projections.compare('balances', { generation: 2 })).toMatchObject({ isEqual: true })
  expect(await db.query('select events::integer from total')).toEqual([{ events: n }])
  await next.projections.retire('balances', { generation: 2, reason })
  expect(await db.query("select relname from pg_class where relname ~ '_g[0-9]+$'")).toEqual([])
  expect((await db.query<{ action: string }>('select action from pawl.audit order by id')).map(({ action }) => action)).toEqual([
    'projection.rebuild',
    'projection.switch',
    'projection.rollback',
    'projection.retire',
  ])
})

test('[P7] a generation that is rolled back to from behind catches up', async () => {
  const db = await createLog(balanceSql)
  const old = db.pawl()
  define(old, 1)
  const first = await startRunner(old)
  for (let n = 0; n < 30; n++) await add(db, n)
  await applied(db, 1)
  const next = db.pawl()
  define(next, 2)
  await next.projections.rebuild('balances', { reason })
  const second = await startRunner(next)
  await next.projections.switchTo('balances', { generation: 2, reason })
  // No process runs the old code any more.
  await first.stop()
  for (let n = 30; n < 60; n++) await add(db, n)
  await applied(db, 2)
  await next.projections.rollBack('balances', { generation: 1, reason })
  await second.stop()
  const again = db.pawl()
  define(again, 1)
  await startRunner(again)
  for (let n = 60; n < 90; n++) await add(db, n)
  await applied(db, 1)
  expect(await db.query('select events::integer from total')).toEqual([{ events: 90 }])
})

test('[P7] after a roll-back to an older position a skipped event stays skipped', async () => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  const tried: string[] = []
  for (const generation of [1, 2])
    pawl.projections.define('p', {
      generation,
      retry: { attempts: 1 },
      tables: [tables[0]],
      each: ({ key }) => {
        tried.push(`${generation} ${key}`)
        if (key === 'bad') throw new Error('no')
      },
    })
  await addCursor(db, 'p')
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await pawl.projections.rebuild('p', { reason })
  await pawl.projections.switchTo('p', { generation: 2, reason })
  await pawl.projections.pause('p', { generation: 1, reason })
  await append(db, { key: 'bad' }, { key: 'b' })
  await caughtUp(db, 'p', 2)
  await pawl.projections.skip('p', { position: 2, reason })
  await pawl.projections.rollBack('p', { generation: 1, reason })
  await pawl.projections.resume('p', { generation: 1, reason })
  await caughtUp(db, 'p', 1)
  // A handler may be called again before its compare-and-set is answered; only its transaction counts.
  expect(new Set(tried.filter((each) => each.startsWith('1')))).toEqual(new Set(['1 a', '1 b']))
})

test('[P7] a generation that differs is refused, with the differing keys', async () => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  define(pawl, 1)
  await startRunner(pawl)
  for (let n = 1; n < 20; n++) await add(db, n)
  await applied(db, 1)
  const next = db.pawl()
  define(next, 2, 3)
  await next.projections.rebuild('balances', { reason })
  await startRunner(next)
  await applied(db, 2)
  const comparison = await next.projections.switchTo('balances', { generation: 2, reason })
  expect(comparison).toMatchObject({
    isEqual: false,
    tables: [{ table: 'balance', rows: 17, otherRows: 17, differing: 17 }, { differing: 0 }],
  })
  expect(comparison.tables[0]!.sample).toContain('["k3"]')
  expect(await next.projections.status('balances')).toMatchObject([{ isLive: true }, { isLive: false }])
  // Nothing is held any more.
  await add(db, 20)
  await applied(db, 1)
  expect(await next.projections.switchTo('balances', { generation: 2, reason, mayDiffer: true })).toMatchObject({
    isEqual: false,
  })
  expect(await next.projections.status('balances')).toMatchObject([{ isLive: false }, { isLive: true }])
})

test('[P7] a switch killed before its commit changes nothing; its hold ends', async () => {
  const { db, pawl } = await runBoth()
  for (let n = 1; n <= 10; n++) await add(db, n)
  await pawl.projections.rebuild('balances', { reason })
  await applied(db, 1)
  await applied(db, 2)
  installProbe((name) => {
    if (name === 'projections.switch.before_commit') throw new Error('it died')
  })
  onTestFinished(() => installProbe(undefined))
  await expect(pawl.projections.switchTo('balances', { generation: 2, reason })).rejects.toThrow('it died')
  expect(await pawl.projections.status('balances')).toMatchObject([{ isLive: true }, { isLive: false }])
  // As a process leaves it that dies without taking its hold back: both stand still, until the hold ends.
  await db.query(`update pawl.cursor c set hold_at = p.position, hold_until = pawl.now() + interval '700 milliseconds'
    from pawl.cursor_position p where p.generation = c.generation`)
  await add(db, 11)
  await applied(db, 1)
  await applied(db, 2)
  const [row] = await db.query<{ is_over: boolean }>('select bool_and(hold_until < pawl.now()) as is_over from pawl.cursor')
  expect(row).toEqual({ is_over: true })
})

test('[P7] generations of one channel meet when only other channels grow', async () => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  const by = (generation: number) =>
    pawl.projections.define('p', { generation, channel: 'mine', tables: [tables[0]], each: () => undefined })
  by(1)
  const first = await startRunner(pawl)
  await first.stop()
  by(2)
  await append(db, { key: 'a', channel: 'mine' })
  await pawl.projections.rebuild('p', { reason })
  await startRunner(pawl)
  for (const generation of [1, 2]) await caughtUp(db, 'p', generation)
  await pawl.projections.pause('p', { generation: 2, reason })
  await append(db, { key: 'b' })
  await caughtUp(db, 'p', 1)
  const comparing = pawl.projections.compare('p', { generation: 2, timeout: '15s' })
  await until('they are held', async () => (await db.query('select from pawl.cursor where hold_at = 2')).length === 2)
  await append(db, { key: 'b' })
  await until('it has a position', async () => (await db.query('select from pawl.sequencer where position = 3')).length === 1)
  await pawl.projections.resume('p', { generation: 2, reason })
  expect(await comparing).toMatchObject({ isEqual: true })
})

test.each([
  ['parked', 1],
  ['the next one', 1000],
] as const)('[P7] an event skipped when %s is skipped by the next generation', async (_when, attempts) => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  const tried: string[] = []
  for (const generation of [1, 2])
    pawl.projections.define('p', {
      generation,
      retry: { attempts, initialMs: 20, factor: 1, jitter: false },
      tables: [tables[0]],
      each: async ({ key, data }, tx, { table }) => {
        tried.push(`${generation} ${key}`)
        if (data === 'bad') throw new Error('no')
        await tx.query(
          `insert into ${table('balance')} as b (id, amount) values ($1, 1) on conflict (id) do update set amount = b.amount + 1`,
          [key],
        )
      },
    })
  await addCursor(db, 'p')
  await startRunner(pawl)
  await append(db, { key: 'a' }, { key: 'b', data: 'bad' }, { key: 'b' }, { key: 'a' })
  // In a batch, and then alone.
  await until('it has failed', () => tried.filter((each) => each === '1 b').length > 1)
  if (attempts === 1) await caughtUp(db, 'p')
  await pawl.projections.skip('p', { position: 2, reason })
  await pawl.projections.unpark('p', { reason })
  await until('the rest is applied', async () => {
    const rows = await db.query<{ amount: number }>('select amount::integer from balance order by id')
    return rows.map(({ amount }) => amount).join() === '2,1'
  })
  await pawl.projections.rebuild('p', { reason })
  expect(await pawl.projections.switchTo('p', { generation: 2, reason })).toMatchObject({ isEqual: true, tables: [{ rows: 2 }] })
  expect(tried.filter((each) => each === '2 b')).toHaveLength(1)
  expect((await pawl.projections.parked('p')).items).toEqual([])
})

test('[P7] a table with a dependent view or foreign key is not rebuilt', async () => {
  const db = await createLog(`${balanceSql}; create view rich as select id from balance where amount > 100`)
  const pawl = db.pawl()
  define(pawl, 1)
  const runner = await startRunner(pawl)
  await runner.stop()
  define(pawl, 2)
  await expect(pawl.projections.rebuild('balances', { reason })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringContaining('the view public.rich'),
  })
})
