// Inside a tx handler a call without its transaction would wait for a connection while it occupies one. It is refused, naming the fix.

import type { Pawl } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  // One connection for callers, two for handlers, eight handlers at once.
  pawl = db.pawl({ tuning: { callerConnectionsMax: 1 } })
})
afterEach(() => db.drop())
const crowded = { concurrency: 8, tuning: { handlerConnectionsMax: 2 } } as const

test('[J25] enqueue without tx in a tx handler fails whole, naming the fix', async () => {
  await db.query('create table effect (job bigint)')
  pawl.jobs.define('forgets', {
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      await tx.query('insert into effect values ($1)', [job.id])
      await pawl.jobs.enqueue('follow-up', {})
    },
  })
  const { ids } = await pawl.jobs.enqueueMany(
    'forgets',
    Array.from({ length: 16 }, () => ({})),
  )
  const report = await runAll(pawl, crowded)
  expect(report.dead.map(({ id }) => id).sort()).toEqual([...ids].sort())
  for (const { reason } of report.dead) {
    expect(reason).toContain("enqueue was called inside the tx handler of 'forgets' without its transaction")
    expect(reason).toContain('Pass { tx }')
  }
  expect(await db.query('select from effect')).toHaveLength(0)
  expect(await db.query("select from pawl.job where kind = 'follow-up'")).toHaveLength(0)
})

test('[J25] every writing verb without tx rejects with PAWL_TX_REQUIRED, even after timers', async () => {
  const codes: string[] = []
  const { id: parked } = await pawl.jobs.enqueue('parked', {}, { delay: '1h' })
  pawl.jobs.define('tries', {
    tx: async () => {
      await new Promise((resolve) => setTimeout(resolve, 5))
      const attempts: (() => Promise<unknown>)[] = [
        () => pawl.jobs.enqueue('x', {}),
        () => pawl.jobs.enqueueMany('x', [{}, {}]),
        () => pawl.for('acme').jobs.enqueue('x', {}),
        () => pawl.jobs.cancel(parked),
        () => pawl.jobs.retry(parked),
      ]
      for (const attempt of attempts)
        codes.push(
          await attempt().then(
            () => 'went through',
            (error: { code: string }) => error.code,
          ),
        )
    },
  })
  await pawl.jobs.enqueue('tries', {})
  expect((await runAll(pawl, crowded)).done).toHaveLength(1)
  expect(codes).toEqual(Array.from({ length: 5 }, () => 'PAWL_TX_REQUIRED'))
  expect(await pawl.jobs.get(parked)).toMatchObject({ state: 'scheduled', revision: 1 })
})

test('[J25] with tx, more handlers than connections finish and their follow-ups run', async () => {
  let followed = 0
  pawl.jobs.define('passes', { tx: async (_job, tx) => void (await pawl.jobs.enqueue('follow-up', {}, { tx })) })
  pawl.jobs.define('follow-up', {
    run: async () => {
      followed++
    },
  })
  await pawl.jobs.enqueueMany(
    'passes',
    Array.from({ length: 16 }, () => ({})),
  )
  const report = await runAll(pawl, crowded)
  expect(report.done).toHaveLength(32)
  expect(followed).toBe(16)
})

test('[J25] a run handler may enqueue without tx at any concurrency', async () => {
  pawl.jobs.define('free', { run: async () => void (await pawl.jobs.enqueue('follow-up', {})) })
  await pawl.jobs.enqueueMany(
    'free',
    Array.from({ length: 16 }, () => ({})),
  )
  expect((await runAll(pawl, crowded)).done).toHaveLength(16)
  expect(await db.query("select from pawl.job where kind = 'follow-up'")).toHaveLength(16)
})

test('[J25] handlers that share a transaction are refused in the same way', async () => {
  pawl.jobs.define('shared', {
    share: 5,
    retry: { attempts: 1 },
    tx: async () => void (await pawl.jobs.enqueue('follow-up', {})),
  })
  await pawl.jobs.enqueueMany(
    'shared',
    Array.from({ length: 10 }, () => ({})),
  )
  const report = await runAll(pawl, crowded)
  expect(report.dead).toHaveLength(10)
  expect(report.dead[0]?.reason).toContain('Pass { tx }')
})

test('[J29] an unset transaction variable is refused, and nothing is written', async () => {
  const { id } = await pawl.jobs.enqueue('parked', {}, { delay: '1h' })
  const unset: { readonly tx: never } = { tx: undefined as never }
  const event = { id: '1', aggregateType: 'order', key: 'a', type: 'made', payload: {} }
  for (const call of [
    () => pawl.jobs.enqueue('x', {}, unset),
    () => pawl.jobs.enqueueMany('x', [{}], unset),
    () => pawl.jobs.cancel(id, unset),
    () => pawl.jobs.retry(id, unset),
    () => pawl.events.append(event, unset),
    () => pawl.events.ingest(event, { source: 'shop', ...unset }),
  ])
    await expect(call()).rejects.toMatchObject({ code: 'PAWL_CONFIG', message: expect.stringContaining('be left out') })
  expect(await db.query('select state from pawl.job')).toEqual([{ state: 'scheduled' }])
  expect(await db.query('select from pawl.event')).toEqual([])
})

test('a handle of a kind that another Pawl defines brings its queue', async () => {
  const mail = db.pawl().jobs.define('mail', { queue: 'mails', run: () => undefined })
  await pawl.jobs.enqueue(mail, {})
  await pawl.jobs.enqueueMany(mail, [1, 2], { queue: 'slow mails' })
  await pawl.jobs.enqueue('mail', {})
  expect(await db.query('select queue, count(*)::integer as n from pawl.job group by queue order by queue')).toEqual([
    { queue: 'default', n: 1 },
    { queue: 'mails', n: 1 },
    { queue: 'slow mails', n: 2 },
  ])
  const handle = { name: 'mail', queue: 5 } as unknown as typeof mail
  await expect(pawl.jobs.enqueue(handle, {})).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
})
