// The connection that shows that a worker lives is terminated again and again while it works.

import { expect, test } from 'vitest'
import { until } from '../support/database.ts'
import { calm, createScene, effectsByJob, isFinished, WorkerProcess, workHere } from '../support/worker-process.ts'

test('[K12] a worker whose lock connection is terminated loses no lease', async () => {
  const db = await createScene()
  const options = { ...calm, tuning: { ...calm.tuning, beatMs: 100 } }
  const busy = await WorkerProcess.start({ url: db.url, kinds: ['guarded', 'follow'], worker: { ...options, concurrency: 5 } })
  // It watches, at every beat, for workers whose lock is free.
  const watcher = await workHere(db, ['plain'], { worker: options })
  const ids: string[] = []
  const enqueue = async (count: number) => {
    const payloads = Array.from({ length: count }, () => ({ sleepMs: 100 }))
    ids.push(...(await watcher.pawl.jobs.enqueueMany('guarded', payloads)).ids)
  }
  await enqueue(150)
  let terminated = 0
  let samples = 0
  const waiting: unknown[] = []
  let before = new Set<string>()
  await until(
    'every job is done',
    async () => {
      const [row] = await db.query<{ n: number }>(
        "select count(pg_terminate_backend(pid))::integer as n from pg_stat_activity where datname = current_database() and application_name = 'pawl listen'",
      )
      terminated += row!.n
      samples++
      const rows = await db.query<{ session: string; waits: string }>(
        `select concat_ws(' ', pid, application_name, state_change) as session, coalesce(wait_event, '') as waits
         from pg_stat_activity
         where datname = current_database() and application_name like 'pawl %'
           and (wait_event = 'advisory' or (backend_xmin is not null and state = 'idle'))`,
      )
      // Nobody waits for the lock of another. State and xmin are not read at one moment, so an idle session counts when seen twice.
      waiting.push(...rows.filter(({ session, waits }) => waits === 'advisory' || before.has(session)))
      before = new Set(rows.map(({ session }) => session))
      const isDone = await isFinished(db)
      // On a slow machine the jobs may be done before there was enough of it.
      const isEnough = terminated > 20 && samples > 100
      if (isDone && !isEnough) await enqueue(50)
      return isDone && isEnough
    },
    50_000,
  )
  expect(waiting).toEqual([])
  expect([...busy.heard('worker.lost'), ...busy.heard('job.refused'), ...busy.heard('job.lost')]).toEqual([])
  expect(
    busy
      .heard('started')
      .map(({ id, attempt }) => `${id} ${attempt}`)
      .sort(),
  ).toEqual(ids.map((id) => `${id} 1`).sort())
  const effects = await effectsByJob(db)
  expect(ids.filter((id) => effects.get(id)?.count !== 1)).toEqual([])
  expect(await db.query('select distinct attempt, crashes from pawl.job_history')).toEqual([{ attempt: 1, crashes: 0 }])
  expect(await db.query("select id from pawl.worker where close_reason <> 'stopped'")).toEqual([])
  // Left alone, the lock is there again: kill -9 is noticed long before the lease of half a minute ends.
  const lockHeld =
    "select count(*)::integer as n from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database()) and granted"
  const saidSo = 'select from pawl.worker where locks and closed_at is null'
  await until(
    'both hold their locks again, and have said so',
    async () => (await db.query<{ n: number }>(lockHeld))[0]!.n === 2 && (await db.query(saidSo)).length === 2,
  )
  await busy.kill()
  await until(
    'the dead one is noticed by its lock',
    async () => (await db.query("select id from pawl.worker where close_reason = 'process died'")).length === 1,
    20_000,
  )
  await watcher.stop()
})
