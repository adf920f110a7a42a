// The application's own pool, password functions: who connects how, and what is left in the application's sessions.

import { createPawl, type Pawl, type PawlOptions, silentLogger } from 'pawl'
import { resetConnections, runAll } from 'pawl/testing'
import pg from 'pg'
import { expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { loads } from '../../test/support/records.ts'

async function database(): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  return db
}

function pawlOf(options: PawlOptions): Pawl {
  const pawl = createPawl({ logger: silentLogger, ...options })
  onTestFinished(() => pawl.close())
  return pawl
}

function poolOf(options: pg.PoolConfig): pg.Pool {
  const pool = new pg.Pool(options)
  pool.on('error', () => undefined)
  onTestFinished(async () => {
    if (!pool.ended) await pool.end()
  })
  return pool
}

/** Every verb that takes connections of the callers, in each of its ways. */
async function callAll(pawl: Pawl): Promise<void> {
  const { id } = await pawl.jobs.enqueue('mail', { n: 1 })
  await pawl.jobs.enqueue('mail', { n: 1 }, { durability: 'relaxed' })
  await pawl.jobs.enqueueMany('mail', Array(1500).fill({ n: 2 }))
  expect(await pawl.jobs.get(id)).toMatchObject({ id, state: 'ready', createdAt: expect.any(Date) })
  await pawl.jobs.cancel(id)
  expect(await pawl.alerts()).toEqual([])
  const events = Array.from({ length: 3 }, (_, n) => ({ type: 'Added', aggregateType: 'wallet', key: 'a', data: n }))
  await pawl.events.append(events)
  await pawl.events.ingest({ ...events[0]!, id: '1' }, { source: 's' })
  const scope = pawl.records.in(pawl.records.define('loads', loads), { organisation: '1', registration: '2' })
  await scope.put({ data: { rowId: '1', tonnes: '5' } })
  await scope.upload(['rowId,tonnes\n2,3\n'], { format: 'csv' })
  expect((await scope.list()).items).toHaveLength(1)
}

test("calls use the application's pool and leave its sessions as they were", async () => {
  const db = await database()
  const pool = poolOf({
    connectionString: db.url,
    max: 2,
    application_name: 'the app',
    types: { getTypeParser: () => () => 'odd' } as never,
  })
  pool.on('connect', (client) => void client.query("set search_path = 'somewhere'; set datestyle = 'German'"))
  const warnings = vi.fn()
  process.on('warning', warnings)
  onTestFinished(() => void process.off('warning', warnings))
  const pawl = pawlOf({ pool, applicationName: 'ours' })
  await callAll(pawl)
  const names = await db.query<{ name: string }>(
    "select distinct application_name as name from pg_stat_activity where datname = current_database() and application_name ~ 'ours|the app'",
  )
  expect(names).toEqual([{ name: 'the app' }])
  expect(pool.totalCount).toBeLessThanOrEqual(2)
  const client = await pool.connect()
  const show = async (setting: string) => (await client.query({ text: `show ${setting}`, types: pg.types })).rows[0]
  expect([await show('search_path'), await show('synchronous_commit')]).toEqual([
    { search_path: 'somewhere' },
    { synchronous_commit: 'on' },
  ])
  expect((await client.query('select 1 as one')).rows).toEqual([{ one: 'odd' }])
  expect(client).toMatchObject({ pipeline: false })
  expect(client.listenerCount('error')).toBe(0)
  client.release()
  expect(warnings).not.toHaveBeenCalled()
})

test("a worker's own connections use the options of the given pool", async () => {
  const db = await database()
  const { hostname: host, port, username: user, password, pathname } = new URL(db.url)
  const pool = poolOf({
    host,
    port: Number(port),
    user,
    password,
    database: pathname.slice(1),
    options: '-c work_mem=5MB',
    max: 1,
  })
  const pawl = pawlOf({ pool })
  const mail = pawl.jobs.define('mail', { tx: async (_job, tx) => (await tx.query('show work_mem')).rows[0] })
  const { id } = await pawl.jobs.enqueue(mail, {})
  expect((await runAll(pawl)).done).toMatchObject([{ id }])
  expect(await pawl.jobs.get(id)).toMatchObject({ result: { work_mem: '5MB' } })
})

test('a worker has at most eight connections besides its two pools', async () => {
  const db = await database()
  const pawl = pawlOf({ databaseUrl: db.url, applicationName: 'counted', tuning: { callerConnectionsMax: 2 } })
  const kind = pawl.jobs.define('mail', { run: () => 1 })
  const worker = pawl.worker()
  await worker.start()
  onTestFinished(() => worker.stop().then(() => undefined))
  const counted = async () =>
    (
      await db.query<{ name: string }>(
        "select application_name as name from pg_stat_activity where application_name like 'counted %'",
      )
    ).map(({ name }) => name)
  await until('all are there', async () => (await counted()).length >= 5)
  await pawl.jobs.enqueueMany(kind, Array(2000).fill({}))
  await worker.whenIdle()
  const names = await counted()
  expect(names.filter((name) => !/caller|handler/.test(name)).length).toBeLessThanOrEqual(8)
  expect(names.filter((name) => name === 'counted caller').length).toBeLessThanOrEqual(2)
})

test('an application_name in the URL begins the name of every session', async () => {
  const db = await database()
  const pawl = pawlOf({ databaseUrl: `${db.url}${db.url.includes('?') ? '&' : '?'}application_name=shop` })
  const seen = deferred<string>()
  pawl.jobs.define('mail', {
    tx: async (_job, tx) => {
      const { rows } = await tx.query<{ name: string }>("select current_setting('application_name') as name")
      seen.resolve(rows[0]!.name)
    },
  })
  const worker = pawl.worker()
  await worker.start()
  onTestFinished(() => worker.stop().then(() => undefined))
  await pawl.jobs.enqueue('mail', {})
  const [process] = await db.query<{ sessions: string }>('select sessions from pawl.worker_process')
  expect(await seen.promise).toBe(`shop handler ${process!.sessions}`)
})

test('a pool for calls and a URL for the engine may differ', async () => {
  const db = await database()
  const pool = poolOf({ connectionString: db.url, max: 1, stream: undefined as never })
  const pawl = pawlOf({ pool, databaseUrl: db.url, pooler: 'transaction', directUrl: db.url })
  pawl.jobs.define('mail', { run: () => 1 })
  await pawl.jobs.enqueue('mail', {})
  expect((await runAll(pawl)).done).toHaveLength(1)
})

test("close leaves the application's pool open; what ended says so", async () => {
  const db = await database()
  const pool = poolOf({ connectionString: db.url })
  const pawl = pawlOf({ pool })
  const other = pawlOf({ pool })
  await pawl.jobs.enqueue('mail', {})
  await pawl.close()
  await expect(pawl.jobs.enqueue('mail', {})).rejects.toMatchObject({
    code: 'PAWL_STOPPED',
    message: expect.stringContaining('closed'),
  })
  expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }])
  await pool.end()
  await expect(other.jobs.enqueue('mail', {})).rejects.toMatchObject({
    code: 'PAWL_STOPPED',
    message: 'The pool passed to createPawl has ended. End it after the last call to Pawl.',
  })
})

test('a call is durable where the role of the pool is not', async () => {
  const db = await database()
  const pool = poolOf({ connectionString: db.url, options: '-c synchronous_commit=off' })
  await db.query(`create table public.seen (level text);
    create function public.seen() returns trigger language plpgsql as 'begin insert into public.seen values (current_setting(''synchronous_commit'')); return null; end';
    create trigger seen after insert on pawl.job for each statement execute function public.seen()`)
  const pawl = pawlOf({ pool })
  await pawl.jobs.enqueue('mail', {})
  await pawl.jobs.enqueue('mail', {}, { durability: 'relaxed' })
  expect(await db.query('select level from public.seen')).toEqual([{ level: 'on' }, { level: 'off' }])
})

test.each(['none', 'transaction'] as const)(
  'a database of another isolation level changes nothing of ours: pooler %s',
  async (pooler) => {
    const db = await database()
    await db.query(`alter database ${db.name} set default_transaction_isolation = 'repeatable read';
    create table public.seen (level text);
    create function public.seen() returns trigger language plpgsql as 'begin insert into public.seen values (current_setting(''transaction_isolation'')); return null; end';
    create trigger seen after insert or update or delete on pawl.job for each statement execute function public.seen()`)
    const pawl = pawlOf({ databaseUrl: db.url, pooler })
    pawl.jobs.define('mail', { run: () => 1 })
    const { id } = await pawl.jobs.enqueue('mail', {}, { delay: '1h' })
    await pawl.jobs.cancel(id)
    await pawl.jobs.enqueue('mail', {})
    expect((await runAll(pawl)).done).toHaveLength(1)
    expect(await db.query('select distinct level from public.seen')).toEqual([{ level: 'read committed' }])
  },
)

test.each([
  ['our pool', { isBorrowed: false }],
  ['our pool behind a pooler', { isBorrowed: false, pooler: 'transaction' }],
  ["the application's pool", { isBorrowed: true }],
] as const)('a call that waits for a lock ends on the server: %s', async (_title, { isBorrowed, ...more }) => {
  const db = await database()
  const given = isBorrowed ? { pool: poolOf({ connectionString: db.url, max: 2, application_name: 'pawl caller' }) } : {}
  const pawl = pawlOf({ databaseUrl: db.url, ...given, ...more, tuning: { queryTimeoutMs: 1600 } })
  const { id } = await pawl.jobs.enqueue('mail', {}, { delay: '1h' })
  const locker = await db.pool.connect()
  await locker.query('begin; select from pawl.job for update')
  try {
    await expect(pawl.jobs.cancel(id)).rejects.toMatchObject({
      code: 'PAWL_UNAVAILABLE',
      message: expect.stringMatching(/waited .*lock/i),
      cause: { code: '55P03' },
    })
    const waiting = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    expect(await db.query(waiting)).toEqual([])
  } finally {
    await locker.query('rollback')
    locker.release()
  }
  await pawl.jobs.cancel(id)
})

/** A role whose password the test changes, as a service for tokens would. */
async function roleOf(db: TestDatabase): Promise<{ url: string; change: (password: string) => Promise<void> }> {
  const role = `r_${db.name}`
  const change = async (password: string) => void (await db.query(`alter role ${role} password '${password}'`))
  await db.query(`create role ${role} login superuser`)
  onTestFinished(() => db.query(`drop role ${role}`).then(() => undefined))
  const url = new URL(db.url)
  url.username = role
  url.password = ''
  return { url: url.href, change }
}

test('a password function is asked for each connection, the keeper included', async () => {
  const db = await database()
  const { url, change } = await roleOf(db)
  let current = 'one'
  await change(current)
  const password = vi.fn(async () => current)
  const pawl = pawlOf({ databaseUrl: url, password })
  const mail = pawl.jobs.define('mail', { run: () => 1 })
  const worker = pawl.worker({ lease: '2s' })
  await worker.start()
  onTestFinished(() => worker.stop().then(() => undefined))
  current = 'two'
  await change(current)
  const before = password.mock.calls.length
  resetConnections()
  const keepersSql = "select pid from pg_stat_activity where datname = current_database() and application_name = 'pawl keeper'"
  const keeper = await until('the keeper is connected', async () => (await db.query<{ pid: number }>(keepersSql))[0])
  await db.query('select pg_terminate_backend($1)', [keeper.pid])
  const { id } = await pawl.jobs.enqueue(mail, {})
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  await until('the keeper is back', async () =>
    (await db.query<{ pid: number }>(keepersSql)).some(({ pid }) => pid !== keeper.pid),
  )
  expect(password.mock.calls.length).toBeGreaterThan(before)
  expect(worker.id).toBeDefined()
})

test('a password function that fails is a database that cannot be reached', async () => {
  const db = await database()
  const { url } = await roleOf(db)
  const pawl = pawlOf({ databaseUrl: url, password: () => Promise.reject(new Error('no token today')) })
  const failed = { code: 'PAWL_UNAVAILABLE', message: 'The password function failed: no token today.' }
  await expect(pawl.jobs.get('1')).rejects.toMatchObject(failed)
  await expect(pawl.jobs.enqueue('mail', {})).rejects.toMatchObject(failed)
  pawl.jobs.define('mail', { run: () => 1 })
  await expect(pawl.worker().start()).rejects.toMatchObject(failed)
  const nothing = pawlOf({ databaseUrl: url, password: (() => undefined) as never })
  await expect(nothing.jobs.get('1')).rejects.toMatchObject({
    message: expect.stringContaining('it returned a value of type undefined'),
  })
})

test('a password that is wrong is not shown', async () => {
  const db = await database()
  const { url } = await roleOf(db)
  const pawl = pawlOf({ databaseUrl: url, password: 'secret-word' })
  const error: Error = await pawl.jobs.get('1').then(
    () => new Error('it was let in'),
    (refused: Error) => refused,
  )
  expect(error.message).toMatch(/password authentication failed/)
  expect(JSON.stringify([error, error.message, error.stack])).not.toContain('secret-word')
})
