import { once } from 'pawl'
import type pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from './support/database.ts'
import { startRunner } from './support/projections.ts'
import { csv, defineLoads, ended, loadRows, startWorker } from './support/records.ts'

let db: TestDatabase
let intruder: string
beforeAll(async () => {
  db = await createDatabase()
  intruder = `intruder_${db.name}`
  await db.query(
    `create role ${intruder}; grant create on schema public to ${intruder}; create sequence public.sprung;
     grant usage on sequence public.sprung to public; create schema app; create table app.effect (what text);
     create schema early authorization ${intruder}; grant usage on schema early to public`,
  )
  const client = await db.pool.connect()
  try {
    await client.query(`set role ${intruder}`)
    await client.query(trapsSql)
    await client.query(earlyTrapsSql)
  } finally {
    client.release(true)
  }
})
afterAll(async () => {
  await db.query(`drop owned by ${intruder}; drop role ${intruder}`)
  await db.drop()
})

const types = ['bigint', 'integer', 'smallint', 'text', 'jsonb', 'timestamptz', 'interval', 'xid8', 'bigint[]', 'text[]']
const comparisons = ['=', '<>', '<', '<=', '>', '>=', '&&', '@>', '<@']
const arithmetic = ['&', '|', '<<', '+', '-', '*', '/', '||', '->', '->>']
/** Functions of the catalogue that take any type, so that one for the very type is the better match; and an exact one, which is not. */
const functions = [
  'pg_column_size',
  'cardinality',
  'unnest',
  'count',
  'array_agg',
  'jsonb_agg',
  'to_jsonb',
  'jsonb_build_array',
  'length',
  'now',
]

/** An operator for each pair of types that the catalogue has none for, and functions. Whoever runs one of them is caught. */
const trapsSql = `
do $do$
declare
  v_types text[] := '{${types.join(',')}}';
  v_operators text[] := array[${[...comparisons, ...arithmetic].map((name) => `'${name}'`).join(', ')}];
  v_body text := $b$ begin perform pg_catalog.nextval('public.sprung'); raise exception 'a trap ran as %', current_user; end $b$;
  l text;
  r text;
  o text;
begin
  foreach l in array v_types loop
    foreach r in array v_types loop
      execute pg_catalog.format('create function public.trap(%1$s, %2$s) returns %1$s language plpgsql as %3$L', l, r, v_body);
      execute pg_catalog.format('create function public.trap_test(%s, %s) returns boolean language plpgsql as %L', l, r, v_body);
      foreach o in array v_operators loop
        if pg_catalog.to_regoperator(pg_catalog.format('pg_catalog.%s(%s,%s)', o, l, r)) is null then
          execute pg_catalog.format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.%s)', o, l, r,
            case when o = any ('{${comparisons.map((name) => `"${name}"`).join(',')}}') then 'trap_test' else 'trap' end);
        end if;
      end loop;
    end loop;
    foreach o in array '{${functions.join(',')}}'::text[] loop
      execute pg_catalog.format('create function public.%I(%s) returns integer language plpgsql as %L', o, l, v_body);
    end loop;
  end loop;
end
$do$`

/** In a schema that stands before the catalogue even operators and functions with the types of the catalogue's own are found first. */
const earlyTrapsSql = `
do $do$
declare
  v_body text := $b$ begin perform pg_catalog.nextval('public.sprung'); raise exception 'a trap ran as %', current_user; end $b$;
  t text;
  o text;
begin
  foreach t in array '{bigint,integer,text,oid,timestamptz}'::text[] loop
    execute pg_catalog.format('create function early.trap(%1$s, %1$s) returns boolean language plpgsql as %2$L', t, v_body);
    foreach o in array '{=,<>,<,>=}'::text[] loop
      execute pg_catalog.format('create operator early.%1$s (leftarg = %2$s, rightarg = %2$s, function = early.trap)', o, t);
    end loop;
  end loop;
  foreach o in array array['current_setting(text)', 'set_config(text, text, boolean)', 'pg_advisory_unlock_all()', 'pg_my_temp_schema()'] loop
    execute pg_catalog.format('create function early.%s returns text language plpgsql as %L', o, v_body);
  end loop;
end
$do$`

/** Nothing that ran so far has met a trap, not even where its error was caught. */
async function assertNoTrapRan(): Promise<void> {
  expect(await db.query('select pg_sequence_last_value($1::regclass) as sprung', ['public.sprung'])).toEqual([{ sprung: null }])
}
afterEach(assertNoTrapRan)

const poolers = ['none', 'transaction'] as const

/** In a transaction of the caller's, whose path has the traps. */
async function inTx<T>(work: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    const answer = await work(client)
    expect((await client.query('show search_path')).rows).toEqual([{ search_path: 'public' }])
    await client.query('commit')
    return answer
  } finally {
    client.release(true)
  }
}

/** They name the schema of every operator, function and type instead; the test with a schema before the catalogue runs them. */
const qualified = ['pawl.complete_job(text,bigint,bigint,jsonb,integer,jsonb)', 'pawl.reset_session(boolean)']

test('every function of ours fixes its search path', async () => {
  const open = await db.query(
    `select p.oid::regprocedure::text as function
     from pg_proc p
     where p.pronamespace = 'pawl'::regnamespace
       and p.prosqlbody is null
       -- An aggregate has no body: its functions are checked by themselves.
       and p.prokind <> 'a'
       and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)
     order by 1`,
  )
  expect(open).toEqual(qualified.map((name) => ({ function: name })))
})

test("the traps are there: plain SQL of the owner's runs one", async () => {
  const client = await db.pool.connect()
  await expect(client.query("select nextval('pawl.fence_serial') & 1")).rejects.toMatchObject({ message: /a trap ran as/ })
  await client.query("select setval('public.sprung', 1, false)")
  client.release()
})

test.each(poolers)('enqueue, append and changes run no operator of another role (pooler: %s)', async (pooler) => {
  const pawl = db.pawl({ pooler })
  const later = `later ${pooler}`
  const placed = { type: 'Placed', aggregateType: 'order', key: pooler, data: { total: 7 } }
  const { id } = await pawl.jobs.enqueue(later, { a: 1 }, { delay: '1h' })
  await pawl.jobs.enqueueMany(later, [1, 2, 3], { delay: '1h' })
  await pawl.events.append(placed)
  await inTx(async (tx) => {
    await pawl.jobs.enqueueMany(later, [{}, {}], { tx, priority: 5 })
    await pawl.events.append([placed, placed], { tx })
    await pawl.events.ingest([{ ...placed, id: '1' }], { tx, source: pooler, position: 1 })
    expect(await once(tx, { namespace: 'n', key: pooler, ttl: '1h' }, () => 'first')).toEqual({ isFirst: true, result: 'first' })
    expect(await once(tx, { namespace: 'n', key: pooler }, () => 'second')).toEqual({ isFirst: false, result: 'first' })
    expect(await pawl.jobs.retry(id, { tx })).toEqual({ revision: 2 })
    expect(await pawl.jobs.cancel(id, { tx, reason: "it's over" })).toEqual({ was: 'ready' })
    expect(await pawl.events.erase({ tx, aggregateType: 'order', key: pooler, reason: 'asked' })).toEqual({ erased: 4 })
  })
  expect(await db.query('select outcome, reason from pawl.job_history where id = $1', [id])).toEqual([
    { outcome: 'cancelled', reason: "it's over" },
  ])
  await db.query("select pawl.enqueue($1, '{}', delay => '1 hour'), pawl.append('Placed', 'order', '2')", [later])
  expect((await pawl.jobs.list({ kind: later })).items).toHaveLength(6)
  expect(await pawl.jobs.why(id)).toBeDefined()
  expect(await pawl.alerts()).toEqual([])
  expect(await pawl.events.lag()).toMatchObject({ head: 0 })
})

test.each(poolers)('claim and settle run no operator of another role (pooler: %s)', async (pooler) => {
  const url = `${db.url}?options=${encodeURIComponent('-c search_path=app,public')}`
  const pawl = db.pawl({ databaseUrl: url, pooler })
  const paths: unknown[] = []
  pawl.jobs.define('alone', {
    tx: async (_job, tx) => {
      paths.push(...(await tx.query('show search_path')).rows)
      await tx.query("insert into effect values ('alone')")
    },
  })
  pawl.jobs.define('shared', {
    share: 8,
    tx: async (_job, tx) => {
      await tx.query("insert into effect values ('shared')")
    },
  })
  let failures = 0
  pawl.jobs.define('run', {
    retry: { initialMs: 1, jitter: false },
    run: async (_job, { touch }) => {
      await touch({ done: 1 })
      if (failures++ === 0) throw new Error('once')
      return { ok: true }
    },
  })
  await db.query('truncate app.effect')
  const worker = await startWorker(pawl)
  const ids = [
    (await pawl.jobs.enqueue('alone', {})).id,
    (await pawl.jobs.enqueue('run', {}, { priority: 3 })).id,
    ...(await pawl.jobs.enqueueMany('shared', [1, 2, 3, 4])).ids,
  ]
  for (const id of ids) await until(`job ${id} is done`, async () => (await pawl.jobs.get(id))?.state === 'done')
  await worker.stop()
  expect(await db.query('select what, count(*)::int as n from app.effect group by 1 order by 1')).toEqual([
    { what: 'alone', n: 1 },
    { what: 'shared', n: 4 },
  ])
  expect(paths).toEqual([{ search_path: 'app,public' }])
})

test('statements around a handler run no operator from the search path', async () => {
  const path = 'early,pg_catalog,public'
  const pawl = db.pawl({ databaseUrl: `${db.url}?options=${encodeURIComponent(`-c search_path=${path}`)}` })
  const paths: unknown[] = []
  pawl.jobs.define<{ how: 'plain' | 'completes' | 'fails' }>('early', {
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      paths.push(...(await tx.query('show search_path')).rows)
      await tx.query('create temporary table left_behind (a integer)')
      if (job.payload.how === 'completes') await job.complete(tx)
      if (job.payload.how === 'fails') throw new Error('on purpose')
    },
  })
  const worker = await startWorker(pawl)
  const hows = ['plain', 'completes', 'fails', 'plain'] as const
  for (const how of hows) await pawl.jobs.enqueue('early', { how })
  await until('all have ended', () => worker.metrics().done + worker.metrics().dead === hows.length)
  expect(worker.metrics()).toMatchObject({ done: 3, dead: 1 })
  expect(paths).toEqual(hows.map(() => ({ search_path: path })))
  await worker.stop()
})

test('the traps before the catalogue are there', async () => {
  const client = await db.pool.connect()
  await client.query('set search_path = early, pg_catalog')
  for (const sql of ["select 'a'::text = 'b'", "select current_setting('role')"])
    await expect(client.query(sql)).rejects.toMatchObject({ message: /a trap ran as/ })
  client.release(true)
  await db.query("select setval('public.sprung', 1, false)")
})

test.each(poolers)('records run no operator of another role (pooler: %s)', async (pooler) => {
  const pawl = db.pawl({ pooler })
  const scope = pawl.records.in(defineLoads(pawl, { events: 'record' }), { organisation: '17', registration: pooler })
  await startWorker(pawl)
  const upload = await scope.upload(csv(loadRows(5)), { format: 'csv' })
  await pawl.records.submit(upload.id)
  expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted' })
  await inTx(async (tx) => {
    expect(await scope.put({ data: loadRows(1)[0]! }, { tx })).toMatchObject({ unchanged: 1 })
    expect(await scope.put({ data: { ...loadRows(1)[0]!, note: 'new' } }, { tx })).toMatchObject({ updated: 1, number: '2' })
    expect(await scope.erase('load', 'row-1', { reason: 'asked', tx })).toEqual({ versions: 1 })
  })
  const next = await scope.upload(csv(loadRows(6)), { format: 'csv' })
  await inTx((tx) => pawl.records.submit(next.id, { tx }))
  expect(await ended(pawl, next.id)).toMatchObject({ state: 'submitted' })
  expect((await scope.list()).items).toHaveLength(6)
  expect(await scope.audit()).toMatchObject({ isSound: true })
})

test.each(poolers)('projections run no operator of another role (pooler: %s)', async (pooler) => {
  const url = `${db.url}?options=${encodeURIComponent('-c search_path=app,public')}`
  const pawl = db.pawl({ databaseUrl: url, pooler })
  const total = `total_${pooler}`
  await db.query(`create table app.${total} (key text primary key, n integer not null)`)
  const define = (generation: number) =>
    pawl.projections.define(total, {
      generation,
      channel: total,
      tables: [{ name: total, key: ['key'], columns: ['key', 'n'] }],
      each: (event, tx, context) => {
        if (event.key === 'bad') throw new Error('bad')
        tx.send(
          `insert into ${context.table(total)} values ($1::text, 1) on conflict (key) do update set n = excluded.n operator(pg_catalog.+) 1`,
          [event.key],
        )
      },
      retry: { attempts: 1 },
    })
  define(1)
  const first = await startRunner(pawl)
  const { token } = await pawl.events.append(
    ['a', 'bad', 'b'].map((key) => ({ type: 'Placed', aggregateType: 'order', key, channel: total })),
  )
  await expect(pawl.projections.seen(total, token)).rejects.toMatchObject({ code: 'PAWL_PARKED' })
  await until('the key is parked', async () => (await pawl.projections.parked(total)).items.length === 1)
  const act = { reason: 'because' }
  await first.stop()
  define(2)
  await startRunner(pawl)
  await pawl.projections.rebuild(total, act)
  expect(await pawl.projections.switchTo(total, { ...act, generation: 2 })).toMatchObject({
    isEqual: true,
    tables: [{ table: total, rows: 2 }],
  })
  await pawl.projections.retire(total, { ...act, generation: 1 })
  expect(await db.query(`select key, n from app.${total} order by key`)).toEqual([
    { key: 'a', n: 1 },
    { key: 'b', n: 1 },
  ])
})
