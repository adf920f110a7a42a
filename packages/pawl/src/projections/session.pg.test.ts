// What a handler leaves in its session never reaches the next one, and what it met elsewhere counts as its failure.

import { expect, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

test.each(['none', 'transaction'] as const)(
  '[J34] settings, tables and locks end with the handler of a projection (pooler %s)',
  async (pooler) => {
    const db = await createLog()
    const pawl = db.pawl({ pooler })
    const found: unknown[] = []
    const look = `select coalesce(current_setting('app.tenant', true), '') as tenant, to_regclass('pg_temp.left_behind') as temporary,
    (select count(*)::integer from pg_locks where locktype = 'advisory' and objid = 4242) as locks`
    pawl.projections.define('p', {
      batchMax: 1,
      retry: { attempts: 1 },
      each: async (event, tx) => {
        found.push((await tx.query(look)).rows[0])
        await tx.query('create temporary table left_behind (a integer)')
        await tx.query("select pg_advisory_lock(4242), set_config('app.tenant', 'acme', false)")
        if (event.key === 'fails') throw new Error('on purpose')
      },
    })
    await startRunner(pawl, { lease: '60s', lookMs: 50, pollMs: 50, handlerConnectionsMax: 1 })
    for (const key of ['a', 'fails', 'b']) await append(db, { key })
    await caughtUp(db, 'p')
    expect(found).toEqual([1, 2, 3].map(() => ({ tenant: '', temporary: null, locks: 0 })))
  },
)

test.each(['log', 'state'] as const)(
  "[J36] another server's error is a failure of a %s projection's handler, and parks its key",
  async (kind) => {
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
    await until('it is parked', async () => (await pawl.projections.parked('p')).length === 1)
    expect(tries).toBe(2)
  },
)
