// Projections and sinks through pgbouncer in transaction mode, with a pool smaller than the number of clients.

import { expect, test } from 'vitest'
import { until } from '../support/database.ts'
import { debianProgram } from '../support/debian.ts'
import { startPgBouncer } from '../support/pgbouncer.ts'
import { append, calmRunner, caughtUp, createLog, startRunner } from '../support/projections.ts'

const pgbouncer = await debianProgram('pgbouncer')

test('[K8] projections and sinks work through pgbouncer by polling', {
  timeout: 90_000,
}, async ({ skip }) => {
  if (!pgbouncer.ok) return skip(`missing ${pgbouncer.missing}`)
  const db = await createLog(`
    create table applied (position bigint not null, key text not null);
    create table refreshed (id text primary key, times integer not null)`)
  const bouncer = await startPgBouncer(pgbouncer, db.url, 4)
  const pawl = db.pawl({ databaseUrl: bouncer.url, pooler: 'transaction' })
  const handed: number[] = []
  pawl.projections.define('log', {
    each: (event, tx) => tx.send('insert into applied values ($1, $2)', [event.position, event.key]),
  })
  pawl.projections.define('state', {
    kind: 'state',
    entity: (event) => event.key,
    refresh: (id, tx) =>
      tx.query('insert into refreshed values ($1, 1) on conflict (id) do update set times = refreshed.times + 1', [id]),
  })
  pawl.projections.sink('sink', { handle: (event) => void handed.push(event.position) })
  await startRunner(pawl, calmRunner)
  for (let n = 0; n < 50; n++) await append(db, { key: `k${n % 5}` }, { key: `k${n % 7}` })
  await Promise.all(['log', 'state', 'sink'].map((name) => caughtUp(db, name)))
  await until('everything is refreshed', async () => (await db.query('select from pawl.dirty')).length === 0)
  expect(await db.query('select count(*)::integer as n, count(distinct position)::integer as positions from applied')).toEqual([
    { n: 100, positions: 100 },
  ])
  expect(await db.query('select from refreshed')).toHaveLength(7)
  expect([...handed].sort((a, b) => a - b)).toEqual(Array.from({ length: 100 }, (_, n) => n + 1))
  const token = await append(db, { key: 'last' })
  await pawl.projections.seen('log', token)
})
