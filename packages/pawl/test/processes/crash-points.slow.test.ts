// A worker process that kills itself at a named point, and another that finishes: all of a transaction is there, or nothing.

import { expect, test } from 'vitest'
import { endLeasesOf, until } from '../support/database.ts'
import { calm, createScene, effectsByJob, isFinished, WorkerProcess, workHere } from '../support/worker-process.ts'
import type { KindName } from './kinds.ts'

const kinds: readonly KindName[] = ['tx', 'shared', 'completed', 'plain', 'follow']
const points = [
  'jobs.tx.begun',
  'jobs.tx.handled',
  'jobs.tx.before_commit',
  'jobs.tx.after_commit',
  'jobs.settle.before',
  'jobs.settle.after',
  'jobs.fail.before',
  'jobs.fail.after',
] as const

test.each(points.flatMap((probe) => [1, 4].map((hit) => ({ probe, hit }))))(
  '[J2] effects, completion, follow-ups and events: all or none, killed at $probe ($hit)',
  async ({ probe, hit }) => {
    const db = await createScene()
    const caller = db.pawl()
    // Some fail on their first attempt, after they wrote: that must leave nothing.
    const payloads = Array.from({ length: 12 }, (_, index) => (index % 2 === 0 ? {} : { fail: [1] }))
    const [tx, shared, completed, plain] = await Promise.all(
      (['tx', 'shared', 'completed', 'plain'] as const).map(async (kind) => (await caller.jobs.enqueueMany(kind, payloads)).ids),
    )
    const victim = new WorkerProcess({
      url: db.url,
      kinds,
      // Twelve that are settled in batches make four batches at least, however full each is.
      worker: { ...calm, concurrency: 4, tuning: { ...calm.tuning, batchMax: 3 } },
      killAt: { probe, hit },
    })
    expect(await victim.ended()).toBe('SIGKILL')
    expect(victim.heard('killing')).toEqual([{ event: 'killing', probe }])
    await expectWhole()
    await endLeasesOf(db, victim)
    const finisher = await workHere(db, kinds, { worker: calm })
    await until('everything is done', () => isFinished(db))
    await finisher.stop()
    await expectWhole()
    const effects = await effectsByJob(db)
    for (const id of [...tx!, ...shared!, ...completed!]) expect([id, effects.get(id)?.count]).toEqual([id, 1])
    const [counts] = await db.query(
      "select count(*)::integer as done, count(distinct id)::integer as jobs, max(crashes)::integer as crashes from pawl.job_history where outcome = 'done' and kind <> 'follow'",
    )
    expect(counts).toMatchObject({ done: 48, jobs: 48 })
    // How many were in flight besides is chance; that one death counts once is not.
    expect(counts!.crashes).toBeLessThanOrEqual(1)
    expect(plain).toHaveLength(12)

    /** At this moment: a job has its one effect, its one follow-up and its one event if and only if it is done. */
    async function expectWhole(): Promise<void> {
      const rows = await db.query(
        `with jobs as (
           select id, kind, false as done from pawl.job where kind in ('tx', 'shared', 'completed')
           union all
           select id, kind, true from pawl.job_history where kind in ('tx', 'shared', 'completed')
         ),
         follows as (
           select (payload ->> 'parent')::bigint as parent from pawl.job where kind = 'follow'
           union all
           select (payload ->> 'parent')::bigint from pawl.job_history where kind = 'follow'
         )
         select j.id, j.kind, j.done, e.n as effects, f.n as follows, v.n as events
         from jobs j,
           lateral (select count(*)::integer as n from effect x where x.job_id = j.id) e,
           lateral (select count(*)::integer as n from follows x where x.parent = j.id) f,
           lateral (select count(*)::integer as n from pawl.event x where x.aggregateid = j.id::text and x.type = 'Ended') v
         where e.n <> j.done::integer
            or f.n <> (j.done and j.kind = 'tx')::integer
            or v.n <> (j.done and j.kind in ('tx', 'completed'))::integer`,
      )
      expect(rows).toEqual([])
    }
  },
)
