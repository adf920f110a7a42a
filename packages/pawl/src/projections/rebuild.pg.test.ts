import { expectRows, type LogEvent, type Pawl, type ProjectionContext, type ProjectionTx } from 'pawl'
import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test, vi } from 'vitest'
import { add, applied, apply, balanceSql, define, reason, runBoth, tables } from '../../test/support/balances.ts'
import { deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { addCursor, append, caughtUp, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'
import { HeldCursor } from './cursor.ts'

/** Every outside effect, by the position of the event that caused it. */
async function effects(db: TestDatabase): Promise<{ jobs: number[]; events: number[] }> {
  const jobs = await db.query<{ position: number }>(
    "select (payload ->> 'position')::integer as position from pawl.job order by 1",
  )
  const events = await db.query<{ position: number }>(
    "select payload::text::integer as position from pawl.event where channel = 'out' order by 1",
  )
  return { jobs: jobs.map(({ position }) => position), events: events.map(({ position }) => position) }
}

async function expectedEffects(db: TestDatabase): Promise<number[]> {
  const rows = await db.query<{ position: number }>(
    `select (p.first_position + u.n - 1)::integer as position from pawl.log_page p cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
     join pawl.event e on e.xid = u.xid and e.seq = u.seq where e.type = 'Added' and (e.payload ->> 'amount')::integer % 10 = 0 order by 1`,
  )
  return rows.map(({ position }) => position)
}

test('[P7] a rebuild beside the live generation, under writes: equal, switched in one transaction, rolled back, no outside effect repeated', async () => {
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
  const expected = await expectedEffects(db)
  expect(await effects(db)).toEqual({ jobs: expected, events: expected })
  await next.projections.retire('balances', { generation: 2, reason })
  expect(await db.query("select relname from pg_class where relname ~ '_g[0-9]+$'")).toEqual([])
  expect((await db.query<{ action: string }>('select action from pawl.audit order by id')).map(({ action }) => action)).toEqual([
    'projection.rebuild',
    'projection.switch',
    'projection.rollback',
    'projection.retire',
  ])
})

test('[P7] a generation that is rolled back to from behind catches up in silence, and lets out only what nobody let out before', async () => {
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
  // Nobody runs the old code any more.
  await first.stop()
  for (let n = 30; n < 60; n++) await add(db, n)
  await applied(db, 2)
  expect((await effects(db)).jobs).toEqual(await expectedEffects(db))
  await next.projections.rollBack('balances', { generation: 1, reason })
  await second.stop()
  const again = db.pawl()
  define(again, 1)
  await startRunner(again)
  for (let n = 60; n < 90; n++) await add(db, n)
  await applied(db, 1)
  const expected = await expectedEffects(db)
  expect(expected).toHaveLength(9)
  expect(await effects(db)).toEqual({ jobs: expected, events: expected })
  expect(await db.query('select events::integer from total')).toEqual([{ events: 90 }])
})

test('[P7] what a key that is parked at the switch lets out is let out once, by whichever generation is live when it is mended', async () => {
  const db = await createLog(balanceSql)
  await db.query('create table mended (is_mended boolean)')
  const defineWithBad = (pawl: Pawl, generation: number) => {
    const fold = apply(pawl)
    const added = async (event: LogEvent, tx: ProjectionTx, context: ProjectionContext) => {
      if (event.key === 'bad') expectRows(await tx.query('select from mended'), 1)
      await fold(event, tx, context)
    }
    pawl.projections.define('balances', { generation, channel: 'default', tables, on: { Added: added } })
  }
  const old = db.pawl()
  defineWithBad(old, 1)
  await startRunner(old)
  await append(db, { key: 'bad', data: { amount: 10 } })
  await append(db, { key: 'bad', data: { amount: 20 } })
  await append(db, { key: 'good', data: { amount: 30 } })
  await applied(db, 1)
  const pawl = db.pawl()
  defineWithBad(pawl, 2)
  await pawl.projections.rebuild('balances', { reason })
  await startRunner(pawl)
  await applied(db, 2)
  const before = (await effects(db)).jobs
  expect(before).toHaveLength(1)
  // There, back, and there again: what is owed goes along.
  expect(await pawl.projections.switchTo('balances', { generation: 2, reason })).toMatchObject({ isEqual: true })
  await pawl.projections.rollBack('balances', { generation: 1, reason })
  expect(await pawl.projections.switchTo('balances', { generation: 2, reason })).toMatchObject({ isEqual: true })
  await append(db, { key: 'bad', data: { amount: 40 } })
  await db.query('insert into mended values (true)')
  await pawl.projections.unpark('balances', { key: 'bad', reason })
  const expected = await until('the last one has its position', async () => {
    const found = await expectedEffects(db)
    return found.length === 4 && found
  })
  await until('everything is let out', async () => (await effects(db)).jobs.length >= expected.length)
  await until('nothing is parked', async () => (await db.query('select from pawl.parked_key')).length === 0)
  // The old one has replayed the key too, in silence; and it owes nothing when it is live again.
  await applied(db, 1)
  await pawl.projections.rollBack('balances', { generation: 1, reason })
  await append(db, { key: 'good', data: { amount: 50 } })
  await applied(db, 1)
  const all = await expectedEffects(db)
  expect(await effects(db)).toEqual({ jobs: all, events: all })
})

test('[P7] a replay that stalls while another generation lets the effects out lets out nothing when it goes on', async () => {
  const db = await createLog(balanceSql)
  await db.query('create table mended (is_mended boolean)')
  const pawl = db.pawl()
  for (const generation of [1, 2]) {
    // An event would move the log's end, and the border with it: a job does not.
    const added = async ({ position }: LogEvent, tx: ProjectionTx) => {
      expectRows(await tx.query('select from mended'), 1)
      await pawl.jobs.enqueue('notify', { position }, { tx })
    }
    pawl.projections.define('balances', { generation, tables, on: { Added: added } })
  }
  await addCursor(db, 'balances')
  await startRunner(pawl)
  await append(db, { key: 'bad', data: { amount: 10 } })
  await pawl.projections.rebuild('balances', { reason })
  await caughtUp(db, 'balances', 1)
  await caughtUp(db, 'balances', 2)
  expect(await pawl.projections.switchTo('balances', { generation: 2, reason })).toMatchObject({ isEqual: true })
  const stalled = { 1: deferred(), 2: deferred() }
  const goOn = { 1: deferred(), 2: deferred() }
  installProbe(async (name, subject) => {
    if (name !== 'projections.batch.before') return
    const { definition, isLive } = subject as HeldCursor
    const generation = definition.generation as 1 | 2
    // So it only notices that it is live.
    if (generation === 2 && !isLive) return
    stalled[generation].resolve()
    await goOn[generation].promise
  })
  onTestFinished(() => installProbe(undefined))
  await db.query('insert into mended values (true)')
  await pawl.projections.unpark('balances', { key: 'bad', reason })
  await Promise.all([stalled[1].promise, stalled[2].promise])
  // The other one becomes live, lets the effects out, and gives the right back, at the same border as before.
  await pawl.projections.rollBack('balances', { generation: 1, reason })
  goOn[1].resolve()
  await until('it is let out', async () => (await effects(db)).jobs.length > 0)
  await pawl.projections.rollBack('balances', { generation: 2, reason })
  goOn[2].resolve()
  await until('nothing is parked', async () => (await db.query('select from pawl.parked_key')).length === 0)
  await caughtUp(db, 'balances', 2)
  expect((await effects(db)).jobs).toEqual([1])
})

test('[P7] a roll-back while the live generation stands loses no effect: the other one does not pass what the live one has not', async () => {
  const { db, pawl } = await runBoth()
  await pawl.projections.rebuild('balances', { reason })
  await add(db, 10)
  await pawl.projections.switchTo('balances', { generation: 2, reason })
  // With this they learn which of them is live.
  await add(db, 1)
  await caughtUp(db, 'balances', 1)
  await caughtUp(db, 'balances', 2)
  const goOn = deferred()
  installProbe(async (name, cursor) => {
    if (name === 'projections.batch.before' && (cursor as HeldCursor).definition.generation === 2) await goOn.promise
  })
  onTestFinished(() => installProbe(undefined))
  const { position: stood } = await cursorOf(db, 'balances')
  const looked = vi.spyOn(HeldCursor.prototype, 'reload')
  onTestFinished(() => looked.mockRestore())
  await add(db, 20)
  // The old one is told that the live one has not come so far; without that it would pass the event in silence.
  await until('the old one has come to it', async () => {
    const { position } = await cursorOf(db, 'balances')
    return position > stood || looked.mock.contexts.some((cursor) => (cursor as HeldCursor).definition.generation === 1)
  })
  await pawl.projections.rollBack('balances', { generation: 1, reason })
  goOn.resolve()
  await applied(db, 1)
  await applied(db, 2)
  const expected = await expectedEffects(db)
  expect(expected).toHaveLength(2)
  expect(await effects(db)).toEqual({ jobs: expected, events: expected })
})

test('[P7] a generation that differs is not switched to, and the comparison names the keys', async () => {
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

test('[P7] a switch whose process dies before its commit changes nothing, and the hold ends by itself', async () => {
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

test('[P7] generations of one channel come to one position also while only events of others lie beyond it', async () => {
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
] as const)('[P7] an event that was skipped when %s is skipped by the next generation', async (_when, attempts) => {
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
  expect(await pawl.projections.parked('p')).toEqual([])
})

test('[P7] a replay that appends by plain SQL is refused, so that nothing gets out', async () => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  const by = (generation: number) =>
    pawl.projections.define('p', {
      generation,
      retry: { attempts: 1 },
      on: { Added: (event, tx) => tx.send('select pawl.append($1, $2, $3)', ['Out', 'x', event.key]) },
    })
  by(1)
  const first = await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it is let out', async () => (await db.query("select from pawl.event where type = 'Out'")).length === 1)
  by(2)
  await pawl.projections.rebuild('p', { reason })
  await first.stop()
  await startRunner(pawl)
  await caughtUp(db, 'p', 2)
  expect(await db.query('select key, generation, reason from pawl.parked_key')).toMatchObject([
    { key: 'a', generation: 2, reason: expect.stringContaining('inserted into pawl.event with SQL') },
  ])
  expect(await db.query("select from pawl.event where type = 'Out'")).toHaveLength(1)
})

test('[P7] events of a restored cluster that carry the ids of transactions to come are not taken for what a replay appends', async () => {
  const db = await createLog(balanceSql)
  const pawl = db.pawl()
  for (const generation of [1, 2])
    pawl.projections.define('p', { generation, retry: { attempts: 1 }, on: { Added: () => undefined } })
  await addCursor(db, 'p')
  await append(db, { key: 'a' })
  await db.query(`
    insert into pawl.event (xid, aggregatetype, aggregateid, type, payload)
    select (pg_current_xact_id()::text::bigint + n)::text::xid8, 'x', 'old', 'Old', '{}' from generate_series(1, 2000) n`)
  await db.query('update pawl.sequencer set rebased_seq = (select max(seq) from pawl.event)')
  await pawl.projections.rebuild('p', { reason })
  await startRunner(pawl)
  await append(db, { key: 'b' })
  await caughtUp(db, 'p', 2)
  expect(await db.query('select key, reason from pawl.parked_key')).toEqual([])
})

test('[P7] a table that a view or a foreign key refers to is not rebuilt behind its back', async () => {
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
