import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { NonRetryable, silentLogger } from 'pawl'
import { expect, onTestFinished, test } from 'vitest'
import { deferred, until } from '../../../test/support/database.ts'
import { append, caughtUp, createLog, cursorOf, startRunner } from '../../../test/support/projections.ts'
import type { LogFields } from '../../config.ts'
import { Connection } from '../../db/driver.ts'
import type { Statement } from '../../db/statement.ts'
import { SinkLoop } from './sink-loop.ts'

const retry = { attempts: 3, initialMs: 5, factor: 1, jitter: false } as const

test('a sink hands over each key in order, with stable idempotency keys', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: { key: string; n: number; id: string }[] = []
  let running = 0
  let most = 0
  const busy = new Set<string>()
  pawl.projections.sink('out', {
    concurrency: 8,
    handle: async (event, { idempotencyKey }) => {
      expect(busy.has(event.key)).toBe(false)
      busy.add(event.key)
      most = Math.max(most, ++running)
      await sleep(Math.random() * 4)
      got.push({ key: event.key, n: (event.data as { n: number }).n, id: idempotencyKey })
      running--
      busy.delete(event.key)
    },
  })
  const total = 600
  for (let n = 0; n < total; n += 20)
    await append(db, ...Array.from({ length: 20 }, (_, i) => ({ key: `k${(n + i) % 23}`, data: { n: n + i } })))
  await startRunner(pawl)
  await until('all were handed over', () => got.length === total)
  await caughtUp(db, 'out')
  for (let key = 0; key < 23; key++) {
    const numbers = got.filter((each) => each.key === `k${key}`).map(({ n }) => n)
    expect(numbers).toEqual([...numbers].sort((a, b) => a - b))
  }
  expect(new Set(got.map(({ id }) => id)).size).toBe(total)
  expect(most).toBeGreaterThan(4)
  expect(most).toBeLessThanOrEqual(8)
  expect((await cursorOf(db, 'out')).done).toBe('{}')
})

test('a sink awaits any thenable; a late rejection is handed over again', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: number[] = []
  // As query builders and request libraries return: it has then, and is no Promise.
  /* oxlint-disable unicorn/no-thenable -- a thenable is the point */
  const later = (fail: boolean) => ({
    // biome-ignore lint/suspicious/noThenProperty: a thenable is the point.
    then: (resolve: () => void, reject: (error: Error) => void) =>
      void setImmediate(() => (fail ? reject(new Error('away')) : resolve())),
  })
  /* oxlint-enable unicorn/no-thenable */
  pawl.projections.sink('out', {
    retry,
    handle: (_event, { attempt }) => {
      got.push(attempt)
      return later(attempt < 3)
    },
  })
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it was handed over until it succeeded', () => got.length === 3)
  await caughtUp(db, 'out')
  expect(got).toEqual([1, 2, 3])
})

test('an event appended while a sink reads is handed over at once', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: string[] = []
  pawl.projections.sink('out', { handle: ({ key }) => void got.push(key) })
  // The answer to a read that found one event is on its way; another event gets its position, and the sink is woken, before it arrives.
  let isArmed = false
  let isHeld = false
  let wakes = 0
  const { run } = Connection.prototype
  const { wake } = SinkLoop.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
    SinkLoop.prototype.wake = wake
  })
  SinkLoop.prototype.wake = function (this: SinkLoop) {
    wakes++
    wake.call(this)
  }
  Connection.prototype.run = async function (this: Connection, sent: Statement, values) {
    const rows = await run.call(this, sent, values)
    const [page] = rows as unknown as readonly { positions?: string | null }[]
    if (sent.name === 'read-log' && page?.positions && isArmed && !isHeld) {
      isHeld = true
      const before = wakes
      await append(db, { key: 'third' })
      await until('it was woken', () => wakes > before)
    }
    return rows as never
  }
  await startRunner(pawl)
  await append(db, { key: 'first' })
  await until('the first was handed over', () => got.length === 1)
  // From now on, whichever read has the second: one that was sent before this may still be in progress.
  isArmed = true
  await append(db, { key: 'second' })
  await until('all were handed over', () => got.length === 3)
  expect(isHeld).toBe(true)
  expect(got).toEqual(['first', 'second', 'third'])
})

test('a sink that cannot store its progress stops without repeated tries', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.sink('out', { handle: () => undefined })
  const runner = await startRunner(pawl)
  let stores = 0
  const { run } = Connection.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
  })
  // Answers as a closed connection does: at once. A loop that asks without end would never let a timer fire, so this one ends it.
  Connection.prototype.run = async function (this: Connection, sent: Statement, values) {
    if (sent.name === 'flush' && stores++ < 1000) throw Object.assign(new Error('Connection terminated'), { code: 'ECONNRESET' })
    return run.call(this, sent, values) as never
  }
  await append(db, { key: 'a' }, { key: 'b' })
  await until('it has tried again', () => stores >= 3)
  const before = stores
  await runner.stop()
  expect(stores - before).toBeLessThan(10)
})

test.each([
  ['its generation tells', 1],
  ['only the cursor tells', 0],
])('[O12] after a lost tail a sink hands over its replacement: %s', async (_how, more) => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: string[] = []
  pawl.projections.sink('out', { handle: ({ key }) => void got.push(key) })
  await startRunner(pawl)
  await append(db, { key: 'a' }, { key: 'b' }, { key: 'c' })
  await caughtUp(db, 'out')
  // Before its next read the server is replaced by one that had none of it, and as many events come again, and more.
  const { run } = Connection.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
  })
  const grown = deferred()
  Connection.prototype.run = async function (this: Connection, sent: Statement, values) {
    if (sent.name === 'read-log') await grown.promise
    return run.call(this, sent, values) as never
  }
  await db.query(`
    begin;
    truncate pawl.event, pawl.log_page;
    update pawl.sequencer set position = 0, generation = generation + ${more};
    update pawl.cursor_position set position = 0, event_id = null, log_generation = null;
    commit`)
  await append(db, ...['p', 'q', 'r', 's', 't'].map((key) => ({ key })))
  await until('they have positions', async () => (await pawl.projections.status('out'))[0]!.lag === 5)
  grown.resolve()
  await caughtUp(db, 'out')
  expect(new Set(got)).toEqual(new Set(['a', 'b', 'c', 'p', 'q', 'r', 's', 't']))
})

test('a failing sink is logged once, and its status has the error', async () => {
  const db = await createLog()
  const lines: (LogFields & { message: string })[] = []
  const warn = (fields: LogFields, message: string) => void lines.push({ ...fields, message })
  const pawl = db.pawl({ logger: { ...silentLogger, warn } })
  let isAway = true
  pawl.projections.sink('out', {
    retry: { ...retry, attempts: 1_000_000 },
    handle: () => {
      if (isAway) throw new Error('the endpoint is away')
    },
  })
  await startRunner(pawl)
  await until('it is held', async () => (await pawl.projections.status('out'))[0]!.holder !== null)
  await db.query('update pawl.cursor_position set crashes = 1')
  await append(db, { key: 'a' })
  const status = async () => (await pawl.projections.status('out'))[0]!
  await until('the second failure is told', async () => (await status()).attempts >= 2)
  expect((await status()).lastError).toMatch(/^Error: the endpoint is away/)
  // Nothing is finished, so a crash at the second attempt is still one more at this place.
  expect((await db.query('select crashes from pawl.cursor_position'))[0]).toEqual({ crashes: 1 })
  isAway = false
  await caughtUp(db, 'out')
  expect(await status()).toMatchObject({ attempts: 0, lastError: null })
  expect(lines).toMatchObject([
    { name: 'out', key: 'a', attempt: 1, error: expect.stringMatching(/^Error: the endpoint is away/) },
  ])
  expect(lines[0]!.message).toMatch(/^sink failed, will be retried/)
})

test('a key that a sink parks is logged', async () => {
  const db = await createLog()
  const lines: (LogFields & { message: string })[] = []
  const warn = (fields: LogFields, message: string) => void lines.push({ ...fields, message })
  const pawl = db.pawl({ logger: { ...silentLogger, warn } })
  pawl.projections.sink('out', {
    handle: () => {
      throw new NonRetryable('cannot take it')
    },
  })
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('out')).items.length === 1)
  const reason = expect.stringContaining('cannot take it')
  expect(lines).toMatchObject([{ name: 'out', key: 'a', position: 1, reason, message: 'a key was parked' }])
})

test('[O7] an error message that the database refuses still parks its key', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: string[] = []
  pawl.projections.sink('out', {
    retry: { ...retry, attempts: 1 },
    handle: ({ key }) => {
      if (key === 'poison') JSON.parse('\u0000\ud800')
      got.push(key)
    },
  })
  await append(db, { key: 'poison' }, { key: 'a' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('out')).items.length === 1)
  await caughtUp(db, 'out')
  expect(got).toEqual(['a'])
  expect((await pawl.projections.parked('out')).items[0]!.reason).toMatch(
    /^Event 1 \(Added\) failed 1 time\(s\): Unexpected token/,
  )
})

test('[O7] when retry.when throws, the event is retried and parked at its limit', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const when = () => {
    throw new Error('this hook is broken')
  }
  const handle = () => {
    throw new Error('cannot take it')
  }
  pawl.projections.sink('out', { retry: { ...retry, when }, handle })
  pawl.projections.define('log', { retry: { ...retry, when }, each: handle })
  await append(db, { key: 'poison' })
  await startRunner(pawl)
  for (const name of ['out', 'log']) {
    await until('it is parked', async () => (await pawl.projections.parked(name)).items.length === 1)
    expect((await pawl.projections.parked(name)).items).toMatchObject([
      { attempts: 3, reason: 'Event 1 (Added) failed 3 time(s): cannot take it' },
    ])
  }
})

test('[O7] a poison event parks only its key; unparking replays in order', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  let isBroken = true
  const got: number[] = []
  const others: number[] = []
  pawl.projections.sink('out', {
    retry,
    concurrency: 4,
    handle: async (event) => {
      const { n } = event.data as { n: number }
      if (event.key !== 'poison') return void others.push(n)
      if (isBroken && n >= 3) throw new Error(`cannot take ${n}`)
      got.push(n)
    },
  })
  for (let n = 1; n <= 10; n++) await append(db, { key: 'poison', data: { n } }, { key: `k${n % 3}`, data: { n } })
  await startRunner(pawl)
  await caughtUp(db, 'out')
  expect(got).toEqual([1, 2])
  expect(others).toHaveLength(10)
  await until('all are behind it', async () => (await pawl.projections.parked('out')).items[0]?.events === 8)
  expect((await pawl.projections.parked('out')).items).toMatchObject([
    { key: 'poison', state: 'parked', attempts: 3, firstPosition: 5, reason: 'Event 5 (Added) failed 3 time(s): cannot take 3' },
  ])
  // Replayed too early it is parked again, with the first event still first.
  await pawl.projections.unpark('out', { key: 'poison', reason: 'perhaps' })
  await until('it is parked again', async () => (await pawl.projections.parked('out')).items[0]?.reason.startsWith('The replay'))
  expect((await pawl.projections.parked('out')).items).toMatchObject([{ state: 'parked', events: 8, firstPosition: 5 }])

  isBroken = false
  await pawl.projections.unpark('out', { reason: 'it is repaired' })
  for (let n = 11; n <= 20; n++) await append(db, { key: 'poison', data: { n } })
  await until('it flows again', () => got.length === 20)
  await caughtUp(db, 'out')
  await until('nothing is parked', async () => (await pawl.projections.parked('out')).items.length === 0)
  expect(await pawl.alerts()).toEqual([])
  expect(got).toEqual(Array.from({ length: 20 }, (_, n) => n + 1))
})

test('[O7] after a skip of the poison event its key continues, with audit', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: number[] = []
  pawl.projections.sink('out', {
    handle: (event) => {
      const { n } = event.data as { n: number }
      if (n === 1) throw new NonRetryable('never')
      got.push(n)
    },
  })
  await append(db, ...[1, 2, 3].map((n) => ({ key: 'k', data: { n } })))
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('out')).items[0]?.events === 3)
  await pawl.projections.skip('out', { position: 1, reason: 'it is a test event', by: 'ann' })
  expect((await pawl.projections.parked('out')).items).toMatchObject([{ events: 2, firstPosition: 2 }])
  await pawl.projections.unpark('out', { key: 'k', reason: 'go on' })
  await until('the rest is delivered', () => got.length === 2)
  expect(got).toEqual([2, 3])
  // A key whose last parked event is skipped is free, also for a holder that remembers it as parked.
  await until('the key is free', async () => (await pawl.projections.parked('out')).items.length === 0)
  await append(db, { key: 'k', data: { n: 1 } })
  await until('it is parked', async () => (await pawl.projections.parked('out')).items[0]?.events === 1)
  await pawl.projections.skip('out', { position: 4, reason: 'again' })
  expect((await pawl.projections.parked('out')).items).toEqual([])
  await append(db, { key: 'k', data: { n: 5 } })
  await until('it is delivered', () => got.length === 3)
  await caughtUp(db, 'out')
  expect(await db.query("select actor, action, detail from pawl.audit where reason <> 'again' order by id")).toEqual([
    { actor: 'ann', action: 'projection.skip', detail: { position: 1, parked: true } },
    { actor: null, action: 'projection.unpark', detail: { keys: ['k'], count: 1 } },
  ])
})

test('keys of two tenants with one name are two keys', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: string[] = []
  const own: string[] = []
  pawl.projections.sink('out', {
    handle: (event) => {
      if (event.tenant === 'acme') throw new NonRetryable('no')
      got.push(event.tenant)
    },
  })
  pawl.for('bolt').projections.sink('own', { handle: (event) => void own.push(event.tenant) })
  for (const tenant of ['acme', 'bolt', 'acme', 'bolt']) await append(db, { key: 'same', tenant })
  await startRunner(pawl)
  await caughtUp(db, 'out')
  await until("a tenant's own sink has its events", () => own.length === 2)
  expect(got).toEqual(['bolt', 'bolt'])
  expect(own).toEqual(['bolt', 'bolt'])
  expect((await pawl.projections.parked('out')).items).toMatchObject([{ keyTenant: 'acme', key: 'same' }])
})

test('a handler past its timeout fails, and its signal fires', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const reasons: unknown[] = []
  pawl.projections.sink('out', {
    timeout: 50,
    retry: { ...retry, attempts: 2 },
    handle: (_event, { signal }) =>
      new Promise((_resolve) => {
        signal.addEventListener('abort', () => reasons.push(signal.reason))
      }),
  })
  await append(db, { key: 'a' })
  await startRunner(pawl)
  await until('it is parked', async () => (await pawl.projections.parked('out')).items.length === 1)
  expect(reasons).toMatchObject([{ code: 'PAWL_TIMED_OUT' }, { code: 'PAWL_TIMED_OUT' }])
})

test('[O7] parked keys replayed together hand over each event once, in order', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  let isBad = true
  const replayed: Record<string, number[]> = {}
  pawl.projections.sink('out', {
    concurrency: 8,
    handle: async ({ key, position }) => {
      if (isBad) throw new NonRetryable('no')
      await sleep(Math.random() * 3)
      replayed[key] = [...(replayed[key] ?? []), position]
    },
  })
  await startRunner(pawl)
  const keys = Array.from({ length: 8 }, (_, n) => `k${n}`)
  for (const key of keys) await append(db, { key })
  await until('all are parked', async () => (await pawl.projections.parked('out')).items.length === keys.length)
  for (let n = 0; n < 15; n++) await append(db, ...keys.map((key) => ({ key })))
  await caughtUp(db, 'out')
  isBad = false
  await pawl.projections.unpark('out', { reason: 'it is back' })
  await until('nothing is parked', async () => (await pawl.projections.parked('out')).items.length === 0, 30_000)
  await caughtUp(db, 'out')
  for (const key of keys) {
    expect(replayed[key]).toHaveLength(16)
    expect(replayed[key]).toEqual([...replayed[key]!].sort((a, b) => a - b))
  }
})

test('a sink reads on only while what is unfinished is small', async () => {
  const db = await createLog()
  const pawl = db.pawl({ payloadBytesMax: 4_000_000 })
  const held: (() => void)[] = []
  let events = 0
  let isHolding = true
  const { run } = Connection.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
  })
  Connection.prototype.run = async function (this: Connection, sent: Statement, values) {
    const rows = await run.call(this, sent, values)
    const [page] = rows as unknown as readonly { positions?: string | null }[]
    if (sent.name === 'read-log' && page?.positions) events += page.positions.split(' ').length
    return rows as never
  }
  pawl.projections.sink('out', {
    concurrency: 4,
    handle: () => (isHolding ? new Promise<void>((resolve) => held.push(resolve)) : undefined),
  })
  for (let n = 0; n < 8; n++) await append(db, { key: `k${n}`, data: randomBytes(1_500_000).toString('hex') })
  await startRunner(pawl)
  await until('it works on three', () => held.length === 3)
  // With 8 MB open it reads no further, although four may run.
  await append(db, { key: 'last' })
  await until('it was woken', async () => (await pawl.projections.status('out'))[0]!.lag === 9)
  expect(events).toBe(3)
  isHolding = false
  for (const end of held) end()
  await caughtUp(db, 'out')
})
