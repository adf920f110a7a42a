import { readSchema, releasedSchema, type SchemaShape } from 'pawl/admin'
import { moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../../../pawl/test/support/database.ts'
import { compareSchemas, findDrift } from './drift.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

/** Runs each statement by itself, as the report says. */
async function fix(): Promise<void> {
  for (const { fixSql } of await findDrift(db.pool)) for (const one of fixSql.split(/\n\n(?=\S)/)) await db.query(one)
}

test('a freshly migrated database has no drift, whatever the search path is', async () => {
  expect(await findDrift(db.pool)).toEqual([])
  const client = await db.pool.connect()
  try {
    await client.query('set search_path to pawl, public')
    expect(await findDrift(client)).toEqual([])
  } finally {
    client.release()
  }
})

const planted: readonly (readonly [what: string, sql: string, expected: readonly string[]])[] = [
  ['a missing index', 'drop index pawl.job_ready', ['index job_ready']],
  ['a missing partitioned index', 'drop index pawl.job_history_id', ['index job_history_id']],
  ['a changed index', 'drop index pawl.job_ready; create index job_ready on pawl.job (queue, id)', ['index job_ready']],
  ['an extra index', 'create index extra on pawl.job (created_at)', ['index extra']],
  ['a missing unique index', 'drop index pawl.alert_open', ['index alert_open']],
  ['a missing constraint', 'alter table pawl.job drop constraint running_is_held', ['constraint job.running_is_held']],
  [
    'a missing constraint of a partitioned table',
    'alter table pawl.job_history drop constraint outcome_known',
    ['constraint job_history.outcome_known'],
  ],
  ['an extra constraint', "alter table pawl.job add constraint extra check (kind <> 'x')", ['constraint job.extra']],
  [
    'a constraint that was never validated',
    "alter table pawl.job drop constraint suspect_is_not_dead; alter table pawl.job add constraint suspect_is_not_dead check (not suspect or state <> 'dead') not valid",
    ['constraint job.suspect_is_not_dead'],
  ],
  ['a missing primary key', 'alter table pawl.job drop constraint job_pkey', ['constraint job.job_pkey']],
  ['a missing column', 'alter table pawl.job drop column headers', ['column job.headers']],
  ['an extra column', 'alter table pawl.job add column extra text', ['column job.extra']],
  ['another type', 'alter table pawl.job alter column priority type integer', ['column job.priority']],
  ['another collation', 'alter table pawl.job alter column last_error type text collate "POSIX"', ['column job.last_error']],
  ['another default', 'alter table pawl.job alter column fence set default 7', ['column job.fence']],
  ['a default that went', 'alter table pawl.job alter column id drop default', ['column job.id']],
  ['a column that may be null now', 'alter table pawl.job alter column fence drop not null', ['column job.fence']],
  ['an identity that went', 'alter table pawl.alert alter column id drop identity', ['column alert.id']],
  ['an option that was reset', 'alter table pawl.job reset (fillfactor)', ['option job.fillfactor']],
  [
    'a changed function',
    "create or replace function pawl.wake(p_queue text) returns void language sql as 'select null::void'",
    ['function pawl.wake(text)'],
  ],
  ['a missing function', 'drop function pawl.guard_job', ['function pawl.guard_job(text,bigint,bigint)']],
  [
    'a function with other names of its parameters',
    "drop function pawl.wake; create function pawl.wake(q text) returns void language sql as 'select null::void'",
    ['function pawl.wake(text)'],
  ],
  ['a changed sequence', 'alter sequence pawl.fence_serial cache 50', ['sequence fence_serial']],
  ['a missing sequence', 'drop sequence pawl.fence_serial cascade', ['sequence fence_serial', 'function pawl.next_fence()']],
  ['a missing table', 'drop table pawl.once', ['table once']],
  ['a missing partitioned table', 'drop table pawl.job_attempt', ['table job_attempt']],
  [
    'an extra trigger',
    "create function public.f() returns trigger language plpgsql as 'begin return new; end'; create trigger extra before insert on pawl.job for each row execute function public.f()",
    ['trigger job.extra'],
  ],
  [
    'many things at once',
    'drop table pawl.alert cascade; drop sequence pawl.worker_id cascade; drop index pawl.job_held; alter table pawl.job drop column progress',
    ['sequence worker_id', 'table alert', 'column job.progress', 'index job_held', 'column worker.id'],
  ],
]

test.each(planted)('[K10] drift is reported with the SQL that mends it: %s', async (_what, sql, expected) => {
  await db.query("select pawl.enqueue('k', '1')")
  await db.query(sql)
  const found = await findDrift(db.pool)
  expect(found.map(({ what }) => what).sort()).toEqual([...expected].sort())
  await fix()
  expect(await findDrift(db.pool)).toEqual([])
})

test('[K10] an invalid index is drift, and is built anew', async () => {
  await db.query('drop index pawl.alert_open')
  await db.query("insert into pawl.alert (code, subject, message) select 'c', 'same', 'm' from generate_series(1, 2)")
  await expect(
    db.query('create unique index concurrently alert_open on pawl.alert (tenant, code, subject) where resolved_at is null'),
  ).rejects.toMatchObject({ code: '23505' })
  expect(await findDrift(db.pool)).toMatchObject([{ what: 'index alert_open', actual: expect.stringContaining('(invalid)') }])
  await db.query('delete from pawl.alert')
  await fix()
  expect(await findDrift(db.pool)).toEqual([])
})

test('a moved clock is drift: it must not be forgotten in production', async () => {
  await moveClock(db.pool, 1000)
  expect((await findDrift(db.pool)).map(({ what }) => what)).toEqual(['function pawl.now()'])
})

test('what a newer release added is no drift; what it lacks is', async () => {
  await db.query("insert into pawl.migration (name, checksum) values ('9999-later', 'x')")
  await db.query(
    'alter table pawl.job add column later text; create index later on pawl.job (created_at); drop index pawl.job_dead',
  )
  expect((await findDrift(db.pool)).map(({ what }) => what)).toEqual(['index job_dead'])
})

test('a table as a whole can be made from the manifest alone', async () => {
  const released = releasedSchema()
  await db.query('drop schema pawl cascade; create schema pawl')
  const empty: SchemaShape = { tables: {}, functions: {}, sequences: {} }
  for (const { fixSql } of compareSchemas(released, empty)) for (const one of fixSql.split(/\n\n(?=\S)/)) await db.query(one)
  expect(compareSchemas(released, await readSchema(db.pool))).toEqual([])
})
