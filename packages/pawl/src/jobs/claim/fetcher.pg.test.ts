// Claims: in order, each row once, one fence a claim, after the mark while more is waiting, and jobs before the mark within a second.

import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import type { Pawl } from 'pawl'
import { installProbe } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../../test/support/incarnation.ts'
import { Connection } from '../../db/driver.ts'
import type { Parameter, Statement } from '../../db/statement.ts'
import { type Holder, leaseStatements } from '../../kernel/lease.ts'
import { defineKind } from '../kinds.ts'
import { bytesOf, Fetcher } from './fetcher.ts'

/** The real connection, which also remembers from where each claim started. */
class WatchedConnection extends Connection {
  readonly claimedFrom: string[] = []
  /** As long as a walk over millions of dead entries. */
  answerMs = 0
  onClaim = (): void => undefined
  override async run<Row>(statement: Statement, values: Readonly<Record<string, Parameter>> = {}): Promise<Row[]> {
    if (statement.name === 'claim') {
      this.claimedFrom.push(/^\{"?([^"}]*)"?\}$/.exec(String(values.after_dues))![1]!)
      await sleep(this.answerMs)
      this.onClaim()
    }
    return super.run<Row>(statement, values)
  }
}

const kinds = [defineKind('work', { run: () => undefined })]
const rooms = kinds.map((kind) => ({ kind, room: 100 }))

let db: TestDatabase
let pawl: Pawl
let connection: WatchedConnection
let fetcher: Fetcher
let worker: Holder
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  connection = new WatchedConnection(pawl.config.database, 'test')
  // How long a scan takes on a busy machine must not decide these tests.
  fetcher = new Fetcher(connection, 10_000, Number.POSITIVE_INFINITY)
  worker = await openIncarnation(connection)
})
afterEach(async () => {
  vi.restoreAllMocks()
  await connection.close()
  await db.drop()
})

/** Stands the process's clock still: a full scan is not due, however long the machine takes for what comes before it. */
const stopClock = () => vi.spyOn(performance, 'now').mockReturnValue(performance.now())

const claim = async (limit: number) => (await fetcher.claim(worker, ['default'], kinds, limit)).rows
const claimSuspects = (limit: number, deciding: 'alone' | 'leave' | 'only' = 'alone') =>
  fetcher.claimSuspects(worker, ['default'], rooms, { limit, deciding })
const enqueue = (count: number, priority = 0) =>
  pawl.jobs
    .enqueueMany(
      'work',
      Array.from({ length: count }, () => ({})),
      { priority },
    )
    .then(({ ids }) => ids)

test('a claim takes the next jobs in order under one new fence', async () => {
  const ids = await enqueue(10)
  const first = await claim(4)
  const second = await claim(4)
  expect([...first, ...second].map(({ id }) => id)).toEqual(ids.slice(0, 8))
  expect(new Set(first.map(({ fence }) => fence)).size).toBe(1)
  expect(new Set(second.map(({ fence }) => fence)).size).toBe(1)
  expect(BigInt(second[0]!.fence)).toBeGreaterThan(BigInt(first[0]!.fence))
  expect(first.map(({ attempt }) => attempt)).toEqual([1, 1, 1, 1])
  expect(fetcher.claims).toBe(2)
})

test('only after a full claim the next one starts at a mark', async () => {
  stopClock()
  await enqueue(5)
  await claim(2)
  await claim(2)
  expect(await claim(2)).toHaveLength(1)
  expect(connection.claimedFrom[0]).toBe('-infinity')
  expect(connection.claimedFrom[1]).not.toBe('-infinity')
  expect(connection.claimedFrom[2]).not.toBe('-infinity')
  await enqueue(1)
  expect(await claim(2)).toHaveLength(1)
  expect(connection.claimedFrom[3]).toBe('-infinity')
})

test('with nothing after the mark, jobs before it are found at once', async () => {
  stopClock()
  await enqueue(2)
  await claim(2)
  const [urgent] = await enqueue(1, 50)
  expect((await claim(2)).map(({ id }) => id)).toEqual([urgent])
  expect(connection.claimedFrom.slice(1)).toEqual([expect.not.stringMatching('-infinity'), '-infinity'])
})

test('however many come after the mark, jobs before it wait a second', async () => {
  await enqueue(1000)
  await claim(10)
  const [urgent] = await enqueue(1, 50)
  const startedMs = performance.now()
  let wasFound = false
  while (!wasFound && performance.now() - startedMs < 20_000) {
    const rows = await claim(10)
    if (rows.length === 0) break
    wasFound = rows.some(({ id }) => id === urgent)
    await enqueue(10)
  }
  expect(wasFound).toBe(true)
  expect(connection.claimedFrom.filter((from) => from === '-infinity').length).toBeGreaterThan(1)
})

test('a scan that came due during this turn is due at once', async () => {
  const clock = stopClock()
  const beganMs = performance.now()
  await enqueue(3)
  await claim(1)
  await claim(1)
  expect(fetcher.nextScanInMs(beganMs)).toBeGreaterThan(1)
  clock.mockReturnValue(beganMs + 60_000)
  expect(fetcher.nextScanInMs(beganMs)).toBe(1)
  // Due before this turn began: it waits for room.
  expect(fetcher.nextScanInMs(performance.now())).toBe(Number.POSITIVE_INFINITY)
})

test('where full scans are slow, claims start at the mark instead', async () => {
  const slow = new Fetcher(connection, 10_000, Number.NEGATIVE_INFINITY)
  const clock = stopClock()
  const claimSlow = async () => (await slow.claim(worker, ['default'], kinds, 10)).rows
  await enqueue(1)
  expect(await claimSlow()).toHaveLength(1)
  expect(slow.nextFullScanInMs).toBeUndefined()
  const [next] = await enqueue(1)
  expect((await claimSlow()).map(({ id }) => id)).toEqual([next])
  expect(connection.claimedFrom).toEqual(['-infinity', expect.not.stringMatching('-infinity')])
  const [urgent] = await enqueue(1, 50)
  // Sums of the clock's fractions are not exact.
  expect(Math.round(slow.nextFullScanInMs!)).toBeLessThanOrEqual(1000)
  clock.mockRestore()
  const found = await until('the next full scan finds what lies before the mark', async () => (await claimSlow())[0])
  expect(found.id).toBe(urgent)
  expect(connection.claimedFrom.at(-1)).toBe('-infinity')
})

test('where every answer is slow, an urgent job is found at once', async () => {
  const far = new Fetcher(connection, 10_000, 10)
  const claimFar = async () => (await far.claim(worker, ['default'], kinds, 10)).rows
  const clock = stopClock()
  connection.onClaim = () => void clock.mockReturnValue(performance.now() + 40)
  for (let round = 0; round < 2; round++) {
    await enqueue(1)
    expect(await claimFar()).toHaveLength(1)
  }
  const [urgent] = await enqueue(1, 50)
  expect((await claimFar()).map(({ id }) => id)).toEqual([urgent])
  expect(connection.claimedFrom.slice(2)).toEqual([expect.not.stringMatching('-infinity'), '-infinity'])
})

test('two claimers share out a queue: each job once', async () => {
  const ids = await enqueue(500)
  const other = new Fetcher(connection, 10_000, Number.POSITIVE_INFINITY)
  const otherWorker = await openIncarnation(connection)
  const taken: string[] = []
  const drain = async (of: Fetcher, as: Holder, limit: number) => {
    for (;;) {
      const { rows } = await of.claim(as, ['default'], kinds, limit)
      if (rows.length === 0) return
      taken.push(...rows.map(({ id }) => id))
    }
  }
  await Promise.all([drain(fetcher, worker, 7), drain(other, otherWorker, 11)])
  expect(taken).toHaveLength(ids.length)
  expect(new Set(taken)).toEqual(new Set(ids))
})

test('any mixture of priorities is claimed once each, by due time', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.integer({ min: -100, max: 100 }), { minLength: 1, maxLength: 30 }),
      fc.integer({ min: 1, max: 12 }),
      async (priorities, limit) => {
        await db.query('truncate pawl.job')
        const fresh = new Fetcher(connection, 10_000, Number.POSITIVE_INFINITY)
        for (const priority of priorities) await enqueue(1, priority)
        const wanted = await db.query<{ id: string }>('select id::text as id from pawl.job order by due, id')
        const taken: string[] = []
        for (;;) {
          const { rows } = await fresh.claim(worker, ['default'], kinds, limit)
          if (rows.length === 0) break
          taken.push(...rows.map(({ id }) => id))
        }
        expect(taken).toEqual(wanted.map(({ id }) => id))
      },
    ),
    { numRuns: 15 },
  )
})

test('other queues, other kinds, suspects, scheduled and locked jobs are left alone', async () => {
  await pawl.jobs.enqueue('work', {}, { queue: 'other' })
  await pawl.jobs.enqueue('another', {})
  await pawl.jobs.enqueue('work', {}, { delay: '1h' })
  const [suspect] = await enqueue(1)
  await db.query('update pawl.job set suspect = true where id = $1', [suspect])
  const [locked, free] = await enqueue(2)
  const client = await db.pool.connect()
  await client.query('begin')
  await client.query('select from pawl.job where id = $1 for update', [locked])
  expect((await claim(100)).map(({ id }) => id)).toEqual([free])
  await client.query('rollback')
  client.release()
  expect((await claim(100)).map(({ id }) => id)).toEqual([locked])
  expect((await claimSuspects(10)).rows).toMatchObject([{ id: suspect, queue: 'default' }])
  expect((await claimSuspects(10)).rows).toEqual([])
})

test('a closed incarnation claims nothing', async () => {
  await enqueue(3)
  await connection.run(leaseStatements.close, { ...asHolder(worker), reason: 'stopped' })
  expect(await claim(10)).toEqual([])
  await db.query('update pawl.job set suspect = true')
  expect((await claimSuspects(10)).rows).toEqual([])
})

test('unknown jobs of this incarnation are given back under a new fence', async () => {
  await enqueue(5)
  const rows = await claim(5)
  const known = rows.slice(0, 2)
  expect(await fetcher.releaseUnknown(worker, known)).toBe(3)
  expect(await db.query('select state, attempt, count(*)::int as n from pawl.job group by 1, 2 order by 1')).toEqual([
    { state: 'ready', attempt: 0, n: 3 },
    { state: 'running', attempt: 1, n: 2 },
  ])
  const fresh = await claim(5)
  expect(fresh.map(({ id }) => id)).toEqual(rows.slice(2).map(({ id }) => id))
  expect(fresh[0]!.fence).not.toBe(rows[0]!.fence)
})

test('[J23] jobs given back after a lost answer wake sleepers', async () => {
  await enqueue(2)
  await claim(2)
  await db.query("insert into pawl.sleeper (queue, worker) values ('default', $1)", [worker.id])
  const client = await db.pool.connect()
  try {
    const heard: (string | undefined)[] = []
    client.on('notification', ({ payload }) => heard.push(payload))
    await client.query('listen pawl_wake')
    expect(await fetcher.releaseUnknown(worker, [])).toBe(2)
    await until('they hear of it', () => heard.length > 0)
    expect(heard).toEqual(['default'])
  } finally {
    client.release(true)
  }
})

test('a lost claim is given back although an older run is known', async () => {
  await enqueue(1)
  const [old] = await claim(1)
  // Another worker took it over and gave it back; the answer to the next claim is lost.
  await db.query("update pawl.job set state = 'ready', holder = null, run_until = null, fence = fence + 1000")
  await claim(1)
  expect(await fetcher.releaseUnknown(worker, [old!])).toBe(1)
})

test("[J35] a claim writes its kind's limits; attempts given at enqueue win", async () => {
  await pawl.jobs.enqueue('strict', {})
  await pawl.jobs.enqueue('strict', {}, { maxAttempts: 7 })
  await db.query("select pawl.enqueue('strict')")
  const limits = () => db.query('select max_attempts, max_crashes from pawl.job order by id')
  await fetcher.claim(worker, ['default'], [defineKind('strict', { retry: { attempts: 2, crashes: 1 }, run: () => 0 })], 10)
  expect(await limits()).toEqual([2, 7, 2].map((attempts) => ({ max_attempts: attempts, max_crashes: 1 })))
  await db.query("update pawl.job set state = 'ready', holder = null, run_until = null")
  await fetcher.claim(worker, ['default'], [defineKind('strict', { retry: { attempts: 4, crashes: 5 }, run: () => 0 })], 10)
  expect(await limits()).toEqual([4, 7, 4].map((attempts) => ({ max_attempts: attempts, max_crashes: 5 })))
})

test('[J32] a batch grows only while it stays below half of 16 MB', async () => {
  const asked: number[] = []
  installProbe((name, detail) => {
    if (name === 'jobs.claim.before') asked.push((detail as { limit: number }).limit)
  })
  onTestFinished(() => installProbe(undefined))
  await db.query(
    "select count(pawl.enqueue('work', jsonb_build_object('x', repeat('x', n)))) from (select 900000 as n, i from generate_series(1, 32) i) s",
  )
  let bytes = 0
  for (let claims = 0; claims < 2; claims++) {
    const rows = await claim(1000)
    bytes = Math.max(
      bytes,
      rows.reduce((sum, row) => sum + bytesOf(row), 0),
    )
  }
  expect(asked).toEqual([16, 16])
  expect(bytes).toBeLessThanOrEqual(16 * 1_048_576)
  await db.query('truncate pawl.job')
  await db.query("select count(pawl.enqueue('work')) from generate_series(1, 2000)")
  for (let claims = 0; claims < 20; claims++) await claim(1000)
  expect(asked.at(-1)).toBeGreaterThan(200)
})

test('[J32] headers count as payloads do, and arrive as they were given', async () => {
  const headers = { trace: 'x'.repeat(900_000) }
  await pawl.jobs.enqueueMany('work', [1, 2, 3], { headers })
  const rows = await claim(10)
  expect(rows.map((row) => bytesOf(row) > 900_000)).toEqual([true, true, true])
  expect(rows.map((row) => JSON.parse(row.headers!))).toEqual([headers, headers, headers])
  expect(fetcher.rowsIn(9_000_000)).toBe(9)
})

test("a claimed job may take its kind's timeout plus the buffer time", async () => {
  await pawl.jobs.enqueue('slow', {})
  await enqueue(1)
  await fetcher.claim(worker, ['default'], [...kinds, defineKind('slow', { timeout: '1h', run: () => undefined })], 10)
  expect(
    await db.query('select kind, (extract(epoch from run_until - claimed_at) * 1000)::int as ms from pawl.job order by kind'),
  ).toEqual([
    { kind: 'slow', ms: 3_610_000 },
    { kind: 'work', ms: 910_000 },
  ])
})

test('[J22] full scans of over a second are not repeated at every claim', async () => {
  fetcher = new Fetcher(connection, 10_000, 500)
  await enqueue(4)
  connection.answerMs = 1100
  expect(await claim(1)).toHaveLength(1)
  expect(await claim(1)).toHaveLength(1)
  connection.answerMs = 0
  stopClock()
  expect(await claim(1)).toHaveLength(1)
  expect(await claim(1)).toHaveLength(1)
  expect(connection.claimedFrom.filter((from) => from === '-infinity')).toHaveLength(2)
  // Ten times as long as it took; a minute at the most.
  expect(fetcher.nextFullScanInMs).toBeGreaterThan(5000)
  expect(fetcher.nextFullScanInMs).toBeLessThanOrEqual(60_000)
})

test('one late answer does not make full scans count as slow', async () => {
  fetcher = new Fetcher(connection, 10_000, 500)
  await enqueue(2)
  connection.answerMs = 1100
  expect(await claim(1)).toHaveLength(1)
  connection.answerMs = 0
  stopClock()
  expect(await claim(10)).toHaveLength(1)
  const [urgent] = await enqueue(1, 50)
  expect((await claim(10)).map(({ id }) => id)).toEqual([urgent])
})

test('[J1] kinds and queues with spaces have marks of their own', async () => {
  const of = (name: string) => [defineKind(name, { run: () => undefined })]
  const first = await pawl.jobs.enqueue('a', {}, { queue: 'b c' })
  await pawl.jobs.enqueue('a b', {}, { queue: 'c' })
  const second = await pawl.jobs.enqueue('a', {}, { queue: 'b c' })
  expect((await fetcher.claim(worker, ['c'], of('a b'), 1)).rows).toHaveLength(1)
  const { rows } = await fetcher.claim(worker, ['b c'], of('a'), 10)
  expect(rows.map(({ id }) => id)).toEqual([first.id, second.id])
})

test('a kind that a slow scan missed is skipped for a while', async () => {
  const clock = stopClock()
  const apart = () => fetcher.claim(worker, ['default'], kinds, 1, true)
  await enqueue(1)
  expect((await apart()).rows).toHaveLength(1)
  // Nothing after the mark; then nothing from the beginning, which takes long.
  const run = vi.spyOn(connection, 'run').mockResolvedValueOnce([])
  run.mockImplementationOnce(async () => {
    clock.mockReturnValue(performance.now() + 30)
    return []
  })
  expect(await apart()).toMatchObject({ rows: [] })
  expect(run).toHaveBeenCalledTimes(2)
  expect(await apart()).toEqual({ rows: [], isFull: false, isExhausted: false })
  expect(run).toHaveBeenCalledTimes(2)
})

test('[J1] in any DateStyle a claim is in order of due', async () => {
  const session = new Connection(pawl.config.database, 'test', { settings: ['DateStyle=SQL,DMY'] })
  const days = ['2024-01-02', '2023-12-31', '2024-02-01', '2023-11-30']
  const ids: Record<string, string> = {}
  for (const day of days) ids[day] = (await pawl.jobs.enqueue('work', {}, { runAt: new Date(`${day}T10:00:00Z`) })).id
  const { rows } = await new Fetcher(session, 10_000).claim(worker, ['default'], kinds, 10)
  await session.close()
  expect(rows.map((row) => row.id)).toEqual([...days].sort().map((day) => ids[day]))
})

test('[J1] with few extra_float_digits a claim is in order of due', async () => {
  await db.query(`alter database ${db.name} set extra_float_digits = 0`)
  const ids = await enqueue(3)
  // The later their ids, the earlier by a microsecond.
  for (const [n, id] of ids.entries())
    await db.query(
      "update pawl.job set due = timestamptz '2024-01-01 10:00:00.000008Z' - $1 * interval '1 microsecond' where id = $2",
      [n, id],
    )
  const session = new Connection(pawl.config.database, 'test')
  const { rows } = await new Fetcher(session, 10_000).claim(worker, ['default'], kinds, 10)
  await session.close()
  expect(rows.map((row) => row.id)).toEqual([...ids].reverse())
})
