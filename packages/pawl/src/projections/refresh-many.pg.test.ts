import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'
import { Transaction } from '../db/transaction.ts'
import type { LogEvent } from '../events/types.ts'
import { ignoringOwnEvents } from './definition.ts'
import type { StateProjectionOptions } from './types.ts'

const sql = `
  create table article (id text primary key, version integer not null default 1);
  create table search (id text primary key, version integer not null, refreshes integer not null default 1)`
const refreshSql = `insert into search (id, version) select id, version from article where id = any ($1)
  on conflict (id) do update set version = excluded.version, refreshes = search.refreshes + 1`
const retry = { attempts: 2, initialMs: 5, factor: 1, jitter: false } as const

type RefreshMany = NonNullable<StateProjectionOptions['refreshMany']>

function define(db: TestDatabase, refreshMany: RefreshMany, options: Partial<StateProjectionOptions> = {}) {
  const pawl = db.pawl()
  pawl.projections.define('search', { kind: 'state', retry, entity: (event) => event.key, refreshMany, ...options })
  return pawl
}

const noneDirty = (db: TestDatabase) =>
  until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)

const searched = async (db: TestDatabase) =>
  (await db.query<{ id: string }>('select id from search order by id')).map(({ id }) => id)

/** Articles, each with events that are marked before anything is refreshed. */
async function addDirty(db: TestDatabase, ...ids: readonly string[]): Promise<void> {
  await db.query('insert into article select unnest($1::text[])', [ids])
  await append(db, ...ids.map((key) => ({ key })), ...ids.map((key) => ({ key })))
}

/** How often the lock of a generation was not given. */
function countRefusals(): () => number {
  let refused = 0
  const { run } = Transaction.prototype
  onTestFinished(() => {
    Transaction.prototype.run = run
  })
  Transaction.prototype.run = async function (this: Transaction, sent, values) {
    const rows = await run.call(this, sent, values)
    if (sent.name === 'take-all-dirty' && rows.length === 0) refused++
    return rows as never
  }
  return () => refused
}

test('refreshMany gets each due entity once, at most batchMax at a time', async () => {
  const db = await createLog(sql)
  const calls: (readonly string[])[] = []
  const pawl = define(
    db,
    async (entities, tx) => {
      calls.push(entities)
      await tx.query(refreshSql, [entities])
    },
    { tuning: { batchMax: 3 } },
  )
  await addDirty(db, 'a', 'b', 'c', 'd', 'e')
  await startRunner(pawl)
  await until('all are refreshed', async () => (await searched(db)).length === 5)
  await noneDirty(db)
  expect(calls.map(({ length }) => length).sort()).toEqual([2, 3])
  expect(calls.flat().sort()).toEqual(['a', 'b', 'c', 'd', 'e'])
})

test('two processes with refreshMany never refresh at once', async () => {
  const db = await createLog(sql)
  const hold = deferred()
  let running = 0
  const overlaps: number[] = []
  const refreshMany: RefreshMany = async (entities, tx) => {
    overlaps.push(++running)
    await hold.promise
    await tx.query(refreshSql, [entities])
    running--
  }
  const refused = countRefusals()
  await addDirty(db, 'a', 'b', 'c', 'd')
  for (const pawl of [define(db, refreshMany, { tuning: { batchMax: 2 } }), define(db, refreshMany, { tuning: { batchMax: 2 } })])
    await startRunner(pawl)
  await until('one refreshes', () => running === 1)
  await until('the other was refused', () => refused() > 0)
  hold.resolve()
  await until('all are refreshed', async () => (await searched(db)).length === 4)
  await noneDirty(db)
  expect(new Set(overlaps)).toEqual(new Set([1]))
})

test('[O7] of a failing batch only the bad entity is parked', async () => {
  const db = await createLog(sql)
  let isBroken = true
  const calls: (readonly string[])[] = []
  const pawl = define(db, async (entities, tx) => {
    calls.push(entities)
    await tx.query(refreshSql, [entities])
    if (isBroken && entities.includes('bad')) throw new Error('no index')
  })
  await addDirty(db, 'a', 'bad', 'c')
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('search')).items.length === 1)
  await until('the others are refreshed', async () => (await searched(db)).length === 2)
  expect((await pawl.projections.parked('search')).items).toMatchObject([{ key: 'bad', attempts: 2, events: 2 }])
  expect(calls).toEqual([['a', 'bad', 'c'], ['a'], ['bad'], ['c'], ['bad']])
  isBroken = false
  await pawl.projections.unpark('search', { key: 'bad', reason: 'there is an index' })
  await noneDirty(db)
  expect(await searched(db)).toEqual(['a', 'bad', 'c'])
})

test.each([
  ['runs too long', 'time'],
  ['fails at its commit', 'commit'],
] as const)('[O7] a batch that %s is tried entity by entity', async (_what, how) => {
  const db = await createLog(`${sql}; create table checked (id text primary key deferrable initially deferred)`)
  const pawl = define(
    db,
    async (entities, tx) => {
      await tx.query(refreshSql, [entities])
      if (entities.length === 1) return
      if (how === 'commit') await tx.query("insert into checked values ('a'), ('a')")
      else await tx.query('select pg_sleep(60)')
    },
    how === 'time' ? { timeout: 100 } : {},
  )
  await addDirty(db, 'a', 'b')
  await startRunner(pawl)
  await until('both are refreshed', async () => (await searched(db)).length === 2)
  await noneDirty(db)
  expect((await pawl.projections.parked('search')).items).toEqual([])
})

test('entities that a refresh marks are refreshed after its commit', async () => {
  const db = await createLog(sql)
  const calls: (readonly string[])[] = []
  const pawl = define(db, async (entities, tx, { mark }) => {
    calls.push(entities)
    await tx.query(refreshSql, [entities])
    await mark([])
    if (entities.includes('a')) await mark(['b', 'b', 'c'])
  })
  await db.query("insert into article values ('a'), ('b'), ('c')")
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('all are refreshed', async () => (await searched(db)).length === 3)
  await noneDirty(db)
  expect(calls).toEqual([['a'], ['b', 'c']])
})

test('an entity marked with a delay waits for it', async () => {
  const db = await createLog(sql)
  const pawl = define(db, async (entities, tx, { mark }) => {
    await tx.query(refreshSql, [entities])
    if (entities.includes('a')) await mark(['b'], { delay: '1h' })
  })
  await db.query("insert into article values ('a'), ('b')")
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('the first is refreshed', async () => (await searched(db)).length === 1)
  expect(await db.query("select entity, due_at > pawl.now() + interval '59 minutes' as is_later from pawl.dirty")).toEqual([
    { entity: 'b', is_later: true },
  ])
})

test('a refresh of one entity marks others too', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  pawl.projections.define('search', {
    kind: 'state',
    entity: (event) => event.key,
    refresh: async (entity, tx, { mark }) => {
      await tx.query(refreshSql, [[entity]])
      if (entity === 'a') await mark(['b'])
    },
  })
  await db.query("insert into article values ('a'), ('b')")
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('both are refreshed', async () => (await searched(db)).length === 2)
  await noneDirty(db)
})

test('marks of a failed refresh are rolled back with it', async () => {
  const db = await createLog(sql)
  const seen: string[] = []
  const pawl = define(db, async (entities, _tx, { mark }) => {
    seen.push(...entities)
    await mark(['other'])
    if (entities.includes('bad')) throw new Error('no index')
  })
  await append(db, { key: 'bad' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('search')).items.length === 1)
  expect(seen).toEqual(['bad', 'bad'])
  expect(await db.query('select entity from pawl.dirty')).toEqual([{ entity: 'bad' }])
})

test('a parked entity that only a refresh marked waits for no event', async () => {
  const db = await createLog(sql)
  const pawl = define(db, async (entities, _tx, { mark }) => {
    if (entities.includes('bad')) throw new Error('no index')
    await mark(['bad'])
  })
  const token = await append(db, { key: 'good' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('search')).items.length === 1)
  expect((await pawl.projections.parked('search')).items).toMatchObject([{ key: 'bad', events: 0, firstPosition: null }])
  await pawl.projections.seen('search', token)
})

test('entities that are no strings are refused by mark', async () => {
  const db = await createLog(sql)
  const errors: unknown[] = []
  const pawl = define(db, async (_entities, _tx, { mark }) => {
    for (const wrong of ['a', [5], undefined]) await mark(wrong as never).catch((error: unknown) => errors.push(error))
  })
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('it was refused', () => errors.length === 3)
  await noneDirty(db)
  for (const error of errors)
    expect(error).toMatchObject({ code: 'PAWL_CONFIG', message: expect.stringMatching(/^mark: entities/) })
})

test('a refresher whose transaction the server ended writes nothing more', async () => {
  const db = await createLog(sql)
  const hold = deferred()
  let pid: number | undefined
  const late: unknown[] = []
  const refreshMany: RefreshMany = async (entities, tx, { mark }) => {
    if (pid === undefined) {
      const { rows } = await tx.query<{ pid: number }>('select pg_backend_pid() as pid')
      pid = rows[0]!.pid
      await tx.query(refreshSql, [entities])
      await mark(['never'])
      await hold.promise
      return tx.query(refreshSql, [entities]).catch((error: unknown) => late.push(error))
    }
    return tx.query(refreshSql, [entities])
  }
  await addDirty(db, 'a', 'b')
  await startRunner(define(db, refreshMany))
  await until('it refreshes', () => pid !== undefined)
  await startRunner(define(db, refreshMany))
  await db.query('select pg_terminate_backend($1)', [pid])
  await until('the other refreshed them', async () => (await searched(db)).length === 2)
  hold.resolve()
  await until('the first was refused', () => late.length === 1)
  await noneDirty(db)
  expect(await db.query('select distinct refreshes from search')).toEqual([{ refreshes: 1 }])
})

test('after a crash before the commit the whole batch is refreshed again', async () => {
  const db = await createLog(sql)
  let isKilled = false
  installProbe(async (name) => {
    if (name !== 'projections.state.handled' || isKilled) return
    isKilled = true
    await db.query(
      "select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()",
    )
  })
  onTestFinished(() => installProbe(undefined))
  const pawl = define(db, async (entities, tx, { mark }) => {
    await tx.query(refreshSql, [entities])
    if (entities.includes('a')) await mark(['c'])
  })
  await db.query("insert into article values ('c')")
  await addDirty(db, 'a', 'b')
  await startRunner(pawl)
  await until('all are refreshed', async () => (await searched(db)).length === 3)
  await noneDirty(db)
  expect(isKilled).toBe(true)
  expect(await db.query('select distinct refreshes from search')).toEqual([{ refreshes: 1 }])
})

test('a paused refreshMany starts nothing until it is resumed', async () => {
  const db = await createLog(sql)
  const pawl = define(db, async (entities, tx) => void (await tx.query(refreshSql, [entities])))
  await startRunner(pawl)
  await addDirty(db, 'a')
  await until('it is refreshed', async () => (await searched(db)).length === 1)
  await caughtUp(db, 'search')
  await pawl.projections.pause('search', { reason: 'a migration' })
  const refused = countRefusals()
  await db.query("insert into pawl.dirty (name, generation, entity, position, positions) values ('search', 1, 'b', 0, '{0}')")
  await db.query("insert into article values ('b')")
  await until('it was refused', () => refused() > 0)
  expect(await searched(db)).toEqual(['a'])
  await pawl.projections.resume('search', { reason: 'it is done' })
  await until('it is refreshed', async () => (await searched(db)).length === 2)
})

/** A projection that ignores what its refresh appends, and the events that it was given. */
function defineIgnoring(db: TestDatabase) {
  const given: LogEvent[] = []
  const entity = ignoringOwnEvents((event) => {
    given.push(event)
    return event.type === 'Echo' ? [] : [event.key]
  })
  const refreshMany: RefreshMany = (entities, tx) =>
    tx.query("select pawl.append('Echo', 'thing', e || n) from unnest($1::text[]) e, generate_series(1, 30) n", [entities])
  return { pawl: define(db, refreshMany, { entity }), given }
}

/** Refreshes a, then b: the refresher that takes b has the answer of a's commit. Returns the transaction of a's events. */
async function refreshTwo(db: TestDatabase): Promise<string> {
  for (const [index, key] of ['a', 'b'].entries()) {
    await append(db, { key })
    await until(
      'it is refreshed',
      async () => (await db.query("select from pawl.event where type = 'Echo'")).length === 30 * (index + 1),
    )
  }
  await noneDirty(db)
  await caughtUp(db, 'search')
  return (await db.query<{ xid: string }>("select xid::text from pawl.event where type = 'Echo' order by seq limit 1"))[0]!.xid
}

async function readAgain(db: TestDatabase, { projections }: ReturnType<TestDatabase['pawl']>): Promise<void> {
  await projections.pause('search', { reason: 'a test' })
  await projections.resume('search', { reason: 'a test', from: 'oldest' })
  await until(
    'both are refreshed again',
    async () => (await db.query("select from pawl.event where type = 'Echo'")).length >= 120,
  )
  await noneDirty(db)
  await caughtUp(db, 'search')
}

test('a cursor is not given ignored events of its own refresh', async () => {
  const db = await createLog(sql)
  const { pawl, given } = defineIgnoring(db)
  await startRunner(pawl)
  const xid = await refreshTwo(db)
  given.length = 0
  await readAgain(db, pawl)
  expect(given.filter((event) => event.xid === xid)).toEqual([])
  expect(given.filter(({ type }) => type === 'Added').map(({ key }) => key)).toEqual(['a', 'b'])
  expect(await pawl.projections.status('search')).toMatchObject([{ state: 'running', reason: null }])
})

test("another process's cursor reads the events of a refresh", async () => {
  const db = await createLog(sql)
  const first = await startRunner(defineIgnoring(db).pawl)
  const xid = await refreshTwo(db)
  await first.stop()
  const { pawl, given } = defineIgnoring(db)
  await startRunner(pawl)
  await readAgain(db, pawl)
  expect(given.filter((event) => event.xid === xid)).toHaveLength(30)
  expect(given.filter(({ type }) => type === 'Added').map(({ key }) => key)).toEqual(['a', 'b'])
})
