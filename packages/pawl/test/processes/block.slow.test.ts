// Handlers that block the event loop of their process, or never come back.

import { expect, test } from 'vitest'
import { endLeasesOf, until } from '../support/database.ts'
import { createScene, quick, WorkerProcess, workHere } from '../support/worker-process.ts'

test('[J5] a handler that blocks the event loop for 3 leases runs once', async () => {
  const db = await createScene()
  const blocked = await WorkerProcess.start({ url: db.url, kinds: ['plain'] })
  const { id } = await db.pawl().jobs.enqueue('plain', { block: [1, 2], blockMs: 3 * quick.lease })
  await blocked.hears('started')
  const { holder } = (await db.pawl().jobs.get(id))!
  // It would take the job over as soon as the lease ended.
  const rival = await workHere(db, ['plain'])
  await until('the job is done', async () => (await rival.pawl.jobs.get(id))!.state === 'done', 40_000)
  expect(await rival.pawl.jobs.get(id)).toMatchObject({ attempt: 1, crashes: 0, holder })
  expect((await rival.pawl.jobs.get(id))!.ranMs).toBeGreaterThanOrEqual(3 * quick.lease - 1)
  // That it blocked is said, and nothing was refused or lost.
  expect((await blocked.hears('worker.blocked'))[0]!.detail.blockedMs).toBeGreaterThanOrEqual(1000)
  expect([...blocked.heard('worker.lost'), ...blocked.heard('job.refused')]).toEqual([])
  expect(rival.said).toEqual([])
  expect(await rival.pawl.alerts()).toEqual([])
  await rival.stop()
  await blocked.stop()
})

test('[J5] a handler that blocks past its timeout loses the job', async () => {
  const db = await createScene()
  const blocked = await WorkerProcess.start({ url: db.url, kinds: ['brief', 'plain'] })
  const { id } = await db.pawl().jobs.enqueue('brief', { block: [1], blockMs: 10_000 })
  await blocked.hears('started')
  const other = await workHere(db, ['plain'])
  const { pawl } = other
  await until('it is timed out', async () => (await pawl.jobs.attempts(id)).length === 1)
  // The process is still blocked: it has said nothing since.
  expect(blocked.heard('ended')).toEqual([])
  expect(await pawl.jobs.attempts(id)).toMatchObject([{ attempt: 1, outcome: 'timed out' }])
  const { ids } = await pawl.jobs.enqueueMany(
    'plain',
    Array.from({ length: 20 }, () => ({})),
  )
  await until('other jobs are done meanwhile', async () =>
    (await Promise.all(ids.map((job) => pawl.jobs.get(job)))).every((job) => job!.state === 'done'),
  )
  expect(blocked.heard('ended')).toEqual([])
  expect(await pawl.alerts()).toMatchObject([
    { code: 'job.timed-out', subject: 'brief', count: 1, message: expect.stringContaining(id) },
  ])
  // Then it wakes, is refused, starts anew and does the second attempt.
  await until('the second attempt has done the job', async () => (await pawl.jobs.get(id))!.state === 'done', 40_000)
  expect((await pawl.jobs.attempts(id)).map(({ attempt, outcome }) => [attempt, outcome])).toEqual([
    [1, 'timed out'],
    [2, 'done'],
  ])
  expect(await pawl.jobs.get(id)).toMatchObject({ crashes: 0 })
  expect((await blocked.hears('job.refused'))[0]!.detail).toMatchObject({ id })
  await other.stop()
  await blocked.stop()
})

test('[J5] a handler that never resolves loses only its own job', async () => {
  const db = await createScene()
  // The keeper would also end it, with other words, if a busy machine kept the main thread still for a second; here it does not look.
  const unwatched = { ...quick, lease: '1h', tuning: { ...quick.tuning, beatMs: 600_000 } }
  const process = await WorkerProcess.start({ url: db.url, kinds: ['brief', 'plain'], worker: unwatched })
  const pawl = db.pawl()
  const { id } = await pawl.jobs.enqueue('brief', { hold: [1] })
  await process.hears('holding')
  const { ids } = await pawl.jobs.enqueueMany(
    'plain',
    Array.from({ length: 20 }, () => ({})),
  )
  await until('both the others and its second attempt are done', async () =>
    (await Promise.all([id, ...ids].map((job) => pawl.jobs.get(job)))).every((job) => job!.state === 'done'),
  )
  expect((await pawl.jobs.attempts(id)).map(({ attempt, outcome }) => [attempt, outcome])).toEqual([
    [1, 'timed out'],
    [2, 'done'],
  ])
  expect((await pawl.jobs.attempts(id))[0]!.error).toContain('700 ms')
  for (const job of ids) expect(await pawl.jobs.get(job)).toMatchObject({ attempt: 1, crashes: 0 })
  expect(await pawl.alerts()).toMatchObject([
    { code: 'job.timed-out', subject: 'brief', count: 1, message: expect.stringContaining(id) },
  ])
  expect(process.heard('worker.lost')).toEqual([])
  await process.stop()
})

test('[J5] a job that always times out is dead, with an alert', async () => {
  const db = await createScene()
  const process = await WorkerProcess.start({ url: db.url, kinds: ['brief'] })
  const pawl = db.pawl()
  const { id } = await pawl.jobs.enqueue('brief', { hold: [1, 2] }, { maxAttempts: 2 })
  await until('it is dead', async () => (await pawl.jobs.get(id))!.state === 'dead')
  expect((await pawl.jobs.attempts(id)).map(({ outcome }) => outcome)).toEqual(['timed out', 'timed out'])
  expect((await pawl.alerts()).filter(({ code }) => code === 'job.dead')).toMatchObject([
    { subject: 'brief', count: 1, message: expect.stringContaining(id) },
  ])
  await process.kill()
})

test('[J5] with exitWhenBlocked the process that is blocked past the timeout ends', async () => {
  const db = await createScene()
  const blocked = await WorkerProcess.start({
    url: db.url,
    kinds: ['brief'],
    worker: { ...quick, tuning: { ...quick.tuning, exitWhenBlocked: true } },
  })
  const { id } = await db.pawl().jobs.enqueue('brief', { block: [1], blockMs: 600_000 })
  expect(await blocked.ended()).toBe('SIGKILL')
  expect(blocked.stderr).toMatch(/^pawl: this worker process \(pid \d+\) exits: a handler has blocked its event loop for \d+ s/m)
  expect(await db.pawl().jobs.attempts(id)).toMatchObject([{ attempt: 1, outcome: 'timed out' }])
  const next = await workHere(db, ['brief'])
  await until('the next process does it', async () => (await next.pawl.jobs.get(id))!.state === 'done')
  expect(await next.pawl.jobs.get(id)).toMatchObject({ attempt: 2, crashes: 0 })
  await next.stop()
})

test('[J5] exitWhenBlocked ends a process that has lost its lease too', async () => {
  const db = await createScene()
  const blocked = await WorkerProcess.start({
    url: db.url,
    kinds: ['brief'],
    worker: { ...quick, tuning: { ...quick.tuning, exitWhenBlocked: true } },
  })
  await db.pawl().jobs.enqueue('brief', { block: [1], blockMs: 600_000 })
  await blocked.hears('started')
  await endLeasesOf(db, blocked)
  expect(await blocked.ended()).toBe('SIGKILL')
})

test('[J5] a short block beside a timed-out job ends that job only', async () => {
  const db = await createScene()
  const process = await WorkerProcess.start({
    url: db.url,
    kinds: ['brief', 'plain'],
    worker: { ...quick, tuning: { ...quick.tuning, exitWhenBlocked: true } },
  })
  const pawl = db.pawl()
  const client = await db.pool.connect()
  await client.query('begin')
  // Claimed together, so that one hangs while the other blocks; the block is over long before the process would be given up.
  const hangs = await pawl.jobs.enqueue('brief', { hold: [1] }, { tx: client })
  const blocks = await pawl.jobs.enqueue('plain', { block: [1, 2], blockMs: 2000 }, { tx: client })
  await client.query('commit')
  client.release()
  await until('both are done', async () =>
    (await Promise.all([hangs, blocks].map(({ id }) => pawl.jobs.get(id)))).every((job) => job!.state === 'done'),
  )
  expect(await pawl.jobs.get(blocks.id)).toMatchObject({ attempt: 1, crashes: 0 })
  expect((await pawl.jobs.attempts(hangs.id)).map(({ outcome }) => outcome)).toEqual(['timed out', 'done'])
  expect(process.heard('worker.lost')).toEqual([])
  await process.stop()
})

test('[J5] a process that cannot close its given-up incarnation opens another', async () => {
  const db = await createScene()
  await db.query(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$;
    create trigger refuse before update on pawl.worker for each row
      when (new.close_reason = 'blocked past a time limit') execute function refuse()`)
  const blocked = await WorkerProcess.start({ url: db.url, kinds: ['brief', 'plain'] })
  const pawl = db.pawl()
  // Long enough to be given up, a second and a lease after it began to block, also when a look of the keeper takes its time.
  await pawl.jobs.enqueue('brief', { block: [1], blockMs: 2 * quick.lease + 2000 })
  await blocked.hears('worker.lost')
  const { id } = await pawl.jobs.enqueue('plain', {})
  await until('it works on', async () => (await pawl.jobs.get(id))!.state === 'done')
  await blocked.stop()
})
