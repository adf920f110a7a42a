import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { sql } from '../../test/support/sql.ts'
import { Service } from '../kernel/service.ts'
import { Connection, createPool, type DatabaseOptions } from './driver.ts'
import { type ListenOptions, listen } from './listen.ts'

let db: TestDatabase
let proxy: FaultProxy
beforeEach(async () => {
  db = await createDatabase()
  proxy = await FaultProxy.start(db.url)
})
afterEach(async () => {
  await proxy.stop()
  await db.drop()
})

/** The timeout of what never answers. */
const timeoutMs = 300
/** Long enough for every answer that does come, also on a loaded machine. */
const answerMs = 10_000

function options(more: Partial<DatabaseOptions> = {}): DatabaseOptions {
  const timeouts = { connectTimeoutMs: answerMs, queryTimeoutMs: timeoutMs }
  return { url: proxy.url, pooler: 'none', ...timeouts, applicationName: 'pawl', ...more }
}

/** A machine that is held up holds up both: of two timers of one process the shorter one fires first. */
async function endsWithin(limitMs: number, work: Promise<unknown>): Promise<void> {
  const late = new AbortController()
  const limit = sleep(limitMs, 'late', { signal: late.signal })
  limit.catch(() => undefined)
  expect(await Promise.race([work.then(() => 'in time'), limit])).toBe('in time')
  late.abort()
}

/** With a short timeout an answer may come too late on a loaded machine: asked until it is there. */
function answers(ask: () => Promise<unknown>): Promise<unknown> {
  return until('it answers', () => ask().catch(() => undefined))
}

test('[K9] a half-open engine connection is replaced within the query timeout', async () => {
  const connection = new Connection(options(), 'engine')
  expect(await answers(() => connection.query('select 1 as n'))).toEqual([{ n: 1 }])
  expect(proxy.blackhole(/engine/)).toBeGreaterThan(0)
  const startedMs = performance.now()
  await endsWithin(2 * timeoutMs, expect(connection.query('select 2')).rejects.toThrow(/timeout/i))
  expect(performance.now() - startedMs).toBeGreaterThanOrEqual(timeoutMs - 50)
  expect(await answers(() => connection.query('select 3 as n'))).toEqual([{ n: 3 }])
  await connection.close()
})

test('[K9] a half-open connection rejects everything in flight', async () => {
  const connection = new Connection(options(), 'engine')
  await answers(() => connection.query('select 1'))
  proxy.blackhole(/engine/)
  const asked = Promise.allSettled([connection.query('select 2'), connection.query('select 3'), connection.query('select 4')])
  await endsWithin(2 * timeoutMs, asked)
  expect((await asked).map((answer) => answer.status)).toEqual(['rejected', 'rejected', 'rejected'])
  await connection.close()
})

test('[K9] a server that accepts and stays silent fails within the connect timeout', async () => {
  proxy.blackhole()
  const connection = new Connection(options({ connectTimeoutMs: timeoutMs }), 'engine')
  await endsWithin(2 * timeoutMs, expect(connection.query('select 1')).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE' }))
  proxy.restore()
  expect(await answers(() => connection.query('select 2 as n'))).toEqual([{ n: 2 }])
  await connection.close()
})

test('[K5] a refused login is PAWL_UNAVAILABLE with its reason; a start rejects', async () => {
  const url = new URL(db.url)
  url.password = 'wrong'
  const refused = { code: 'PAWL_UNAVAILABLE', cause: { code: '28P01' } }
  const database = options({ url: url.href, queryTimeoutMs: answerMs })
  const connection = new Connection(database, 'engine')
  await expect(connection.query('select 1')).rejects.toMatchObject(refused)
  await connection.close()
  const pool = createPool(database, 'handler', 1)
  await expect(pool.connect()).rejects.toMatchObject(refused)
  await expect(pool.run(...sql('select 1'))).rejects.toMatchObject(refused)
  await pool.end()
  const pawl = db.pawl({ databaseUrl: url.href })
  pawl.jobs.define('k', { run: () => undefined })
  await expect(pawl.worker().start()).rejects.toMatchObject(refused)
  await expect(pawl.migrate()).rejects.toMatchObject(refused)
  await expect(pawl.jobs.enqueue('k', {})).rejects.toMatchObject(refused)
})

test('[K9] a pooled connection that is half-open is noticed and leaves the pool', async () => {
  const pool = createPool(options(), 'caller', 1)
  await answers(() => pool.run(...sql('select 1')))
  proxy.blackhole(/caller/)
  await endsWithin(2 * timeoutMs, expect(pool.run(...sql('select 2'))).rejects.toThrow(/timeout/i))
  expect(await answers(() => pool.run(...sql('select 3 as n')))).toEqual([{ n: 3 }])
  await pool.end()
})

test('[K9] closing a half-open connection that is idle does not wait for ever', async () => {
  const connection = new Connection(options(), 'engine')
  await answers(() => connection.query('select 1'))
  proxy.blackhole()
  await endsWithin(2 * timeoutMs, connection.close())
})

test("[K9] the server's keepalive is set to find a client that vanished", async () => {
  const connection = new Connection(options({ queryTimeoutMs: answerMs }), 'engine')
  const pool = createPool(options({ queryTimeoutMs: answerMs }), 'handler', 1)
  const settings = "select current_setting('tcp_keepalives_idle') as idle, current_setting('tcp_keepalives_count') as count"
  expect(await connection.query(settings)).toEqual([{ idle: '10', count: '3' }])
  expect(await pool.run(...sql(settings))).toEqual([{ idle: '10', count: '3' }])
  await connection.close()
  await pool.end()
})

/** A listener that finds jobs as a worker does: by a poll after each (re)connect, and by notifications in between. */
function listening(heartbeatMs: number, onSession: ListenOptions['onSession'] = async () => true) {
  const seen: string[] = []
  const stop = new AbortController()
  const { signal } = stop
  const round = async () => {
    await listen({
      database: options({ queryTimeoutMs: answerMs, connectTimeoutMs: 1000 }),
      channels: ['pawl_wake'],
      heartbeatMs,
      signal,
      onNotify: (_channel, payload) => seen.push(`notified ${payload}`),
      onListening: () => seen.push('looked'),
      onSession,
    })
    return 0
  }
  const loop = { succeeded: () => undefined, failed: () => undefined }
  const running = new Service({ round, signal, loop, backoffMs: () => 20 }).run()
  const listener = {
    stop: async () => {
      stop.abort()
      await running
    },
  }
  return { seen, listener, count: (what: string) => seen.filter((each) => each === what).length }
}

async function terminateListener(): Promise<number> {
  return (
    await db.query(
      "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pawl listen' and datname = current_database()",
    )
  ).length
}

test('[K9] a killed LISTEN connection reconnects, catches up, and hears again', async () => {
  const { seen, listener, count } = listening(5000)
  await until('it listens', () => count('looked') === 1)
  expect(await terminateListener()).toBe(1)
  await until('it looked again', () => count('looked') === 2)
  await db.query("select pg_notify('pawl_wake', 'again')")
  await until('it hears again', () => seen.includes('notified again'))
  await listener.stop()
})

test('[K9] a silent LISTEN connection misses its heartbeat, reconnects and catches up', async () => {
  const { seen, listener, count } = listening(300)
  await until('it listens', () => count('looked') > 0)
  const looked = count('looked')
  // New connections fall silent too until the notification is out: the next session may else be there before it, and hear it.
  expect(proxy.blackhole()).toBeGreaterThan(0)
  const silent = proxy.names.length
  // At the latest the next beat is sent after 300 ms, has 300 ms to be answered, and the goodbye has as long.
  await endsWithin(
    4 * 300,
    until('it connects again', () => proxy.names.length > silent),
  )
  await db.query("select pg_notify('pawl_wake', 'missed')")
  proxy.restore()
  await until('it looked again', () => count('looked') > looked)
  expect(seen).not.toContain('notified missed')
  // With so short a heartbeat a slow answer costs it another session, and what is said between two of them is not heard.
  await until('it hears again', async () => {
    await db.query("select pg_notify('pawl_wake', 'heard')")
    return seen.includes('notified heard')
  })
  await listener.stop()
})

test('[K9] a listener whose lock is refused hears, and tries it again', async () => {
  const tried: boolean[] = []
  const holder = await db.pool.connect()
  await holder.query('select pg_advisory_lock(7)')
  const { seen, listener } = listening(500, async (session) => {
    const [row] = await session.run<{ taken: boolean }>(...sql('select pg_try_advisory_lock(7) as taken'))
    tried.push(row!.taken)
    return row!.taken
  })
  await until('it was refused', () => tried.length > 0)
  await until('it hears', async () => {
    await db.query("select pg_notify('pawl_wake', 'heard')")
    return seen.includes('notified heard')
  })
  expect(tried).not.toContain(true)
  await holder.query('select pg_advisory_unlock(7)')
  holder.release()
  await until('it has the lock', () => tried.includes(true))
  await listener.stop()
})

test('[K9] a listener retries while the server refuses, until it is stopped', async () => {
  const { listener, count } = listening(300)
  await until('it listens', () => count('looked') === 1)
  await proxy.refuse()
  proxy.reset(/listen/)
  await until('its connection is gone', () => proxy.names.length === 0)
  await proxy.accept()
  await until('it looked again', () => count('looked') >= 2)
  await proxy.refuse()
  proxy.reset(/listen/)
  await endsWithin(2 * timeoutMs, listener.stop())
})

test('a transaction whose work throws rolls back; otherwise it commits', async () => {
  const pool = createPool(options({ queryTimeoutMs: answerMs }), 'caller', 1, 'own')
  await db.query('create table effect (n integer)')
  const insert = (n: number) => sql('insert into public.effect values ($1::integer) returning n', n)
  expect(await pool.transaction((tx) => tx.run(...insert(1)))).toEqual([{ n: 1 }])
  const failing = pool.transaction(async (tx) => {
    await tx.run(...insert(2))
    await tx.run(...sql('select 1 / 0'))
  })
  await expect(failing).rejects.toMatchObject({ code: '22012' })
  expect(await pool.run(...sql('select n from public.effect'))).toEqual([{ n: 1 }])
  await pool.end()
})

test("options in the URL come before the engine's own settings", async () => {
  const url = `${db.url}?options=${encodeURIComponent('-c search_path=mine -c lock_timeout=1')}&application_name=theirs`
  const connection = new Connection(options({ url, queryTimeoutMs: answerMs }), 'engine')
  const [row] = await connection.query(
    `select current_setting('search_path') as path, current_setting('lock_timeout') as lock_timeout,
       current_setting('enable_seqscan') as seqscan, current_setting('application_name') as name`,
  )
  expect(row).toEqual({ path: 'pg_catalog,pg_temp', lock_timeout: '5s', seqscan: 'off', name: 'theirs engine' })
  await connection.close()
  const handlers = createPool(options({ url, queryTimeoutMs: answerMs }), 'handler', 1)
  expect(await handlers.run(...sql('show search_path'))).toEqual([{ search_path: 'mine' }])
  await handlers.end()
})

test("[K9] a keeper's silent connection costs no lease, however long other connections wait", async () => {
  const direct = db.pawl()
  const pawl = db.pawl({ databaseUrl: proxy.url, tuning: { queryTimeoutMs: 60_000, connectTimeoutMs: 60_000 } })
  pawl.jobs.define('k', { run: () => undefined })
  const worker = pawl.worker({ lease: '1s', tuning: { beatMs: 100 } })
  await worker.start()
  const { id } = worker
  await until('its keeper is there', () => proxy.names.some((name) => /keeper/.test(name)))
  expect(proxy.blackhole(/keeper/)).toBe(1)
  const [silent] = await db.query<{ seen: string }>('select seen_at::text as seen from pawl.worker where id = $1', [id])
  // The silent connection carries no beat: one a whole lease later is of a new connection.
  const renewed = async () => {
    const rows = await db.query(
      "select from pawl.worker where id = $1 and closed_at is null and seen_at > $2::timestamptz + interval '1 second'",
      [id, silent!.seen],
    )
    return rows.length > 0
  }
  await until('the lease has been renewed past its end', renewed)
  expect(worker.id).toBe(id)
  const job = await direct.jobs.enqueue('k', {})
  await until('it works on', async () => (await direct.jobs.get(job.id))?.state === 'done')
  expect(await direct.jobs.get(job.id)).toMatchObject({ holder: id })
  await worker.stop()
})
