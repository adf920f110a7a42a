// A process that cannot reach the database for a second or two, again and again, while others can.

import { expect, test } from 'vitest'
import { createDatabase, deferred, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'

test('[K15] a healthy long job outlives more cuts than crashes are allowed', async () => {
  const db = await createDatabase()
  const proxy = await FaultProxy.start(db.url)
  const [cut, watching] = [db.pawl({ databaseUrl: proxy.url }), db.pawl()]
  const go = deferred()
  let starts = 0
  cut.jobs.define('long', {
    run: async () => {
      starts++
      await go.promise
    },
  })
  watching.jobs.define('other', { run: () => undefined })
  const workers = [cut.worker(), watching.worker()]
  try {
    for (const worker of workers) await worker.start()
    const { id } = await watching.jobs.enqueue('long', {})
    for (let blip = 1; blip <= 4; blip++) {
      const holder = await until('it runs in a process that shows that it lives', async () => {
        const [row] = await db.query<{ holder: number }>(
          'select j.holder from pawl.job j join pawl.worker w on w.id = j.holder where w.locks and w.closed_at is null and j.claimed_at is not null',
        )
        return starts === blip && row?.holder
      })
      await proxy.refuse()
      proxy.reset()
      const closed = "select from pawl.worker where id = $1 and close_reason = 'process died'"
      await until('it is closed as dead', async () => (await db.query(closed, [holder])).length === 1, 40_000)
      await until('its job is taken over', async () => (await watching.jobs.get(id))?.crashes === blip)
      await proxy.accept()
      await until('the crash is excused', async () => {
        return (await db.query('select from pawl.job where crashes = $1 and excused = $1', [blip])).length === 1
      })
    }
    go.resolve()
    await until('it is done', async () => (await watching.jobs.get(id))?.state === 'done', 40_000)
    const attempts = await watching.jobs.attempts(id)
    expect(attempts.map(({ outcome }) => outcome)).toEqual([...Array<string>(4).fill('interrupted'), 'done'])
  } finally {
    go.resolve()
    for (const worker of workers) await worker.stop({ grace: 0 })
    await proxy.stop()
    await db.drop()
  }
}, 180_000)
