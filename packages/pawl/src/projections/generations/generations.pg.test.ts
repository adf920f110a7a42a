import { expect, onTestFinished, test } from 'vitest'
import { add, applied, define, reason, runBoth } from '../../../test/support/balances.ts'
import { until } from '../../../test/support/database.ts'
import { FaultProxy } from '../../../test/support/fault-proxy.ts'
import { addCursor, append, createLog, cursorOf, startRunner } from '../../../test/support/projections.ts'

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

/** Copies of articles, in two generations. */
async function copies() {
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
        await tx.query(
          `insert into ${table('copy')} select id, n from article where id = $1 on conflict (id) do update set n = excluded.n`,
          [id],
        )
      },
    })
  await addCursor(db, 'copies', { kind: 'state', channel: 'default' })
  await startRunner(pawl)
  const write = async (id: string) => {
    await db.query('insert into article values ($1, 1) on conflict (id) do update set n = article.n + 1', [id])
    await append(db, { key: id })
  }
  const clean = () =>
    until('all is refreshed', async () => {
      const [row] = await db.query<{ left: number }>(
        `select ((select count(*) from pawl.dirty where due_at < 'infinity') + (select count(*) from pawl.event)
           - (select min(position) from pawl.cursor_at))::integer as left`,
      )
      return row!.left === 0
    })
  return { db, pawl, write, clean }
}

test('[P7] a state projection is rebuilt under writes, switched and rolled back', async () => {
  const { db, pawl, write, clean } = await copies()
  for (let n = 0; n < 10; n++) await write(`a${n}`)
  await clean()
  await pawl.projections.rebuild('copies', { reason })
  await clean()
  expect(await db.query('select count(*)::integer as n from copy_g2')).toEqual([{ n: 10 }])
  let isWriting = true
  let written = 10
  // Others than before: of an entity that changes in between the later generation has the newer state.
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

test('[P7] a roll-back behind a switch leaves one generation live', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  for (const generation of [1, 2]) pawl.projections.define('p', { generation, each: () => undefined })
  await addCursor(db, 'p', { position: 1 })
  await pawl.projections.rebuild('p', { reason })
  const waits = async (text: string) =>
    (await db.query(`select from pg_stat_activity where ${isWaiting} and query like $1`, [text])).length > 0
  // A switch to the second generation is about to commit: it has changed the cursors, and holds the projection's row.
  await db.query('update pawl.cursor set is_live = generation = 2')
  const switching = await db.pool.connect()
  await switching.query('begin; update pawl.projection set live_generation = 2')
  // A handler of the second generation has not committed yet.
  const moving = await db.pool.connect()
  await moving.query('begin; select from pawl.cursor where generation = 2 for no key update')
  await moving.query('update pawl.cursor_position set position = 2 where generation = 2')
  const rolling = pawl.projections.rollBack('p', { generation: 1, reason })
  await until('the roll-back waits for the switch', () => waits('%pawl.projection%for update%'))
  await switching.query('commit')
  switching.release()
  await until('the roll-back waits for the handler', () => waits('%for update of%'))
  await moving.query('commit')
  moving.release()
  await rolling
  expect(await db.query('select is_live from pawl.cursor order by generation')).toEqual([{ is_live: true }, { is_live: false }])
})
