// Workers and callers under roles of their own, made by the SQL of docs/guides/roles-and-tenants.md.

import { createPawl, type Pawl, silentLogger } from 'pawl'
import { migrate, readMigrations } from 'pawl/admin'
import { moveClock } from 'pawl/testing'
import pg from 'pg'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { readPage } from '../../../../scripts/page.ts'
import { createDatabase, type TestDatabase, until } from '../../../pawl/test/support/database.ts'
import { startRunner } from '../../../pawl/test/support/projections.ts'
import { startWorker } from '../../../pawl/test/support/records.ts'
import { pawl as cli } from './test-support/cli.ts'
import { faultsIn } from './test-support/faults.ts'

const { sql } = readPage('docs/guides/roles-and-tenants.md')
const roles = ['pawl_owner', 'pawl_worker', 'web', 'app'] as const
type Role = (typeof roles)[number]

let db: TestDatabase
const names = new Map<Role, string>()

/** Roles belong to the whole server, so each test file has its own. */
function ours(text: string): string {
  return text.replace(/\b(?:pawl_owner|pawl_worker|web|app|shop)\b/g, (word) => names.get(word as Role) ?? db.name)
}

function urlOf(role: Role): string {
  const url = new URL(db.url)
  url.username = names.get(role)!
  url.password = 'change me'
  return url.href
}

function pawlOf(role: Role): Pawl {
  const pawl = createPawl({ databaseUrl: urlOf(role), logger: silentLogger })
  onTestFinished(() => pawl.close())
  return pawl
}

async function as<T>(role: Role, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: urlOf(role) })
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

beforeAll(async () => {
  db = await createDatabase({ isEmpty: true })
  for (const role of roles) names.set(role, `${role}_${db.name}`)
  await db.query(ours(sql.get('roles')!))
  expect(await cli(['migrate', '--database-url', urlOf('pawl_owner')])).toMatchObject({ code: 0 })
  await as('pawl_owner', (client) => client.query(ours(sql.get('grants')!)))
  await db.query(
    `create table effect (job bigint primary key); create table total (key text primary key, n integer not null);
     grant insert on effect to ${names.get('pawl_worker')}; grant select, insert, update on total to ${names.get('pawl_worker')}`,
  )
})
afterAll(async () => {
  for (const role of roles) await db.query(`drop owned by ${names.get(role)} cascade`)
  await db.drop()
  const admin = new pg.Client({ connectionString: db.url.replace(db.name, 'postgres') })
  await admin.connect()
  for (const role of roles) await admin.query(`drop role ${names.get(role)}`)
  await admin.end()
})

test('a role that may only enqueue does so alone, bulk, by SQL', async () => {
  const web = pawlOf('web')
  const { id } = await web.jobs.enqueue('effect', {}, { queue: 'other' })
  await web.jobs.enqueueMany('effect', [1, 2], { queue: 'other', delay: '1h' })
  await as('web', async (client) => {
    await client.query('begin')
    await web.jobs.enqueue('effect', {}, { queue: 'other', tx: client })
    await client.query("select pawl.enqueue('effect', '{}', queue => 'other')")
    await client.query('commit')
  })
  expect(await db.query("select count(*)::integer as n from pawl.job where queue = 'other'")).toEqual([{ n: 5 }])
  await db.query("delete from pawl.job where queue = 'other'")
  for (const refused of [() => web.jobs.get(id), () => web.jobs.cancel(id), () => web.jobs.list()])
    await expect(refused()).rejects.toMatchObject({ code: '42501' })
})

test('a role that may only append wakes readers that sleep', async () => {
  const heard: string[] = []
  const listener = await db.pool.connect()
  onTestFinished(() => listener.release(true))
  listener.on('notification', ({ channel }) => heard.push(channel))
  await listener.query('listen pawl_events')
  await db.query("select nextval('pawl.reader_sleeps')")
  const event = { type: 'Added', aggregateType: 'thing', key: 'a', channel: 'unread' }
  await pawlOf('web').events.append(event)
  await until('it is heard', () => heard.length === 1)
  await as('web', (client) => client.query("select pawl.append('Added', 'thing', 'a', channel => 'unread')"))
  await until('it is heard again', () => heard.length === 2)
  await db.query("select setval('pawl.reader_sleeps', 1, false)")
})

test('workers with jobs and cursors, and callers, work under separate roles', async () => {
  const worker = pawlOf('pawl_worker')
  worker.jobs.define('effect', {
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1::bigint)', [job.id])
      await worker.events.append({ type: 'Added', aggregateType: 'thing', key: 'a' }, { tx })
    },
  })
  defineTotal(worker, 1)
  await startWorker(worker)
  await startRunner(worker)
  const { id } = await pawlOf('web').jobs.enqueue('effect', {})
  const app = pawlOf('app')
  await until('the job is done', async () => (await app.jobs.get(id))?.state === 'done')
  await until('its event is projected', async () => (await db.query("select from total where key = 'a'")).length > 0)
  expect(await db.query('select count(*)::integer as n from effect')).toEqual([{ n: 1 }])
  expect((await app.jobs.list({ state: 'done' })).items).toHaveLength(1)
  expect(await app.alerts({ tenant: '*' })).toEqual([])
  expect(faultsIn(await cli(['doctor', '-o', 'json', '--database-url', urlOf('pawl_worker')]))).toEqual([])
})

function defineTotal(pawl: Pawl, generation: number): void {
  pawl.projections.define('total', {
    generation,
    tables: [{ name: 'total', key: ['key'], columns: ['key', 'n'] }],
    each: (event, tx, context) => {
      const add = `insert into ${context.table('total')} as t values ($1::text, 1) on conflict (key) do update set n = t.n + 1`
      tx.send(add, [event.key])
    },
  })
}

test('a rebuild needs the tables of its projection and their schema', async () => {
  const worker = pawlOf('pawl_worker')
  const act = { reason: 'a new release' }
  defineTotal(worker, 2)
  await startRunner(worker)
  await expect(worker.projections.rebuild('total', act)).rejects.toMatchObject({ code: '42501' })
  await db.query(`grant create on schema public to ${names.get('pawl_worker')}`)
  await expect(worker.projections.rebuild('total', act)).rejects.toMatchObject({
    message: expect.stringContaining('must be able to SET ROLE'),
  })
  await db.query(`alter table total owner to ${names.get('pawl_worker')}`)
  await worker.projections.rebuild('total', act)
  expect(await worker.projections.switchTo('total', { ...act, generation: 2 })).toMatchObject({ isEqual: true })
})

/** Days of this table that are not its owner's. */
const strayDays = `
select i.inhrelid::regclass::text as day, c.relowner::regrole::text as owner
from pg_inherits i
join pg_class c on c.oid = i.inhrelid
join pg_class p on p.oid = i.inhparent
where p.relnamespace = 'pawl'::regnamespace
  and c.relowner <> p.relowner`

test("a day that a worker adds is the owner's; migrations change it", async () => {
  const days = () => db.query("select from pg_inherits where inhparent in ('pawl.job_history'::regclass, 'pawl.event'::regclass)")
  const before = await days()
  await as('pawl_owner', (client) => moveClock(client, 10 * 86_400_000))
  await as('pawl_worker', (client) =>
    client.query("select pawl.extend_day_partitions('job_history'), pawl.extend_day_partitions('event')"),
  )
  expect((await days()).length).toBeGreaterThan(before.length)
  expect(await db.query(strayDays)).toEqual([])
  const later = `alter table pawl.job_history add column later integer; alter table pawl.event add column later integer;
    create table pawl.later (id bigint generated always as identity)`
  const step = { name: '9000-later', sql: later, checksum: 'later', isTransactional: true }
  const database = {
    url: urlOf('pawl_owner'),
    pooler: 'none',
    connectTimeoutMs: 10_000,
    queryTimeoutMs: 10_000,
    applicationName: 'pawl test',
  } as const
  expect(await migrate(database, { migrations: [...readMigrations(), step] })).toMatchObject({ applied: ['9000-later'] })
  // Callers need no second grant for what a migration adds.
  await as('app', (client) => client.query('insert into pawl.later default values'))
})
