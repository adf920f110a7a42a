// A process that cannot empty itself for the run that decides.

import { expect, test } from 'vitest'
import { createDatabase, deferred, until } from '../../test/support/database.ts'

test('[J3] a deciding job goes back after 30 s of long jobs, and others go on', async () => {
  const db = await createDatabase()
  const pawl = db.pawl()
  const go = deferred()
  pawl.jobs.define('long', { run: () => go.promise })
  pawl.jobs.define('last', { run: () => undefined })
  const worker = pawl.jobs.worker()
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
