// What a handler leaves in its session never reaches the next one, and what it met elsewhere counts as its failure.

import type { Tx } from 'pawl'
import { expect, onTestFinished, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

test.each(['none', 'transaction'] as const)(
  "[J34] settings, tables and locks end with a projection's handler (pooler %s)",
  async (pooler) => {
    const db = await createLog()
    const pawl = db.pawl({ pooler })
    const found: unknown[] = []
    const look = `select coalesce(current_setting('app.tenant', true), '') as tenant, to_regclass('pg_temp.left_behind') as temporary,
    (select count(*)::integer from pg_locks where locktype = 'advisory' and objid = 4242) as locks`
    pawl.projections.define('p', {
      retry: { attempts: 1 },
      each: async (event, tx) => {
        found.push((await tx.query(look)).rows[0])
        await tx.query('create temporary table left_behind (a integer)')
        await tx.query("select pg_advisory_lock(4242), set_config('app.tenant', 'acme', false)")
        if (event.key === 'fails') throw new Error('on purpose')
      },
      tuning: { batchMax: 1 },
    })
    await startRunner(pawl, { lease: '60s', tuning: { pollMs: 50, handlerConnectionsMax: 1 } })
    for (const key of ['a', 'fails', 'b']) await append(db, { key })
    await caughtUp(db, 'p')
    expect(found).toEqual([1, 2, 3].map(() => ({ tenant: '', temporary: null, locks: 0 })))
  },
)

test.each(['commit', 'rollback'] as const)('[K8] through a pooler the reset follows the %s in its session', async (end) => {
  const db = await createLog()
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const pawl = db.pawl({ databaseUrl: proxy.url, pooler: 'transaction' })
  let tries = 0
  pawl.projections.define('p', {
    retry: { attempts: 1 },
    each: () => {
      if (++tries === 1 && end === 'rollback') throw new Error('on purpose')
    },
  })
  await startRunner(pawl)
  // One text, or statements with one Sync: a pooler gives the session to another only after that.
  const { happened } = proxy.loseReply(
    end === 'commit' ? /^commit\nselect pawl.reset_session/ : /^rollback; select pawl.reset_session/,
  )
  await append(db, { key: 'a' })
  await happened
  await caughtUp(db, 'p')
})

test.each([
  ['log', 'none'],
  ['log', 'transaction'],
  ['state', 'none'],
  ['state', 'transaction'],
] as const)('[J34] a %s projection commits durably although the database does not (pooler %s)', async (kind, pooler) => {
  const db = await createLog(`
    create table effect (what text);
    create table committed (level text);
    create function note() returns trigger language plpgsql set search_path from current as $$
    begin
      insert into committed values (current_setting('synchronous_commit'));
      return null;
    end $$;
    create constraint trigger noted after insert on effect deferrable initially deferred for each row execute function note()`)
  await db.query(`alter database ${db.name} set synchronous_commit = off`)
  const pawl = db.pawl({ pooler })
  const write = async (tx: Tx) => void (await tx.query("insert into effect values ('a')"))
  if (kind === 'log') pawl.projections.define('p', { each: (_, tx) => write(tx) })
  else pawl.projections.define('p', { kind, entity: ({ key }) => key, refresh: (_, tx) => write(tx) })
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it is applied', async () => (await db.query('select from committed')).length === 1)
  expect(await db.query('select level from committed')).toEqual([{ level: 'on' }])
})

test.each(['log', 'state'] as const)("[J36] another server's error in a %s handler parks its key", async (kind) => {
  const db = await createLog()
  const pawl = db.pawl()
  let tries = 0
  const handle = () => {
    tries++
    throw Object.assign(new Error('cannot execute INSERT in a read-only transaction'), { code: '25006' })
  }
  const options = { retry: { attempts: 2, initialMs: 1, factor: 1, jitter: false } }
  if (kind === 'log') pawl.projections.define('p', { ...options, each: handle })
  else pawl.projections.define('p', { ...options, kind, entity: ({ key }) => key, refresh: handle })
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it is parked', async () => (await pawl.projections.parked('p')).items.length === 1)
  expect(tries).toBe(2)
})
