// A process that cannot empty itself for the run that decides, and one that is paused in the middle of a claim.

import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, until } from '../../../test/support/database.ts'
import { FaultProxy } from '../../../test/support/fault-proxy.ts'

test('[J3] a deciding job goes back after 30 s of long jobs', async () => {
  const db = await createDatabase()
  const pawl = db.pawl()
  const go = deferred()
  pawl.jobs.define('long', { run: () => go.promise })
  pawl.jobs.define('last', { run: () => undefined })
  const worker = pawl.worker()
  try {
    await worker.start()
    const long = await pawl.jobs.enqueue('long', {})
    await until('it runs', async () => (await pawl.jobs.get(long.id))?.state === 'running')
    const { id } = await pawl.jobs.enqueue('last', {}, { delay: '1h' })
    await db.query("update pawl.job set state = 'ready', suspect = true, crashes = 2 where id = $1", [id])
    await db.query("select pawl.wake('default')")
    await until('it is claimed', async () => (await pawl.jobs.get(id))?.state === 'running')
    const fresh = await pawl.jobs.enqueue('last', {})
    await until('others go on', async () => (await pawl.jobs.get(fresh.id))?.state === 'done', 60_000)
    expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 0, crashes: 2, suspect: true })
    expect(await db.query('select postponed from pawl.job where id = $1', [id])).toEqual([{ postponed: 1 }])
    go.resolve()
    await until('it runs when nothing else does', async () => (await pawl.jobs.get(id))?.state === 'done')
  } finally {
    go.resolve()
    await worker.stop()
    await db.drop()
  }
}, 120_000)

test('[J4] a process that pauses in a claim keeps none of its jobs', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const done = new Set<string>()
  const [paused, other] = [db.pawl({ databaseUrl: proxy.url, tuning: { queryTimeoutMs: 60_000 } }), db.pawl()]
  for (const each of [paused, other]) each.jobs.define('large', { run: ({ id }) => void done.add(id) })
  // More than fits between the server and a process that does not read.
  const { ids } = await other.jobs.enqueueMany(
    'large',
    Array.from({ length: 20 }, () => 'x'.repeat(900_000)),
  )
  const unread = proxy.loseRequest(/and not j\.suspect/, { cut: 'unread', of: /claim/ })
  const first = paused.worker({ lease: '2s' })
  await first.start()
  await unread.happened
  proxy.blackhole()
  const second = other.worker()
  await second.start()
  await until('the other has done all', () => done.size === ids.length, 30_000)
  await second.stop()
  proxy.restore()
  proxy.reset()
  await first.stop({ grace: 0 })
}, 120_000)
