// A worker claims only kinds it defines. Jobs of a kind that no worker defines wait, untouched, and an alert says so.

import { type Pawl, silentLogger } from 'pawl'
import { moveClock, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import type { Worker } from '../worker.ts'

let db: TestDatabase
let pawl: Pawl
let connection: Connection
const workers: Worker[] = []
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  connection = new Connection(pawl.config.database, 'test')
})
afterEach(async () => {
  await Promise.all(workers.splice(0).map((worker) => worker.stop()))
  await connection.close()
  await db.drop()
})

async function startWorker(of: Pawl): Promise<Worker> {
  const worker = of.worker()
  workers.push(worker)
  await worker.start()
  return worker
}

test('[J26] jobs of an undefined kind stay untouched, even before defined ones', async () => {
  const ran: string[] = []
  pawl.jobs.define('known', { run: (job) => void ran.push(job.kind) })
  const { ids } = await pawl.jobs.enqueueMany(
    'unknown',
    Array.from({ length: 50 }, () => ({})),
    { priority: 10 },
  )
  await pawl.jobs.enqueueMany(
    'known',
    Array.from({ length: 50 }, () => ({})),
  )
  const report = await runAll(pawl)
  expect(report.done).toHaveLength(50)
  expect(new Set(ran)).toEqual(new Set(['known']))
  expect(await db.query('select state, attempt, revision, fence, count(*)::int as n from pawl.job group by 1, 2, 3, 4')).toEqual([
    { state: 'ready', attempt: 0, revision: 1, fence: '0', n: ids.length },
  ])
})

test('[J26] a suspect of an unknown kind is not claimed either', async () => {
  pawl.jobs.define('known', { run: () => undefined })
  await pawl.jobs.enqueue('unknown', {})
  await db.query("update pawl.job set suspect = true, crashes = 1, attempt = 1 where kind = 'unknown'")
  await pawl.jobs.enqueue('known', {})
  expect((await runAll(pawl)).done).toHaveLength(1)
  expect(await db.query('select state, attempt from pawl.job')).toEqual([{ state: 'ready', attempt: 1 }])
})

test('[J26] a kind defined after its worker waits for the next worker', async () => {
  pawl.jobs.define('known', { run: () => undefined })
  const worker = await startWorker(pawl)
  pawl.jobs.define('newer', { run: () => undefined })
  const { id } = await pawl.jobs.enqueue('newer', {})
  await pawl.jobs.enqueue('known', {})
  await worker.whenIdle()
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'ready', attempt: 0 })
  expect((await runAll(pawl)).done).toMatchObject([{ id }])
})

test('[J26] a handler defined after its worker is logged with the fix', async () => {
  const warned: unknown[] = []
  const logger = { ...silentLogger, warn: (fields: object, message: string) => warned.push([fields, message]) }
  const logging = db.pawl({ logger })
  logging.jobs.define('known', { run: () => undefined })
  const declared = logging.jobs.define('declared')
  expect(warned).toEqual([])
  const worker = logging.worker()
  logging.jobs.define('only enqueued here')
  expect(warned).toEqual([])
  logging.jobs.define('newer', { run: () => undefined })
  logging.for('acme').jobs.handle(declared, { run: () => undefined })
  expect(warned).toEqual(
    ['newer', 'declared'].map((kind) => [{ kind }, expect.stringContaining('Define kinds before pawl.worker()')]),
  )
  await worker.stop()
  logging.jobs.define('newest', { run: () => undefined })
  expect(warned).toHaveLength(2)
})

/** Ids carry the time of their making: what has just been added is not alerted yet. */
const age = () => db.query('update pawl.job set id = id - (60000::bigint << 21)')
const subjects = async () => (await pawl.alerts()).map(({ subject }) => subject).toSorted()

test('[J26] a kind that nobody defines has one alert until somebody does', async () => {
  pawl.jobs.define('known', { run: () => undefined })
  await startWorker(pawl)
  const { ids } = await pawl.jobs.enqueueMany('unknown', [{}, {}, {}])
  await pawl.jobs.enqueue('scheduled and unknown', {}, { delay: '1h' })
  expect(await pawl.alerts()).toEqual([])
  await age()
  const oldest = BigInt(ids[0]!) - (60_000n << 21n)
  expect(await pawl.alerts()).toMatchObject([
    { code: 'kind.unknown', subject: 'unknown', count: 3, message: expect.stringContaining(`the oldest is ${oldest}`) },
  ])
  await openIncarnation(connection, { kinds: ['unknown'] })
  expect(await pawl.alerts()).toEqual([])
})

test('[J26] a queue without a worker for the kind raises an alert', async () => {
  pawl.jobs.define('resize', { queue: 'images', run: () => undefined })
  await startWorker(pawl)
  await db.query("select pawl.enqueue('resize', '{}')")
  await pawl.jobs.enqueue('unknown', {}, { queue: 'misspelt' })
  await pawl.jobs.enqueue('crashed', {}, { queue: 'images' })
  await db.query("update pawl.job set suspect = true, crashes = 1, attempt = 1 where kind = 'crashed'")
  await age()
  expect(await subjects()).toEqual(['crashed', 'resize in queue default', 'unknown'])
  const [misplaced] = await db.query<{ id: string }>("select id::text from pawl.job where kind = 'resize'")
  expect((await pawl.alerts()).find(({ subject }) => subject.startsWith('resize'))).toMatchObject({
    code: 'kind.unknown',
    message: expect.stringContaining(`(the oldest is ${misplaced!.id}), but the workers that define it work other queues`),
  })
  await pawl.jobs.cancel(misplaced!.id)
  expect(await subjects()).toEqual(['crashed', 'unknown'])
})

test('[J26] a queue with suspects alone, which nobody works, is alerted', async () => {
  await pawl.jobs.enqueue('crashed', {}, { queue: 'left' })
  await db.query('update pawl.job set suspect = true, crashes = 1, attempt = 1')
  await age()
  expect(await subjects()).toEqual(['crashed'])
})

test('[J26] a thousand waiting jobs of one tenant hide no other tenant', async () => {
  await pawl.for('first').jobs.enqueueMany('unknown', Array(1000).fill({}))
  await pawl.for('second').jobs.enqueue('unknown', {})
  await age()
  expect(await pawl.for('second').alerts()).toMatchObject([{ code: 'kind.unknown', count: 1 }])
})

test('[J26] a worker for deciding runs alone counts for nothing else', async () => {
  pawl.jobs.define('known', { run: () => undefined })
  const worker = pawl.worker({ deciding: 'only' })
  workers.push(worker)
  await worker.start()
  const { id } = await pawl.jobs.enqueue('known', {})
  await age()
  expect(await subjects()).toEqual(['known in queue default'])
  const aged = String(BigInt(id) - (60_000n << 21n))
  expect((await pawl.jobs.why(aged)).reasons).toMatchObject([{ code: 'queue-not-worked' }])
})

test('kinds that wait do not push other alerts off the list', async () => {
  await db.query("select pawl.raise_alert('', 'engine.failing', 'claim', 'no')")
  await pawl.jobs.enqueue('unknown', {})
  await age()
  expect((await pawl.alerts()).map(({ code }) => code)).toEqual(['engine.failing', 'kind.unknown'])
})

test('an alert of time-outs is over after an hour, and starts anew', async () => {
  const timeOut = () =>
    db.query("select pawl.raise_alert('', 'job.timed-out', 'slow', 'it timed out', p_for => interval '1 hour')")
  await timeOut()
  await timeOut()
  await moveClock(db.pool, 59 * 60_000)
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.timed-out', subject: 'slow', count: 2 }])
  await moveClock(db.pool, 61 * 60_000)
  expect(await pawl.alerts()).toEqual([])
  await timeOut()
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.timed-out', subject: 'slow', count: 1 }])
})

const die = async (kind: string, tenant = ''): Promise<string> => {
  const [row] = await db.query<{ id: string }>(
    `insert into pawl.job (tenant, queue, kind, state, due, run_at, payload, last_error)
     values ($2, 'default', $1, 'dead', pawl.now(), pawl.now(), '1', 'no paper') returning id::text`,
    [kind, tenant],
  )
  return row!.id
}

test('a kind with dead jobs has an alert while there is one', async () => {
  const [first, second] = [await die('fails'), await die('fails')]
  await die('prints', 'acme')
  await die('fails', 'acme')
  expect(await pawl.alerts()).toMatchObject([
    { code: 'job.dead', subject: 'fails', count: 2, message: `2 job(s) of kind fails are dead; the last is ${second}: no paper` },
  ])
  expect((await pawl.alerts({ tenant: '*' })).map(({ tenant, subject }) => `${tenant} ${subject}`).toSorted()).toEqual([
    ' fails',
    'acme fails',
    'acme prints',
  ])
  await pawl.jobs.retry(first)
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.dead', subject: 'fails', count: 1 }])
  await pawl.jobs.cancel(second)
  expect(await pawl.alerts()).toEqual([])
  expect(await pawl.for('acme').alerts()).toHaveLength(2)
})

test('an alert has the first line of its error', async () => {
  pawl.jobs.define('charge', {
    retry: { attempts: 1 },
    run: () => Promise.reject(new Error('no paper', { cause: new Error('x') })),
  })
  const { id } = await pawl.jobs.enqueue('charge', {})
  await runAll(pawl)
  await db.query(String.raw`select pawl.raise_alert('', 'engine.failing', 'claim', E'It failed: Error: no\n    at claim.ts')`)
  expect((await pawl.jobs.get(id))!.lastError).toContain('\n    at ')
  expect((await pawl.alerts()).map(({ message }) => message).toSorted()).toEqual([
    `1 job(s) of kind charge are dead; the last is ${id}: Error: no paper`,
    'It failed: Error: no',
  ])
})

test('[J26] why names a queue or kind without worker, and the next', async () => {
  const { id } = await pawl.jobs.enqueue('unknown', {})
  const codes = async () => (await pawl.jobs.why(id)).reasons.map(({ code }) => code)
  expect(await codes()).toEqual(['queue-not-worked'])
  pawl.jobs.define('known', { run: () => undefined })
  const worker = await startWorker(pawl)
  expect((await pawl.jobs.why(id)).reasons).toMatchObject([
    { code: 'kind-unknown', text: expect.stringContaining("defines the kind 'unknown'") },
  ])
  await worker.stop()
  expect(await codes()).toEqual(['queue-not-worked'])
  await openIncarnation(connection, { kinds: ['unknown'] })
  expect(await codes()).toEqual(['next'])
})

test('[J26] why names the queue that workers run the kind from', async () => {
  await openIncarnation(connection, { kinds: ['greet'], queues: ['hello'] })
  const { id } = await pawl.jobs.enqueue('greet', {})
  expect((await pawl.jobs.why(id)).reasons).toMatchObject([
    {
      code: 'queue-not-worked',
      text: "No running worker works the queue 'default'. Workers run 'greet' from 'hello': cancel this job and add it there.",
    },
  ])
})

test('[J26] why names an undefined kind in a queue without a worker', async () => {
  const { id } = await pawl.jobs.enqueue('chrage', {})
  const reasons = async () => (await pawl.jobs.why(id)).reasons.map(({ text }) => text)
  expect(await reasons()).toEqual(["No running worker works the queue 'default'. Start one that defines the kind 'chrage'."])
  await openIncarnation(connection, { kinds: ['refund', 'charge', 'pawl.own'], queues: ['hello'] })
  expect(await reasons()).toEqual([
    "No running worker works the queue 'default'. None defines the kind 'chrage' (running kinds: 'charge', 'refund'). Start one that does.",
  ])
  await openIncarnation(connection, { kinds: Array.from({ length: 12 }, (_, n) => `k${n}`), queues: ['hello'] })
  expect((await reasons())[0]).toMatch(
    /\(running kinds: 'charge', 'k0', 'k1', 'k10', 'k11', 'k2', 'k3', 'k4', 'k5', 'k6', \.\.\.\)/,
  )
})
