import { randomBytes } from 'node:crypto'
import { expectRows, NonRetryable, type ProjectionTx, silentLogger } from 'pawl'
import { installProbe, resetConnections } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { deferred, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { append, caughtUp, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'
import type { LogFields } from '../config.ts'
import { bind, statement } from '../db/statement.ts'

const retry = { attempts: 3, initialMs: 5, factor: 1, jitter: false } as const
const addSql = `insert into wallet (id, balance, changes) values ($1, $2, 1)
  on conflict (id) do update set balance = wallet.balance + excluded.balance, changes = wallet.changes + 1`

async function add(event: { key: string; data: unknown; position: number }, tx: ProjectionTx): Promise<void> {
  const { amount } = event.data as { amount: number }
  await tx.query(addSql, [event.key, amount])
  await tx.query('insert into entry (position, wallet, amount) values ($1, $2, $3)', [event.position, event.key, amount])
}

test('events are applied once, in order, and the position follows', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', { on: { Added: add } })
  for (let n = 0; n < 30; n++) await append(db, { key: `w${n % 3}`, data: { amount: n } }, { key: 'x', type: 'Other' })
  await startRunner(pawl)
  await caughtUp(db, 'wallets')
  expect(await db.query('select position::integer from entry order by position')).toEqual(
    Array.from({ length: 30 }, (_, n) => ({ position: 2 * n + 1 })),
  )
  expect(await cursorOf(db, 'wallets')).toMatchObject({ position: 60, state: 'running' })
})

test('after a page cut short, pages read ahead are read again', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: number[] = []
  pawl.projections.define('sizes', { each: ({ position }) => void got.push(position), tuning: { batchMax: 4 } })
  const large = (n: number) => ({ key: 'a', data: { text: randomBytes(n % 8 < 4 ? 10 : 600_000).toString('hex') } })
  await append(db, ...Array.from({ length: 16 }, (_, n) => large(n)))
  await startRunner(pawl)
  await caughtUp(db, 'sizes')
  expect(got).toEqual(Array.from({ length: 16 }, (_, n) => n + 1))
})

test('[P4] events of one source transaction are each applied once, also redelivered', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', { on: { Added: add }, tuning: { batchMax: 2 } })
  await startRunner(pawl)
  const deposit = (id: string, key: string, amount: number) => ({
    id,
    type: 'Added',
    aggregateType: 'wallet',
    key,
    data: { amount },
  })
  // Two events of one transaction of the source, in one call and in two.
  const first = [deposit('tx1/0', 'a', 1), deposit('tx1/1', 'a', 2)]
  expect(await pawl.events.ingest(first, { source: 'chain', position: 1 })).toMatchObject({ ingested: 2 })
  await pawl.events.ingest([deposit('tx2/0', 'a', 3)], { source: 'chain', position: 2 })
  await pawl.events.ingest([deposit('tx2/1', 'b', 4)], { source: 'chain', position: 2 })
  // The source delivers them again, as after a crash of its reader.
  await pawl.events.ingest([deposit('tx2/0', 'a', 3), deposit('tx2/1', 'b', 4)], { source: 'chain', position: 2 })
  await pawl.events.ingest(first, { source: 'chain', position: 1 })
  await caughtUp(db, 'wallets')
  expect(await db.query('select id, balance::integer, changes from wallet order by id')).toEqual([
    { id: 'a', balance: 6, changes: 3 },
    { id: 'b', balance: 4, changes: 1 },
  ])
})

test('[P4] a batch without a commit answer is applied exactly once', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', { on: { Added: add } })
  await startRunner(pawl)
  await append(db, { key: 'a', data: { amount: 1 } })
  await caughtUp(db, 'wallets')
  let cuts = 0
  installProbe(async (name) => {
    // The connections break while the commit is in progress, or just before it is sent.
    if (name !== 'projections.batch.handled' || cuts >= 12) return
    cuts++
    if (cuts % 2 === 0) resetConnections()
    else setTimeout(resetConnections, cuts % 3)
  })
  onTestFinished(() => installProbe(undefined))
  for (let n = 2; n <= 20; n++) {
    await append(db, { key: 'a', data: { amount: n } }, { key: 'b', data: { amount: n } })
    await caughtUp(db, 'wallets')
  }
  expect(cuts).toBe(12)
  expect(
    await db.query('select position::integer, count(*)::integer as times from entry group by 1 having count(*) <> 1'),
  ).toEqual([])
  expect(await db.query('select id, balance::integer, changes from wallet order by id')).toEqual([
    { id: 'a', balance: 210, changes: 20 },
    { id: 'b', balance: 209, changes: 19 },
  ])
})

test('[P4] a key parked without a commit answer keeps its later events waiting', async () => {
  const db = await createLog()
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const pawl = db.pawl({ databaseUrl: proxy.url })
  const got: number[] = []
  pawl.projections.define('p', {
    each: ({ position }) => {
      if (position === 1) throw new NonRetryable('no')
      got.push(position)
    },
  })
  let lost: Promise<void> | undefined
  installProbe((name) => {
    if (name === 'projections.park.before') lost ??= proxy.loseReply(/^commit$/m, { of: / handler \w+$/ }).happened
  })
  onTestFinished(() => installProbe(undefined))
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it is being parked', () => lost !== undefined)
  await lost
  await append(db, { key: 'a' }, { key: 'b' })
  await caughtUp(db, 'p')
  expect(got).toEqual([3])
  expect((await pawl.projections.parked('p')).items).toMatchObject([{ key: 'a', events: 2, firstPosition: 1 }])
})

test.each(['begin', 'with held', 'select c.is_live'])(
  '[P3] a connection broken at our own "%s" costs no attempt',
  async (sent) => {
    const db = await createLog()
    const proxy = await FaultProxy.start(db.url)
    onTestFinished(() => proxy.stop())
    const pawl = db.pawl({ databaseUrl: proxy.url })
    const got: number[] = []
    let isBroken = true
    pawl.projections.define('p', {
      retry: { ...retry, attempts: 1 },
      each: ({ key, position }) => {
        if (key === 'bad' && isBroken) throw new NonRetryable('no')
        got.push(position)
      },
    })
    await append(db, { key: 'bad' })
    await startRunner(pawl)
    await caughtUp(db, 'p')
    isBroken = false
    const { happened } = proxy.loseRequest(new RegExp(`^${sent}`, 'm'), { of: / handler \w+$/ })
    // An event by the cursor's move, and a parked one by its stay.
    await append(db, { key: 'a' })
    await pawl.projections.unpark('p', { key: 'bad', reason: 'mended' })
    await happened
    await until('the parked one is applied', async () => (await pawl.projections.parked('p')).items.length === 0)
    await caughtUp(db, 'p')
    expect(got.sort()).toEqual([1, 2])
  },
)

test('[P3] an error with a NUL in its message parks its key', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('p', {
    retry: { ...retry, attempts: 1 },
    each: ({ key }) => void (key === 'poison' && JSON.parse('\u0000')),
  })
  await append(db, { key: 'poison' }, { key: 'a' })
  await startRunner(pawl)
  await caughtUp(db, 'p')
  expect((await pawl.projections.parked('p')).items).toMatchObject([{ key: 'poison', events: 1 }])
})

test('[P3] a handler that throws changes nothing until its key is parked', async () => {
  const db = await createLog(`
    create table first (id text primary key, n integer);
    create table second (id text primary key, n integer)`)
  const pawl = db.pawl()
  const attempts: { position: number; rows: number }[] = []
  pawl.projections.define('both', {
    retry,
    each: async (event, tx) => {
      await tx.query('insert into first values ($1, $2) on conflict (id) do update set n = first.n + 1', [event.key, 1])
      if (event.type === 'Poison') {
        // What others see while it runs: nothing of this event, and the position before it.
        const [seen] = await db.query<{ rows: number }>('select count(*)::integer as rows from first where id = $1', [event.key])
        attempts.push({ position: (await cursorOf(db, 'both')).position, rows: seen!.rows })
        throw new Error('no')
      }
      await tx.query('insert into second values ($1, $2) on conflict (id) do update set n = second.n + 1', [event.key, 1])
    },
  })
  await append(db, { key: 'a' }, { key: 'b' }, { key: 'poison', type: 'Poison' }, { key: 'c' }, { key: 'poison' }, { key: 'a' })
  await startRunner(pawl)
  await caughtUp(db, 'both')
  // The first call was in a batch from 0; then event by event, three attempts.
  expect(attempts).toEqual([{ position: 0, rows: 0 }, ...Array.from({ length: 3 }, () => ({ position: 2, rows: 0 }))])
  for (const table of ['first', 'second'])
    expect(await db.query(`select id, n from ${table} order by id`)).toEqual([
      { id: 'a', n: 2 },
      { id: 'b', n: 1 },
      { id: 'c', n: 1 },
    ])
  expect((await pawl.projections.parked('both')).items).toMatchObject([
    { key: 'poison', state: 'parked', attempts: 3, events: 2, firstPosition: 3, reason: 'Event 3 (Poison) failed 3 time(s): no' },
  ])
  expect(await pawl.alerts()).toMatchObject([
    { code: 'projection.parked', subject: 'both', message: 'Event 3 (Poison) failed 3 time(s): no', count: 1 },
  ])
})

test.each(['log', 'state'] as const)('a failing %s projection is logged once before its key is parked', async (kind) => {
  const db = await createLog()
  const lines: (LogFields & { message: string })[] = []
  const warn = (fields: LogFields, message: string) => void lines.push({ ...fields, message })
  const pawl = db.pawl({ logger: { ...silentLogger, warn } })
  const fail = () => Promise.reject(new Error('no such column'))
  if (kind === 'log') pawl.projections.define('p', { kind, retry, each: fail })
  else pawl.projections.define('p', { kind, retry, entity: ({ key }) => key, refresh: fail })
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('the parking is logged', () => lines.some(({ message }) => message === 'a key was parked'))
  expect(lines).toMatchObject([
    { name: 'p', key: 'a', attempt: 1, error: expect.stringMatching(/^Error: no such column/) },
    { name: 'p', key: 'a', reason: expect.stringContaining('failed 3 time(s): no such column') },
  ])
  expect(lines[0]!.message).toMatch(/^projection failed, will be retried/)
})

test('[P5] a missing row parks the key; the replay keeps the order', async () => {
  const db = await createLog()
  await db.query("insert into wallet values ('a', 0), ('b', 0)")
  const pawl = db.pawl()
  pawl.projections.define('wallets', {
    retry,
    each: async (event, tx) => {
      const { amount } = event.data as { amount: number }
      expectRows(
        await tx.query('update wallet set balance = balance + $2, changes = changes + 1 where id = $1', [event.key, amount]),
        1,
      )
      await tx.query('insert into entry (position, wallet, amount) values ($1, $2, $3)', [event.position, event.key, amount])
    },
  })
  for (let n = 1; n <= 5; n++)
    await append(
      db,
      { key: 'a', data: { amount: n } },
      { key: 'missing', data: { amount: n } },
      { key: 'b', data: { amount: n } },
    )
  await startRunner(pawl)
  await caughtUp(db, 'wallets')
  const [parked] = (await pawl.projections.parked('wallets')).items
  expect(parked).toMatchObject({ key: 'missing', attempts: 1, events: 5, firstPosition: 2 })
  expect(parked!.reason).toMatch(/Expected 1 row\(s\), got 0/)
  expect(await db.query("select sum(balance)::integer as sum from wallet where id in ('a', 'b')")).toEqual([{ sum: 30 }])

  await db.query("insert into wallet values ('missing', 0)")
  expect(await pawl.projections.unpark('wallets', { key: 'missing', reason: 'the wallet is there now' })).toEqual(['missing'])
  await append(db, { key: 'missing', data: { amount: 6 } })
  await until('it is replayed', async () => (await pawl.projections.parked('wallets')).items.length === 0)
  await caughtUp(db, 'wallets')
  const entries = await db.query<{ amount: number }>("select amount::integer from entry where wallet = 'missing' order by nth")
  expect(entries.map(({ amount }) => amount)).toEqual([1, 2, 3, 4, 5, 6])
  expect(await db.query('select action, subject, reason from pawl.audit')).toEqual([
    { action: 'projection.unpark', subject: 'wallets', reason: 'the wallet is there now' },
  ])
})

test('an error that retry.when or NonRetryable refuses parks at once', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  let calls = 0
  pawl.projections.define('p', {
    retry: { ...retry, when: (error) => (error as Error).message !== 'refused' },
    each: (event) => {
      calls++
      throw event.type === 'A' ? new NonRetryable('final') : new Error('refused')
    },
  })
  await append(db, { key: 'a', type: 'A' })
  await append(db, { key: 'b', type: 'B' })
  await startRunner(pawl)
  await caughtUp(db, 'p')
  expect((await pawl.projections.parked('p')).items.map(({ attempts, key }) => ({ attempts, key }))).toEqual([
    { attempts: 1, key: 'a' },
    { attempts: 1, key: 'b' },
  ])
  expect(calls).toBeLessThanOrEqual(4)
})

test('[P8] after seen(token) the row is there', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', { on: { Added: add } })
  await startRunner(pawl)
  for (let n = 0; n < 20; n++) {
    const token = await append(db, { key: `w${n}`, data: { amount: n } }, { key: 'all', data: { amount: 1 } })
    await pawl.projections.seen('wallets', token, { timeout: '20s' })
    expect(await db.query('select balance::integer from wallet where id = $1', [`w${n}`])).toEqual([{ balance: n }])
    expect(await db.query("select balance::integer from wallet where id = 'all'")).toEqual([{ balance: n + 1 }])
  }
})

test('[P8] seen waits for an open transaction and names it on timeout', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', { on: { Added: add } })
  await startRunner(pawl)
  const client = await db.pool.connect()
  await client.query('begin')
  const query = async <Row>(text: string, values?: unknown[]) => (await client.query(text, values)).rows as Row[]
  const token = await append({ query }, { key: 'late', data: { amount: 1 } })
  await expect(pawl.projections.seen('wallets', token, { timeout: 50 })).rejects.toMatchObject({
    code: 'PAWL_TIMED_OUT',
    message: expect.stringContaining('still open'),
  })
  const seeing = pawl.projections.seen('wallets', token, { timeout: '20s' })
  await client.query('commit')
  client.release()
  await seeing
  expect(await db.query("select balance::integer from wallet where id = 'late'")).toEqual([{ balance: 1 }])
  await expect(pawl.projections.seen('nobody', token)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
})

test('[P8] a commit between snapshot and status is not one without events', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', { on: { Added: add } })
  const runner = await startRunner(pawl)
  await runner.stop()
  const [writer, reader] = [await db.pool.connect(), await db.pool.connect()]
  await writer.query('begin')
  const query = async <Row>(text: string, values?: unknown[]) => (await writer.query(text, values)).rows as Row[]
  const token = await append({ query }, { key: 'late', data: { amount: 1 } })
  await reader.query('begin isolation level repeatable read')
  await reader.query('select 1')
  await writer.query('commit')
  const seen = statement(import.meta.url, 'seen')
  const look = async () =>
    (await reader.query(seen.text, bind(seen, { tenant: '', name: 'wallets', xid: token.split(':')[0]! }))).rows[0]
  expect(await look()).toMatchObject({ status: 'in progress' })
  await reader.query('commit')
  expect(await look()).toMatchObject({ status: 'committed', unapplied: 1 })
  for (const client of [writer, reader]) client.release()
})

test('[P8] seen rejects at once if the event was parked or rolled back', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('p', { retry, each: () => Promise.reject(new NonRetryable('no')) })
  await startRunner(pawl)
  const token = await append(db, { key: 'a' })
  await caughtUp(db, 'p')
  await expect(pawl.projections.seen('p', token)).rejects.toMatchObject({ code: 'PAWL_PARKED' })
  const client = await db.pool.connect()
  await client.query('begin')
  const gone = await append(
    { query: async <Row>(text: string, values?: unknown[]) => (await client.query(text, values)).rows as Row[] },
    { key: 'b' },
  )
  await client.query('rollback')
  client.release()
  await expect(pawl.projections.seen('p', gone)).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
})

test('[P2] a holder that was replaced unnoticed is refused by its fence alone', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', { on: { Added: add } })
  const refused: string[] = []
  pawl.on('cursor.refused', ({ fence }) => refused.push(fence))
  await startRunner(pawl)
  await append(db, { key: 'a', data: { amount: 1 } })
  await caughtUp(db, 'wallets')
  const { fence } = await cursorOf(db, 'wallets')
  const [held, go] = [deferred(), deferred()]
  installProbe(async (name) => {
    if (name !== 'projections.batch.before') return
    held.resolve()
    await go.promise
  })
  onTestFinished(() => installProbe(undefined))
  await append(db, { key: 'a', data: { amount: 2 } })
  await held.promise
  // Another process took it, and died before it moved: the position is the same, the fence is not.
  await db.query('update pawl.cursor set fence = pawl.next_fence(), holder = null')
  go.resolve()
  await until('it is refused', () => refused.length > 0)
  installProbe(undefined)
  await caughtUp(db, 'wallets')
  expect(refused).toEqual([fence])
  // The event comes first; what is kept of it is written on a connection of its own.
  await until('the refusal is kept', async () => (await db.query('select from pawl.refusal')).length > 0)
  expect(await db.query('select fence::text, what from pawl.refusal')).toEqual([{ fence, what: 'cursor' }])
  expect(await db.query('select position::integer from entry order by 1')).toEqual([{ position: 1 }, { position: 2 }])
})

/** No text shows it: what has a body of `begin atomic` is not looked into. */
const hidden = (sql: string) =>
  `create or replace function hidden() returns integer language sql begin atomic select 1; end; ${sql}`

test.each([
  { name: 'rollback', send: async (tx: ProjectionTx): Promise<unknown> => tx.query('rollback') },
  { name: 'commit', send: async (tx: ProjectionTx): Promise<unknown> => tx.query('select 1; commit') },
  { name: 'commit without waiting', send: async (tx: ProjectionTx): Promise<unknown> => void tx.send('commit') },
  {
    name: 'rollback, and swallows the error',
    send: async (tx: ProjectionTx): Promise<unknown> => tx.query('rollback').catch(() => undefined),
  },
  { name: 'a hidden rollback', send: async (tx: ProjectionTx): Promise<unknown> => tx.query(hidden('rollback')) },
  {
    name: 'a hidden rollback and begin',
    send: async (tx: ProjectionTx): Promise<unknown> => tx.query(hidden('rollback; begin')).catch(() => undefined),
  },
])('[P3] when a handler sends $name its key is parked, others continue', async ({ send }) => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', {
    retry: { ...retry, attempts: 1 },
    on: {
      Added: add,
      Ends: async (event, tx) => {
        await add(event, tx)
        await send(tx)
      },
    },
  })
  for (let n = 0; n < 5; n++) await append(db, { key: 'a', data: { amount: 1 } })
  await append(db, { key: 'poison', type: 'Ends', data: { amount: 1 } })
  for (let n = 0; n < 5; n++) await append(db, { key: 'b', data: { amount: 1 } })
  await startRunner(pawl)
  await caughtUp(db, 'wallets')
  expect(await db.query('select id, balance::integer, changes from wallet order by id')).toEqual([
    { id: 'a', balance: 5, changes: 5 },
    { id: 'b', balance: 5, changes: 5 },
  ])
  expect((await pawl.projections.parked('wallets')).items).toMatchObject([
    { key: 'poison', events: 1, reason: expect.stringContaining('Only Pawl may end it') },
  ])
})

test('[P1] calls that a handler does not await commit with its transaction', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.react('wallets', {
    each: (event, tx) => {
      void pawl.jobs.enqueue('later', {}, { tx })
      void add({ ...event, data: { amount: 1 } }, tx)
    },
  })
  await append(db, { key: 'a' }, { key: 'b' })
  await startRunner(pawl)
  await caughtUp(db, 'wallets')
  expect(await db.query("select from pawl.job where kind = 'later'")).toHaveLength(2)
  expect(await db.query('select from entry')).toHaveLength(2)
})

test('[P7] a handler that swallowed an error is parked with that error', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('wallets', {
    retry: { ...retry, attempts: 1 },
    each: async (_event, tx) => {
      await tx.query('select 1 / 0').catch(() => undefined)
      await tx.query('select 1').catch(() => undefined)
    },
  })
  await append(db, { key: 'a' })
  await startRunner(pawl)
  const [parked] = await until(
    'it is parked',
    async () => (await pawl.projections.parked('wallets')).items,
    (keys) => keys.length > 0,
  )
  expect(parked!.error).toContain('division by zero')
})

test('a runner without its database logs once, and again on recovery', async () => {
  const db = await createLog()
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const warned: string[] = []
  const logger = { debug() {}, info() {}, error() {}, warn: (_fields: object, message: string) => void warned.push(message) }
  const pawl = db.pawl({ databaseUrl: proxy.url, logger })
  pawl.projections.define('wallets', { each: () => undefined })
  await startRunner(pawl)
  await proxy.refuse()
  proxy.reset()
  const said = (text: string) => warned.filter((message) => message.startsWith(text)).length
  // By then its loops have failed several times.
  await until('the keeper says so too', () => said('cursor error') > 0 && said('the keeper cannot reach') > 0)
  await proxy.accept()
  await until('it works again', () => said('the cursors work again') > 0)
  expect(said('cursor error')).toBe(1)
})
