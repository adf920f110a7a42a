// What handlers send often is prepared under a name. No handler may notice, whatever happens to the tables.

import type { Pawl } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { StatementNames } from '../db/statement.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(() => db.drop())

const nothing = (count: number) => Array.from({ length: count }, () => ({}))

test('a statement gets a name after some uses; names are never reused', () => {
  const names = new StatementNames()
  const of = (text: string, uses: number) => Array.from({ length: uses }, () => names.of(text)).at(-1)
  expect(of('select 1', 4)).toBeUndefined()
  const name = of('select 1', 1)
  expect(name).toBeDefined()
  expect(of('select 1', 1)).toBe(name)
  for (let n = 0; n < 5000; n++) expect(names.of(`select ${n} -- made up anew`)).toBeUndefined()
  const given = new Set(Array.from({ length: 200 }, (_, n) => of(`often ${n}`, 10)))
  expect(given.size).toBe(100)
  names.forget()
  expect(of('select 1', 5)).not.toBe(name)
})

test('[J2] a column added while workers run costs no attempt', async () => {
  await db.query('create table shape (a integer)')
  await db.query('insert into shape values (1)')
  const connections = 8
  let everyone = deferred()
  let arrived = 0
  let isCrowded = true
  const widths: number[] = []
  const named: number[] = []
  pawl.jobs.define('reads', {
    retry: { attempts: 1 },
    tx: async (_job, tx) => {
      const { rows } = await tx.query<object>('select * from shape where $1::integer is not null', [1])
      widths.push(Object.keys(rows[0]!).length)
      named.push((await tx.query("select from pg_prepared_statements where name like 'pawl_handler_%'")).rows.length)
      // No handler returns before all have started, so each has a connection of its own.
      if (++arrived % connections === 0) everyone.resolve()
      if (isCrowded) await everyone.promise
    },
  })
  const worker = pawl.worker({ concurrency: connections })
  await worker.start()
  for (let round = 0; round < 3; round++) {
    everyone = deferred()
    await pawl.jobs.enqueueMany('reads', nothing(connections))
    await worker.whenIdle()
  }
  expect(named.slice(-connections)).toEqual(nothing(connections).map(() => 1))
  isCrowded = false
  await db.query('alter table shape add column b integer default 2')
  for (let n = 0; n < 3; n++) {
    await pawl.jobs.enqueue('reads', {})
    await worker.whenIdle()
  }
  await worker.stop()
  expect(widths.slice(3 * connections)).toEqual([2, 2, 2])
  expect(await db.query('select from pawl.job_attempt')).toHaveLength(0)
  expect(await db.query("select from pawl.job_history where outcome = 'done' and attempt = 1")).toHaveLength(3 * connections + 3)
})

test('a tx handler that has sent nothing yet has no transaction open', async () => {
  const isWaiting = deferred()
  const mayGo = deferred()
  await db.query('create table effect (job_id bigint)')
  pawl.jobs.define('thinks', {
    tx: async (job, tx) => {
      isWaiting.resolve()
      await mayGo.promise
      await tx.query('insert into effect values ($1)', [job.id])
    },
  })
  await pawl.jobs.enqueue('thinks', {})
  const ran = runAll(pawl)
  await isWaiting.promise
  // A new connection is set up by a statement of its own, which may not have ended yet.
  await until('its connection is idle, in no transaction', async () => {
    const sessions = await db.query<{ state: string; is_open: boolean }>(
      "select state, xact_start is not null as is_open from pg_stat_activity where datname = current_database() and application_name like '% handler %'",
    )
    return sessions.length === 1 && sessions[0]!.state === 'idle' && !sessions[0]!.is_open
  })
  mayGo.resolve()
  await ran
  expect(await db.query('select from effect')).toHaveLength(1)
})

test('a tx handler that sends nothing settles in its own transaction', async () => {
  pawl.jobs.define('idles', { tx: async () => 7 })
  const { id } = await pawl.jobs.enqueue('idles', {})
  await runAll(pawl)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', result: 7, attempt: 1 })
})
