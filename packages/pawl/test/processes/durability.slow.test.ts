// What an acknowledged job or event survives, on servers of the test's own that are killed.

import { type AnyTx, createPawl, type Durability, type Job, type Pawl, silentLogger, type Tx } from 'pawl'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, until } from '../support/database.ts'
import { FaultProxy } from '../support/fault-proxy.ts'
import { killPostmaster, promote, query, startAgain, startOwnServer, startPair } from '../support/standby.ts'

function openPawl(databaseUrl: string, durability: Durability): Pawl {
  const pawl = createPawl({
    databaseUrl,
    durability,
    logger: silentLogger,
    tuning: { connectTimeoutMs: 2000, queryTimeoutMs: 5000 },
  })
  onTestFinished(() => pawl.close())
  return pawl
}

/** Enqueues from several callers at once until the server is gone. Gives the ids that were acknowledged. */
function enqueueUntilItBreaks(pawl: Pawl): { acknowledged: string[]; ended: Promise<unknown> } {
  return untilItBreaks(async () => (await pawl.jobs.enqueue('kept', {})).id)
}

function untilItBreaks(store: () => Promise<string>): { acknowledged: string[]; ended: Promise<unknown> } {
  const acknowledged: string[] = []
  const caller = async () => {
    for (;;) {
      try {
        acknowledged.push(await store())
      } catch {
        return
      }
    }
  }
  return { acknowledged, ended: Promise.all(Array.from({ length: 6 }, caller)) }
}

async function lostOf(url: string, acknowledged: readonly string[]): Promise<string[]> {
  const rows = await query<{ id: string }>(url, 'select id::text from pawl.job union all select id::text from pawl.job_history')
  const there = rows.map(({ id }) => id)
  expect(new Set(there).size).toBe(there.length)
  return acknowledged.filter((id) => !there.includes(id))
}

// Background writes come so seldom here that only the commit itself makes a job safe.
const lazy = { wal_writer_delay: '10s', wal_writer_flush_after: '1GB', checkpoint_timeout: '1h' }

test.each(['durable', 'relaxed'] as const)(
  '[J18] kill -9 of the server while jobs are enqueued with durability %s',
  { timeout: 120_000 },
  async (durability) => {
    const server = await startOwnServer(lazy)
    const pawl = openPawl(server.url, durability)
    await pawl.migrate()
    const { acknowledged, ended } = enqueueUntilItBreaks(pawl)
    await until('300 jobs are acknowledged', () => acknowledged.length >= 300)
    await killPostmaster(server)
    await ended
    const again = await startAgain(server, lazy)
    const lost = await lostOf(again.url, acknowledged)
    if (durability === 'durable') expect(lost).toEqual([])
    // Relaxed may lose what was acknowledged last, and does here: so the check above can see a loss.
    else expect(lost.length).toBeGreaterThan(0)
  },
)

test.each(['durable', 'relaxed'] as const)(
  '[O1] kill -9 of the server while events are appended with durability %s',
  { timeout: 120_000 },
  async (durability) => {
    const server = await startOwnServer(lazy)
    const pawl = openPawl(server.url, durability)
    await pawl.migrate()
    const event = { type: 'Kept', aggregateType: 'thing', key: 'k', data: {} }
    const { acknowledged, ended } = untilItBreaks(async () => (await pawl.events.append(event)).ids[0]!)
    await until('300 events are acknowledged', () => acknowledged.length >= 300)
    await killPostmaster(server)
    await ended
    const again = await startAgain(server, lazy)
    const rows = await query<{ id: string }>(again.url, 'select id::text from pawl.event')
    const there = new Set(rows.map(({ id }) => id))
    expect(there.size).toBe(rows.length)
    const lost = acknowledged.filter((id) => !there.has(id))
    if (durability === 'durable') expect(lost).toEqual([])
    else expect(lost.length).toBeGreaterThan(0)
  },
)

test('[J18] a settled job stays settled through kill -9 of the server', {
  timeout: 120_000,
}, async () => {
  const server = await startOwnServer(lazy)
  await query(server.url, 'create table effect (job_id bigint)')
  const pawl = openPawl(server.url, 'durable')
  await pawl.migrate()
  pawl.jobs.define('kept', { tx: async (job, tx) => void (await tx.query('insert into effect values ($1)', [job.id])) })
  const done: string[] = []
  pawl.on('job.done', ({ id }) => done.push(id))
  const worker = pawl.worker({ concurrency: 4 })
  await worker.start()
  const { ids } = await pawl.jobs.enqueueMany(
    'kept',
    Array.from({ length: 3000 }, () => ({})),
  )
  await until('200 jobs are done', () => done.length >= 200)
  await killPostmaster(server)
  const before = [...done]
  expect(before.length).toBeLessThan(ids.length)
  const again = await startAgain(server, lazy)
  const history = await query<{ id: string }>(again.url, "select id::text from pawl.job_history where outcome = 'done'")
  const there = new Set(history.map(({ id }) => id))
  expect(before.filter((id) => !there.has(id))).toEqual([])
  await until(
    'the rest is done',
    async () => (await query<{ n: number }>(again.url, 'select count(*)::integer as n from pawl.job'))[0]!.n === 0,
    60_000,
  )
  expect(await query(again.url, 'select count(*)::integer as n, count(distinct job_id)::integer as jobs from effect')).toEqual([
    { n: 3000, jobs: 3000 },
  ])
  await worker.stop()
})

test('[J18] with replicated nothing acknowledged is missing after the primary is lost', {
  timeout: 120_000,
}, async () => {
  const { primary, standby } = await startPair()
  const pawl = openPawl(primary.url, 'replicated')
  await pawl.migrate()
  const { acknowledged, ended } = enqueueUntilItBreaks(pawl)
  await until('300 jobs are acknowledged', () => acknowledged.length >= 300)
  await killPostmaster(primary)
  await ended
  await promote(standby)
  expect(await lostOf(standby.url, acknowledged)).toEqual([])
  // The work goes on there.
  const after = openPawl(standby.url, 'durable')
  const ran: string[] = []
  after.jobs.define('kept', { run: async (job) => void ran.push(job.id) })
  const worker = after.worker()
  await worker.start()
  await until('every acknowledged job has run', () => acknowledged.every((id) => ran.includes(id)), 60_000)
  await worker.stop()
})

test('[J18] a worker lives through a failover: nothing is lost, doubled or counted', { timeout: 120_000 }, async () => {
  const { primary, standby } = await startPair()
  const proxy = await FaultProxy.start(primary.url)
  onTestFinished(() => proxy.stop())
  const pawl = openPawl(proxy.url, 'durable')
  await pawl.migrate()
  await query(primary.url, 'create table effect (job bigint not null)')
  const end = deferred()
  let isAborted = false
  pawl.jobs.define('effect', {
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1::bigint)', [job.id])
    },
  })
  pawl.jobs.define('long', {
    run: async (_job, { signal }) => {
      await end.promise
      isAborted = signal.aborted
    },
  })
  const worker = pawl.worker()
  await worker.start()
  const { id: long } = await pawl.jobs.enqueue('long', {})
  const acknowledged: string[] = []
  let isOver = false
  const enqueuing = (async () => {
    while (!isOver) {
      const { ids } = await pawl.jobs.enqueueMany('effect', [1, 2, 3]).catch(() => ({ ids: [] }))
      acknowledged.push(...ids)
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
  })()
  await until('200 jobs are acknowledged', () => acknowledged.length >= 200)
  await killPostmaster(primary)
  proxy.reset()
  await promote(standby)
  const before = acknowledged.length
  proxy.redirect(standby.url)
  await until('200 more are acknowledged', () => acknowledged.length >= before + 200, 60_000)
  isOver = true
  await enqueuing
  end.resolve()
  const count = (text: string) => query<{ n: number }>(standby.url, `select count(*)::integer as n ${text}`)
  await until('nothing is left', async () => (await count('from pawl.job'))[0]!.n === 0, 60_000)
  const effects = await query<{ job: string; n: number }>(
    standby.url,
    'select job::text, count(*)::integer as n from effect group by 1',
  )
  const times = new Map(effects.map(({ job, n }) => [job, n]))
  expect(acknowledged.filter((id) => times.get(id) !== 1)).toEqual([])
  expect(effects.filter(({ n }) => n > 1)).toEqual([])
  expect(await query(standby.url, "select id from pawl.job_history where crashes > 0 or outcome <> 'done'")).toEqual([])
  expect(await pawl.jobs.get(long)).toMatchObject({ state: 'done', attempt: 1 })
  expect(isAborted).toBe(false)
  await worker.stop()
})

test("[J18] replicated raises the caller's commit to the standby", { timeout: 120_000 }, async () => {
  const { primary } = await startPair()
  const pawl = openPawl(primary.url, 'durable')
  await pawl.migrate()
  const rows = await inTransaction(primary.url, 'on', (tx) => pawl.jobs.enqueue('kept', {}, { tx, durability: 'replicated' }))
  expect(rows).toBe('remote_apply')
  // A handler's transaction is raised at its commit, so that is where to look.
  await query(
    primary.url,
    `create table level (kind text, level text);
     create function note() returns trigger language plpgsql as
       $$ begin insert into public.level values (new.kind, current_setting('synchronous_commit')); return null; end $$;
     create trigger note after insert on pawl.job_history for each row execute function note()`,
  )
  const levels: string[] = []
  const durability = 'replicated'
  pawl.jobs.define('kept', {
    durability,
    run: async (job) => void levels.push(await inTransaction(primary.url, 'on', (tx) => job.complete(tx))),
  })
  pawl.jobs.define('alone', { durability, tx: (_, tx) => tx.query('select 1') })
  await pawl.jobs.enqueue('alone', {})
  const worker = pawl.worker()
  await worker.start()
  await until('the jobs are done', async () => (await query(primary.url, 'select from level')).length === 2)
  await worker.stop()
  expect(levels).toEqual(['remote_apply'])
  expect(await query(primary.url, "select level from level where kind = 'alone'")).toEqual([{ level: 'remote_apply' }])
})

test('[J18] replicated is refused wherever no standby is configured', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const refused = { code: 'PAWL_NO_STANDBY' }
  const all = db.pawl({ durability: 'replicated' })
  all.jobs.define('kept', { run: async () => undefined })
  await expect(all.worker().start()).rejects.toMatchObject(refused)
  await expect(all.jobs.enqueue('kept', {})).rejects.toMatchObject(refused)
  await expect(inTransaction(db.url, 'on', (tx) => all.jobs.enqueue('kept', {}, { tx }))).rejects.toMatchObject(refused)
  const some = db.pawl()
  some.jobs.define('kept', { durability: 'replicated', run: async () => undefined })
  await expect(some.worker().start()).rejects.toMatchObject(refused)
  await expect(some.jobs.enqueue('kept', {}, { durability: 'replicated' })).rejects.toMatchObject(refused)
  expect(await db.query('select count(*)::integer as n from pawl.job')).toEqual([{ n: 0 }])
  // A refused worker leaves no incarnation behind.
  expect(await db.query('select count(*)::integer as n from pawl.worker where closed_at is null')).toEqual([{ n: 0 }])
})

test('[J18] relaxed never lowers the commit of the caller, and durable raises it', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const level = (before: string, durability: Durability) =>
    inTransaction(db.url, before, (tx) => db.pawl({ durability }).jobs.enqueue('kept', {}, { tx, durability }))
  for (const before of ['remote_apply', 'on', 'remote_write', 'local', 'off'])
    expect([before, await level(before, 'relaxed')]).toEqual([before, before])
  for (const before of ['remote_apply', 'on']) expect([before, await level(before, 'durable')]).toEqual([before, before])
  for (const before of ['remote_write', 'local', 'off']) expect([before, await level(before, 'durable')]).toEqual([before, 'on'])
  // A database-wide relaxed default must not reach a caller's transaction either.
  expect(await inTransaction(db.url, 'on', (tx) => db.pawl({ durability: 'relaxed' }).jobs.enqueue('kept', {}, { tx }))).toBe(
    'on',
  )
})

test("[J18] durable commits durably although the database's default is off", async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  await db.query(`
    create table effect (what text);
    create table committed (what text, level text);
    create function note() returns trigger language plpgsql set search_path from current as $$
    begin
      insert into committed values (case tg_table_name when 'job' then 'enqueue' else to_jsonb(new) ->> 'what' end, current_setting('synchronous_commit'));
      return null;
    end $$;
    create constraint trigger noted after insert on effect deferrable initially deferred for each row execute function note();
    create constraint trigger noted after insert on pawl.job deferrable initially deferred for each row execute function note();
  `)
  await db.query(`alter database ${db.name} set synchronous_commit = off`)
  const pawl = db.pawl()
  const tx = async (job: Job, tx: Tx) => void (await tx.query('insert into effect values ($1)', [job.kind]))
  pawl.jobs.define('alone', { tx })
  pawl.jobs.define('shared', { share: 10, tx })
  await pawl.jobs.enqueue('alone', {})
  await pawl.jobs.enqueueMany('shared', [{}, {}, {}])
  const worker = pawl.worker()
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
  expect(await db.query('select what, level, count(*)::integer as n from committed group by 1, 2 order by 1, 2')).toEqual([
    { what: 'alone', level: 'on', n: 1 },
    { what: 'enqueue', level: 'on', n: 4 },
    { what: 'shared', level: 'on', n: 3 },
  ])
})

/** The synchronous_commit of a transaction after this work was done in it. */
async function inTransaction(url: string, before: string, work: (tx: AnyTx) => Promise<unknown>): Promise<string> {
  const { default: pg } = await import('pg')
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(`begin; set local synchronous_commit = '${before}'`)
    await work(client)
    const { rows } = await client.query<{ level: string }>("select current_setting('synchronous_commit') as level")
    await client.query('commit')
    return rows[0]!.level
  } finally {
    await client.end()
  }
}
