// Wrong clocks: a worker process whose own clock is an hour off, and a database whose clock is moved by an hour while work goes on.

import { moveClock } from 'pawl/testing'
import { expect, test } from 'vitest'
import { until } from '../support/database.ts'
import { debianProgram } from '../support/debian.ts'
import { calm, createScene, effectsByJob, isFinished, WorkerProcess, workHere } from '../support/worker-process.ts'

const faketime = await debianProgram('faketime')
const hourMs = 3_600_000
/** For what comes by itself, however busy the machine is. */
const patienceMs = 120_000

test.for([hourMs, -hourMs])(
  '[K4] a worker whose clock is %i ms wrong changes no outcome',
  { timeout: 3 * patienceMs },
  async (skewMs, { skip }) => {
    if (!faketime.ok) return skip(`missing ${faketime.missing}`)
    const db = await createScene()
    const env = {
      ...faketime.env,
      LD_PRELOAD: faketime.path,
      FAKETIME: `${skewMs > 0 ? '+' : '-'}1h`,
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
      DONT_FAKE_MONOTONIC: '1',
    }
    const skewed = await WorkerProcess.start({ url: db.url, kinds: ['tx', 'guarded', 'follow'], worker: calm }, { env })
    const offMs = skewed.heard('ready')[0]!.wallMs - Date.now()
    // The premise: its clock is wrong indeed.
    expect(Math.abs(offMs - skewMs)).toBeLessThan(60_000)
    // What it holds from before the other is there until everything else is done is its own for certain.
    const held = await db.pawl().jobs.enqueueMany(
      'guarded',
      Array.from({ length: 5 }, () => ({ hold: [1] })),
    )
    await skewed.hears('holding', held.ids.length)
    // A worker with the right clock beside it would take over from it if its lease looked ended, and the other way round.
    const right = await workHere(db, ['tx', 'guarded', 'follow'], { worker: calm })
    const { pawl } = right
    const now = await pawl.jobs.enqueueMany(
      'tx',
      Array.from({ length: 40 }, () => ({ sleepMs: 20 })),
    )
    const failing = await pawl.jobs.enqueueMany(
      'tx',
      Array.from({ length: 10 }, () => ({ fail: [1] })),
    )
    const guarded = await pawl.jobs.enqueueMany(
      'guarded',
      Array.from({ length: 10 }, () => ({ sleepMs: 200 })),
    )
    const later = await pawl.jobs.enqueueMany(
      'tx',
      Array.from({ length: 10 }, () => ({})),
      { delay: '2s' },
    )
    // One that the skewed process enqueues itself is due at once, not in an hour.
    skewed.tell('enqueue')
    const [own] = await skewed.hears('enqueued')
    await until(
      'everything else is done',
      async () => {
        const rows = await db.query('select from pawl.job where id <> all ($1::bigint[])', [held.ids])
        return rows.length === 0
      },
      patienceMs,
    )
    skewed.tell('go')
    await until('everything is done', () => isFinished(db), patienceMs)
    const metrics = await skewed.stop()
    await right.stop()
    const effects = await effectsByJob(db)
    const all = [...held.ids, ...now.ids, ...failing.ids, ...guarded.ids, ...later.ids, own!.id]
    expect(all.filter((id) => effects.get(id)?.count !== 1)).toEqual([])
    expect(metrics.done).toBeGreaterThanOrEqual(held.ids.length)
    expect(
      await db.query('select distinct outcome, attempt, crashes from pawl.job_history where id <> all ($1::bigint[])', [
        failing.ids,
      ]),
    ).toEqual([{ outcome: 'done', attempt: 1, crashes: 0 }])
    expect(
      await db.query('select distinct outcome, attempt, crashes from pawl.job_history where id = any ($1::bigint[])', [
        failing.ids,
      ]),
    ).toEqual([{ outcome: 'done', attempt: 2, crashes: 0 }])
    // By the database's clock, none ran before its time.
    expect(
      await db.query(
        "select e.job_id from effect e join pawl.job_history h on h.id = e.job_id where e.job_id = any ($1::bigint[]) and e.at < h.created_at + interval '2 seconds'",
        [later.ids],
      ),
    ).toEqual([])
    expect(await db.query('select distinct close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
    expect(await db.query('select count(*)::integer as n from pawl.refusal')).toEqual([{ n: 0 }])
  },
)

test("[K4] a step of the database's clock doubles no effect, counts no crash", { timeout: 3 * patienceMs }, async () => {
  const db = await createScene()
  const kinds = ['tx', 'guarded', 'completed', 'follow'] as const
  // Ordinary leases: half a minute, so an hour ends every one of them.
  // Of 12 jobs that are held neither can hold all: the keeper of an idle process searches only once a minute.
  const worker = { concurrency: 11 }
  const workers = [await workHere(db, kinds, { worker }), await workHere(db, kinds, { worker })]
  const caller = db.pawl()
  const ids: string[] = []
  const enqueue = async (hold: boolean) => {
    for (const kind of hold ? (['tx', 'guarded', 'completed'] as const) : (['tx', 'completed'] as const)) {
      ids.push(
        ...(
          await caller.jobs.enqueueMany(
            kind,
            Array.from({ length: hold ? 4 : 30 }, () => (hold ? { hold: [1] } : { sleepMs: 10 })),
          )
        ).ids,
      )
    }
  }
  const holding = () => workers.flatMap(({ said }) => said.filter(({ event }) => event === 'holding')).length
  await enqueue(true)
  await until('handlers are in the middle of their work', () => holding() === 12, patienceMs)
  const incarnations = workers.map(({ worker }) => worker.id)
  /** The keepers that were seen to search for jobs past their time limit since then. Their next statement hides it. */
  const searchedSince = (at: string) => {
    const seen = new Set<number>()
    return async () => {
      const searching = await db.query<{ pid: number }>(
        `select pid from pg_stat_activity
         where datname = current_database() and application_name like '% sweep' and query like '%blocking as materialized%' and query_start > $1`,
        [at],
      )
      for (const { pid } of searching) seen.add(pid)
      return seen.size === workers.length
    }
  }
  for (const shiftMs of [hourMs, -hourMs, 2 * hourMs]) {
    await moveClock(db.pool, shiftMs)
    const [{ at }] = (await db.query('select clock_timestamp()::text as at')) as [{ at: string }]
    await until('both have searched for jobs past their time limit', searchedSince(at), patienceMs)
    await enqueue(false)
    await until('work goes on', async () => (await caller.jobs.get(ids.at(-1)!))!.state === 'done', patienceMs)
  }
  for (const { go } of workers) go()
  await until('everything is done', () => isFinished(db), patienceMs)
  expect(workers.map(({ worker }) => worker.id)).toEqual(incarnations)
  for (const { stop } of workers) await stop()
  expect(await db.query('select distinct close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
  expect(await db.query('select distinct attempt, crashes from pawl.job_history')).toEqual([{ attempt: 1, crashes: 0 }])
  expect(await db.query('select from pawl.job_attempt')).toEqual([])
  const effects = await effectsByJob(db)
  expect(ids.filter((id) => effects.get(id)?.count !== 1)).toEqual([])
})
