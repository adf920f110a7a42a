import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { backoffMs, engineBackoffMs, retrying } from './retry.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

function withCode(code: string): Error {
  return Object.assign(new Error('the server said so'), { code })
}

/** Makes the next `times` inserts into the table fail with that SQLSTATE. A sequence counts, because it forgets nothing in a rollback. */
async function failInserts(table: string, code: string, times: number): Promise<() => Promise<number>> {
  await db.query('create sequence if not exists public.tried')
  await db.query("select setval('public.tried', 1, false)")
  await db.query(`create or replace function fail() returns trigger language plpgsql as $$
    begin
      if nextval('public.tried') <= ${times} then raise exception 'planted' using errcode = '${code}'; end if;
      return new;
    end $$`)
  await db.query(`create or replace trigger fail before insert on ${table} for each row execute function fail()`)
  return async () => {
    const [row] = await db.query<{ n: string }>('select case when is_called then last_value else 0 end as n from public.tried')
    return Number(row!.n)
  }
}

const jobs = async () => (await db.query<{ n: number }>('select count(*)::int as n from pawl.job'))[0]!.n

test.each(['40001', '40P01', '55P03', '57014', '26000'])(
  '[K5] a transaction of ours that fails with %s runs again whole',
  async (code) => {
    const tried = await failInserts('pawl.job', code, 3)
    const pawl = db.pawl()
    await pawl.jobs.enqueue('k', {})
    expect(await tried()).toBe(4)
    expect(await jobs()).toBe(1)
  },
)

test('[K5] our own transaction of many statements is run again as a whole', async () => {
  const tried = await failInserts('pawl.job', '40001', 2)
  const pawl = db.pawl()
  const { ids } = await pawl.jobs.enqueueMany(
    'k',
    Array.from({ length: 1500 }, (_, n) => n),
  )
  expect(new Set(ids).size).toBe(1500)
  expect(await jobs()).toBe(1500)
  expect(await tried()).toBe(1502)
})

test.each(['22012', '23505', '23514', '42501', 'P0001'])(
  '[K5] our own transaction that fails with %s is not run again',
  async (code) => {
    const tried = await failInserts('pawl.job', code, 1)
    await expect(db.pawl().jobs.enqueue('k', {})).rejects.toMatchObject({ code })
    expect(await tried()).toBe(1)
    expect(await jobs()).toBe(0)
  },
)

test('[K5] after a bounded number of tries the last error is thrown', async () => {
  const tried = await failInserts('pawl.job', '40001', 1000)
  await expect(db.pawl().jobs.enqueue('k', {})).rejects.toMatchObject({ code: '40001' })
  expect(await tried()).toBe(5)
})

test.each(['40001', '40P01', '55P03', '57P01', '25006', '53100'])(
  "[K5] a statement in a caller's transaction is never retried after %s",
  async (code) => {
    const tried = await failInserts('pawl.job', code, 1)
    const pawl = db.pawl()
    const client = await db.pool.connect()
    const sent: string[] = []
    try {
      await client.query('begin')
      const tx = {
        query: async (text: string, values: unknown[]) => {
          sent.push(text)
          return client.query(text, values)
        },
      }
      await expect(pawl.jobs.enqueue('k', {}, { tx })).rejects.toMatchObject({ code })
      await client.query('rollback')
    } finally {
      client.release()
    }
    expect(await tried()).toBe(1)
    expect(sent.filter((text) => text.includes('pawl.enqueue_many'))).toHaveLength(1)
    expect(await jobs()).toBe(0)
  },
)

test('[K5] a tx handler with a conflict runs again within its attempt', async () => {
  await db.query('create table effect (attempt int)')
  const tried = await failInserts('effect', '40P01', 2)
  const pawl = db.pawl()
  pawl.jobs.define('k', { tx: async (job, tx) => void (await tx.query('insert into effect values ($1)', [job.attempt])) })
  const { id } = await pawl.jobs.enqueue('k', {})
  const worker = pawl.worker()
  await worker.start()
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  await worker.stop()
  expect(await tried()).toBe(3)
  expect(await db.query('select attempt from effect')).toEqual([{ attempt: 1 }])
  expect(worker.metrics().conflicts).toBe(2)
})

test('[K5] the delay has full jitter; the backoff doubles to its cap', () => {
  const policy = { initialMs: 20, factor: 2, maxMs: 2000, jitter: true }
  const full = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1000].map((retry) => backoffMs(policy, retry, () => 1))
  expect(full).toEqual([20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000])
  expect([1, 5, 1000].map((retry) => backoffMs(policy, retry, () => 0))).toEqual([0, 0, 0])
  expect([1, 5, 1000].map((retry) => backoffMs({ ...policy, jitter: false }, retry, () => 0))).toEqual([20, 320, 2000])
})

test('[K5] the engine waits with jitter, longer if the server cannot write', () => {
  for (const [retry, capMs] of [
    [1, 20],
    [4, 160],
    [50, 2000],
  ] as const) {
    const delays = Array.from({ length: 2000 }, () => engineBackoffMs(withCode('40001'), retry))
    expect(Math.max(...delays)).toBeLessThanOrEqual(capMs)
    expect(Math.max(...delays)).toBeGreaterThan(capMs * 0.9)
    expect(Math.min(...delays)).toBeLessThan(capMs * 0.1)
  }
  expect([1, 2, 5, 6, 100].map((retry) => engineBackoffMs(withCode('53100'), retry))).toEqual([500, 1000, 8000, 10_000, 10_000])
  expect(engineBackoffMs(withCode('25006'), 3)).toBe(2000)
})

test('[K5] retrying reports each retry, throws the last error, obeys its signal', async () => {
  const seen: unknown[] = []
  let calls = 0
  const failing = () => {
    calls++
    return Promise.reject(withCode('40001'))
  }
  await expect(retrying(failing, { triesMax: 3, onRetry: (error) => seen.push(error) })).rejects.toMatchObject({ code: '40001' })
  expect(calls).toBe(3)
  expect(seen).toHaveLength(2)
  const stop = new AbortController()
  stop.abort()
  await expect(retrying(failing, { signal: stop.signal })).rejects.toMatchObject({ code: '40001' })
  expect(calls).toBe(4)
})
