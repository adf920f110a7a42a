// Everything through pgbouncer in transaction mode, with a pool smaller than the number of clients, so that no session is one's own.

import type { PawlOptions } from 'pawl'
import pg from 'pg'
import { describe, expect, onTestFinished, test } from 'vitest'
import { createDatabase, until } from '../support/database.ts'
import { debianProgram } from '../support/debian.ts'
import { startPgBouncer } from '../support/pgbouncer.ts'
import { csv, defineLoads, ended, loadRows, startWorker } from '../support/records.ts'
import { calm, createScene, effectsByJob, isFinished, quick, WorkerProcess, workHere } from '../support/worker-process.ts'

const pgbouncer = await debianProgram('pgbouncer')
const poolSize = 4

describe.each([{ direct: false }, { direct: true }])('with a direct connection beside it: $direct', ({ direct }) => {
  /** A database, pgbouncer before it, and the options that go through it. */
  async function createPooled(skip: (why: string) => void) {
    if (!pgbouncer.ok) {
      skip(`missing ${pgbouncer.missing}`)
      throw new Error('skipped')
    }
    const db = await createScene()
    const bouncer = await startPgBouncer(pgbouncer, db.url, poolSize)
    const pawl = {
      databaseUrl: bouncer.url,
      pooler: 'transaction',
      ...(direct ? { directUrl: db.url } : {}),
    } as const satisfies Partial<PawlOptions>
    return { db, bouncer, pawl }
  }

  test('[K8] enqueue alone, in bulk, in transactions; run, complete, retry, delay, cancel', {
    timeout: 90_000,
  }, async ({ skip }) => {
    const { db, bouncer, pawl: options } = await createPooled(skip)
    const caller = db.pawl(options)
    const one = await caller.jobs.enqueue('tx', {})
    const bulk = await caller.jobs.enqueueMany(
      'plain',
      Array.from({ length: 2500 }, () => ({})),
    )
    const relaxed = await caller.jobs.enqueue('completed', {}, { durability: 'relaxed' })
    const client = new pg.Client({ connectionString: bouncer.url })
    await client.connect()
    onTestFinished(() => client.end())
    await client.query('begin')
    const inside = await caller.jobs.enqueue('guarded', {}, { tx: client })
    await client.query('commit')
    await client.query('begin')
    const undone = await caller.jobs.enqueue('guarded', {}, { tx: client })
    await client.query('rollback')
    const failing = await caller.jobs.enqueueMany(
      'tx',
      Array.from({ length: 5 }, () => ({ fail: [1] })),
    )
    const later = await caller.jobs.enqueueMany(
      'tx',
      Array.from({ length: 5 }, () => ({})),
      { delay: '1s' },
    )
    const cancelled = await caller.jobs.enqueue('tx', {}, { delay: '1h' })
    expect(await caller.jobs.cancel(cancelled.id)).toEqual({ was: 'scheduled' })
    const worker = await WorkerProcess.start({
      url: db.url,
      pawl: options,
      effectsUrl: bouncer.url,
      kinds: ['tx', 'guarded', 'completed', 'plain', 'follow'],
      worker: calm,
    })
    // A running job is cancelled: its signal comes with a poll, and its late effect is refused.
    const running = await caller.jobs.enqueue('guarded', { hold: [1] })
    await worker.hears('holding')
    expect(await caller.jobs.cancel(running.id)).toEqual({ was: 'running' })
    expect((await worker.hears('job.lost'))[0]!.detail).toMatchObject({ id: running.id, reason: 'cancelled' })
    worker.tell('go')
    expect(await worker.hears('threw')).toMatchObject([{ id: running.id, code: 'PAWL_CANCELLED', aborted: true }])
    await until('everything is done', () => isFinished(db), 40_000)
    // Nothing listens but on the direct connection; without one, everybody shares the few connections of the pool.
    const sessions = () =>
      db.query<{ name: string }>(
        "select application_name as name from pg_stat_activity where datname = current_database() and application_name like 'pawl %'",
      )
    const listening = async () => (await sessions()).filter(({ name }) => name === 'pawl listen').length
    const sleeping = async () => (await db.query('select from pawl.sleeper')).length
    // It listens when its session is there, and sleeps when it has looked for work in vain.
    if (direct) await until('the worker listens and sleeps', async () => (await listening()) === 1 && (await sleeping()) === 1)
    else {
      expect([await listening(), await sleeping()]).toEqual([0, 0])
      expect((await sessions()).length).toBeLessThanOrEqual(poolSize)
    }
    await worker.stop()
    const effects = await effectsByJob(db)
    const once = [one.id, relaxed.id, inside.id, ...failing.ids, ...later.ids]
    expect(once.filter((id) => effects.get(id)?.count !== 1)).toEqual([])
    expect([undone.id, cancelled.id, running.id].filter((id) => effects.has(id))).toEqual([])
    expect(await caller.jobs.get(undone.id)).toBeUndefined()
    expect(
      await db.query(
        "select count(*)::integer as n, max(attempt) as attempt from pawl.job_history where kind = 'plain' and outcome = 'done'",
      ),
    ).toEqual([{ n: bulk.ids.length, attempt: 1 }])
    for (const id of failing.ids)
      expect((await caller.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['failed', 'done'])
    expect(await caller.alerts()).toEqual([])
  })

  test('[K8] records are uploaded, submitted, put and read', { timeout: 90_000 }, async ({ skip }) => {
    const { bouncer, db, pawl: options } = await createPooled(skip)
    const pawl = db.pawl(options)
    const scope = pawl.records.in(defineLoads(pawl), { organisation: '17', registration: '4' })
    const worker = await startWorker(pawl)
    const upload = await scope.upload(csv(loadRows(2500)), { format: 'csv' })
    expect(upload).toMatchObject({ state: 'validated' })
    await pawl.records.submit(upload.id)
    expect(await ended(pawl, upload.id)).toMatchObject({ state: 'submitted', number: '1' })
    const client = new pg.Client({ connectionString: bouncer.url })
    await client.connect()
    onTestFinished(() => client.end())
    await client.query('begin')
    expect(await scope.put({ data: { ...loadRows(1)[0]!, note: 'new' } }, { tx: client })).toMatchObject({ updated: 1 })
    await client.query('commit')
    expect(await scope.get('load', 'row-0')).toMatchObject({ data: { note: 'new' } })
    expect((await scope.history('load', 'row-0')).items).toHaveLength(2)
    expect(await scope.audit()).toMatchObject({ isSound: true, live: 2500 })
    await worker.stop()
  })

  test('[K8] a dead job is retried; kill -9 of a worker is noticed', { timeout: 90_000 }, async ({ skip }) => {
    const { db, bouncer, pawl: options } = await createPooled(skip)
    const caller = db.pawl(options)
    // By its lock a death is noticed long before the lease ends; without a session of its own only by the lease.
    const worker = direct ? calm : quick
    const spec = { url: db.url, pawl: options, worker, effectsUrl: bouncer.url, kinds: ['tx', 'follow'] } as const
    const victim = await WorkerProcess.start(spec)
    const dead = await caller.jobs.enqueue('tx', { fail: [1] }, { maxAttempts: 1 })
    await until('it is dead', async () => (await caller.jobs.get(dead.id))!.state === 'dead')
    expect(await caller.alerts()).toMatchObject([{ code: 'job.dead', subject: 'tx', count: 1 }])
    const { ids } = await caller.jobs.enqueueMany(
      'tx',
      Array.from({ length: 3 }, () => ({ hold: [1] })),
    )
    await victim.hears('holding', ids.length)
    if (direct) await until('it has its lock', async () => (await db.query('select from pawl.worker where locks')).length === 1)
    await victim.kill()
    const rescuer = await workHere(db, ['tx', 'follow'], { pawl: options })
    await until('the others are done', () => isFinished(db))
    const effects = await effectsByJob(db)
    for (const id of ids) {
      expect(effects.get(id)).toEqual({ count: 1, attempts: [2], pids: [process.pid] })
      expect((await caller.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['crashed', 'done'])
    }
    const [crashed] = await caller.jobs.attempts(ids[0]!)
    expect(await db.query('select close_reason from pawl.worker where id = $1', [crashed!.holder])).toEqual([
      { close_reason: direct ? 'process died' : 'lease ended' },
    ])
    await caller.jobs.retry(dead.id)
    await until('it failed again', async () => (await caller.jobs.attempts(dead.id)).length === 2)
    await rescuer.stop()
  })

  test('[K8] an empty database is migrated, and two workers share a load', { timeout: 90_000 }, async ({ skip }) => {
    if (!pgbouncer.ok) return skip(`missing ${pgbouncer.missing}`)
    const db = await createDatabase({ isEmpty: true })
    onTestFinished(() => db.drop())
    const bouncer = await startPgBouncer(pgbouncer, db.url, poolSize)
    const options = { databaseUrl: bouncer.url, pooler: 'transaction', ...(direct ? { directUrl: db.url } : {}) } as const
    const pawls = [db.pawl(options), db.pawl(options)]
    await Promise.all(pawls.map((pawl) => pawl.migrate()))
    const ran: string[] = []
    const workers = pawls.map((pawl) => {
      pawl.jobs.define('counted', { run: async (job) => void ran.push(job.id) })
      return pawl.worker({ concurrency: 10, tuning: { pollMs: 200 } })
    })
    for (const worker of workers) {
      await worker.start()
      onTestFinished(async () => void (await worker.stop()))
    }
    const { ids } = await pawls[0]!.jobs.enqueueMany(
      'counted',
      Array.from({ length: 3000 }, () => ({})),
    )
    await until('each has run', () => ran.length >= ids.length, 40_000)
    expect([...ran].sort()).toEqual([...ids].sort())
    const idle = await pawls[1]!.jobs.enqueue('counted', {})
    await until('an idle worker finds the next one', () => ran.includes(idle.id))
  })
})
