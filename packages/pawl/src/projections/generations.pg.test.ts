import { expect, onTestFinished, test } from 'vitest'
import { add, applied, define, reason, runBoth } from '../../test/support/balances.ts'
import { deferred, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { addCursor, append, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'

const isWaiting = "datname = current_database() and wait_event_type = 'Lock'"

/** A state projection whose first generation runs and is caught up, and whose second is declared and has no runner. */
async function stateProjection() {
  const db = await createLog('create table copy (id text primary key)')
  const [pawl, next] = [db.pawl(), db.pawl()]
  const define = (of: typeof pawl, generation: number) =>
    of.projections.define('copies', {
      kind: 'state',
      generation,
      tables: [{ name: 'copy', key: ['id'], columns: ['id'] }],
      entity: (event) => event.key,
      refresh: async (id, tx, { table }) =>
        void (await tx.query(`insert into ${table('copy')} values ($1) on conflict do nothing`, [id])),
    })
  define(pawl, 1)
  define(next, 2)
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it is refreshed', async () => (await db.query('select from copy')).length === 1)
  await next.projections.rebuild('copies', { reason })
  return { db, next }
}

test('[P7] marks committed while a switch waits are refreshed before it compares', async () => {
  const { db, next } = await stateProjection()
  // What a runner does that feeds the new generation, in slow motion.
  const feeder = await db.pool.connect()
  await feeder.query('begin')
  await feeder.query("select from pawl.cursor where name = 'copies' and generation = 2 for no key update")
  await feeder.query("update pawl.cursor_position set position = 1 where name = 'copies' and generation = 2")
  await feeder.query("insert into pawl.dirty (name, generation, entity, position, positions) values ('copies', 2, 'a', 1, '{1}')")
  const switching = next.projections.switchTo('copies', { generation: 2, reason })
  await until('the switch waits', async () => (await db.query(`select from pg_stat_activity where ${isWaiting}`)).length > 0)
  await feeder.query('commit')
  feeder.release()
  await startRunner(next)
  expect(await switching).toMatchObject({ isEqual: true, tables: [{ rows: 1, otherRows: 1 }] })
  expect(await next.projections.status('copies')).toMatchObject([{ isLive: false }, { isLive: true }])
})

test('[P7] a switch that entities still to be refreshed keep waiting says so', async () => {
  const { db, next } = await stateProjection()
  await db.query("update pawl.cursor_position set position = 1 where name = 'copies' and generation = 2")
  await db.query("insert into pawl.dirty (name, generation, entity, position, positions) values ('copies', 2, 'a', 1, '{1}')")
  await expect(next.projections.switchTo('copies', { generation: 2, reason, timeout: 1 })).rejects.toMatchObject({
    code: 'PAWL_TIMED_OUT',
    message: expect.stringContaining('generation 2'),
  })
})

/** Copies of articles, each with a job whenever it is copied; the second generation can be made to wait or to fail. */
async function copiesWithJobs(refreshing: (generation: number, id: string) => Promise<void> | void) {
  const db = await createLog(
    'create table article (id text primary key, n integer not null); create table copy (like article including all)',
  )
  const pawl = db.pawl()
  for (const generation of [1, 2])
    pawl.projections.define('copies', {
      kind: 'state',
      generation,
      channel: 'default',
      tables: [{ name: 'copy', key: ['id'], columns: ['id', 'n'] }],
      retry: { attempts: 1 },
      entity: (event) => event.key,
      refresh: async (id, tx, { table }) => {
        await refreshing(generation, id)
        await tx.query(
          `insert into ${table('copy')} select id, n from article where id = $1 on conflict (id) do update set n = excluded.n`,
          [id],
        )
        await pawl.jobs.enqueue('copied', { id }, { tx })
      },
    })
  await addCursor(db, 'copies', { kind: 'state', channel: 'default' })
  await startRunner(pawl)
  const write = async (id: string) => {
    await db.query('insert into article values ($1, 1) on conflict (id) do update set n = article.n + 1', [id])
    await append(db, { key: id })
  }
  const jobs = async () => {
    const rows = await db.query<{ id: string }>("select payload ->> 'id' as id from pawl.job order by 1")
    return rows.map(({ id }) => id)
  }
  const clean = () =>
    until('all is refreshed', async () => {
      const [row] = await db.query<{ left: number }>(
        `select ((select count(*) from pawl.dirty where due_at < 'infinity') + (select count(*) from pawl.event)
           - (select min(position) from pawl.cursor_at))::integer as left`,
      )
      return row!.left === 0
    })
  return { db, pawl, write, jobs, clean }
}

test('[P7] a state projection is rebuilt in silence under writes, switched and rolled back', async () => {
  const { db, pawl, write, jobs, clean } = await copiesWithJobs(() => undefined)
  for (let n = 0; n < 10; n++) await write(`a${n}`)
  await clean()
  const before = await jobs()
  await pawl.projections.rebuild('copies', { reason })
  await clean()
  // The rebuild copied all of them and reached nobody.
  expect(await db.query('select count(*)::integer as n from copy_g2')).toEqual([{ n: 10 }])
  expect(await jobs()).toEqual(before)
  let isWriting = true
  let written = 10
  // Others than before: of an entity that changes meanwhile the generation that is later has the newer state.
  const writing = (async () => {
    while (isWriting) await write(`a${written++}`)
  })()
  onTestFinished(async () => {
    isWriting = false
    await writing
  })
  expect(await pawl.projections.switchTo('copies', { generation: 2, reason })).toMatchObject({ isEqual: true })
  await pawl.projections.rollBack('copies', { generation: 1, reason })
  isWriting = false
  await writing
  await clean()
  expect(await pawl.projections.compare('copies', { generation: 2 })).toMatchObject({
    isEqual: true,
    tables: [{ rows: written }],
  })
  expect(await db.query('select id, n from article except select id, n from copy')).toEqual([])
  // Each was let out by whichever generation was live.
  expect(new Set(await jobs()).size).toBe(written)
})

test.each(['waits', 'failed'] as const)('[P7] a roll-back lets out what a refresh that %s had still to let out', async (how) => {
  const hold = deferred()
  const { db, pawl, write, jobs, clean } = await copiesWithJobs(async (generation, id) => {
    if (generation !== 2 || id !== 'late') return
    if (how === 'failed') throw new Error('no')
    await hold.promise
  })
  await write('early')
  await pawl.projections.rebuild('copies', { reason })
  await pawl.projections.switchTo('copies', { generation: 2, reason })
  await write('late')
  // The first generation copies it in silence; the second, which is live, does not come to it.
  await until('it is copied in silence', async () => (await db.query("select from copy_g1 where id = 'late'")).length === 1)
  if (how === 'failed') await until('it is parked', async () => (await pawl.projections.parked('copies')).length === 1)
  expect(await jobs()).not.toContain('late')
  const rolling = pawl.projections.rollBack('copies', { generation: 1, reason })
  // It waits for the refresh, which fails then: its mark is there when the generations are switched.
  if (how === 'waits') {
    await until('it waits', async () => (await db.query(`select from pg_stat_activity where ${isWaiting}`)).length > 0)
    hold.reject(new Error('no'))
  }
  await rolling
  await until('it is let out', async () => (await jobs()).includes('late'))
  await clean()
  expect((await jobs()).filter((id) => id === 'late')).toHaveLength(1)
})

test.each(['switchTo', 'rollBack', 'retire'] as const)(
  '[P7] [K6] %s whose commit is not answered says that it is unknown',
  async (verb) => {
    const { db, pawl } = await runBoth()
    await add(db, 1)
    await pawl.projections.rebuild('balances', { reason })
    await applied(db, 1)
    await applied(db, 2)
    const proxy = await FaultProxy.start(db.url)
    onTestFinished(() => proxy.stop())
    const far = db.pawl({ databaseUrl: proxy.url })
    for (const generation of [1, 2]) define(far, generation)
    const lost = proxy.loseReply(/^commit$/)
    await expect(far.projections[verb]('balances', { generation: 2, reason })).rejects.toMatchObject({
      code: 'PAWL_COMMIT_UNKNOWN',
    })
    await lost.happened
    // It had happened, once.
    const status = await pawl.projections.status('balances')
    expect(status.map(({ isLive }) => isLive)).toEqual(verb === 'retire' ? [true] : [false, true])
    expect(await db.query("select from pawl.audit where action <> 'projection.rebuild'")).toHaveLength(1)
    await add(db, 2)
    await applied(db, 1)
    expect((await cursorOf(db, 'balances')).position).toBe(2)
  },
)

test('[P7] a roll-back behind a switch counts what the new generation did', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  for (const generation of [1, 2]) pawl.projections.define('p', { generation, each: () => undefined })
  await addCursor(db, 'p', { position: 1 })
  await pawl.projections.rebuild('p', { reason })
  const waits = async (text: string) =>
    (await db.query(`select from pg_stat_activity where ${isWaiting} and query like $1`, [text])).length > 0
  // A switch to the second generation is about to commit: it has changed the cursors, and holds the projection's row.
  await db.query('update pawl.cursor set effects_after = case generation when 2 then 1 end')
  const switching = await db.pool.connect()
  await switching.query('begin; update pawl.projection set live_generation = 2')
  // A handler of the second generation lets something out, and has not committed yet.
  const moving = await db.pool.connect()
  await moving.query('begin; select from pawl.cursor where generation = 2 for no key update')
  await moving.query('update pawl.cursor_position set position = 2 where generation = 2')
  const rolling = pawl.projections.rollBack('p', { generation: 1, reason })
  await until('the roll-back waits for the switch', () => waits('%pawl.projection%for update%'))
  await switching.query('commit')
  switching.release()
  await until('the roll-back waits for the handler', async () => (await waits('%for update of%')) || (await waits('%o.border%')))
  await moving.query('commit')
  moving.release()
  await rolling
  expect(await db.query('select effects_after::integer from pawl.cursor order by generation')).toEqual([
    { effects_after: 2 },
    { effects_after: null },
  ])
})
