// kill -9 of whole worker processes.

import { expect, test } from 'vitest'
import { until } from '../support/database.ts'
import { createScene, effectsByJob, isFinished, WorkerProcess, workHere } from '../support/worker-process.ts'
import type { KindName } from './kinds.ts'

test.each(['guarded', 'tx', 'completed'] as const)("[J3] after kill -9 of a worker its '%s' jobs run again", async (kind) => {
  const db = await createScene()
  const kinds: KindName[] = [kind, 'follow']
  const victim = await WorkerProcess.start({ url: db.url, kinds })
  const caller = db.pawl()
  const { ids } = await caller.jobs.enqueueMany(
    kind,
    Array.from({ length: 5 }, () => ({ hold: [1] })),
  )
  await victim.hears('holding', ids.length)
  await victim.kill()
  const rescuer = await workHere(db, kinds)
  await until('every job is done', () => isFinished(db))
  await rescuer.stop()
  const effects = await effectsByJob(db)
  for (const id of ids) {
    expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'done', attempt: 2, crashes: 1 })
    expect((await db.pawl().jobs.attempts(id)).map(({ attempt, outcome }) => [attempt, outcome])).toEqual([
      [1, 'crashed'],
      [2, 'done'],
    ])
    expect(effects.get(id)).toEqual({ count: 1, attempts: [2], pids: [process.pid] })
  }
  const follows = await db.query(
    "select payload ->> 'parent' as parent, count(*)::integer as n from pawl.job_history where kind = 'follow' group by 1",
  )
  expect(follows.map(({ parent, n }) => [parent, n]).sort()).toEqual(kind === 'tx' ? ids.map((id) => [id, 1]).sort() : [])
})

test('[J3] after its limit of kills a job is dead with an alert', async () => {
  const db = await createScene()
  // It defines another kind only, so it takes over from the dead and never runs the job itself.
  const watcher = await workHere(db, ['follow'])
  const { pawl } = watcher
  const { id } = await pawl.jobs.enqueue('tx', { hold: [1, 2, 3] }, {})
  for (let kills = 1; kills <= 3; kills++) {
    const victim = await WorkerProcess.start({ url: db.url, kinds: ['tx', 'follow'] })
    expect(await victim.hears('holding')).toMatchObject([{ id, attempt: kills }])
    await victim.kill()
    await until(`kill ${kills} was counted`, async () => (await pawl.jobs.get(id))!.crashes === kills)
  }
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'dead', attempt: 3, crashes: 3 })
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.dead', subject: 'tx', count: 1 }])
  expect((await effectsByJob(db)).size).toBe(0)
  // It stays dead while a worker that could run it is there.
  const fixed = await WorkerProcess.start({ url: db.url, kinds: ['tx', 'follow'] })
  fixed.tell('go')
  const other = await pawl.jobs.enqueue('tx', {})
  await until('another job of its kind is done', async () => (await pawl.jobs.get(other.id))!.state === 'done')
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'dead' })
  await pawl.jobs.retry(id)
  await until('the resumed job is done', async () => (await pawl.jobs.get(id))!.state === 'done')
  expect((await effectsByJob(db)).get(id)).toEqual({ count: 1, attempts: [1], pids: [fixed.pid] })
  await until('a worker has resolved the alert', async () => (await pawl.alerts()).length === 0)
  await fixed.stop()
})

test('[J21] of 1,000 jobs only the killer is dead', {
  timeout: 180_000,
}, async () => {
  const db = await createScene()
  const caller = db.pawl()
  const first = await caller.jobs.enqueueMany(
    'tx',
    Array.from({ length: 400 }, () => ({})),
  )
  const killer = await caller.jobs.enqueue('tx', { kill: [1, 2, 3, 4, 5] }, { maxAttempts: 5 })
  const second = await caller.jobs.enqueueMany(
    'tx',
    Array.from({ length: 600 }, () => ({})),
  )
  const harmless = [...first.ids, ...second.ids]
  // A supervisor: when the process dies, another is started, until all is done.
  const deaths: (NodeJS.Signals | null)[] = []
  let current = await WorkerProcess.start({ url: db.url, kinds: ['tx', 'follow'] })
  await until(
    'everything but the killer is done',
    async () => {
      if (current.signal !== null) {
        deaths.push(current.signal)
        current = await WorkerProcess.start({ url: db.url, kinds: ['tx', 'follow'] })
      }
      return isFinished(db)
    },
    150_000,
  )
  await current.stop()
  expect(deaths).toEqual(['SIGKILL', 'SIGKILL', 'SIGKILL'])
  expect(await db.query('select id::text, state, crashes from pawl.job')).toEqual([{ id: killer.id, state: 'dead', crashes: 3 }])
  const [batch] = await db.query<{ n: number }>(
    "select count(*)::integer as n from pawl.job_attempt where outcome = 'crashed' and job_id <> $1",
    [killer.id],
  )
  // Without company in its batch it would have proved nothing.
  expect(batch!.n).toBeGreaterThan(0)
  const done = await db.query<{ id: string; crashes: number }>(
    "select id::text, crashes from pawl.job_history where kind = 'tx' and outcome = 'done'",
  )
  expect(done.map(({ id }) => id).sort()).toEqual([...harmless].sort())
  expect(Math.max(...done.map(({ crashes }) => crashes))).toBeLessThanOrEqual(2)
  const effects = await effectsByJob(db)
  expect(harmless.filter((id) => effects.get(id)?.count !== 1)).toEqual([])
  expect(effects.has(killer.id)).toBe(false)
  expect((await caller.alerts()).filter(({ code }) => code === 'job.dead')).toMatchObject([{ subject: 'tx', count: 1 }])
})
