// A database that answers and cannot write, a read-only primary or a full disk; and one that does not answer.

import { execFile } from 'node:child_process'
import { chmod, mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { endLease } from 'pawl/testing'
import pg from 'pg'
import { expect, inject, onTestFinished, test } from 'vitest'
import { deferred, type TestDatabase, until, withDatabase } from '../support/database.ts'
import { FaultProxy } from '../support/fault-proxy.ts'
import { createScene, effectsByJob, isFinished, type WorkerHere, workHere } from '../support/worker-process.ts'

const run = promisify(execFile)
const worker = { lease: '60s', concurrency: 4 }
const secondsWatched = 4

/** Statements that ended in this database, however they ended. */
async function transactions(db: TestDatabase): Promise<number> {
  const [row] = await db.query<{ n: number }>(
    'select (xact_commit + xact_rollback)::integer as n from pg_stat_database where datname = current_database()',
  )
  return row!.n
}

/** Watches a worker until it has met the trouble several times, and checks that it did not hammer the server meanwhile. */
async function expectCalm(db: TestDatabase, here: WorkerHere, troubles: unknown[]): Promise<void> {
  await until('the worker meets the trouble', () => troubles.length > 0, 30_000)
  const from = {
    ms: performance.now(),
    claims: here.worker.metrics().claims,
    transactions: await transactions(db),
    troubles: troubles.length,
  }
  // The first troubles come all at once, one from each part of the worker: calm shows over the seconds that follow.
  const secondsSince = () => (performance.now() - from.ms) / 1000
  await until(
    'it has tried again, several times',
    () => troubles.length >= from.troubles + 3 && secondsSince() > secondsWatched,
    40_000,
  )
  const seconds = secondsSince()
  // A busy loop would make thousands; the beats, the sweeps and each kind of retry make a few a second.
  expect((here.worker.metrics().claims - from.claims) / seconds).toBeLessThan(5)
  expect(((await transactions(db)) - from.transactions) / seconds).toBeLessThan(150)
}

test('[K15] a primary that becomes read-only burns no attempt', {
  timeout: 120_000,
}, async () => {
  const db = await createScene()
  const here = await workHere(db, ['tx', 'guarded', 'plain', 'follow'], { worker })
  const troubles: unknown[] = []
  here.pawl.on('worker.unwritable', ({ error }) => troubles.push(error))
  // In the middle of their work when it happens: one of each shape.
  const held = [
    await here.pawl.jobs.enqueue('tx', { hold: [1] }),
    await here.pawl.jobs.enqueue('guarded', { hold: [1] }),
    await here.pawl.jobs.enqueue('plain', { hold: [1] }),
    await here.pawl.jobs.enqueue('plain', { hold: [1] }),
  ]
  await until('all slots are taken', () => here.said.filter(({ event }) => event === 'holding').length === 4)
  const waiting = await here.pawl.jobs.enqueueMany(
    'tx',
    Array.from({ length: 20 }, () => ({})),
  )
  await setReadOnly(db, true)
  here.go()
  await expectCalm(db, here, troubles)
  expect(troubles.map((error) => (error as { code?: string }).code)).toContain('25006')
  expect(await db.query('select count(*)::integer as n from effect')).toEqual([{ n: 0 }])
  await setReadOnly(db, false)
  await until('everything is done', () => isFinished(db), 60_000)
  await here.stop()
  await expectNothingBurnt(db, [...held, ...waiting.ids.map((id) => ({ id }))].length)
  const effects = await effectsByJob(db)
  for (const id of [held[0]!.id, held[1]!.id, ...waiting.ids]) expect([id, effects.get(id)?.count]).toEqual([id, 1])
  // A finished handler was not run again only because its end could not be stored.
  expect(here.said.filter((said) => said.event === 'started' && said.kind === 'plain')).toHaveLength(2)
})

test('[K15] a read-only primary that outlasts the lease costs nobody a crash', { timeout: 120_000 }, async () => {
  const db = await createScene()
  const workers = [await workHere(db, ['tx', 'plain', 'follow']), await workHere(db, ['tx', 'plain', 'follow'])]
  await expectNothingLost(db, workers, async () => {
    await setReadOnly(db, true)
    await untilLeasesEnded(db)
    await setReadOnly(db, false)
  })
})

test('[K15] a read-only primary past the timeout costs no attempt', {
  timeout: 120_000,
}, async () => {
  const db = await createScene()
  const [holder, other] = [db.pawl(), db.pawl()]
  const go = deferred()
  let runs = 0
  holder.jobs.define('short', {
    timeout: 1500,
    retry: { attempts: 1 },
    run: async () => {
      runs++
      await go.promise
    },
  })
  other.jobs.define('none', { run: () => undefined })
  const workers = [holder.worker({ concurrency: 5, tuning: { bufferMs: 1000 } }), other.worker()]
  for (const worker of workers) await worker.start()
  onTestFinished(async () => {
    for (const worker of workers) await worker.stop({ grace: 0 })
  })
  await holder.jobs.enqueueMany('short', [1, 2, 3, 4, 5])
  await until('they run', () => workers[0]!.metrics().running === 5)
  let troubles = 0
  holder.on('worker.unwritable', () => troubles++)
  await setReadOnly(db, true)
  go.resolve()
  // Each time it waits for longer: others can write long before their ends are tried again.
  await until('their ends wait for long', () => troubles >= 5, 60_000)
  await until(
    'their time is over',
    async () => (await db.query('select from pawl.job where run_until > pawl.now()')).length === 0,
  )
  await setReadOnly(db, false)
  await until('all have ended', async () => (await db.query("select from pawl.job where state = 'running'")).length === 0, 60_000)
  expect(await db.query('select state, last_error from pawl.job')).toEqual([])
  await expectNothingBurnt(db, 5)
  expect(runs).toBe(5)
})

test('[K15] an outage that outlasts the lease costs nobody a crash', { timeout: 120_000 }, async () => {
  const db = await createScene()
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const options = { pawl: { databaseUrl: proxy.url } }
  const workers = [await workHere(db, ['tx', 'plain', 'follow'], options), await workHere(db, ['tx', 'plain', 'follow'], options)]
  await expectNothingLost(db, workers, async () => {
    await proxy.refuse()
    proxy.reset()
    await untilLeasesEnded(db)
    await proxy.accept()
  })
})

/** Jobs run while it happens, and go on as if nothing had. */
async function expectNothingLost(db: TestDatabase, workers: readonly WorkerHere[], outage: () => Promise<void>): Promise<void> {
  const caller = db.pawl()
  const lost: unknown[] = []
  for (const { pawl } of workers) for (const event of ['worker.lost', 'job.lost'] as const) pawl.on(event, (of) => lost.push(of))
  const kinds = ['tx', 'plain', 'plain', 'plain', 'plain', 'plain']
  for (const kind of kinds) await caller.jobs.enqueue(kind, { hold: [1] })
  const said = (event: string) => workers.flatMap((here) => here.said.filter((one) => one.event === event))
  await until('all run', () => said('holding').length === kinds.length)
  const incarnations = workers.map(({ worker }) => worker.id)
  await outage()
  await until(
    'both have renewed their leases',
    async () =>
      (await db.query('select from pawl.worker where closed_at is null and lease_until > pawl.now() and asked_by is null'))
        .length === 2,
    40_000,
  )
  for (const { go } of workers) go()
  await until('everything is done', () => isFinished(db), 60_000)
  expect(workers.map(({ worker }) => worker.id)).toEqual(incarnations)
  expect(lost).toEqual([])
  const started = workers.flatMap((here) => here.said.filter((one) => one.event === 'started' && one.kind === 'plain'))
  expect(started).toHaveLength(5)
  await expectNothingBurnt(db, kinds.length)
  for (const { stop } of workers) await stop()
  expect(await db.query('select distinct close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
}

async function untilLeasesEnded(db: TestDatabase): Promise<void> {
  await until('every lease has ended', async () => {
    const rows = await db.query('select from pawl.worker where lease_until > pawl.now()')
    return rows.length === 0
  })
}

test('[K15] a worker stopped while nothing can be written ends and reports it', {
  timeout: 120_000,
}, async () => {
  const db = await createScene()
  const here = await workHere(db, ['plain'], { worker })
  const troubles: unknown[] = []
  here.pawl.on('worker.unwritable', ({ error }) => troubles.push(error))
  const { id } = await here.pawl.jobs.enqueue('plain', { hold: [1] })
  await until('it runs', () => here.said.some(({ event }) => event === 'holding'))
  await setReadOnly(db, true)
  here.go()
  await until('its end cannot be stored', () => troubles.length > 0, 30_000)
  expect(await here.worker.stop({ grace: 1000 })).toMatchObject({ stillRunning: [], unsettled: [id] })
  await setReadOnly(db, false)
  for (const { id: left } of await db.query<{ id: number }>('select id from pawl.worker')) await endLease(db.pool, left)
  const next = await workHere(db, ['plain'], {})
  await until('another worker runs it to its end', () => isFinished(db), 60_000)
  await next.stop()
})

test('[K15] a full disk burns no attempt, and work resumes with room', {
  timeout: 120_000,
}, async ({ skip }) => {
  const small = await smallDisk()
  if (typeof small !== 'string') return skip(small.missing)
  const db = await createScene()
  // Its jobs and their history live on the small disk.
  const relations = await db.query<{ name: string }>(
    "select c.oid::regclass::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'pawl' and c.relkind in ('r', 'i') and c.relname ~ '^job'",
  )
  for (const { name } of relations) {
    const [row] = await db.query<{ kind: string }>('select relkind as kind from pg_class where oid = $1::regclass', [name])
    await db.query(`alter ${row!.kind === 'i' ? 'index' : 'table'} ${name} set tablespace ${small}`)
  }
  const here = await workHere(db, ['tx', 'plain', 'follow'], { worker })
  const troubles: unknown[] = []
  here.pawl.on('worker.unwritable', ({ error }) => troubles.push(error))
  const held = await here.pawl.jobs.enqueueMany(
    'plain',
    Array.from({ length: 4 }, () => ({ hold: [1] })),
  )
  await until('all slots are taken', () => here.said.filter(({ event }) => event === 'holding').length === 4)
  const filling = 'x'.repeat(1500)
  const waiting = await here.pawl.jobs.enqueueMany(
    'plain',
    Array.from({ length: 200 }, () => ({ filling })),
  )
  await fill(db, small)
  here.go()
  await expectCalm(db, here, troubles)
  expect(troubles.map((error) => (error as { code?: string }).code)).toContain('53100')
  await db.query('drop table filler')
  await until('everything is done', () => isFinished(db), 60_000)
  await here.stop()
  const all = [...held.ids, ...waiting.ids]
  await expectNothingBurnt(db, all.length)
  expect(here.said.filter(({ event }) => event === 'started')).toHaveLength(all.length)
})

/** Not the template: while somebody is there, no other test can clone it. */
const elsewhere = () => withDatabase(inject('serverUrl'), 'postgres')

/** What a failover does to the old primary's clients: their sessions end, and the next ones cannot write. */
async function setReadOnly(db: TestDatabase, isReadOnly: boolean): Promise<void> {
  const client = new pg.Client({ connectionString: elsewhere() })
  await client.connect()
  try {
    await client.query(`alter database ${db.name} set default_transaction_read_only = ${isReadOnly ? 'on' : 'off'}`)
    await client.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [db.name])
  } finally {
    await client.end()
  }
  await until('the test has connections again', () =>
    db.query('select 1').then(
      () => true,
      () => false,
    ),
  )
}

async function expectNothingBurnt(db: TestDatabase, jobs: number): Promise<void> {
  const done = await db.query(
    "select count(*)::integer as n, max(attempt) as attempt, max(crashes) as crashes from pawl.job_history where outcome = 'done' and kind <> 'follow'",
  )
  expect(done).toEqual([{ n: jobs, attempt: 1, crashes: 0 }])
  expect(await db.query('select job_id, outcome, error from pawl.job_attempt')).toEqual([])
}

/** A tablespace on a disk of 12 MB; only root can make such a disk. Removed after the database that uses it. */
async function smallDisk(): Promise<string | { missing: string }> {
  if (process.getuid?.() !== 0) return { missing: 'a small disk: mounting one needs root' }
  const dir = await mkdtemp(join(tmpdir(), 'pawl-small-'))
  const { uid, gid } = await stat(inject('serverDataDir'))
  const name = `small_${process.pid}`
  const onServer = async (text: string) => {
    const client = new pg.Client({ connectionString: elsewhere() })
    await client.connect()
    try {
      await client.query(text)
    } finally {
      await client.end()
    }
  }
  try {
    await chmod(dir, 0o755)
    await run('mount', ['-t', 'tmpfs', '-o', `size=12m,uid=${uid},gid=${gid},mode=700`, 'pawl-small', dir])
  } catch (error) {
    await rm(dir, { recursive: true })
    return { missing: `a small disk: ${String((error as Error).message).slice(0, 300)}` }
  }
  onTestFinished(async () => {
    await onServer(`drop tablespace if exists ${name}`)
    await run('umount', ['-l', dir])
    await rm(dir, { recursive: true, force: true })
  })
  await onServer(`create tablespace ${name} location '${dir}'`)
  return name
}

/** Takes what room is left, down to the last page. */
async function fill(db: TestDatabase, tablespace: string): Promise<void> {
  await db.query(`create table filler (text text) tablespace ${tablespace}`)
  await db.query('alter table filler alter text set storage plain')
  for (const rows of [500, 50, 5, 1]) {
    for (let isFull = false; !isFull; ) {
      isFull = await db.query("insert into filler select repeat('x', 7000) from generate_series(1, $1)", [rows]).then(
        () => false,
        (error: { code?: string }) => {
          if (error.code !== '53100') throw error
          return true
        },
      )
    }
  }
}
