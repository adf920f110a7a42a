// Append, tick, read and retention through pgbouncer in transaction mode.

import pg from 'pg'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase } from '../../test/support/database.ts'
import { debianProgram } from '../../test/support/debian.ts'
import { LogReader } from '../../test/support/log-readers.ts'
import { startPgBouncer } from '../../test/support/pgbouncer.ts'

const pgbouncer = await debianProgram('pgbouncer')

test('[K8] through a transaction pooler every verb of events works', async ({ skip }) => {
  if (!pgbouncer.ok) return skip(`missing ${pgbouncer.missing}`)
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const bouncer = await startPgBouncer(pgbouncer, db.url, 3)
  const pawl = db.pawl({ databaseUrl: bouncer.url, pooler: 'transaction' })
  const reader = new LogReader(pawl.config.database)
  onTestFinished(() => reader.close())
  const event = (n: number) => ({
    type: 'Counted',
    aggregateType: 'a',
    key: `k${n % 3}`,
    data: { key: `k${n % 3}`, version: n, n },
  })
  await Promise.all(Array.from({ length: 10 }, (_, n) => pawl.events.append(event(n))))
  await pawl.events.append(Array.from({ length: 1500 }, (_, n) => event(10 + n)))
  const client = new pg.Client({ connectionString: bouncer.url })
  await client.connect()
  onTestFinished(() => client.end())
  await client.query('begin')
  await pawl.events.append(event(1510), { tx: client })
  await client.query('commit')
  await client.query('begin')
  await pawl.events.append(event(-1), { tx: client })
  await client.query('rollback')
  await pawl.events.ingest([{ ...event(1511), id: 'x' }], { source: 'outside', position: 1 })
  await reader.catchUp()
  expect(reader.seen.map(({ n }) => n).sort((a, b) => a - b)).toEqual(Array.from({ length: 1512 }, (_, n) => n))
  expect(await pawl.events.erase({ aggregateType: 'a', key: 'k1', reason: 'asked to' })).toEqual({ erased: 504 })
  expect(await pawl.events.audit()).toMatchObject({ isSound: true, head: 1512 })
  expect(await pawl.events.retain()).toEqual({ removed: [], held: undefined })
  expect(await pawl.events.lag()).toMatchObject({ head: 1512, waiting: 0 })
}, 120_000)
