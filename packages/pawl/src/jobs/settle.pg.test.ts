// Ends of attempts whose rows another transaction has locked: they wait, and no other end waits for them.

import type { Pawl } from 'pawl'
import pg from 'pg'
import { afterEach, beforeEach, expect, inject, onTestFinished, test } from 'vitest'
import { observed } from '../../test/support/attempt.ts'
import { createDatabase, deferred, type TestDatabase, until, withDatabase } from '../../test/support/database.ts'
import { openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import { bind, statement } from '../db/statement.ts'
import { Failures } from '../kernel/alerts.ts'
import { installProbe } from '../kernel/probe.ts'
import type { Worker } from '../worker.ts'
import { Attempt } from './attempt.ts'
import { Fetcher } from './claim/fetcher.ts'
import { type Ending, failed } from './endings.ts'
import { defineKind } from './kinds.ts'
import { Settler } from './settle.ts'

let db: TestDatabase
let pawl: Pawl
const workers: Worker[] = []
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(async () => {
  installProbe(undefined)
  await Promise.all(workers.splice(0).map((worker) => worker.stop({ grace: 0 })))
  await db.drop()
})

async function startWorker(options: Parameters<Pawl['worker']>[0] = {}): Promise<Worker> {
  const worker = pawl.worker(options)
  workers.push(worker)
  await worker.start()
  return worker
}

const many = (count: number) => Array.from({ length: count }, () => ({}))

async function done(kind: string): Promise<number> {
  const [row] = await db.query<{ n: number }>(
    "select count(*)::integer as n from pawl.job_history where kind = $1 and outcome = 'done'",
    [kind],
  )
  return row!.n
}

test('[J5] a handler that hangs in its guarded transaction delays no other job', async () => {
  const hang = deferred()
  let guarded: number | undefined
  pawl.jobs.define('hangs', {
    timeout: '300ms',
    // On a busy machine an attempt may time out before its guard; the next attempt guards instead.
    retry: { attempts: 50, initialMs: 1, jitter: false },
    run: async (job) => {
      if (guarded !== undefined) return
      const client = await db.pool.connect()
      try {
        await client.query('begin')
        await job.guard(client)
        guarded = job.attempt
        await hang.promise
      } finally {
        await client.query('rollback')
        client.release()
      }
    },
  })
  pawl.jobs.define('quick', { run: () => undefined })
  const worker = await startWorker({ tuning: { batchMax: 100 } })
  const { id } = await pawl.jobs.enqueue('hangs', {})
  await until('its end meets the lock', () => worker.metrics().conflicts > 0)
  // The worker holds at most 300 jobs, three batches: it also claims again.
  await pawl.jobs.enqueueMany('quick', many(400))
  await until('all the others are done', async () => (await done('quick')) === 400)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'running', attempt: guarded })
  // The database has the last batch before the worker hears that it has.
  await until('nothing else is unsettled', () => worker.metrics().unsettled === 1)
  expect(worker.metrics().refused).toBe(0)
  hang.resolve()
  await until('it was timed out and ran again', async () => (await pawl.jobs.get(id))?.state === 'done')
  const outcomes = (await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)
  expect(outcomes).toEqual([...Array<string>(guarded!).fill('timed out'), 'done'])
})

test('[J5] rows locked by a stranger delay only their own settle', async () => {
  const go = deferred()
  pawl.jobs.define('held', { run: () => go.promise })
  const worker = await startWorker({ concurrency: 50 })
  const { ids } = await pawl.jobs.enqueueMany('held', many(50))
  await until('all run', () => worker.metrics().running === 50)
  const stranger = await db.pool.connect()
  await stranger.query('begin')
  for (const id of ids.slice(10, 13)) await pawl.jobs.cancel(id, { tx: stranger })
  go.resolve()
  await until('the others are done', async () => (await done('held')) === 47)
  await until('the worker knows it, too', () => worker.metrics().unsettled === 3)
  await stranger.query('rollback')
  stranger.release()
  await worker.whenIdle()
  expect(await done('held')).toBe(50)
  expect(worker.metrics()).toMatchObject({ done: 50, unsettled: 0, refused: 0 })
})

test('[J5] an end set aside is refused if the locker cancelled the job', async () => {
  const go = deferred()
  pawl.jobs.define('held', { run: () => go.promise })
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('held', {})
  await until('it runs', () => worker.metrics().running === 1)
  const stranger = await db.pool.connect()
  await stranger.query('begin')
  await pawl.jobs.cancel(id, { tx: stranger })
  go.resolve()
  await until('its end meets the lock', () => worker.metrics().conflicts > 0)
  await stranger.query('commit')
  stranger.release()
  await worker.whenIdle()
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'cancelled' })
  await until('the refusal is counted', () => worker.metrics().refused === 1)
})

/** No end of this kind is stored until the gate has a row. */
async function holdHistory(kind: string): Promise<void> {
  await db.query(`create table gate (a integer);
    create function wait() returns trigger language plpgsql set search_path from current as
      $$ begin while not exists (select from gate) loop perform pg_sleep(0.01); end loop; return new; end $$;
    create trigger wait before insert on pawl.job_history for each row when (new.kind = '${kind}') execute function wait()`)
}

/** Whether anybody may connect to the test's database. Connections that are there stay. */
async function setLogins(areAllowed: boolean): Promise<void> {
  const client = new pg.Client({ connectionString: withDatabase(inject('serverUrl'), 'postgres') })
  await client.connect()
  await client.query(`alter database ${db.name} allow_connections ${areAllowed}`)
  await client.end()
}

test('[K15] a login refused while jobs end costs no end and no attempt', async () => {
  const go = deferred()
  let runs = 0
  pawl.jobs.define('held', {
    run: async () => {
      runs++
      await go.promise
    },
  })
  pawl.jobs.define('tx', { tx: async (_job, tx) => void (await tx.query('select 1')) })
  const worker = await startWorker()
  await pawl.jobs.enqueueMany('held', many(3))
  await until('they run', () => worker.metrics().running === 3)
  await db.query('select 1')
  await setLogins(false)
  try {
    await pawl.jobs.enqueue('tx', {})
    go.resolve()
    await until('their ends and the new job met it', () => worker.metrics().errors > 0 && worker.metrics().started === 4)
    expect(worker.metrics()).toMatchObject({ done: 0, failed: 0, unsettled: 3 })
  } finally {
    await setLogins(true)
  }
  await until('all are done', async () => (await done('held')) === 3 && (await done('tx')) === 1)
  expect(runs).toBe(3)
  expect(await db.query('select from pawl.job_attempt')).toEqual([])
})

test('[J15] an end that PostgreSQL refuses to store makes its job dead', async () => {
  await db.query(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one' using errcode = '22000'; end $$;
    create trigger refuse before update on pawl.job for each row when (new.snoozes > 0) execute function refuse()`)
  let runs = 0
  pawl.jobs.define('sleepy', {
    run: async (job) => {
      runs++
      return job.snooze('1h')
    },
  })
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('sleepy', {})
  await until('it is dead', async () => (await pawl.jobs.get(id))?.state === 'dead')
  expect((await pawl.jobs.get(id))!.lastError).toMatch(/The outcome could not be stored: .*not this one/)
  await worker.whenIdle()
  expect(runs).toBe(1)
})

test('[K17] a missing privilege delays ends and raises an alert; none is dead', async () => {
  const role = `role_${db.name}`
  await db.query(`create role ${role} login password 'given';
    grant usage on schema pawl to ${role};
    grant all on all tables in schema pawl to ${role};
    grant all on all sequences in schema pawl to ${role}`)
  try {
    const url = new URL(db.url)
    url.username = role
    url.password = 'given'
    const as = db.pawl({ databaseUrl: url.href })
    let runs = 0
    as.jobs.define('work', { run: () => ({ runs: ++runs }) })
    const worker = as.worker()
    workers.push(worker)
    await worker.start()
    await db.query(`revoke insert on pawl.job_history from ${role}`)
    await pawl.jobs.enqueueMany('work', many(3))
    await until('there is an alert', async () => (await pawl.alerts()).some(({ subject }) => subject === 'settle'))
    expect(worker.metrics()).toMatchObject({ started: 3, done: 0, failed: 0, unsettled: 3 })
    expect(await db.query('select distinct state from pawl.job')).toEqual([{ state: 'running' }])
    await db.query(`grant insert on pawl.job_history to ${role}`)
    await until('all are done', async () => (await done('work')) === 3)
    await until('the alert is resolved', async () => (await pawl.alerts()).length === 0)
    await until('none is held', () => worker.metrics().unsettled === 0)
    expect(runs).toBe(3)
    await Promise.all(workers.splice(0).map((each) => each.stop()))
  } finally {
    await db.query(`drop owned by ${role} cascade; drop role ${role}`)
  }
})

test('[J5] ends refused for their own reason delay no other of their batch', async () => {
  await db.query(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not yet'; end $$;
    create trigger refuse before insert on pawl.job_history for each row when (new.payload = '"bad"') execute function refuse()`)
  const go = deferred()
  pawl.jobs.define('mixed', { run: () => go.promise })
  const worker = await startWorker({ concurrency: 40 })
  const kinds = (payload: string) => Array<string>(payload === 'bad' ? 15 : 20).fill(payload)
  await pawl.jobs.enqueueMany('mixed', [...kinds('bad'), ...kinds('good')])
  await until('all run', () => worker.metrics().running === 35)
  go.resolve()
  await until('the others are done', async () => (await done('mixed')) === 20)
  await until('the refused ones wait', () => worker.metrics().unsettled === 15)
  await db.query('drop trigger refuse on pawl.job_history')
  await until('they follow', async () => (await done('mixed')) === 35)
  expect(worker.metrics()).toMatchObject({ started: 35, failed: 0 })
})

test('an end retried or replaced by another counts once as unsettled', async () => {
  await db.query(`create function refuse() returns trigger language plpgsql as
      $$ begin raise exception 'not yet' using errcode = case when new.payload = '"unstorable"' then '22000' else 'P0001' end; end $$;
    create trigger refuse before insert on pawl.job_history for each row when (new.payload <> '"good"') execute function refuse()`)
  const go = deferred()
  pawl.jobs.define('mixed', { run: () => go.promise })
  const worker = await startWorker({ concurrency: 6 })
  const held: number[] = []
  installProbe((name) => {
    const { running, unsettled, done: stored, failed } = worker.metrics()
    if (name === 'jobs.settle.before' || name === 'jobs.fail.before') held.push(running + unsettled + stored + failed)
  })
  await pawl.jobs.enqueueMany('mixed', ['bad', 'bad', 'unstorable', 'unstorable', 'good', 'good'])
  await until('all run', () => worker.metrics().running === 6)
  go.resolve()
  await until('two are done and two are dead', () => worker.metrics().done === 2 && worker.metrics().failed === 2)
  expect(worker.metrics().unsettled).toBe(2)
  expect(Math.max(...held)).toBe(6)
  await db.query('drop trigger refuse on pawl.job_history')
  await until('the others follow', () => worker.metrics().unsettled === 0)
})

test('[J32] unsettled results of 32 MB stop claims and starts', async () => {
  await holdHistory('heavy')
  const text = 'x'.repeat(900_000)
  pawl.jobs.define('heavy', { run: () => text })
  const worker = await startWorker({ concurrency: 4 })
  await pawl.jobs.enqueueMany('heavy', many(45))
  // 38 of them are more than 32 MB, and three others may run when that one ends.
  await until('no more start', () => worker.metrics().running === 0 && worker.metrics().unsettled >= 38)
  expect(worker.metrics().started).toBeLessThanOrEqual(41)
  await db.query('insert into gate values (1)')
  await until('all are done', async () => (await done('heavy')) === 45)
})

test('[J33] large jobs whose ends are set aside stop no claim', async () => {
  const locked = deferred()
  pawl.jobs.define<string>('large', { run: ({ payload }) => (payload === '' ? undefined : locked.promise) })
  // Enough that their payloads exceed 32 MB.
  await pawl.jobs.enqueueMany(
    'large',
    Array.from({ length: 40 }, () => 'x'.repeat(900_000)),
  )
  const worker = await startWorker({ concurrency: 50 })
  await until('all run', () => worker.metrics().running === 40)
  const stranger = await db.pool.connect()
  await stranger.query('begin')
  await stranger.query('select from pawl.job for update')
  locked.resolve()
  await until('their ends are set aside', () => worker.metrics().conflicts > 0)
  await pawl.jobs.enqueue('large', '')
  await until('another is done', async () => (await done('large')) === 1)
  await stranger.query('rollback')
  stranger.release()
  await until('all are done', async () => (await done('large')) === 41)
})

test('[J18] a settle that waits for its durability delays no other end', async () => {
  await holdHistory('slow')
  pawl.jobs.define('slow', { durability: 'relaxed', run: () => undefined })
  pawl.jobs.define('quick', { run: () => undefined })
  const worker = await startWorker()
  await pawl.jobs.enqueue('slow', {})
  await until('its settle waits', async () => {
    const rows = await db.query(
      "select from pg_stat_activity where datname = current_database() and application_name = 'pawl settle' and wait_event = 'PgSleep'",
    )
    return rows.length === 1
  })
  await pawl.jobs.enqueueMany('quick', many(3))
  await until('the others are done', async () => (await done('quick')) === 3)
  expect(await done('slow')).toBe(0)
  await db.query('insert into gate values (1)')
  await worker.whenIdle()
  expect(await done('slow')).toBe(1)
})

// ---- the settler alone

interface Alone {
  readonly settler: Settler
  /** A job that an incarnation of its own has claimed. */
  claim(): Promise<Attempt>
}

async function settlerAlone(
  onSettled: (endings: readonly Ending[]) => void = () => undefined,
  onRefused: (endings: readonly Ending[]) => void = () => undefined,
): Promise<Alone> {
  const { config } = pawl
  const nothing = () => undefined
  const settler = new Settler({
    process: {
      config,
      failures: new Failures({ logger: config.logger }),
      loop: () => ({ succeeded: nothing, failed: nothing }),
    },
    batchMax: 100,
    outcomes: { settled: onSettled, refusedEnds: onRefused },
    onStored: nothing,
  })
  const connection = new Connection(config.database, 'test')
  onTestFinished(async () => {
    await settler.stop()
    await connection.close()
  })
  const kind = defineKind('work', { run: nothing })
  return {
    settler,
    async claim() {
      await pawl.jobs.enqueue('work', {})
      const worker = await openIncarnation(connection)
      const { rows } = await new Fetcher(connection, 10_000).claim(worker, ['default'], [kind], 1)
      return new Attempt(rows[0]!, kind, observed(), worker.id)
    },
  }
}

test('attempts of two incarnations in one batch are recorded with their own', async () => {
  const settled = deferred<readonly Ending[]>()
  const { settler, claim } = await settlerAlone(settled.resolve)
  const held = [await claim(), await claim()]
  for (const each of held) settler.add(failed(each, 'failed', 1000, 'no'))
  settler.start()
  expect(await settled.promise).toHaveLength(2)
  for (const { id, worker } of held) expect(await pawl.jobs.attempts(id)).toMatchObject([{ outcome: 'failed', holder: worker }])
})

test('what follows a settle throws: its ends are not sent again', async () => {
  const calls: string[] = []
  const { settler, claim } = await settlerAlone(
    (ends) => {
      calls.push(`settled ${ends.length}`)
      throw new Error('a bug')
    },
    (ends) => void calls.push(`refused ${ends.length}`),
  )
  const held = [await claim(), await claim()]
  for (const each of held) settler.add(failed(each, 'released', 0))
  settler.start()
  await settler.drained(10_000)
  // The next end is stored after whatever was sent again.
  settler.add(failed(await claim(), 'released', 0))
  await settler.drained(10_000)
  expect(settler.unsettled).toBe(0)
  expect(calls).toEqual(['settled 2', 'settled 1'])
})

test('[J15] a job timed out by the keeper is reported dead once', async () => {
  const told: string[] = []
  pawl.on('job.dead', ({ id }) => told.push(id))
  const timeOut = statement(import.meta.url, 'time-out')
  const keeper = await db.pool.connect()
  pawl.jobs.define('blocks', {
    timeout: 100,
    retry: { attempts: 1 },
    run: async (job) => {
      const given = {
        worker: worker.id!,
        ids: `{${job.id}}`,
        fences: `{${job.fence}}`,
        limit: 1,
        max_attempts: 1,
        running_ids: '{}',
        running_fences: '{}',
      }
      await keeper.query('begin')
      await keeper.query(timeOut.text, bind(timeOut, { ...given, after: '-infinity', before: '-infinity' }))
      await new Promise(() => undefined)
    },
  })
  const worker = await startWorker()
  await pawl.jobs.enqueue('blocks', {})
  await until("the process's own end waits for the keeper's", () => worker.metrics().conflicts > 0)
  await keeper.query('commit')
  keeper.release()
  await until(
    'it is answered',
    () => worker.metrics(),
    ({ refused, dead }) => refused + dead > 0,
  )
  expect(told).toEqual([])
  expect(worker.metrics()).toMatchObject({ dead: 0, failed: 0, refused: 1 })
})
