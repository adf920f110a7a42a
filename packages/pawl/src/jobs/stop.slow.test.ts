// Workers that stop and start while thousands of jobs run.

import { expect, test } from 'vitest'
import { createDatabase, until } from '../../test/support/database.ts'

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
