import { createPawl, silentLogger } from 'pawl'
import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import type { DatabaseOptions } from './driver.ts'
import { exportSql, type Migration, migrate, readMigrations } from './migrate.ts'
import { readSchema, releasedSchema } from './schema.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase({ isEmpty: true })
})
afterEach(() => db.drop())

const released = readMigrations().map((migration) => migration.name)

function options(url = db.url): DatabaseOptions {
  return { url, pooler: 'none', connectTimeoutMs: 10_000, queryTimeoutMs: 60_000, applicationName: 'pawl test' }
}

/** The released migrations and one more. */
function withStep(sql: string): Migration[] {
  return [
    ...readMigrations(),
    { name: '9000-step', sql, checksum: 'x', isTransactional: !sql.startsWith('-- pawl: no transaction') },
  ]
}

const ledger = async () =>
  (await db.query<{ name: string }>('select name from pawl.migration order by name')).map(({ name }) => name)
const invalidIndexes = () => db.query('select indexrelid::regclass::text as name from pg_index where not indisvalid')

test('[K10] a failed transactional step changes nothing, and can be repeated', async () => {
  await migrate(options())
  const before = await readSchema(db.pool)
  const bad = withStep('create table pawl.half (n int); alter table pawl.job add column half int; select 1 / 0;')
  await expect(migrate(options(), { migrations: bad })).rejects.toMatchObject({ code: '22012' })
  expect(await readSchema(db.pool)).toEqual(before)
  expect(await ledger()).toEqual(released)
  const mended = withStep('create table pawl.half (n int); alter table pawl.job add column half int;')
  expect(await migrate(options(), { migrations: mended })).toMatchObject({ applied: ['9000-step'] })
  expect(await migrate(options(), { migrations: mended })).toMatchObject({ applied: [] })
})

test('[K10] a failed first migration leaves nothing half-made', async () => {
  const [first, ...rest] = readMigrations()
  const bad = [{ ...first!, sql: `${first!.sql}\nselect 1 / 0;` }, ...rest]
  await expect(migrate(options(), { migrations: bad })).rejects.toMatchObject({ code: '22012' })
  expect(await ledger()).toEqual([])
  expect(Object.keys((await readSchema(db.pool)).tables)).toEqual(['migration'])
  expect(await migrate(options())).toMatchObject({ applied: released })
})

const concurrently = `-- pawl: no transaction
create unique index concurrently if not exists step_kind on pawl.job (tenant, kind);
create index concurrently if not exists step_created on pawl.job (created_at);
`

test('[K10] a failed step without a transaction leaves no invalid index', async () => {
  await migrate(options())
  await db.query("select pawl.enqueue('same'), pawl.enqueue('same')")
  await expect(migrate(options(), { migrations: withStep(concurrently) })).rejects.toMatchObject({ code: '23505' })
  expect(await invalidIndexes()).toEqual([])
  expect(await ledger()).toEqual(released)
  await expect(migrate(options(), { migrations: withStep(concurrently) })).rejects.toMatchObject({ code: '23505' })
  await db.query('delete from pawl.job')
  expect(await migrate(options(), { migrations: withStep(concurrently) })).toMatchObject({ applied: ['9000-step'] })
  expect(await invalidIndexes()).toEqual([])
  expect(await db.query("select relname as name from pg_class where relkind = 'i' and relname like 'step%' order by 1")).toEqual([
    { name: 'step_created' },
    { name: 'step_kind' },
  ])
})

test('[K10] an invalid index that a killed process left is built anew', async () => {
  await migrate(options())
  await db.query("select pawl.enqueue('same'), pawl.enqueue('same')")
  await expect(db.query('create unique index concurrently step_kind on pawl.job (tenant, kind)')).rejects.toMatchObject({
    code: '23505',
  })
  expect(await invalidIndexes()).toHaveLength(1)
  await db.query('delete from pawl.job')
  await migrate(options(), { migrations: withStep(concurrently) })
  expect(await invalidIndexes()).toEqual([])
  expect(await db.query("select indisunique from pg_index where indexrelid = 'pawl.step_kind'::regclass")).toEqual([
    { indisunique: true },
  ])
})

test('[K10] a step that waits for a lock lets others pass', async () => {
  await migrate(options())
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await client.query('lock table pawl.job in row exclusive mode')
    const begun = deferred()
    const migrated = migrate(options(), {
      migrations: withStep('alter table pawl.job add column step int;'),
      lockTimeoutMs: 100,
      onStep: () => begun.resolve(),
    })
    await begun.promise
    await until('it waits for the lock', async () => {
      const [row] = await db.query<{ n: number }>(
        "select count(*)::int as n from pg_locks where not granted and relation = 'pawl.job'::regclass",
      )
      return row!.n > 0
    })
    await db.query("select pawl.enqueue('k')")
    await client.query('commit')
    expect(await migrated).toMatchObject({ applied: ['9000-step'] })
  } finally {
    client.release()
  }
})

test.each(['', '-- pawl: no transaction\n'])('[K10] a step longer than the query timeout is not cut off (%j)', async (mark) => {
  await migrate(options())
  // The limit holds for every other statement of the migration, also on a machine that is slow for a moment.
  const impatient = { ...options(), queryTimeoutMs: 1500 }
  expect(await migrate(impatient, { migrations: withStep(`${mark}select pg_sleep(1.8);`) })).toMatchObject({
    applied: ['9000-step'],
  })
})

test('[K10] a migration that was edited after it was applied is refused', async () => {
  await migrate(options())
  const edited = readMigrations().map((migration, index) => (index === 0 ? { ...migration, checksum: 'another' } : migration))
  await expect(migrate(options(), { migrations: edited })).rejects.toMatchObject({ code: 'PAWL_SCHEMA_DRIFT' })
})

/** A role that may connect and nothing else. Roles belong to the server, so its name is this database's. */
async function limitedUrl(): Promise<{ role: string; url: string; end: () => Promise<void> }> {
  const role = `role_${db.name}`
  await db.query(`create role ${role} login password 'limited'`)
  const url = new URL(db.url)
  url.username = role
  url.password = 'limited'
  const end = async () => {
    await db.query(`drop owned by ${role}`)
    await db.query(`drop role ${role}`)
  }
  return { role, url: url.href, end }
}

/** As psql would: one statement after another, those of a step without a transaction by themselves. */
async function runScript(sql: string): Promise<void> {
  const client = new pg.Client({ connectionString: db.url })
  await client.connect()
  try {
    for (const part of sql.split(/^(?=-- \d{4}-)/m)) {
      if (!part.includes(': run outside a transaction')) await client.query(part)
      else for (const one of part.split(/;\s*\n/)) if (one.trim() !== '') await client.query(one)
    }
  } finally {
    await client.end()
  }
}

test('[K10] a role without DDL rights gets the SQL to run', async () => {
  const { role, url, end } = await limitedUrl()
  try {
    const refused = await migrate(options(url)).then(
      () => undefined,
      (error: unknown) => error as { code: string; message: string; details: { sql: string } },
    )
    expect(refused).toMatchObject({ code: 'PAWL_SCHEMA_MISSING', message: expect.stringContaining('details.sql') })
    // Without the sequences it could not enqueue.
    expect(refused!.message).toMatch(/usage on schema pawl, DML on its tables, usage on its sequences/)
    await runScript(refused!.details.sql)
    expect(await readSchema(db.pool)).toEqual(releasedSchema())
    await db.query(`grant usage on schema pawl to ${role}; grant select, insert, update, delete on all tables in schema pawl to ${role};
      grant usage on all sequences in schema pawl to ${role}`)
    expect(await migrate(options(url))).toEqual({ applied: [], alreadyThere: released })
    const pawl = createPawl({ databaseUrl: url, logger: silentLogger })
    pawl.jobs.define('k', { run: async () => 'ran' })
    const { id } = await pawl.jobs.enqueue('k', {})
    const worker = pawl.worker()
    await worker.start()
    await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
    await worker.stop()
    await pawl.close()
  } finally {
    await end()
  }
})

test('[K10] a role without DDL rights gets only the missing steps', async () => {
  await migrate(options())
  const { role, url, end } = await limitedUrl()
  try {
    await db.query(`grant usage on schema pawl to ${role}; grant select on pawl.migration to ${role}`)
    const refused = await migrate(options(url), { migrations: withStep('alter table pawl.job add column step int;') }).then(
      () => undefined,
      (error: unknown) => error as { code: string; details: { sql: string } },
    )
    expect(refused).toMatchObject({ code: 'PAWL_SCHEMA_MISSING' })
    await runScript(refused!.details.sql)
    expect(await ledger()).toEqual([...released, '9000-step'])
  } finally {
    await end()
  }
})

test('[K10] the exported SQL makes the same schema, steps without a transaction included', async () => {
  await runScript(exportSql(withStep(concurrently)))
  expect(await ledger()).toEqual([...released, '9000-step'])
  expect(await migrate(options(), { migrations: withStep(concurrently) })).toMatchObject({ applied: [] })
})
