import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from './support/database.ts'

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
})
afterAll(() => db.drop())

/** Which migrations were applied is a fact about the database and not about a tenant. */
const withoutTenant = ['migration']

const keysSql = `
  select c.relname as table, k.relname as name, i.indisunique as is_unique,
    array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality u(attnum, n)
      join pg_attribute a on a.attrelid = c.oid and a.attnum = u.attnum order by u.n) as columns
  from pg_index i
  join pg_class c on c.oid = i.indrelid
  join pg_class k on k.oid = i.indexrelid
  join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
  where i.indisunique and not c.relispartition
  order by 1, 2`

const foreignKeysSql = `
  select c.relname as table, f.conname as name,
    array(select a.attname::text from unnest(f.conkey) with ordinality u(attnum, n)
      join pg_attribute a on a.attrelid = f.conrelid and a.attnum = u.attnum order by u.n) as columns,
    array(select a.attname::text from unnest(f.confkey) with ordinality u(attnum, n)
      join pg_attribute a on a.attrelid = f.confrelid and a.attnum = u.attnum order by u.n) as targets
  from pg_constraint f
  join pg_class c on c.oid = f.conrelid
  join pg_namespace n on n.oid = f.connamespace and n.nspname = 'pawl'
  where f.contype = 'f' and f.conparentid = 0`

interface Key {
  readonly table: string
  readonly name: string
  readonly columns: readonly string[]
  readonly targets?: readonly string[]
}

const crossing = (keys: readonly Key[]) =>
  keys
    .filter(({ table }) => !withoutTenant.includes(table))
    .filter(({ columns, targets }) => columns[0] !== 'tenant' || (targets !== undefined && targets[0] !== 'tenant'))
    .map(({ table, name }) => `${table}.${name}`)

test('[K13] every table has a tenant that is never null and compares bytes', async () => {
  const rows = await db.query<{ table: string; tenant: string | null }>(
    `select c.relname as table,
       (select format('%s collate %s%s', format_type(a.atttypid, a.atttypmod), l.collname, case when a.attnotnull then ' not null' else '' end)
        from pg_attribute a join pg_collation l on l.oid = a.attcollation
        where a.attrelid = c.oid and a.attname = 'tenant') as tenant
     from pg_class c
     join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
     where c.relkind in ('r', 'p')
     order by 1`,
  )
  expect(rows.length).toBeGreaterThan(8)
  expect(rows.filter(({ tenant }) => tenant !== 'text collate C not null').map(({ table }) => table)).toEqual(withoutTenant)
})

test('[K13] no unique key crosses tenants: each begins with the tenant', async () => {
  const keys = await db.query<Key>(keysSql)
  expect(keys.length).toBeGreaterThan(5)
  expect(crossing(keys)).toEqual([])
})

test('[K13] every foreign key begins with the tenant on both sides', async () => {
  expect(crossing(await db.query<Key>(foreignKeysSql))).toEqual([])
})

test('[K13] the look at the catalogue finds keys that cross', async () => {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await client.query(`create unique index crosses on pawl.job (kind, fence);
      create table pawl.child (tenant text collate "C" not null, parent_tenant text collate "C", job_id bigint, primary key (job_id),
        constraint crosses foreign key (parent_tenant, job_id) references pawl.job (tenant, id))`)
    expect(crossing((await client.query<Key>(keysSql)).rows)).toEqual(['child.child_pkey', 'job.crosses'])
    expect(crossing((await client.query<Key>(foreignKeysSql)).rows)).toEqual(['child.crosses'])
  } finally {
    await client.query('rollback')
    client.release()
  }
})
