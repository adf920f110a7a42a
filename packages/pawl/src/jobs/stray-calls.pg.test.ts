// What a handler calls with its transaction and does not await: the commit waits for it, and what comes later is refused and logged.

import type { Logger, Pawl } from 'pawl'
import { expectRows } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
const errors: { readonly fields: Readonly<Record<string, unknown>>; readonly message: string }[] = []
const logger: Logger = { debug() {}, info() {}, warn() {}, error: (fields, message) => void errors.push({ fields, message }) }

beforeEach(async () => {
  errors.length = 0
  db = await createDatabase()
  pawl = db.pawl({ logger })
  await db.query('create table effect (n integer)')
})
afterEach(() => db.drop())

const effects = async () => (await db.query<{ n: number }>('select n from effect order by n')).map(({ n }) => n)
const kinds = [
  { name: 'alone', shared: false },
  { name: 'shared', shared: true },
]

test.each(kinds)('[J2] a follow-up that a handler does not await commits with it ($name)', async ({ shared }) => {
  pawl.jobs.define('work', {
    ...(shared ? { share: 10 } : {}),
    tx: (_job, tx) => {
      void pawl.jobs.enqueue('later', {}, { tx })
      void pawl.events.append({ type: 'Done', aggregateType: 'work', key: 'a', data: {} }, { tx })
    },
  })
  await pawl.jobs.enqueueMany('work', [1, 2, 3])
  const { done } = await runAll(pawl)
  expect(done).toHaveLength(3)
  expect(await db.query("select from pawl.job where kind = 'later'")).toHaveLength(3)
  expect(await db.query('select from pawl.event')).toHaveLength(3)
})

test.each(kinds)('[J2] chains of queries that a handler does not await commit whole ($name)', async ({ shared }) => {
  pawl.jobs.define('work', {
    ...(shared ? { share: 10 } : {}),
    tx: (_job, tx) => {
      for (const n of [1, 2])
        void (async () => {
          await tx.query('insert into effect values ($1)', [n])
          await tx.query('insert into effect values ($1)', [n + 10])
        })()
    },
  })
  await pawl.jobs.enqueueMany('work', [1, 2])
  const { done } = await runAll(pawl)
  expect(done).toHaveLength(2)
  expect(await effects()).toEqual([1, 1, 2, 2, 11, 11, 12, 12])
})

test('[J2] a refused follow-up fails the attempt that did not await it', async () => {
  pawl.jobs.define('work', {
    retry: { attempts: 1 },
    tx: async (_job, tx) => {
      await tx.query('insert into effect values (1)')
      void pawl.jobs.enqueue('later', { a: Number.NaN }, { tx })
    },
  })
  await pawl.jobs.enqueue('work', {})
  const { dead } = await runAll(pawl)
  expect(dead).toEqual([expect.objectContaining({ reason: expect.stringContaining('payload.a is NaN') })])
  expect(await effects()).toEqual([])
})

test('a follow-up in flight when its handler throws ends no process', async () => {
  pawl.jobs.define('work', {
    retry: { attempts: 1 },
    tx: (_job, tx) => {
      void pawl.jobs.enqueue('later', {}, { tx })
      throw new Error('it broke')
    },
  })
  await pawl.jobs.enqueue('work', {})
  const { dead } = await runAll(pawl)
  expect(dead).toEqual([expect.objectContaining({ reason: expect.stringContaining('it broke') })])
  expect(await db.query("select from pawl.job where kind = 'later'")).toEqual([])
})

test.each(kinds)('a call after the commit is refused and logged ($name)', async ({ shared }) => {
  const go = deferred()
  pawl.jobs.define('work', {
    ...(shared ? { share: 10 } : {}),
    tx: async (_job, tx) => {
      await tx.query('select 1')
      void go.promise.then(() => {
        void tx.query('insert into effect values (1)')
        void pawl.jobs.enqueue('later', {}, { tx })
      })
    },
  })
  const ids = new Set((await pawl.jobs.enqueueMany('work', [1, 2])).ids)
  await runAll(pawl)
  go.resolve()
  await until('both calls of both are logged', () => errors.length === 4)
  expect(errors[0]!.message).toMatch(/used its transaction after it had returned/)
  for (const { fields } of errors) {
    expect(fields).toMatchObject({ kind: 'work' })
    expect(ids).toContain(fields.job)
  }
  expect(await effects()).toEqual([])
})

test.each(kinds)('a query in a tx handler returns its row count ($name)', async ({ shared }) => {
  await db.query('insert into effect values (1), (2)')
  const met: number[] = []
  pawl.jobs.define('work', {
    ...(shared ? { share: 10 } : {}),
    tx: async (_job, tx) => {
      met.push((await tx.query('update effect set n = n + 1 where n > 100')).rowCount)
      expectRows(await tx.query('update effect set n = n + $1', [1]), 2)
    },
  })
  await pawl.jobs.enqueueMany('work', [1, 2])
  const { done } = await runAll(pawl)
  expect(done).toHaveLength(2)
  expect(met).toEqual([0, 0])
})

test('a throw after job.complete(tx) committed is logged, and the job stays done', async () => {
  pawl.jobs.define('work', {
    run: async (job) => {
      const client = await db.pool.connect()
      try {
        await client.query('begin')
        await job.complete(client)
        await client.query('commit')
      } finally {
        client.release()
      }
      throw new Error('afterwards')
    },
  })
  const { id } = await pawl.jobs.enqueue('work', {})
  const { done } = await runAll(pawl)
  expect(done).toHaveLength(1)
  expect(errors).toEqual([
    {
      fields: { job: id, kind: 'work', error: expect.stringContaining('afterwards') },
      message: 'the handler threw after job.complete(tx) had committed; the job is done',
    },
  ])
})

test('context.log of what the logger cannot write fails no attempt', async () => {
  const warned: string[] = []
  const strict: Logger = {
    ...logger,
    info: (fields) => void JSON.stringify(fields),
    warn: (_fields, message) => void warned.push(message),
  }
  pawl = db.pawl({ logger: strict })
  pawl.jobs.define('work', { run: (_job, { log }) => log('counted', { n: 1n }) })
  await pawl.jobs.enqueue('work', {})
  const { done } = await runAll(pawl)
  expect(done).toHaveLength(1)
  expect(warned).toEqual(['a log line could not be written: counted'])
})
