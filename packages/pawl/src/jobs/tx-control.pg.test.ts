// The transaction in a handler's hands is Pawl's to end: whatever a handler sends through it, its effects and its completion commit together.

import { randomBytes } from 'node:crypto'
import type { Pawl, PawlOptions, Tx } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  await db.query('create table effect (n integer)')
})
afterEach(() => db.drop())

const poolers: readonly NonNullable<PawlOptions['pooler']>[] = ['none', 'transaction']

/** No text shows it: what has a body of `begin atomic` is not looked into. */
const hidden = (sql: string) =>
  `create or replace function hidden() returns integer language sql begin atomic select 1; end; ${sql}`

const effects = async () => (await db.query<{ n: number }>('select n from effect order by n')).map(({ n }) => n)

const shown = ['rollback', 'commit', 'rollback and chain', 'begin; select 1; commit', 'abort', "prepare transaction 'x'"]
const ways = [
  ...shown.map((sql) => ({ name: sql, sql, isCommit: false })),
  ...['rollback', 'rollback and chain', 'rollback; begin', 'close all'].map((sql) => ({
    name: sql,
    sql: hidden(sql),
    isCommit: false,
  })),
  ...['commit', 'commit and chain', 'commit; begin'].map((sql) => ({ name: sql, sql: hidden(sql), isCommit: true })),
].map((way) => ({ ...way, isHidden: way.sql !== way.name }))

test.each(ways)(
  '[J2] a handler that sends $name (hidden: $isHidden) fails, and nothing is settled',
  async ({ sql, isCommit }) => {
    pawl.jobs.define<{ swallows: boolean }>('ends', {
      retry: { attempts: 1 },
      tx: async (job, tx) => {
        await tx.query('insert into effect values ($1)', [1])
        await pawl.jobs.enqueue('follow-up', {}, { tx })
        const sent = tx.query(sql)
        await (job.payload.swallows ? sent.catch(() => undefined) : sent)
      },
    })
    await pawl.jobs.enqueueMany('ends', [{ swallows: false }, { swallows: true }])
    const { dead, done } = await runAll(pawl, { concurrency: 1 })
    expect(done).toEqual([])
    expect(dead.map(({ reason }) => reason)).toEqual(
      Array.from({ length: 2 }, () => expect.stringContaining('Only Pawl may end it')),
    )
    expect(await db.query('select from pawl.job_history')).toEqual([])
    // The handler's own commit stands; what Pawl would have committed is not there.
    expect(await effects()).toEqual(isCommit ? [1, 1] : [])
    expect(await db.query("select from pawl.job where kind = 'follow-up'")).toHaveLength(isCommit ? 2 : 0)
  },
)

test.each(poolers)('[J2] a handler that ended its transaction writes nothing more (pooler %s)', async (pooler) => {
  const codes: unknown[] = []
  const other = db.pawl({ pooler })
  other.jobs.define('goes on', {
    retry: { attempts: 1 },
    tx: async (_job, tx) => {
      const codeOf = (sent: Promise<unknown>) => sent.then(() => 'sent').catch((error: { code: string }) => error.code)
      await tx.query('insert into effect values ($1)', [1])
      codes.push(await codeOf(tx.query(hidden('rollback'))))
      codes.push(await codeOf(tx.query('insert into effect values ($1)', [2])))
      codes.push(await codeOf(tx.query('insert into effect values (3)')))
    },
  })
  await other.jobs.enqueue('goes on', {})
  expect((await runAll(other)).dead).toHaveLength(1)
  expect(codes).toEqual(['PAWL_TX_ENDED', 'PAWL_TX_ENDED', 'PAWL_TX_ENDED'])
  expect(await effects()).toEqual([])
})

test.each(['rollback', 'commit', hidden('rollback'), hidden('rollback; begin')])(
  '[J2] in a shared transaction only the job that sends %s fails',
  async (sql) => {
    pawl.jobs.define<{ n: number }>('shared', {
      share: 20,
      retry: { attempts: 1 },
      tx: async (job, tx) => {
        await tx.query('insert into effect values ($1)', [job.payload.n])
        if (job.payload.n === 5) await tx.query(sql)
      },
    })
    const numbers = Array.from({ length: 40 }, (_, n) => n)
    await pawl.jobs.enqueueMany(
      'shared',
      numbers.map((n) => ({ n })),
    )
    const { dead, done } = await runAll(pawl, { concurrency: 20, tuning: { handlerConnectionsMax: 1 } })
    expect(done).toHaveLength(39)
    expect(dead).toMatchObject([{ reason: expect.stringContaining('Only Pawl may end it') }])
    expect(await effects()).toEqual(numbers.filter((n) => n !== 5))
  },
)

test("[J2] statements after another job's hidden rollback wait for its answer", async () => {
  pawl.jobs.define<{ n: number }>('overlaps', {
    share: 20,
    retry: { attempts: 1 },
    tx: (job, tx) => {
      if (job.payload.n % 20 === 5 && job.payload.n > 40) return tx.query(hidden('rollback'))
      return tx.query('insert into effect values ($1)', [job.payload.n])
    },
  })
  const numbers = Array.from({ length: 100 }, (_, n) => n)
  await pawl.jobs.enqueueMany(
    'overlaps',
    numbers.map((n) => ({ n })),
  )
  const { dead, done } = await runAll(pawl, { concurrency: 100, tuning: { handlerConnectionsMax: 1 } })
  expect(dead).toHaveLength(3)
  expect(done).toHaveLength(97)
  expect(await effects()).toEqual(numbers.filter((n) => n % 20 !== 5 || n <= 40))
})

test('savepoints, and a begin too many, are no end', async () => {
  for (const share of [1, 10])
    pawl.jobs.define(`undoes ${share}`, {
      share,
      retry: { attempts: 1 },
      tx: async (_job, tx) => {
        await tx.query('begin')
        await tx.query('insert into effect values ($1)', [share])
        await tx.query('savepoint a; insert into effect values (99); rollback to savepoint a')
        await tx.query('savepoint b')
        await tx.query('select 1 / $1::integer', [0]).catch(() => undefined)
        await tx.query('rollback to b; release b')
        await tx.query('do $$ begin begin perform 1 / 0; exception when others then null; end; end $$')
      },
    })
  await pawl.jobs.enqueueMany('undoes 1', [1])
  await pawl.jobs.enqueueMany('undoes 10', [1, 2])
  const { dead, done } = await runAll(pawl)
  expect(dead).toEqual([])
  expect(done).toHaveLength(3)
  expect(await effects()).toEqual([1, 10, 10])
})

test('[J2] a shared transaction with a job deleted by hand does not commit', async () => {
  pawl.jobs.define<{ n: number }>('deletes', {
    share: 10,
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.payload.n])
      if (job.payload.n === 1) await tx.query('delete from pawl.job where id = $1', [job.id])
    },
  })
  await pawl.jobs.enqueueMany('deletes', [{ n: 0 }, { n: 1 }, { n: 2 }])
  const { dead, done } = await runAll(pawl, { concurrency: 1 })
  expect(done).toHaveLength(2)
  expect(dead).toMatchObject([{ reason: expect.stringContaining('is no longer held under fence') }])
  expect(await effects()).toEqual([0, 2])
})

test.each(['set local role', 'set local session authorization', 'set role'])(
  '[J34] a job whose handler did %s is completed by the session user',
  async (how) => {
    const role = `r_${randomBytes(6).toString('hex')}`
    const [{ schema }] = (await db.query<{ schema: string }>('select current_schema() as schema')) as [{ schema: string }]
    await db.query(`create role ${role}; grant usage on schema ${schema} to ${role}; grant insert on effect to ${role}`)
    const insert = async (tx: Tx, n: number) => {
      await tx.query(`${how} ${role}`)
      await tx.query(`insert into ${schema}.effect values ($1)`, [n])
    }
    pawl.jobs.define('alone', { retry: { attempts: 1 }, tx: (_job, tx) => insert(tx, 1) })
    pawl.jobs.define('shared', { share: 10, retry: { attempts: 1 }, tx: (_job, tx) => insert(tx, 2) })
    pawl.jobs.define('completes', {
      retry: { attempts: 1 },
      tx: async (job, tx) => {
        await job.complete(tx)
        await insert(tx, 3)
      },
    })
    await pawl.jobs.enqueueMany('shared', [1, 2])
    await pawl.jobs.enqueueMany('alone', [1, 2])
    await pawl.jobs.enqueue('completes', {})
    const { dead, done } = await runAll(pawl)
    expect(dead).toEqual([])
    expect(done).toHaveLength(5)
    expect(await effects()).toEqual([1, 1, 2, 2, 3])
    await db.query(`drop owned by ${role}; drop role ${role}`)
  },
)

test.each(poolers)('a handler may choose the isolation of its transaction (pooler %s)', async (pooler) => {
  const other = db.pawl({ pooler })
  const levels: unknown[] = []
  for (const share of [1, 10])
    other.jobs.define(`chooses ${share}`, {
      share,
      retry: { attempts: 1 },
      tx: async (_job, tx) => {
        await tx.query('set transaction isolation level serializable')
        levels.push(...(await tx.query("select current_setting('transaction_isolation') as level, $1::integer as n", [1])).rows)
      },
    })
  await other.jobs.enqueueMany('chooses 1', [1, 2])
  await other.jobs.enqueueMany('chooses 10', [1, 2])
  const { dead, done } = await runAll(other)
  expect(dead).toEqual([])
  expect(done).toHaveLength(4)
  expect(levels).toEqual(Array.from({ length: 4 }, () => ({ level: 'serializable', n: 1 })))
})
