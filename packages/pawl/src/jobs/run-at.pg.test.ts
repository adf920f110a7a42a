import { moveClock } from 'pawl/testing'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { lockClass } from '../kernel/lease.ts'

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
})
afterAll(() => db.drop())

test('[J35] pawl.enqueue names the argument that it refuses, and its value', async () => {
  const wrong: [string, string][] = [
    ["'k', priority => 500", 'priority must be an integer from -100 to 100, got 500'],
    ["'k', max_attempts => 0", 'max_attempts must be an integer from 1 to 1000000, got 0'],
    ["'k', delay => '-1 hour'", 'delay must not be negative, got -3600000 ms'],
    ["'pawl.k'", "kind and queue must not begin with 'pawl.'"],
    ["'k', queue => 'pawl.q'", "kind and queue must not begin with 'pawl.'"],
  ]
  for (const [given, message] of wrong)
    await expect(db.query(`select pawl.enqueue(${given})`)).rejects.toMatchObject({
      code: '22023',
      message: expect.stringContaining(message),
    })
})

test('[J35] a run_at that is infinite or far away is refused', async () => {
  const refused = { code: '22023', message: expect.stringContaining('run_at must be within the next 10 years, got') }
  for (const runAt of ["'infinity'", "'-infinity'", "now() + interval '11 years'"])
    await expect(db.query(`select pawl.enqueue('k', run_at => ${runAt})`)).rejects.toMatchObject(refused)
  await expect(db.query("select pawl.enqueue('k', delay => interval '11 years')")).rejects.toMatchObject(refused)
  const { jobs } = db.pawl()
  const far = new Date(Date.now() + 11 * 366 * 86_400_000)
  for (const runAt of [far, new Date(8.64e15)])
    await expect(jobs.enqueue('k', {}, { runAt })).rejects.toMatchObject({
      code: 'PAWL_CONFIG',
      message: /the next 10 years, got/,
    })
  for (const runAt of [new Date(Number.NaN), Number.POSITIVE_INFINITY as never])
    await expect(jobs.enqueue('k', {}, { runAt })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  expect((await jobs.list()).items).toEqual([])
  await jobs.enqueue('k', {}, { runAt: new Date(Date.now() + 9 * 365 * 86_400_000) })
  await jobs.enqueue('k', {}, { runAt: new Date(0) })
})

test('[J35] a run_at before 1970 or beyond any clock is refused', async () => {
  const refused = { code: '22023', message: expect.stringContaining('run_at must') }
  for (const runAt of ["'0044-03-15 BC'", "'4714-11-24 BC'", "'1969-12-31'", "'294276-12-31'"])
    for (const more of ['', ', priority => 100', ", delay => interval '1 hour'"])
      await expect(db.query(`select pawl.enqueue('k', run_at => ${runAt}${more})`)).rejects.toMatchObject(refused)
  const calls = ["delay => interval '170000000 years'"]
  for (const call of calls) await expect(db.query(`select pawl.enqueue('k', ${call})`)).rejects.toMatchObject(refused)
  const { jobs } = db.pawl()
  for (const year of ['-000043', '0000', '0001', '1969'])
    await expect(jobs.enqueue('k', {}, { runAt: new Date(`${year}-06-01T00:00:00Z`) })).rejects.toMatchObject({
      code: 'PAWL_CONFIG',
      message: expect.stringMatching(/run_?at must/i),
    })
})

test('[J19] headers above 16 MB are refused from SQL too', async () => {
  const call = `select pawl.enqueue('k', headers => jsonb_build_object('x', (select string_agg(md5(n::text), '') from generate_series(1, 600000) n)))`
  await expect(db.query(call)).rejects.toMatchObject({ code: '22023', message: 'headers are larger than 16 MB' })
})

test('[J35] an infinite run_at that got in anyway holds up no other job', async () => {
  const pawl = db.pawl()
  const { id: never } = await pawl.jobs.enqueue('k', {}, { delay: '1h' })
  await db.query("update pawl.job set run_at = 'infinity', due = 'infinity' where id = $1", [never])
  const { id } = await pawl.jobs.enqueue('k', {}, { delay: '2h' })
  await moveClock(db.pool as never, 3 * 3_600_000)
  const database = {
    url: db.url,
    pooler: 'none',
    connectTimeoutMs: 10_000,
    queryTimeoutMs: 10_000,
    applicationName: 'test',
  } as const
  const connection = new Connection(database, 'promote')
  try {
    const [row] = await connection.run<{ next_ms: string }>(statement(import.meta.url, 'promote'), {
      lock_class: lockClass,
      limit: 10,
      after_run_at: '-infinity',
      after_id: 0,
    })
    expect(Number(row!.next_ms)).toBe(3_600_000)
  } finally {
    await connection.close()
  }
  await until('the other one is ready', async () => (await pawl.jobs.get(id))?.state === 'ready')
  expect(await pawl.jobs.get(never)).toMatchObject({ state: 'scheduled' })
})
