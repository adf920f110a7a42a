// SIGSTOP of a worker process past its lease: a zombie that wakes when its job is somebody else's.

import { expect, test } from 'vitest'
import { until } from '../support/database.ts'
import { createScene, effectsByJob, WorkerProcess, workHere } from '../support/worker-process.ts'
import type { KindName } from './kinds.ts'

const shapes = ['guarded', 'tx', 'completed'] as const
const phases = ['still runs it', 'has done it'] as const

test.each(shapes.flatMap((kind) => phases.map((phase) => ({ kind, phase }))))(
  '[J4] a stopped worker is refused when it goes on ($kind, successor $phase)',
  async ({ kind, phase }) => {
    const db = await createScene()
    const kinds: KindName[] = [kind, 'follow']
    const zombie = await WorkerProcess.start({ url: db.url, kinds })
    const { id } = await db.pawl().jobs.enqueue(kind, { hold: [1, 2], at: 'inside' })
    await zombie.hears('holding')
    zombie.pause()
    const successor = await workHere(db, kinds, { worker: { lease: '30s' } })
    const { pawl } = successor
    await until('the successor has the job', () => successor.said.some((said) => said.event === 'holding' && said.attempt === 2))
    const finish = async () => {
      successor.go()
      await until('the successor has done the job', async () => (await pawl.jobs.get(id))!.state === 'done')
    }
    if (phase === 'has done it') await finish()
    // What it hears first on waking is that it may write, before it could learn that it lost its lease: the database must refuse it.
    zombie.tell('go')
    zombie.resume()
    const evidence = () => db.query<{ holder: number }>('select holder from pawl.refusal where subject = $1', [id])
    if (kind === 'tx') {
      // Its session was ended with its incarnation: its commit reaches nobody who could refuse it.
      await zombie.hears('worker.lost')
    } else {
      expect((await zombie.hears('job.refused')).map(({ detail }) => detail)).toMatchObject([{ id }])
      // Its own transaction was told so, before it could commit.
      expect(await zombie.hears('threw')).toEqual([{ event: 'threw', id, code: 'PAWL_LEASE_LOST', aborted: true }])
      await until('the refusal is kept as evidence', async () => (await evidence()).length > 0)
    }
    if (phase === 'still runs it') {
      expect(await pawl.jobs.get(id)).toMatchObject({ state: 'running', attempt: 2 })
      expect((await effectsByJob(db)).size).toBe(0)
      await finish()
    }
    await successor.stop()
    const [crashed, ...others] = await db.pawl().jobs.attempts(id)
    expect([crashed, ...others].map((attempt) => attempt?.outcome)).toEqual(['crashed', 'done'])
    if (kind !== 'tx') expect(await evidence()).toEqual([{ holder: crashed!.holder }])
    expect((await effectsByJob(db)).get(id)).toEqual({ count: 1, attempts: [2], pids: [process.pid] })
    // It starts anew by itself, and its next job is its own.
    const next = await db.pawl().jobs.enqueue(kind, {})
    await until('the woken worker does the next job', async () => (await db.pawl().jobs.get(next.id))!.state === 'done')
    expect((await effectsByJob(db)).get(next.id)).toEqual({ count: 1, attempts: [1], pids: [zombie.pid] })
    await zombie.stop()
  },
)

test('[J4] a worker stopped between complete(tx) and commit keeps its job', async () => {
  const db = await createScene()
  const stopped = await WorkerProcess.start({ url: db.url, kinds: ['completed'] })
  const { id } = await db.pawl().jobs.enqueue('completed', { hold: [1], at: 'end' })
  await stopped.hears('holding')
  const { holder } = (await db.pawl().jobs.get(id))!
  stopped.pause()
  const successor = await workHere(db, ['completed'], { worker: { lease: '30s', tuning: { beatMs: 100 } } })
  const { pawl } = successor
  const closed = () => db.query('select close_reason from pawl.worker where id = $1 and closed_at is not null', [holder])
  await until('its lease has ended', async () => (await closed()).length === 1)
  expect(await closed()).toEqual([{ close_reason: 'lease ended' }])
  const other = await pawl.jobs.enqueue('completed', {})
  await until('the successor works on', async () => (await pawl.jobs.get(other.id))!.state === 'done')
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'running', holder, attempt: 1 })
  stopped.tell('go')
  stopped.resume()
  await until('its commit has come', async () => (await pawl.jobs.get(id))!.state === 'done')
  await successor.stop()
  await stopped.stop()
  expect(await db.pawl().jobs.attempts(id)).toMatchObject([{ attempt: 1, outcome: 'done', holder }])
  expect((await effectsByJob(db)).get(id)).toEqual({ count: 1, attempts: [1], pids: [stopped.pid] })
  expect(stopped.heard('job.refused')).toEqual([])
})

test("[J4] a stopped tx handler's row locks end with its incarnation", async () => {
  const db = await createScene()
  await db.query('create table account (id integer primary key)')
  await db.query('insert into account values (1)')
  await db.query(`create function lock_account() returns trigger language plpgsql as
    'begin perform from account where id = 1 for update; return new; end'`)
  await db.query('create trigger lock_account before insert on effect for each row execute function lock_account()')
  const kinds: KindName[] = ['tx', 'follow']
  const zombie = await WorkerProcess.start({ url: db.url, kinds })
  const { jobs } = db.pawl()
  const { id } = await jobs.enqueue('tx', { hold: [1], at: 'inside' })
  await zombie.hears('holding')
  zombie.pause()
  const successor = await workHere(db, kinds, { worker: { lease: '30s' } })
  await until('the successor has done it while the other stands', async () => (await jobs.get(id))!.state === 'done')
  zombie.tell('go')
  zombie.resume()
  await zombie.hears('worker.lost')
  await successor.stop()
  await zombie.stop()
  expect((await effectsByJob(db)).get(id)).toEqual({ count: 1, attempts: [2], pids: [process.pid] })
})
