import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
  await db.query("select pawl.raise_alert('', 'a.code', subject, 'broken') from unnest(array['one', 'two']) subject")
})
afterEach(() => db.drop())

const seen = 'select array_agg(tenant), array_agg(id), array_agg(count) from pawl.alert'
const open = () => db.query('select subject, count from pawl.alert where resolved_at is null order by subject')

async function resolve(wait: boolean): Promise<unknown[]> {
  const [alerts] = await db.query<{ tenants: string[]; ids: string[]; counts: string[] }>(
    `with seen(tenants, ids, counts) as (${seen}) select * from seen`,
  )
  await db.query("select pawl.raise_alert('', 'a.code', 'two', 'broken')")
  const { tenants, ids, counts } = alerts!
  return db.query('select * from pawl.resolve_alerts($1::text[], $2::bigint[], $3::bigint[], $4)', [tenants, ids, counts, wait])
}

test.each([false, true])('an alert raised since it was read stays open (wait: %s)', async (wait) => {
  expect(await resolve(wait)).toEqual([{ code: 'a.code', subject: 'one' }])
  expect(await open()).toMatchObject([{ subject: 'two' }])
})

test('resolving skips an alert that another transaction is raising', async () => {
  const raiser = await db.pool.connect()
  await raiser.query('begin')
  await raiser.query("select pawl.raise_alert('', 'a.code', 'one', 'again')")
  const resolved = await db.query(
    `with seen(tenants, ids, counts) as (${seen}) select r.subject from seen, pawl.resolve_alerts(tenants, ids, counts) r`,
  )
  expect(resolved).toEqual([{ subject: 'two' }])
  await raiser.query('rollback')
  raiser.release()
  expect(await open()).toMatchObject([{ subject: 'one' }])
})

test('an audit row keeps strings within the bounds of its table', async () => {
  await db.query(
    "select pawl.write_audit('acme', repeat('a', 300), 'events.erase', repeat('s', 600), repeat('r', 3000), '{\"n\": 1}')",
  )
  expect(
    await db.query(
      'select tenant, length(actor) as actor, action, length(subject) as subject, length(reason) as reason, detail from pawl.audit',
    ),
  ).toEqual([{ tenant: 'acme', actor: 200, action: 'events.erase', subject: 500, reason: 2000, detail: { n: 1 } }])
})
