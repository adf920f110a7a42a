import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { add, applied, define, reason, runBoth } from '../../test/support/balances.ts'
import { deferred, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { append, caughtUp, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'

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
  const { db, pawl } = await runBoth()
  await add(db, 1)
  await pawl.projections.rebuild('balances', { reason })
  await applied(db, 1)
  await applied(db, 2)
  const [atCommit, commit] = [deferred(), deferred()]
  installProbe(async (name) => {
    if (name !== 'projections.switch.before_commit') return
    atCommit.resolve()
    await commit.promise
  })
  onTestFinished(() => installProbe(undefined))
  const switching = pawl.projections.switchTo('balances', { generation: 2, reason })
  await atCommit.promise
  const waits = async (text: string) =>
    (await db.query(`select from pg_stat_activity where ${isWaiting} and query like $1`, [text])).length > 0
  // What a runner of the new generation does: it stands before the cursor's row when the switch commits.
  const mover = await db.pool.connect()
  await mover.query('begin')
  const moving = mover.query("select from pawl.cursor where name = 'balances' and generation = 2 for no key update")
  await until('the move waits', () => waits('%generation = 2 for no key update'))
  const rolling = pawl.projections.rollBack('balances', { generation: 1, reason })
  await until('the roll-back waits', () => waits('%pawl.projection%for %update%'))
  commit.resolve()
  await moving
  await mover.query("update pawl.cursor_position set position = 2 where name = 'balances' and generation = 2")
  await until('the roll-back waits for the move', async () => (await waits('%for update of%')) || (await waits('%o.border%')))
  await mover.query('commit')
  mover.release()
  await Promise.all([switching, rolling])
  expect(await db.query('select effects_after::integer from pawl.cursor order by generation')).toEqual([
    { effects_after: 2 },
    { effects_after: null },
  ])
})
