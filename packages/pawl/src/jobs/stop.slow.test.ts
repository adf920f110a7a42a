// Workers that stop and start while thousands of jobs run.

import { expect, test } from 'vitest'
import { createDatabase, deferred, until } from '../../test/support/database.ts'

test('[J13] workers stopped and started all along: each job runs once', async () => {
  const db = await createDatabase()
  const pawl = db.pawl()
  const start = async (concurrency: number) => {
    const worker = pawl.worker({ concurrency })
    await worker.start()
    return worker
  }
  const runs = new Map<string, number>()
  const now = new Set<string>()
  const overlaps: string[] = []
  pawl.jobs.define('work', {
    run: async (job) => {
      if (now.has(job.id)) overlaps.push(job.id)
      now.add(job.id)
      runs.set(job.id, (runs.get(job.id) ?? 0) + 1)
      await new Promise((resolve) => setTimeout(resolve, 3))
      now.delete(job.id)
    },
  })
  const { ids } = await pawl.jobs.enqueueMany(
    'work',
    Array.from({ length: 3000 }, () => ({})),
  )
  const steady = await start(3)
  let released = 0
  for (let round = 0; round < 5; round++) {
    const worker = await start(5)
    const target = Math.min(ids.length, runs.size + 200)
    await until('it has worked for a while', () => runs.size >= target)
    released += (await worker.stop()).released
  }
  await until('everything has run', () => runs.size === ids.length)
  await steady.stop()
  expect(overlaps).toEqual([])
  expect(new Set(runs.values())).toEqual(new Set([1]))
  expect(await db.query('select outcome, attempt, crashes, count(*)::int as n from pawl.job_history group by 1, 2, 3')).toEqual([
    { outcome: 'done', attempt: 1, crashes: 0, n: ids.length },
  ])
  expect(await db.query('select from pawl.job_attempt')).toHaveLength(0)
  // Otherwise nothing was ever given back and the test proves less than it says.
  expect(released).toBeGreaterThan(0)
  await db.drop()
})

// Chores begin ten seconds after the start.
test('[J13] a stop that abandons does not wait for a blocked chore', async () => {
  const db = await createDatabase()
  const pawl = db.pawl()
  const go = deferred()
  pawl.jobs.define('long', { run: () => go.promise })
  await pawl.jobs.enqueue('long', {})
  const locker = await db.pool.connect()
  await locker.query('begin; lock table pawl.once in access exclusive mode')
  const worker = pawl.worker()
  await worker.start()
  const chore = () =>
    db.query(
      "select pid from pg_stat_activity where datname = current_database() and application_name = 'pawl maintenance' and wait_event_type = 'Lock'",
    )
  await until('it runs', () => worker.metrics().running === 1)
  await until('a chore waits', async () => (await chore()).length === 1, 60_000)
  // The keeper sees the closed row at its next poll, and the worker has no id from then on.
  const { id } = worker
  await worker.stop({ grace: 0, abandon: true })
  expect(await chore()).toHaveLength(1)
  expect(await db.query('select close_reason from pawl.worker where id = $1', [id])).toEqual([{ close_reason: 'stopped' }])
  await locker.query('rollback')
  locker.release()
  go.resolve()
  await pawl.close()
  await db.drop()
})
