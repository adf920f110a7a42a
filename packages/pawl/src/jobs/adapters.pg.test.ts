// One suite over every client library whose transaction Pawl can join: what is enqueued, completed or guarded in it commits and rolls
// back with it.

import type { Knex } from 'knex'
import type { Kysely } from 'kysely'
import { type AnyTx, type Job, once, type Pawl, type RecordScope, toTx } from 'pawl'
import pg from 'pg'
import type { Sql } from 'postgres'
import type { DataSource } from 'typeorm'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Adapter, adapters, awkward } from '../../test/support/adapters.ts'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import type { Worker } from '../worker.ts'

for (const [name, open] of Object.entries(adapters)) {
  describe(name, () => {
    let db: TestDatabase
    let pawl: Pawl
    let adapter: Adapter
    let worker: Worker
    let scope: RecordScope
    const scripts = new Map<string, (job: Job) => Promise<unknown>>()

    beforeAll(async () => {
      db = await createDatabase()
      await db.query('create table effect (name text not null, attempt integer not null)')
      adapter = await open(db.url)
      pawl = db.pawl()
      pawl.jobs.define<{ script: string }>('scripted', {
        retry: { attempts: 3, initialMs: 1, jitter: false },
        run: (job) => scripts.get(job.payload.script)!(job),
      })
      const sites = pawl.records.define('sites', { scope: ['org'], types: { site: { key: 'id', columns: { id: 'text' } } } })
      scope = pawl.records.in(sites, { org: 'acme' })
      worker = pawl.worker({ tuning: { pollMs: 100 } })
      await worker.start()
    })
    afterAll(async () => {
      await worker?.stop()
      await adapter?.close()
      await db?.drop()
    })

    const rolledBack = new Error('rolled back on purpose')

    /** Runs one script as a job and gives its id. */
    async function runScript(script: string, handler: (job: Job) => Promise<unknown>): Promise<string> {
      scripts.set(script, handler)
      const { id } = await pawl.jobs.enqueue('scripted', { script })
      return id
    }

    async function waitFor(id: string, state: string) {
      return until(`job ${id} is ${state}`, async () => {
        const job = await pawl.jobs.get(id)
        return job?.state === state && job
      })
    }

    const effectsOf = (script: string) => db.query('select attempt from effect where name = $1 order by attempt', [script])
    const followUpsOf = (script: string) =>
      db.query("select from pawl.job where kind = 'follow-up' and payload->>'of' = $1", [script])

    test('[J1] what is enqueued commits with the transaction', async () => {
      let ids: string[] = []
      await adapter.transaction(async ({ tx, run }) => {
        const one = await pawl.jobs.enqueue('one', awkward, {
          tx,
          headers: { 'trace?': '$3' },
          priority: 3,
          maxAttempts: 7,
          durability: 'durable',
        })
        const many = await pawl.jobs.enqueueMany('many', [{ n: 1 }, { n: 2 }], { tx, delay: '1h', queue: 'slow' })
        await run("insert into effect values ('commits', 1)")
        ids = [one.id, ...many.ids]
        expect(await pawl.jobs.get(one.id)).toBeUndefined()
      })
      expect(new Set(ids).size).toBe(3)
      const [one, first, second] = await Promise.all(ids.map((id) => pawl.jobs.get(id)))
      expect(one).toMatchObject({
        kind: 'one',
        state: 'ready',
        payload: awkward,
        headers: { 'trace?': '$3' },
        priority: 3,
        maxAttempts: 7,
      })
      expect(first).toMatchObject({ kind: 'many', state: 'scheduled', queue: 'slow', payload: { n: 1 } })
      expect(second).toMatchObject({ kind: 'many', state: 'scheduled', queue: 'slow', payload: { n: 2 } })
    })

    test('[J1] what is enqueued rolls back with the transaction', async () => {
      const before = await db.query('select count(*) from pawl.job')
      let id = ''
      await expect(
        adapter.transaction(async ({ tx, run }) => {
          id = (await pawl.jobs.enqueue('one', awkward, { tx })).id
          await pawl.jobs.enqueueMany(
            'many',
            Array.from({ length: 1500 }, (_, n) => ({ n })),
            { tx },
          )
          await run("insert into effect values ('rolls back', 1)")
          throw rolledBack
        }),
      ).rejects.toThrow(rolledBack)
      expect(await pawl.jobs.get(id)).toBeUndefined()
      expect(await db.query('select count(*) from pawl.job')).toEqual(before)
      expect(await effectsOf('rolls back')).toEqual([])
    })

    test('[J1] cancelling and retrying join the transaction too', async () => {
      const { ids } = await pawl.jobs.enqueueMany('parked', [{}, {}], { delay: '1h' })
      const change = (isKept: boolean) =>
        adapter.transaction(async ({ tx }) => {
          expect(await pawl.jobs.cancel(ids[0]!, { tx, reason: 'why? $1' })).toEqual({ was: 'scheduled' })
          await pawl.jobs.retry(ids[1]!, { tx, revision: 1 })
          if (!isKept) throw rolledBack
        })
      await expect(change(false)).rejects.toThrow(rolledBack)
      expect(await Promise.all(ids.map(async (id) => (await pawl.jobs.get(id))?.state))).toEqual(['scheduled', 'scheduled'])
      await change(true)
      expect(await Promise.all(ids.map(async (id) => (await pawl.jobs.get(id))?.state))).toEqual(['cancelled', 'ready'])
    })

    test('[J29] a handle outside a transaction is refused and nothing is written', async () => {
      const { id: parked } = await pawl.jobs.enqueue('parked', {}, { delay: '1h' })
      const tables = ['job', 'job_history', 'event', 'once', 'record_scope', 'record']
      const counts = tables.map((table) => `(select count(*)::integer from pawl.${table}) as ${table}`)
      const written = () => db.query(`select ${counts.join(', ')}`)
      const calls: Record<string, (job: Job, tx: AnyTx) => Promise<unknown>> = {
        enqueue: (_, tx) => pawl.jobs.enqueue('never', {}, { tx }),
        enqueueMany: (_, tx) => pawl.jobs.enqueueMany('never', [{}, {}], { tx }),
        cancel: (_, tx) => pawl.jobs.cancel(parked, { tx }),
        append: (_, tx) => pawl.events.append({ type: 'never', aggregateType: 'a', key: 'k', data: {} }, { tx }),
        put: (_, tx) => scope.put({ data: { id: '1' } }, { tx }),
        once: (_, tx) => once(tx, { namespace: 'never', key: 'k' }, () => 1),
        guard: (job, tx) => job.guard(tx),
        complete: (job, tx) => job.complete(tx, 'never'),
      }
      const answers: string[] = []
      const id = await runScript('outside', async (job) => {
        const before = await written()
        for (const [handle, outside] of Object.entries(adapter.outside))
          for (const [verb, call] of Object.entries(calls)) {
            const attempted = (async () => call(job, outside() as AnyTx))()
            const answer = await attempted.then(
              () => 'accepted',
              (error: { code?: string }) => error.code ?? String(error),
            )
            if (answer !== 'PAWL_TX_UNSUPPORTED') answers.push(`${verb} with ${handle}: ${answer}`)
          }
        return { before, after: await written() }
      })
      const job = await waitFor(id, 'done')
      expect(answers).toEqual([])
      const { before, after } = job.result as { before: unknown; after: unknown }
      expect(after).toEqual(before)
      expect((await pawl.jobs.get(parked))?.state).toBe('scheduled')
    })

    test('[J2] job.complete(tx): the effect, the completion and the follow-up job are all there', async () => {
      const id = await runScript('all', async (job) => {
        await adapter.transaction(async ({ tx, run }) => {
          await run(`insert into effect values ('all', ${job.attempt})`)
          await pawl.jobs.enqueue('follow-up', { of: 'all' }, { tx })
          await job.complete(tx, { answer: awkward })
        })
        return 'a result that is not stored, because the transaction stored its own'
      })
      expect(await waitFor(id, 'done')).toMatchObject({ attempt: 1, result: { answer: awkward } })
      expect(await effectsOf('all')).toEqual([{ attempt: 1 }])
      expect(await followUpsOf('all')).toHaveLength(1)
    })

    test('[J2] job.complete(tx) that rolled back leaves nothing; the next attempt leaves one', async () => {
      const id = await runScript('none', async (job) => {
        await adapter.transaction(async ({ tx, run }) => {
          await run(`insert into effect values ('none', ${job.attempt})`)
          await pawl.jobs.enqueue('follow-up', { of: 'none' }, { tx })
          await job.complete(tx)
          if (job.attempt === 1) throw rolledBack
        })
      })
      expect(await waitFor(id, 'done')).toMatchObject({ attempt: 2 })
      expect((await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['failed', 'done'])
      expect(await effectsOf('none')).toEqual([{ attempt: 2 }])
      expect(await followUpsOf('none')).toHaveLength(1)
    })

    test('[J2] a handler that returns although its completing transaction rolled back has failed', async () => {
      const id = await runScript('swallowed', async (job) => {
        await adapter
          .transaction(async ({ tx, run }) => {
            await run(`insert into effect values ('swallowed', ${job.attempt})`)
            await job.complete(tx)
            if (job.attempt === 1) throw rolledBack
          })
          .catch(() => undefined)
        return 'not true'
      })
      expect(await waitFor(id, 'done')).toMatchObject({ attempt: 2, result: null })
      const [first] = await pawl.jobs.attempts(id)
      expect(first).toMatchObject({ outcome: 'failed', error: expect.stringContaining('its transaction did not commit') })
      expect(await effectsOf('swallowed')).toEqual([{ attempt: 2 }])
    })

    test('[J2] a handler that throws after its completing transaction committed is done, once', async () => {
      const id = await runScript('thrown', async (job) => {
        await adapter.transaction(async ({ tx, run }) => {
          await run(`insert into effect values ('thrown', ${job.attempt})`)
          await job.complete(tx, 'stored')
        })
        throw new Error('after the commit')
      })
      expect(await waitFor(id, 'done')).toMatchObject({ attempt: 1, result: 'stored' })
      await until('the worker has counted it', () => worker.metrics().running === 0 && worker.metrics().unsettled === 0)
      expect((await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['done'])
      expect(await effectsOf('thrown')).toEqual([{ attempt: 1 }])
    })

    test('[J2] job.guard(tx) passes while the job is held, then refuses', async () => {
      const errors: unknown[] = []
      const id = await runScript('guarded', async (job) => {
        const write = () =>
          adapter.transaction(async ({ tx, run }) => {
            await job.guard(tx)
            await run(`insert into effect values ('guarded', ${job.attempt})`)
          })
        await write()
        if (job.attempt > 1) return
        // Another claim: a new fence under which this handler is a zombie.
        await db.query(
          "update pawl.job set state = 'ready', holder = null, run_until = null, fence = pawl.next_fence() where id = $1",
          [job.id],
        )
        await write().catch((error: unknown) => errors.push(error))
      })
      expect(await waitFor(id, 'done')).toMatchObject({ attempt: 2 })
      await until('the zombie is refused', () => errors.length > 0)
      expect(errors).toMatchObject([{ code: 'PAWL_LEASE_LOST', details: { id } }])
      expect(await effectsOf('guarded')).toEqual([{ attempt: 1 }, { attempt: 2 }])
    })

    test('[J2] job.complete(tx) of a lost job rolls the whole transaction back', async () => {
      const errors: unknown[] = []
      const id = await runScript('zombie', async (job) => {
        if (job.attempt === 1) {
          await db.query(
            "update pawl.job set state = 'ready', holder = null, run_until = null, fence = pawl.next_fence() where id = $1",
            [job.id],
          )
        }
        await adapter
          .transaction(async ({ tx, run }) => {
            await run(`insert into effect values ('zombie', ${job.attempt})`)
            await pawl.jobs.enqueue('follow-up', { of: 'zombie' }, { tx })
            await job.complete(tx, job.attempt)
          })
          .catch((error: unknown) => {
            errors.push(error)
            throw error
          })
      })
      expect(await waitFor(id, 'done')).toMatchObject({ attempt: 2, result: 2 })
      await until('the zombie is refused', () => errors.length > 0)
      expect(errors).toMatchObject([{ code: 'PAWL_LEASE_LOST' }])
      expect(await effectsOf('zombie')).toEqual([{ attempt: 2 }])
      expect(await followUpsOf('zombie')).toHaveLength(1)
    })
  })
}

describe('SQL alone', () => {
  let db: TestDatabase
  beforeAll(async () => {
    db = await createDatabase()
  })
  afterAll(() => db.drop())

  test('[J1] select pawl.enqueue(...) commits and rolls back with the transaction around it', async () => {
    const client = await db.pool.connect()
    try {
      await client.query('begin')
      await client.query(`select pawl.enqueue('email', '{"to": "a@b.c"}')`)
      await client.query('savepoint half')
      await client.query(`select pawl.enqueue('email', '{"to": "undone"}')`)
      await client.query('rollback to half')
      await client.query(
        `select pawl.enqueue('later', delay => '1 hour', queue => 'slow', priority => 5, max_attempts => 2, tenant => 'acme')`,
      )
      await client.query('commit')
      await client.query('begin')
      await client.query(`select pawl.enqueue('email', '{"to": "never"}')`)
      await client.query('rollback')
    } finally {
      client.release()
    }
    expect(
      await db.query('select tenant, queue, kind, state, payload, priority, max_attempts from pawl.job order by id'),
    ).toEqual([
      { tenant: '', queue: 'default', kind: 'email', state: 'ready', payload: { to: 'a@b.c' }, priority: 0, max_attempts: null },
      { tenant: 'acme', queue: 'slow', kind: 'later', state: 'scheduled', payload: {}, priority: 5, max_attempts: 2 },
    ])
  })

  test('[J1] a trigger enqueues with the row that fired it', async () => {
    await db.query('create table customer (id integer primary key)')
    await db.query(`create function greet() returns trigger language plpgsql as $$
      begin
        perform pawl.enqueue('greet', jsonb_build_object('id', new.id));
        return new;
      end $$`)
    await db.query('create trigger greet after insert on customer for each row execute function greet()')
    await db.query('insert into customer values (1)')
    await expect(db.query('insert into customer values (2), (1)')).rejects.toThrow(/duplicate key/)
    expect(await db.query("select payload from pawl.job where kind = 'greet'")).toEqual([{ payload: { id: 1 } }])
  })
})

test("an unknown library's transaction is refused with what to pass instead", () => {
  for (const none of [{}, null, undefined, 'tx', () => undefined])
    expect(() => toTx(none as never)).toThrow(expect.objectContaining({ code: 'PAWL_TX_UNSUPPORTED' }))
  expect(() => toTx(Promise.resolve({}) as never)).toThrow(/tx is a promise\. Await it/)
  expect(() => toTx({ execute: () => undefined } as never)).toThrow(/drizzleTx\(tx, sql\)/)
})

describe('a pg client', () => {
  let db: TestDatabase
  let pawl: Pawl
  beforeAll(async () => {
    db = await createDatabase()
    pawl = db.pawl()
  })
  afterAll(() => db.drop())

  /** A client of an older pg, which cannot tell its status. */
  const older = (client: pg.PoolClient) => ({ query: client.query.bind(client) })

  test('[J29] whose begin is still on its way is accepted', async () => {
    const client = await db.pool.connect()
    const begun = client.query('begin')
    const { id } = await pawl.jobs.enqueue('early', {}, { tx: client })
    await begun
    await client.query('rollback')
    client.release()
    expect(await pawl.jobs.get(id)).toBeUndefined()
  })

  test('[J29] that sends begin, append and the end at once keeps them together', async () => {
    for (const [end, kept] of [
      ['rollback', 0],
      ['commit', 1],
    ] as const) {
      const client = new pg.Client({ connectionString: db.url, pipeline: true } as pg.ClientConfig)
      await client.connect()
      const event = { type: 'sent', aggregateType: 'a', key: end, data: {} }
      await Promise.all([client.query('begin'), pawl.events.append(event, { tx: client }), client.query(end)])
      await client.end()
      expect(await db.query('select from pawl.event where aggregateid = $1', [end])).toHaveLength(kept)
    }
  })

  test('[J29] whose commit is on its way is refused', async () => {
    const client = await db.pool.connect()
    await client.query('begin')
    const committed = client.query('commit')
    const event = { type: 'late', aggregateType: 'a', key: 'late', data: {} }
    await expect(pawl.events.append(event, { tx: client })).rejects.toMatchObject({ code: 'PAWL_TX_UNSUPPORTED' })
    await committed
    client.release()
  })

  test('[J29] after its commit is refused', async () => {
    const client = await db.pool.connect()
    await client.query('begin')
    await pawl.jobs.enqueue('in time', {}, { tx: client })
    await client.query('commit')
    await expect(pawl.jobs.enqueue('late', {}, { tx: client })).rejects.toMatchObject({ code: 'PAWL_TX_UNSUPPORTED' })
    await expect(pawl.jobs.enqueue('late', {}, { tx: older(client) })).rejects.toMatchObject({ code: 'PAWL_TX_UNSUPPORTED' })
    client.release()
    expect(await db.query('select kind from pawl.job')).toEqual([{ kind: 'in time' }])
  })

  test('[J29] that cannot tell its status is asked in SQL', async () => {
    const client = await db.pool.connect()
    await client.query('begin')
    const { id } = await pawl.jobs.enqueue('asked', {}, { tx: older(client) })
    await client.query('commit')
    client.release()
    expect(await pawl.jobs.get(id)).toMatchObject({ kind: 'asked' })
  })
})

/** Never called: the types refuse what is no transaction where the library's own types can tell. */
export function refusedByTypes(
  pawl: Pawl,
  pool: pg.Pool,
  sql: Sql,
  kysely: Kysely<never>,
  knex: Knex,
  source: DataSource,
): unknown[] {
  return [
    // @ts-expect-error a pool
    pawl.jobs.enqueue('x', {}, { tx: pool }),
    // @ts-expect-error postgres.js outside a transaction
    pawl.jobs.enqueue('x', {}, { tx: sql }),
    // @ts-expect-error a Kysely outside a transaction
    pawl.jobs.enqueue('x', {}, { tx: kysely }),
    // @ts-expect-error a Knex outside a transaction
    pawl.jobs.enqueue('x', {}, { tx: knex }),
    // @ts-expect-error a TypeORM data source
    pawl.jobs.enqueue('x', {}, { tx: source }),
    // @ts-expect-error null
    pawl.jobs.enqueue('x', {}, { tx: null }),
  ]
}
