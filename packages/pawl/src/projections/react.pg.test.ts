import type { AnyTx, Pawl, ProjectionTx } from 'pawl'
import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { append, caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

const reason = 'a test'
const out = { type: 'Out', aggregateType: 'thing', key: 'x', channel: 'out' }
const table = { name: 'wallet', key: ['id'], columns: ['id', 'balance'] }

/** Every way to add a job or an event through a transaction. */
const calls: Readonly<Record<string, (pawl: Pawl, tx: ProjectionTx) => unknown>> = {
  enqueue: (pawl, tx) => pawl.jobs.enqueue('mail', {}, { tx }),
  append: (pawl, tx) => pawl.events.append(out, { tx }),
  ingest: (pawl, tx) => pawl.events.ingest([{ ...out, id: '1' }], { source: 'chain', tx }),
  'enqueue by SQL': (_pawl, tx) => tx.query("select pawl.enqueue('mail', '{}')"),
  'append by SQL': (_pawl, tx) => tx.query("select pawl.append('Out', 'thing', 'x', channel => 'out')"),
  'a job inserted by SQL': (_pawl, tx) =>
    tx.query(
      "insert into pawl.job (id, queue, kind, state, due, run_at, payload) values (1, 'q', 'k', 'ready', now(), now(), '1')",
    ),
  'an insert by SQL': (_pawl, tx) =>
    tx.query("insert into pawl.event (type, aggregatetype, aggregateid, channel) values ('Out', 't', 'x', 'out')"),
}

test.each(Object.keys(calls))('[P7] [P9] %s is refused to a projection and allowed to a reaction', async (name) => {
  const db = await createLog()
  const pawl = db.pawl()
  const call = calls[name]!
  const retry = { attempts: 1 }
  pawl.projections.define('fold', { retry, channel: 'default', each: (_event, tx) => call(pawl, tx) })
  const entity = ({ key }: { key: string }) => key
  pawl.projections.define('copies', {
    kind: 'state',
    ...{ retry, channel: 'default', tables: [table], entity },
    refresh: (_id, tx) => call(pawl, tx),
  })
  const [event] = await Promise.all([append(db, { key: 'a' }), startRunner(pawl)])
  await until('both are parked', async () => (await pawl.projections.parked('copies')).items.length === 1)
  await until('both are parked', async () => (await pawl.projections.parked('fold')).items.length === 1)
  const added = async () => (await db.query("select from pawl.job union all select from pawl.event where type = 'Out'")).length
  expect(await added()).toBe(0)
  for (const projection of ['fold', 'copies'])
    expect((await pawl.projections.parked(projection)).items[0]!.error).toMatch(/a rebuild would append or enqueue again/)

  const other = db.pawl()
  other.projections.react('answers', { retry, channel: 'default', each: (_event, tx) => call(other, tx) })
  await startRunner(other)
  await other.projections.seen('answers', event)
  expect(await added()).toBe(1)
})

test('[P9] the refusal names the projection and the fix', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('fold', { retry: { attempts: 1 }, each: (_event, tx) => pawl.jobs.enqueue('mail', {}, { tx }) })
  const failed: unknown[] = []
  pawl.on('projection.failed', ({ error }) => failed.push(error))
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it failed', () => failed.length > 0)
  expect(failed[0]).toMatchObject({ code: 'PAWL_TX_UNSUPPORTED', message: expect.stringMatching(/'fold'.*projections\.react/) })
})

test.each(['log', 'state'] as const)('[P9] a call that a %s projection does not await fails its event', async (kind) => {
  const db = await createLog()
  const pawl = db.pawl()
  const call = (_: unknown, tx: ProjectionTx) => {
    pawl.jobs.enqueue('mail', {}, { tx }).catch(() => undefined)
  }
  const retry = { attempts: 1 }
  if (kind === 'log') pawl.projections.define('fold', { retry, each: call })
  else pawl.projections.define('fold', { kind, retry, tables: [table], entity: ({ key }) => key, refresh: call })
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it is parked', async () => (await pawl.projections.parked('fold')).items.length === 1)
  expect((await pawl.projections.parked('fold')).items[0]!.error).toMatch(/projections\.react/)
})

/** For every event a job and an event. */
function reactTo(pawl: Pawl, before: (key: string) => void = () => undefined): void {
  pawl.projections.react('answers', {
    channel: 'default',
    retry: { initialMs: 10, jitter: false },
    each: async ({ key, position }, tx) => {
      await pawl.jobs.enqueue('mail', { position }, { tx })
      await pawl.events.append({ ...out, key, data: position }, { tx })
      before(key)
    },
  })
}

async function answered(db: Awaited<ReturnType<typeof createLog>>): Promise<{ jobs: number[]; events: number[] }> {
  const jobs = await db.query<{ n: number }>("select (payload ->> 'position')::integer as n from pawl.job order by 1")
  const events = await db.query<{ n: number }>("select payload::integer as n from pawl.event where channel = 'out' order by 1")
  return { jobs: jobs.map(({ n }) => n), events: events.map(({ n }) => n) }
}

test('[P9] a reaction whose handler fails in a batch acts once per event', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  let fails = 2
  reactTo(pawl, (key) => {
    if (key === 'bad' && fails-- > 0) throw new Error('no')
  })
  await append(db, { key: 'a' }, { key: 'bad' }, { key: 'b' })
  await startRunner(pawl)
  await until('all is answered', async () => (await answered(db)).events.length >= 3)
  expect(await answered(db)).toEqual({ jobs: [1, 2, 3], events: [1, 2, 3] })
})

test.each(['loseReply', 'loseRequest'] as const)('[P9] a reaction whose commit got no answer acts once (%s)', async (how) => {
  const db = await createLog()
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const pawl = db.pawl({ databaseUrl: proxy.url })
  reactTo(pawl)
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('the first is answered', async () => (await answered(db)).events.length === 1)
  const { happened } = proxy[how](/^commit/, { of: / handler \w+$/ })
  const token = await append(db, { key: 'b' })
  await happened
  await pawl.projections.seen('answers', token, { timeout: '20s' })
  const { jobs, events } = await answered(db)
  expect(jobs).toHaveLength(2)
  expect(events).toEqual(jobs)
})

test('[P9] a parked event of a reaction acts once when it is unparked', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  let isBroken = true
  pawl.projections.react('answers', {
    channel: 'default',
    retry: { attempts: 1 },
    on: {
      Added: async ({ position }, tx) => {
        await pawl.jobs.enqueue('mail', { position }, { tx })
        if (isBroken) throw new Error('no')
      },
    },
  })
  await startRunner(pawl)
  await append(db, { key: 'a' }, { key: 'a' })
  await caughtUp(db, 'answers')
  expect(await db.query('select from pawl.job')).toEqual([])
  isBroken = false
  await pawl.projections.unpark('answers', { reason })
  await until('nothing is parked', async () => (await pawl.projections.parked('answers')).items.length === 0)
  expect((await answered(db)).jobs).toEqual([1, 2])
})

test('[P9] a reaction and a state projection without tables are never rebuilt', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const each = () => undefined
  expect(() => pawl.projections.react('answers', { each, generation: 2 } as never)).toThrow(/generation/)
  expect(() => pawl.projections.react('answers', { each, tables: [table] } as never)).toThrow(/tables/)
  const state = { kind: 'state', entity: each, refresh: each } as const
  expect(() => pawl.projections.define('search', { ...state, generation: 2 })).toThrow(/declare its tables/)
  pawl.projections.react('answers', { each })
  pawl.projections.define('search', state)
  await startRunner(pawl)
  for (const name of ['answers', 'search'])
    await expect(pawl.projections.rebuild(name, { reason })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  expect(await pawl.projections.status('answers')).toMatchObject([{ kind: 'reaction', generation: 1, isLive: true }])
})

test('a state projection without tables may append and enqueue', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('search', {
    kind: 'state',
    channel: 'default',
    entity: ({ key }) => key,
    refresh: async (id, tx) => {
      await pawl.jobs.enqueue('index', { id }, { tx })
      await pawl.events.append({ ...out, key: id }, { tx: tx as AnyTx })
    },
  })
  await startRunner(pawl)
  await pawl.projections.seen('search', await append(db, { key: 'a' }))
  expect(await db.query('select from pawl.job')).toHaveLength(1)
  expect(await db.query("select from pawl.event where channel = 'out'")).toHaveLength(1)
})

test('[P9] a reaction that is refused by its fence leaves nothing', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  reactTo(pawl)
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('the first is answered', async () => (await answered(db)).events.length === 1)
  let isTaken = false
  installProbe(async (name) => {
    if (name !== 'projections.batch.before' || isTaken) return
    isTaken = true
    await db.query('update pawl.cursor set fence = fence + 1')
  })
  onTestFinished(() => installProbe(undefined))
  const token = await append(db, { key: 'b' })
  await until('its fence is another', () => isTaken)
  await pawl.projections.seen('answers', token, { timeout: '20s' })
  const { jobs, events } = await answered(db)
  expect(jobs).toHaveLength(2)
  expect(events).toEqual(jobs)
})
