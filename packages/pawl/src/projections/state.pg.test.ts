import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test, vi } from 'vitest'
import { deferred, until } from '../../test/support/database.ts'
import { pagesOf } from '../../test/support/pages.ts'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { Transaction } from '../db/transaction.ts'
import { Wakeup } from '../kernel/service.ts'

const sql = `
  create table article (id text primary key, title text not null, version integer not null default 1);
  create table search (id text primary key, title text not null, version integer not null, refreshes integer not null default 1)`
const refreshSql = `insert into search (id, title, version) select id, title, version from article where id = $1
  on conflict (id) do update set title = excluded.title, version = excluded.version, refreshes = search.refreshes + 1`
const retry = { attempts: 2, initialMs: 5, factor: 1, jitter: false } as const

test('a state projection converges in any order and with repeated events', async () => {
  const db = await createLog(sql)
  const [one, two] = [db.pawl(), db.pawl()]
  for (const pawl of [one, two]) {
    pawl.projections.define('search', {
      kind: 'state',
      entity: (event) => (event.type === 'Added' ? event.key : undefined),
      refresh: async (entity, tx) => void (await tx.query(refreshSql, [entity])),
    })
    await startRunner(pawl)
  }
  const write = async (n: number) => {
    const client = await db.pool.connect()
    await client.query('begin')
    await client.query("insert into article values ($1, 'a') on conflict (id) do update set version = article.version + 1", [
      `a${n % 7}`,
    ])
    await append(
      { query: async <Row>(text: string, values?: unknown[]) => (await client.query(text, values)).rows as Row[] },
      { key: `a${n % 7}` },
    )
    await client.query(n % 10 === 9 ? 'rollback' : 'commit')
    client.release()
  }
  for (let n = 0; n < 104; n += 8) await Promise.all(Array.from({ length: 8 }, (_, i) => write(n + i)))
  await caughtUp(db, 'search')
  await until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)
  expect(
    await db.query(
      'select a.id from article a full join search s using (id) where (a.title, a.version) is distinct from (s.title, s.version)',
    ),
  ).toEqual([])
})

test('an entity that changes during its refresh is refreshed again', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  const hold = deferred()
  const seen: number[] = []
  pawl.projections.define('search', {
    kind: 'state',
    entity: (event) => event.key,
    refresh: async (entity, tx) => {
      const { rows } = await tx.query<{ version: number }>('select version from article where id = $1', [entity])
      seen.push(rows[0]!.version)
      if (seen.length === 1) await hold.promise
      await tx.query(refreshSql, [entity])
    },
  })
  await db.query("insert into article values ('a', 't')")
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('it is being refreshed', () => seen.length === 1)
  await db.query('update article set version = 2')
  const token = await append(db, { key: 'a' })
  await caughtUp(db, 'search')
  expect(await db.query('select from search')).toEqual([])
  await expect(pawl.projections.seen('search', token, { timeout: 50 })).rejects.toMatchObject({ code: 'PAWL_TIMED_OUT' })
  hold.resolve()
  await pawl.projections.seen('search', token, { timeout: '20s' })
  expect(seen).toEqual([1, 2])
  expect(await db.query('select version, refreshes from search')).toEqual([{ version: 2, refreshes: 2 }])
})

test('pause waits for the refresh in progress, and none starts after', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  const holds = [deferred(), deferred()]
  let begun = 0
  pawl.projections.define('search', {
    kind: 'state',
    concurrency: 2,
    entity: (event) => event.key,
    refresh: async (entity, tx) => {
      const nth = begun++
      await tx.query(refreshSql, [entity])
      await holds[nth]?.promise
    },
  })
  await db.query("insert into article values ('a', 't'), ('b', 't'), ('c', 't')")
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('one is under way', () => begun === 1)
  const pausing = pawl.projections.pause('search', { reason: 'a migration' })
  const atPause = pausing.then(() => db.query('select id from search'))
  // For the refresh, by the statement after the committed pause: others may wait for a moment too, before it is paused.
  const waiting = until('it waits', async () => {
    const rows = await db.query(
      `select from pg_stat_activity
       where datname = current_database() and wait_event_type = 'Lock' and query like '%pawl.cursor%' and query like '%for update'`,
    )
    return rows.length > 0
  })
  await Promise.race([pausing, waiting])
  // These are not begun, so the pause does not wait for them.
  await append(db, { key: 'b' }, { key: 'c' })
  holds[0]!.resolve()
  expect(await atPause).toEqual([{ id: 'a' }])
  expect(begun).toBe(1)
  await waiting
  holds[1]!.resolve()
  await pawl.projections.resume('search', { reason: 'it is done' })
  await until('the others are refreshed', async () => (await db.query('select from search')).length === 3)
})

test('[O7] an entity whose refresh fails is parked alone until unpark', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  let isBroken = true
  let calls = 0
  pawl.projections.define('search', {
    kind: 'state',
    retry,
    entity: (event) => event.key,
    refresh: async (entity, tx) => {
      await tx.query(refreshSql, [entity])
      if (entity === 'bad') calls++
      if (entity === 'bad' && isBroken) throw new Error('no index')
    },
  })
  await db.query("insert into article values ('good', 't'), ('bad', 't')")
  await append(db, { key: 'bad' }, { key: 'good' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('search')).items.length === 1)
  expect(calls).toBe(2)
  expect((await pawl.projections.parked('search')).items).toMatchObject([{ key: 'bad', attempts: 2 }])
  // By another connection: it may be later than both attempts of the one that fails.
  await until('the other is refreshed', async () => (await db.query('select from search')).length > 0)
  expect(await db.query('select id from search')).toEqual([{ id: 'good' }])
  expect(await pawl.alerts()).toMatchObject([
    { code: 'projection.parked', subject: 'search', message: 'The refresh of bad failed 2 time(s): no index', count: 1 },
  ])
  isBroken = false
  expect(await pawl.projections.unpark('search', { key: 'bad', reason: 'there is an index' })).toEqual(['bad'])
  await until('it is refreshed', async () => (await db.query("select from search where id = 'bad'")).length === 1)
  expect((await pawl.projections.parked('search')).items).toEqual([])
  expect(await pawl.alerts()).toEqual([])
})

test('[O7] an entity postponed between poll and take is not tried early', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  const tried: string[] = []
  pawl.projections.define('search', {
    kind: 'state',
    entity: (event) => event.key,
    refresh: (entity) => void tried.push(entity),
  })
  let isPutOff = false
  // Between the read and the lock another one's failure was committed, which parked the entity.
  installProbe(async (name, entity) => {
    if (name !== 'projections.state.taken' || entity !== 'bad') return
    await db.query("update pawl.dirty set due_at = 'infinity', attempts = 2 where entity = 'bad'")
    isPutOff = true
  })
  onTestFinished(() => installProbe(undefined))
  await append(db, { key: 'bad' })
  await startRunner(pawl)
  await until('it is put off', () => isPutOff)
  await append(db, { key: 'good' })
  await until('the other is refreshed', () => tried.length > 0)
  expect(tried).toEqual(['good'])
  expect((await pawl.projections.parked('search')).items).toMatchObject([{ key: 'bad', attempts: 2 }])
  // The next change of the entity asks for it, and takes the mark that waited with it.
  installProbe(undefined)
  await append(db, { key: 'bad' })
  await until('nothing is left to do', async () => (await db.query('select from pawl.dirty')).length === 0)
  expect(tried).toEqual(['good', 'bad'])
})

test('a refresh starts when its process feeds it, not at the poll', async () => {
  const { wait } = Wakeup.prototype
  // Without a limit to how long a refresher waits, only being woken helps.
  vi.spyOn(Wakeup.prototype, 'wait').mockImplementation(function (this: Wakeup, ms) {
    return wait.call(this, ms === 250 ? undefined : ms)
  })
  onTestFinished(() => void vi.restoreAllMocks())
  const db = await createLog(sql)
  const pawl = db.pawl()
  let refreshed = 0
  pawl.projections.define('search', { kind: 'state', entity: (event) => event.key, refresh: () => void refreshed++ })
  await startRunner(pawl)
  for (let n = 1; n <= 3; n++) {
    await append(db, { key: 'a' })
    await until('it is refreshed', () => refreshed === n)
    await until('nothing is left to do', async () => (await db.query('select from pawl.dirty')).length === 0)
  }
})

test('[P8] a parked entity fails only the seen of its own writers', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  pawl.projections.define('search', {
    kind: 'state',
    retry: { attempts: 1 },
    entity: (event) => event.key,
    refresh: async (entity, tx) => {
      if (entity === 'bad') throw new Error('no index')
      await tx.query(refreshSql, [entity])
    },
  })
  await db.query("insert into article values ('good', 't'), ('bad', 't')")
  await startRunner(pawl)
  // In one transaction with others, before and after it.
  const bad = await append(db, { key: 'other' }, { key: 'bad' }, { key: 'other' })
  await until('it is parked', async () => (await pawl.projections.parked('search')).items.length === 1)
  await pawl.projections.seen('search', await append(db, { key: 'good' }), { timeout: '20s' })
  expect(await db.query('select id from search')).toEqual([{ id: 'good' }])
  await expect(pawl.projections.seen('search', bad)).rejects.toMatchObject({ code: 'PAWL_PARKED' })
})

test.each([
  ['a statement that nobody waits for fails', 'send'],
  ['a statement fails and its error is swallowed', 'swallow'],
  ['the commit fails', 'commit'],
] as const)('[O7] a refresh of which %s is counted and parked with its error', async (_what, how) => {
  const db = await createLog(`${sql};
    create table checked (id text primary key deferrable initially deferred, amount integer check (amount > 0))`)
  const pawl = db.pawl()
  const failures: unknown[] = []
  pawl.on('projection.failed', ({ error }) => failures.push(error))
  pawl.projections.define('search', {
    kind: 'state',
    retry,
    // A commit that was refused has given up the entity's lock: with others at it one of them might try before the delay is written.
    concurrency: 1,
    entity: (event) => event.key,
    refresh: async (entity, tx) => {
      if (entity === 'good') return tx.send(refreshSql, [entity])
      if (how === 'send') tx.send("insert into checked values ('a', 0)")
      else if (how === 'swallow') await tx.query("insert into checked values ('a', 0)").catch(() => undefined)
      else await tx.query("insert into checked values ('a', 1), ('a', 2)")
    },
  })
  await db.query("insert into article values ('good', 't'), ('bad', 't')")
  await append(db, { key: 'bad' }, { key: 'good' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('search')).items.length === 1)
  await until('the other is refreshed', async () => (await db.query('select from search')).length === 1)
  expect(failures).toMatchObject(Array.from({ length: 2 }, () => ({ code: how === 'commit' ? '23505' : '23514' })))
  expect((await pawl.projections.parked('search')).items).toMatchObject([{ key: 'bad', attempts: 2 }])
})

test('beside a slow entity with many marks the others are refreshed', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  const hold = deferred()
  let isHeld = false
  pawl.projections.define('search', {
    kind: 'state',
    entity: (event) => event.key,
    refresh: async (entity, tx) => {
      await tx.query(refreshSql, [entity])
      if (entity !== 'slow') return
      isHeld = true
      await hold.promise
    },
  })
  await db.query("insert into article values ('slow', 't'), ('other', 't')")
  await startRunner(pawl)
  await append(db, { key: 'slow' })
  await until('it is being refreshed', () => isHeld)
  // As many batches would leave.
  await db.query(
    "insert into pawl.dirty (name, generation, entity, position, positions) select 'search', 1, 'slow', 1, '{1}' from generate_series(1, 200)",
  )
  await append(db, { key: 'other' })
  await until('the other is refreshed', async () => (await db.query("select from search where id = 'other'")).length === 1)
  hold.resolve()
  await until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)
})

test("[O7] a failed refresh costs its entity's marks and merges them", async () => {
  const db = await createLog(sql)
  const connection = new Connection(db.pawl().config.database, 'test')
  onTestFinished(() => connection.close())
  const fail = statement(new URL('any.ts', import.meta.url).href, 'fail-dirty')
  const failed = async (entity: string, marks: number) => {
    await db.query(
      `insert into pawl.dirty (name, generation, entity, position, positions, attempts)
       select 'p', 1, $1, n, array[n], n % 3 from generate_series(1, $2::bigint) n`,
      [entity, marks],
    )
    return pagesOf(connection, fail, { tenant: '', name: 'p', generation: 1, entity, error: 'no' })
  }
  const [few, many] = [await failed('few', 500), await failed('many', 4000)]
  // Linear: eight times. Quadratic: sixty-four times.
  expect(many / few).toBeLessThan(16)
  const marks = () =>
    db.query("select cardinality(positions) as of, attempts, last_error from pawl.dirty where entity = 'many' order by position")
  expect(await marks()).toEqual(Array.from({ length: 4 }, () => ({ of: 1000, attempts: 3, last_error: 'no' })))
  // A hot entity goes on failing: each change is a mark, and each failure takes it into the last one.
  for (let n = 0; n < 3; n++) {
    await db.query(
      "insert into pawl.dirty (name, generation, entity, position, positions) values ('p', 1, 'many', $1, array[$1::bigint])",
      [5000 + n],
    )
    await connection.run(fail, { tenant: '', name: 'p', generation: 1, entity: 'many', error: 'no' })
  }
  expect((await marks()).map(({ of }) => of)).toEqual([1000, 1000, 1000, 1000, 3])
  // Nothing can wait for what retention has removed.
  await db.query('update pawl.sequencer set removed_until = 5001')
  await connection.run(fail, { tenant: '', name: 'p', generation: 1, entity: 'many', error: 'no' })
  expect((await marks()).at(-1)).toMatchObject({ of: 1, attempts: 7 })
})

test('an idle runner with a state projection polls without a transaction', async () => {
  const db = await createLog(sql)
  const pawl = db.pawl()
  pawl.projections.define('search', { kind: 'state', entity: (event) => event.key, refresh: () => undefined })
  let polls = 0
  const { run } = Connection.prototype
  const { run: runInTx } = Transaction.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
    Transaction.prototype.run = runInTx
  })
  Connection.prototype.run = function (this: Connection, sent, values) {
    if (sent.name === 'next-due') polls++
    return run.call(this, sent, values) as never
  }
  let takes = 0
  Transaction.prototype.run = function (this: Transaction, sent, values) {
    if (sent.name === 'take-dirty') takes++
    return runInTx.call(this, sent, values) as never
  }
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await caughtUp(db, 'search')
  await until('it is refreshed', async () => (await db.query('select from pawl.dirty')).length === 0)
  const polled = async () => {
    const from = polls
    await until('it has polled', () => polls > from + 2)
  }
  // Those that were woken with the one that refreshed it have looked too.
  await polled()
  const before = takes
  await polled()
  expect(takes).toBe(before)
  expect(takes).toBeGreaterThan(0)
})
