// What counts as a crash of a job, on the product's own statements.

import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { type Holder, leaseStatements } from '../kernel/lease.ts'
import { Fetcher } from './claim/fetcher.ts'
import { defineKind } from './kinds.ts'

const rescueStatement = statement(import.meta.url, 'rescue')
const failStatement = statement(import.meta.url, 'settle-failed')
const kinds = [defineKind('work', { run: () => undefined })]
const rooms = kinds.map((kind) => ({ kind, room: 10 }))

let db: TestDatabase
let connection: Connection
let fetcher: Fetcher
beforeEach(async () => {
  db = await createDatabase()
  connection = new Connection(db.pawl().config.database, 'test')
  fetcher = new Fetcher(connection, 10_000, Number.POSITIVE_INFINITY)
})
afterEach(async () => {
  await connection.close()
  await db.drop()
})

/** A process claims jobs and dies, or leaves them. */
async function dieWith(claim: (worker: Holder) => Promise<unknown>, reason = 'process died'): Promise<void> {
  const worker = await openIncarnation(connection)
  await claim(worker)
  await connection.run(leaseStatements.close, { ...asHolder(worker), reason })
  // A rescuer that defines no kind brings the defaults only.
  await connection.run(rescueStatement, { workers: `{${worker.id}}`, limit: 1000, max_crashes: 3 })
}

const together = (worker: Holder) => fetcher.claim(worker, ['default'], kinds, 10)
const again = (worker: Holder, limit = 10, deciding: 'alone' | 'leave' | 'only' = 'alone') =>
  fetcher.claimSuspects(worker, ['default'], rooms, { limit, deciding })
async function run(worker: Holder): Promise<void> {
  const { deciding } = await again(worker)
  if (deciding !== undefined) expect(await fetcher.startAlone(worker, deciding, kinds[0]!)).toBe(true)
}

async function end(outcome: 'failed' | 'snoozed' | 'released', delayMs = 0): Promise<void> {
  const worker = await openIncarnation(connection)
  const { rows, deciding } = await again(worker)
  const row = deciding ?? rows[0]!
  await connection.run(failStatement, {
    holders: `{${worker.id}}`,
    tenants: '{""}',
    ids: `{${row.id}}`,
    fences: `{${row.fence}}`,
    outcomes: `{${outcome}}`,
    delays_ms: `{${delayMs}}`,
    errors: '{null}',
    progress: '{}',
    ran_ms: '{1}',
  })
}

const enqueue = (count: number) =>
  db
    .pawl()
    .jobs.enqueueMany(
      'work',
      Array.from({ length: count }, () => ({})),
    )
    .then(({ ids }) => ids)

test('[J21] orderly failures between crashes excuse them, and none uses up an attempt', async () => {
  const { id } = await db.pawl().jobs.enqueue('work', {}, { maxAttempts: 10 })
  for (let round = 1; round <= 5; round++) {
    await dieWith(together)
    expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'ready', suspect: true, crashes: round })
    await end('failed')
    expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'ready', suspect: false, attempt: 2 * round, crashes: round })
  }
})

test('[J21] a job that kills each process dies at its limit despite snoozes', async () => {
  const { id } = await db.pawl().jobs.enqueue('work', {})
  await dieWith(together)
  await end('snoozed')
  expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'ready', suspect: true, crashes: 1 })
  await dieWith(run)
  await dieWith(run)
  expect(await db.pawl().jobs.get(id)).toMatchObject({ state: 'dead', crashes: 3 })
})

test('[J3] suspects run beside others until the crash that decides, which is alone', async () => {
  const ids = await enqueue(4)
  await dieWith(together)
  const first = await openIncarnation(connection)
  const beside = await again(first, 3)
  expect(beside.rows.map(({ id }) => id)).toEqual(ids.slice(0, 3))
  expect(beside).toMatchObject({ deciding: undefined, isSuspectLeft: true, isDecidingLeft: false })
  await connection.run(leaseStatements.close, { ...asHolder(first), reason: 'process died' })
  await connection.run(rescueStatement, { workers: `{${first.id}}`, limit: 1000, max_crashes: 3 })
  const second = await openIncarnation(connection)
  const left = await again(second, 0, 'leave')
  expect(left).toMatchObject({ rows: [], deciding: undefined, isSuspectLeft: true, isDecidingLeft: true })
  const alone = await again(second)
  expect(alone.rows.map(({ id }) => id)).toEqual(ids.slice(3))
  expect(alone.deciding?.id).toBe(ids[0])
  // One process drains, not all; a process that runs nothing else need not wait for it.
  const third = await openIncarnation(connection)
  expect((await again(third)).deciding).toBeUndefined()
  expect((await again(third, 0, 'only')).deciding?.id).toBe(ids[1])
})

test('[J3] a suspect that an orderly stop abandons stays a suspect', async () => {
  const [id] = await enqueue(1)
  await dieWith(together)
  await dieWith(run)
  await dieWith(run, 'stopped')
  expect(await db.pawl().jobs.get(id!)).toMatchObject({ state: 'ready', suspect: true, attempt: 2, crashes: 2 })
  expect((await again(await openIncarnation(connection))).deciding?.id).toBe(id)
})

test('[J3] a deciding job that its process only held has no crash counted', async () => {
  const [id] = await enqueue(1)
  await dieWith(together)
  await dieWith(run)
  await dieWith(async (worker) => expect((await again(worker)).deciding?.id).toBe(id))
  expect(await db.pawl().jobs.get(id!)).toMatchObject({ state: 'ready', suspect: true, attempt: 2, crashes: 2 })
  await dieWith(run)
  expect(await db.pawl().jobs.get(id!)).toMatchObject({ state: 'dead', crashes: 3 })
})

test('[J3] a deciding job that was taken away meanwhile does not start', async () => {
  await enqueue(1)
  await dieWith(together)
  await dieWith(run)
  const worker = await openIncarnation(connection)
  const { deciding } = await again(worker)
  await connection.run(leaseStatements.close, { ...asHolder(worker), reason: 'lease ended' })
  expect(await fetcher.startAlone(worker, deciding!, kinds[0]!)).toBe(false)
})

test("[J3] a kind's crash limit of two runs alone once; of one, dies", async () => {
  const twice = [{ kind: defineKind('work', { retry: { crashes: 2 }, run: () => 0 }), room: 10 }]
  const [id] = await enqueue(1)
  await dieWith((worker) => fetcher.claim(worker, ['default'], [twice[0]!.kind], 1))
  await dieWith(async (worker) => {
    const { deciding } = await fetcher.claimSuspects(worker, ['default'], twice, { limit: 10, deciding: 'alone' })
    expect(deciding?.id).toBe(id)
    await fetcher.startAlone(worker, deciding!, twice[0]!.kind)
  })
  expect(await db.pawl().jobs.get(id!)).toMatchObject({ state: 'dead', crashes: 2 })
  const once = defineKind('work', { retry: { crashes: 1 }, run: () => 0 })
  const [other] = await enqueue(1)
  await dieWith((worker) => fetcher.claim(worker, ['default'], [once], 1))
  expect(await db.pawl().jobs.get(other!)).toMatchObject({ state: 'dead', crashes: 1 })
})

test('of many suspects a claim reads few', async () => {
  await db.query("select pawl.enqueue('work') from generate_series(1, 3000)")
  await db.query('update pawl.job set suspect = true, crashes = 1, attempt = 1')
  await db.query('vacuum analyze pawl.job')
  const worker = await openIncarnation(connection)
  const { text, parameters } = statement(import.meta.url, 'claim-suspect')
  const limits = { limit: 10, deciding: 'alone', drain_ms: 0, timeouts_ms: '{1000}', max_attempts: '{5}', max_crashes: '{3}' }
  const values: Record<string, unknown> = { ...asHolder(worker), queues: '{default}', kinds: '{work}', rooms: '{10}', ...limits }
  const plan = await db.query(
    `explain (analyze, format json) ${text}`,
    parameters.map((name) => values[name]),
  )
  const read = [...JSON.stringify(plan).matchAll(/"Actual Rows":\s*(\d+)/g)].map(([, rows]) => Number(rows))
  expect(Math.max(...read)).toBeLessThanOrEqual(1000)
  const { rows, isSuspectLeft, isDecidingLeft } = await again(worker)
  expect({ count: rows.length, isSuspectLeft, isDecidingLeft }).toEqual({ count: 10, isSuspectLeft: true, isDecidingLeft: false })
})

test('[J3] suspects of a kind without room hide none of another', async () => {
  const other = defineKind('other', { run: () => undefined })
  await db.query("select pawl.enqueue('work') from generate_series(1, 100)")
  const { id } = await db.pawl().jobs.enqueue('other', {})
  await db.query('update pawl.job set suspect = true, crashes = 1, attempt = 1')
  const both = [
    { kind: kinds[0]!, room: 0 },
    { kind: other, room: 1 },
  ]
  const found = await fetcher.claimSuspects(await openIncarnation(connection), ['default'], both, { limit: 1, deciding: 'alone' })
  expect(found.rows.map((row) => row.id)).toEqual([id])
  expect(found.isSuspectLeft).toBe(true)
})

test('[J3] a job that could not run alone ten times raises an alert', async () => {
  const [id] = await enqueue(1)
  await dieWith(together)
  await dieWith(run)
  for (let round = 1; round <= 10; round++) {
    expect(await db.pawl().alerts()).toEqual([])
    await end('released', 5000)
    expect(await db.pawl().jobs.get(id!)).toMatchObject({ state: 'scheduled', attempt: 2, crashes: 2, suspect: true })
    const [row] = await db.query<{ ms: number }>('select extract(epoch from run_at - pawl.now()) * 1000 as ms from pawl.job')
    expect(Number(row!.ms)).toBeGreaterThan(0)
    await db.query("update pawl.job set state = 'ready'")
  }
  expect(await db.pawl().alerts()).toMatchObject([
    {
      code: 'job.postponed',
      subject: 'work',
      message: `1 job(s) of kind work must run alone, but ten times in a row no worker finished its other jobs in time; the last is ${id}`,
    },
  ])
})

test('[J3] counters at the end of their types end no job', async () => {
  await enqueue(1)
  await dieWith(together)
  await dieWith(run)
  const counters = () => db.query('select postponed, snoozes, crashes, revision from pawl.job')
  const set =
    "update pawl.job set state = 'ready', postponed = 32767, snoozes = 2147483647, crashes = 32767, excused = 32765, revision = 2000000000"
  await db.query(set)
  await end('released', 5000)
  expect(await counters()).toEqual([{ postponed: 32767, snoozes: 2147483646, crashes: 32767, revision: 1 }])
  await db.query(set)
  await end('snoozed', 5000)
  expect(await counters()).toEqual([{ postponed: 0, snoozes: 2147483647, crashes: 32767, revision: 1 }])
  await db.query(set)
  await dieWith(run)
  expect(await db.query('select state, crashes from pawl.job')).toEqual([{ state: 'dead', crashes: 32768 }])
})

test('why of a postponed deciding job says that no process was empty', async () => {
  const [id] = await enqueue(1)
  await dieWith(together)
  await end('failed')
  await dieWith(together)
  await dieWith(run)
  await end('released', 5000)
  expect((await db.pawl().jobs.why(id!)).reasons).toEqual([
    { code: 'scheduled', text: expect.stringMatching(/^It is scheduled for [^,]+Z\.$/) },
    {
      code: 'postponed',
      text: expect.stringContaining('1 time(s) in a row the worker that claimed it did not finish its other jobs in time'),
    },
  ])
})

test('why of a suspect that snoozed does not say that it failed', async () => {
  const [id] = await enqueue(1)
  await dieWith(together)
  await end('snoozed', 5000)
  const { reasons } = await db.pawl().jobs.why(id!)
  expect(reasons.map(({ code }) => code)).toEqual(['scheduled', 'snoozed'])
  expect(reasons[0]!.text).not.toContain('failed')
})

test('the alert of dead jobs quotes the error of the named job', async () => {
  const ids = await enqueue(2)
  const workers = [await openIncarnation(connection), await openIncarnation(connection)]
  const rows = [(await fetcher.claim(workers[0]!, ['default'], kinds, 1)).rows[0]!, (await together(workers[1]!)).rows[0]!]
  await connection.run(failStatement, {
    holders: `{${workers.map((worker) => worker.id)}}`,
    tenants: '{"",""}',
    ids: `{${ids}}`,
    fences: `{${rows.map(({ fence }) => fence)}}`,
    outcomes: '{failed,failed}',
    delays_ms: '{null,null}',
    errors: '{zebra,ant}',
    progress: '{}',
    ran_ms: '{1,1}',
  })
  expect((await db.pawl().alerts())[0]!.message).toBe(`2 job(s) of kind work are dead; the last is ${ids[1]}: ant`)
  // Each attempt is recorded with the incarnation that had it, and not with that of its batch.
  for (const [index, id] of ids.entries())
    expect(await db.pawl().jobs.attempts(id)).toMatchObject([{ holder: workers[index]!.id, outcome: 'failed' }])
})

test("the alert of jobs that died quotes the named job's reason", async () => {
  const ids = await enqueue(2)
  // The string of the first sorts after that of the second.
  const workers = [await openIncarnation(connection), await openIncarnation(connection)].reverse()
  const once = [defineKind('work', { retry: { crashes: 1 }, run: () => 0 })]
  for (const [index, reason] of ['process died', 'lease ended'].entries()) {
    await fetcher.claim(workers[index]!, ['default'], once, 1)
    await connection.run(leaseStatements.close, { ...asHolder(workers[index]!), reason })
  }
  await connection.run(rescueStatement, { workers: `{${workers.map(({ id }) => id)}}`, limit: 1000, max_crashes: 3 })
  const [alert] = await db.pawl().alerts()
  expect(alert!.message).toMatch(new RegExp(`the last is ${ids[1]}: Worker ${workers[1]!.id} .*lease ended`))
})

const timeOutStatement = statement(import.meta.url, 'time-out')

async function timeOut(worker: Holder): Promise<void> {
  await db.query("update pawl.job set run_until = pawl.now() - interval '1 second' where state = 'running'")
  await connection.run(timeOutStatement, {
    worker: worker.id,
    before: new Date(Date.now() + 60_000).toISOString(),
    after: '-infinity',
    running_ids: '{}',
    running_fences: '{}',
    ids: '{}',
    fences: '{}',
    limit: 1000,
    max_attempts: 10,
  })
}

test('[J3] a time-out is an orderly end: it excuses the crashes before it', async () => {
  const [id] = await enqueue(1)
  await dieWith(together)
  await dieWith(run)
  const worker = await openIncarnation(connection)
  await run(worker)
  await timeOut(worker)
  expect(await db.pawl().jobs.get(id!)).toMatchObject({ state: 'scheduled', suspect: false, attempt: 3, crashes: 2 })
  await db.query("update pawl.job set state = 'ready'")
  await dieWith(together)
  await dieWith(run)
  expect(await db.pawl().jobs.get(id!)).toMatchObject({ state: 'ready', suspect: true, crashes: 4 })
})

test('[J15] a first time-out is retried within a second, crashes aside', async () => {
  await enqueue(300)
  await dieWith((worker) => fetcher.claim(worker, ['default'], kinds, 300))
  await db.query('update pawl.job set suspect = false')
  const worker = await openIncarnation(connection)
  for (let claimed = 0; claimed < 300; ) claimed += (await fetcher.claim(worker, ['default'], kinds, 300)).rows.length
  await timeOut(worker)
  const [row] = await db.query<{ n: number; from: number; to: number }>(
    `select count(*)::integer as n, min(extract(epoch from run_at - a.ended_at))::float8 as from, max(extract(epoch from run_at - a.ended_at))::float8 as to
     from pawl.job j join pawl.job_attempt a on a.job_id = j.id and a.outcome = 'timed out'`,
  )
  expect(row!.n).toBe(300)
  expect(row!.from).toBeLessThan(0.5)
  expect(row!.to).toBeGreaterThan(0.5)
  expect(row!.to).toBeLessThanOrEqual(1)
})
