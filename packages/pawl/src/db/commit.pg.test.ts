import { once } from 'pawl'
import { installProbe } from 'pawl/testing'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { type Cut, FaultProxy } from '../../test/support/fault-proxy.ts'
import { sql } from '../../test/support/sql.ts'
import { classify } from './classify.ts'
import { createPool } from './driver.ts'
import { StatementNames } from './statement.ts'
import { Transaction } from './transaction.ts'

let db: TestDatabase
let proxy: FaultProxy
beforeEach(async () => {
  db = await createDatabase()
  proxy = await FaultProxy.start(db.url)
  await db.query('create table effect (job_id bigint)')
})
afterEach(async () => {
  installProbe(undefined)
  await proxy.stop()
  await db.drop()
})

/** A client that gives up before the server has answered cuts its connection, and the reply to lose never comes: hence this long time. */
const viaProxy = () => db.pawl({ databaseUrl: proxy.url, tuning: { queryTimeoutMs: 2000 } })
const count = async (what: string) => (await db.query<{ n: number }>(`select count(*)::int as n from ${what}`))[0]!.n

describe('the reply to an enqueue is lost', () => {
  test.each<Cut>(['reset', 'blackhole'])('[K6] after the commit (%s): reported as unknown, the job exists once', async (cut) => {
    const lost = proxy.loseReply(/enqueue_many/, { cut })
    await expect(viaProxy().jobs.enqueue('k', {})).rejects.toMatchObject({ code: 'PAWL_COMMIT_UNKNOWN' })
    await lost.happened
    expect(await count('pawl.job')).toBe(1)
  })

  test('[K6] before the server saw it: reported as unknown, not sent again', async () => {
    const lost = proxy.loseRequest(/enqueue_many/)
    await expect(viaProxy().jobs.enqueue('k', {})).rejects.toMatchObject({ code: 'PAWL_COMMIT_UNKNOWN' })
    await lost.happened
    expect(await count('pawl.job')).toBe(0)
  })

  test("[K6] of many chunks, the COMMIT's reply is lost: every job exists once", async () => {
    const lost = proxy.loseReply(/^commit$/)
    await expect(
      viaProxy().jobs.enqueueMany(
        'k',
        Array.from({ length: 2500 }, (_, n) => n),
      ),
    ).rejects.toMatchObject({ code: 'PAWL_COMMIT_UNKNOWN' })
    await lost.happened
    expect(await count('pawl.job')).toBe(2500)
  })

  test('[K6] of many chunks, the COMMIT itself is lost: no job exists', async () => {
    const lost = proxy.loseRequest(/^commit$/)
    await expect(
      viaProxy().jobs.enqueueMany(
        'k',
        Array.from({ length: 2500 }, (_, n) => n),
      ),
    ).rejects.toMatchObject({ code: 'PAWL_COMMIT_UNKNOWN' })
    await lost.happened
    await until(
      'the server has rolled back',
      async () =>
        (await count("pg_stat_activity where application_name like 'pawl caller' and datname = current_database()")) === 0,
    )
    expect(await count('pawl.job')).toBe(0)
  })

  test.each(['loseReply', 'loseRequest'] as const)(
    '[K6] with a once key (%s of COMMIT) a repeated call adds nothing',
    async (how) => {
      const pawl = db.pawl()
      const attempt = async () => {
        const client = new pg.Client({ connectionString: proxy.url })
        client.on('error', () => undefined)
        await client.connect()
        try {
          await client.query('begin')
          const answer = await once(client, { namespace: 'order', key: 'order 7' }, () =>
            pawl.jobs.enqueue('k', {}, { tx: client }),
          )
          await client.query('commit')
          return answer
        } finally {
          await client.end().catch(() => undefined)
        }
      }
      const lost = proxy[how](/^commit$/)
      await expect(attempt()).rejects.toThrow()
      await lost.happened
      const answer = await attempt()
      expect(answer.isFirst).toBe(how === 'loseRequest')
      expect(await db.query('select id::text as id from pawl.job')).toEqual([answer.result])
    },
  )

  test('[K6] a server that refuses or cannot be reached is not "unknown"', async () => {
    const pawl = viaProxy()
    await proxy.refuse()
    await expect(pawl.jobs.enqueue('k', {})).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE' })
    await proxy.accept()
    await pawl.jobs.enqueue('k', {})
    expect(await count('pawl.job')).toBe(1)
  })

  test('[K6] a cancel whose reply is lost is not sent again blindly', async () => {
    const pawl = viaProxy()
    const { id } = await pawl.jobs.enqueue('k', {})
    const lost = proxy.loseReply(/delete from pawl\.job/)
    await expect(pawl.jobs.cancel(id)).rejects.toMatchObject({ code: 'PAWL_COMMIT_UNKNOWN' })
    await lost.happened
    expect(await pawl.jobs.get(id)).toMatchObject({ state: 'cancelled' })
    expect(await count('pawl.job_history')).toBe(1)
  })
})

describe('the reply to the end of a job is lost', () => {
  test.each([
    ['loseReply', 'reset'],
    ['loseReply', 'blackhole'],
    ['loseRequest', 'reset'],
    ['loseRequest', 'blackhole'],
  ] as const)('[K6] settle (%s, %s): settled once, nothing refused, the handler runs once', async (how, cut) => {
    const pawl = viaProxy()
    let runs = 0
    pawl.jobs.define('k', { run: async () => ++runs })
    const { id } = await pawl.jobs.enqueue('k', {})
    const done = deferred()
    pawl.on('job.done', () => done.resolve())
    const lost = proxy[how](/delete from pawl\.job/, { cut, of: /settle/ })
    const worker = pawl.worker()
    await worker.start()
    await lost.happened
    await done.promise
    await worker.stop()
    expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'done', result: 1, attempt: 1 })
    expect(runs).toBe(1)
    expect(worker.metrics()).toMatchObject({ done: 1, refused: 0, failed: 0 })
    expect([
      await count('pawl.job'),
      await count('pawl.job_history'),
      await count('pawl.job_attempt'),
      await count('pawl.refusal'),
    ]).toEqual([0, 1, 0, 0])
  })

  test.each(['loseReply', 'loseRequest'] as const)('[K6] the end of a failed attempt (%s) is recorded once', async (how) => {
    const pawl = viaProxy()
    pawl.jobs.define('k', {
      retry: { initialMs: 1, jitter: false },
      run: async (job) => {
        if (job.attempt === 1) throw new Error('the first fails')
      },
    })
    const { id } = await pawl.jobs.enqueue('k', {})
    const lost = proxy[how](/insert into pawl\.job_attempt/, { of: /settle/ })
    const worker = pawl.worker()
    await worker.start()
    await lost.happened
    const direct = db.pawl()
    await until('it is done', async () => (await direct.jobs.get(id))?.state === 'done')
    await worker.stop()
    expect((await direct.jobs.attempts(id)).map(({ attempt, outcome }) => [attempt, outcome])).toEqual([
      [1, 'failed'],
      [2, 'done'],
    ])
    expect(await count('pawl.refusal')).toBe(0)
  })

  test('[K6] a claim: its jobs return without an attempt and run once', async () => {
    const pawl = viaProxy()
    const attempts: number[] = []
    pawl.jobs.define('k', { run: async (job) => void attempts.push(job.attempt) })
    const { ids } = await pawl.jobs.enqueueMany('k', [1, 2, 3])
    const lost = proxy.loseReply(/for update skip locked[\s\S]*pawl\.next_fence\(\)/, { of: /claim/ })
    const worker = pawl.worker()
    await worker.start()
    await lost.happened
    await until('all are done', async () => (await count("pawl.job_history where outcome = 'done'")) === ids.length)
    await worker.stop()
    expect(attempts).toEqual([1, 1, 1])
  })
})

describe("the reply to a tx handler's COMMIT is lost", () => {
  const insert = 'insert into effect values ($1)'

  test.each<Cut>(['reset', 'blackhole'])('[K6] committed (%s): done, one effect, the handler runs once', async (cut) => {
    const pawl = viaProxy()
    let runs = 0
    pawl.jobs.define('k', {
      tx: async (job, tx) => {
        runs++
        await tx.query(insert, [job.id])
      },
    })
    const { id } = await pawl.jobs.enqueue('k', {})
    const done = deferred()
    pawl.on('job.done', () => done.resolve())
    const lost = proxy.loseReply(/^commit$/m, { cut, of: /handler/ })
    const worker = pawl.worker()
    await worker.start()
    await lost.happened
    await done.promise
    await worker.stop()
    expect(await db.query('select job_id::text as id from effect')).toEqual([{ id }])
    expect(runs).toBe(1)
    expect(worker.metrics()).toMatchObject({ done: 1, failed: 0, refused: 0 })
  })

  test('[K6] not committed: the attempt fails, the next has the only effect', async () => {
    const pawl = viaProxy()
    pawl.jobs.define('k', {
      retry: { initialMs: 1, jitter: false },
      tx: async (job, tx) => void (await tx.query(insert, [job.id])),
    })
    const { id } = await pawl.jobs.enqueue('k', {})
    const lost = proxy.loseRequest(/^commit$/m, { of: /handler/ })
    const worker = pawl.worker()
    await worker.start()
    await lost.happened
    const direct = db.pawl()
    await until('it is done', async () => (await direct.jobs.get(id))?.state === 'done')
    await worker.stop()
    expect(await db.query('select job_id::text as id from effect')).toEqual([{ id }])
  })

  test('[K6] of a shared transaction: each effect exists once, no attempt fails', async () => {
    const pawl = viaProxy()
    pawl.jobs.define('k', { share: 10, tx: async (job, tx) => void (await tx.query(insert, [job.id])) })
    const { ids } = await pawl.jobs.enqueueMany(
      'k',
      Array.from({ length: 10 }, () => ({})),
    )
    const lost = proxy.loseReply(/^commit$/m, { of: /handler/ })
    const worker = pawl.worker()
    await worker.start()
    await lost.happened
    await until('all are done', async () => (await count("pawl.job_history where outcome = 'done'")) === ids.length)
    await worker.stop()
    expect(await db.query('select count(*)::int as n, count(distinct job_id)::int as jobs from effect')).toEqual([
      { n: 10, jobs: 10 },
    ])
    expect(await count('pawl.job_attempt')).toBe(0)
  })

  test("[K6] of job.complete(tx) in the user's transaction: history shows the commit", async () => {
    const pawl = db.pawl()
    let runs = 0
    pawl.jobs.define('k', {
      run: async (job) => {
        runs++
        const client = new pg.Client({ connectionString: proxy.url })
        client.on('error', () => undefined)
        await client.connect()
        try {
          await client.query('begin')
          await client.query(insert, [job.id])
          await job.complete(client, 'mine')
          await client.query('commit')
        } finally {
          await client.end().catch(() => undefined)
        }
      },
    })
    const { id } = await pawl.jobs.enqueue('k', {})
    const done = deferred()
    pawl.on('job.done', () => done.resolve())
    const lost = proxy.loseReply(/^commit$/)
    const worker = pawl.worker()
    await worker.start()
    await lost.happened
    await done.promise
    await worker.stop()
    expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', result: 'mine' })
    expect([runs, await count('effect')]).toEqual([1, 1])
  })
})

const options = () => ({
  url: db.url,
  pooler: 'none' as const,
  connectTimeoutMs: 5000,
  queryTimeoutMs: 10_000,
  applicationName: 'pawl',
})

describe('a COMMIT that answers ROLLBACK', () => {
  test('[K7] is a failure although no statement that was awaited failed', async () => {
    const pool = createPool(options(), 'handler', 1)
    const tx = new Transaction(await pool.connect())
    await tx.query('insert into effect values (1)')
    // Sent and forgotten: the transaction is aborted, and only the commit tells.
    tx.query('select 1 / 0').catch(() => undefined)
    await expect(tx.commit()).rejects.toMatchObject({ code: 'PAWL_ROLLED_BACK' })
    tx.release()
    expect(await count('effect')).toBe(0)
    // The connection is sound, and the next transaction on it has nothing of the last.
    const next = new Transaction(await pool.connect())
    await next.query('insert into effect values (2)')
    await next.commit()
    next.release()
    expect(await db.query('select job_id::int as id from effect')).toEqual([{ id: 2 }])
    await pool.end()
  })

  test('[K7] is a failure of the last statement that travels with it', async () => {
    const pool = createPool(options(), 'handler', 1)
    const tx = new Transaction(await pool.connect())
    await tx.query('insert into effect values (1)')
    await expect(tx.commitWith(...sql("select pawl.complete_job('', $1::bigint, $2::bigint)", '7', '7'))).rejects.toMatchObject({
      code: 'PW001',
    })
    tx.release()
    expect(await count('effect')).toBe(0)
    await pool.end()
  })

  test('[K7] fails a tx handler that swallowed an error: nothing is stored', async () => {
    const pawl = db.pawl()
    pawl.jobs.define('k', {
      retry: { attempts: 1 },
      tx: async (job, tx) => {
        await tx.query('insert into effect values ($1)', [job.id])
        await tx.query('select 1 / 0').catch(() => undefined)
      },
    })
    const { id } = await pawl.jobs.enqueue('k', {})
    const worker = pawl.worker()
    await worker.start()
    await until('it is dead', async () => (await pawl.jobs.get(id))?.state === 'dead')
    await worker.stop()
    expect(await count('effect')).toBe(0)
  })

  test('[K7] fails a job whose completion was rolled back', async () => {
    const pawl = db.pawl()
    const answers: string[] = []
    pawl.jobs.define('k', {
      retry: { attempts: 1 },
      run: async (job) => {
        const client = await db.pool.connect()
        try {
          await client.query('begin')
          await client.query('insert into effect values ($1)', [job.id])
          await job.complete(client)
          await client.query('select 1 / 0').catch(() => undefined)
          answers.push((await client.query('commit')).command)
        } finally {
          client.release()
        }
      },
    })
    const { id } = await pawl.jobs.enqueue('k', {})
    const worker = pawl.worker()
    await worker.start()
    await until('it is dead', async () => (await pawl.jobs.get(id))?.state === 'dead')
    await worker.stop()
    expect(answers).toEqual(['ROLLBACK'])
    expect(await count('effect')).toBe(0)
  })

  test('[K7] fails an enqueue with one failing chunk: no job exists', async () => {
    const payloads = Array.from({ length: 2500 }, (_, n) => (n === 1700 ? 'bad' : 'good'))
    await db.query(`alter table pawl.job add constraint planted check (payload <> '"bad"')`)
    await expect(db.pawl().jobs.enqueueMany('k', payloads)).rejects.toMatchObject({ code: '23514' })
    expect(await count('pawl.job')).toBe(0)
  })
})

describe('a transaction whose commit was never sent', () => {
  test('its client, released while it is open, leaves the pool', async () => {
    const pool = createPool(db.pawl().config.database, 'handler', 1)
    const tx = new Transaction(await pool.connect())
    await tx.query('insert into effect values (1)')
    tx.release()
    await until(
      'its session has ended',
      async () => (await count("pg_stat_activity where application_name like '% handler'")) === 0,
    )
    expect(await count('effect')).toBe(0)
    await pool.end()
  })

  test('[K6] it is surely not there where the connection broke before', async () => {
    const pool = createPool(db.pawl().config.database, 'handler', 1)
    const client = await pool.connect()
    const broken = new Promise((resolve) => client.once('error', resolve))
    const tx = new Transaction(client)
    const { rows } = await tx.query<{ pid: number }>('insert into effect values (1) returning pg_backend_pid() as pid')
    await db.query('select pg_terminate_backend($1)', [rows[0]!.pid])
    await broken
    const error = await tx.commit().catch((thrown: unknown) => thrown)
    expect(classify(error)).toBe('connection')
    expect(error).not.toMatchObject({ code: 'PAWL_COMMIT_UNKNOWN' })
    tx.release()
    await pool.end()
  })
})

test('after a refused completion, begin, commit and reset are still prepared once', async () => {
  const pool = createPool(options(), 'handler', 1)
  const names = new StatementNames()
  const client = await pool.connect()
  const reset = 'select pawl.reset_session(true)'
  const work = async (last: string) => {
    const tx = new Transaction(client, { names, reset })
    await tx.query('insert into effect values ($1)', [1])
    try {
      await tx.commitWith(...sql(last, 1))
    } catch (error) {
      await tx.rollback()
      throw error
    }
  }
  const refused = work('select pawl.raise_lease_lost($1::text, 7, 7)')
  await expect(refused).rejects.toMatchObject({ code: 'PW001' })
  await work('select $1::integer')
  await work('select $1::integer')
  expect(await count('effect')).toBe(2)
  const { rows } = await client.query('select statement from pg_prepared_statements where name = $1 || statement order by 1', [
    'pawl ',
  ])
  expect(rows.map(({ statement }) => statement)).toEqual([
    'begin isolation level read committed',
    'commit',
    'reset session authorization',
    reset,
  ])
  const empty = new Transaction(client, { names, reset: 'select 1 / 0' })
  // Its handler has sent nothing, so there is nothing to reset.
  await empty.commitWith(...sql('insert into effect values ($1)', 2))
  empty.release()
  expect(await pool.connect()).toBe(client)
  client.release()
  expect(await count('effect')).toBe(3)
  await pool.end()
})
