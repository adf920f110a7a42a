// A worker claims only what it defines. What nobody defines waits, untouched, and is said.

import { type Pawl, silentLogger } from 'pawl'
import { moveClock, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { FaultProxy } from '../../test/support/fault-proxy.ts'
import { openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import type { Worker } from '../worker.ts'
import { lookForUnknownKinds, resolveDeadAlerts, unworkedQueues } from './maintenance.ts'

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

test('[J26] a worker never claims a kind it does not define, even in front of its own; such jobs wait untouched', async () => {
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

test('[J26] a kind that is defined after its worker was made waits for the next worker', async () => {
  pawl.jobs.define('known', { run: () => undefined })
  const worker = await startWorker(pawl)
  pawl.jobs.define('newer', { run: () => undefined })
  const { id } = await pawl.jobs.enqueue('newer', {})
  await pawl.jobs.enqueue('known', {})
  await worker.whenIdle()
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'ready', attempt: 0 })
  expect((await runAll(pawl)).done).toMatchObject([{ id }])
})

test('[J26] a handler that comes after a worker was made is logged, with the fix', async () => {
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

test('[J26] jobs of a kind that nobody defines raise one alert once they are old enough, and it resolves when somebody does', async () => {
  pawl.jobs.define('known', { run: () => undefined })
  const worker = await startWorker(pawl)
  const { ids } = await pawl.jobs.enqueueMany('unknown', [{}, {}, {}])
  await pawl.jobs.enqueue('scheduled and unknown', {}, { delay: '1h' })
  expect(await lookForUnknownKinds(connection, ['default'], 60_000)).toEqual([])
  expect(await pawl.alerts()).toEqual([])
  await worker.stop()
  await moveClock(db.pool, 61_000)
  const other = db.pawl()
  other.jobs.define('known', { run: () => undefined })
  await startWorker(other)
  expect(await lookForUnknownKinds(connection, ['default'], 60_000)).toEqual(['unknown'])
  expect(await lookForUnknownKinds(connection, ['default'], 60_000)).toEqual(['unknown'])
  expect(await pawl.alerts()).toMatchObject([
    { code: 'kind.unknown', subject: 'unknown', count: 3, message: expect.stringContaining(`the oldest is ${ids[0]}`) },
  ])
  const deployed = db.pawl()
  deployed.jobs.define('unknown', { run: () => undefined })
  const report = await runAll(deployed)
  expect(report.done).toHaveLength(3)
  await startWorker(deployed)
  await lookForUnknownKinds(connection, ['default'], 60_000)
  expect(await pawl.alerts()).toEqual([])
})

test('[J26] a job in a queue that nobody works, or whose workers do not define its kind, raises an alert; so does a suspect', async () => {
  pawl.jobs.define('resize', { queue: 'images', run: () => undefined })
  await startWorker(pawl)
  const [misplaced] = await db.query<{ id: string }>("select pawl.enqueue('resize', '{}')::text as id")
  await pawl.jobs.enqueue('unknown', {}, { queue: 'misspelt' })
  await pawl.jobs.enqueue('crashed', {}, { queue: 'images' })
  await db.query("update pawl.job set suspect = true, crashes = 1, attempt = 1 where kind = 'crashed'")
  expect(await unworkedQueues(connection)).toEqual(['default', 'misspelt'])
  const look = async () => lookForUnknownKinds(connection, ['images', ...(await unworkedQueues(connection))], -1)
  expect((await look()).toSorted()).toEqual(['crashed', 'resize in queue default', 'unknown'])
  expect(await pawl.alerts()).toHaveLength(3)
  expect((await pawl.alerts()).find(({ subject }) => subject.startsWith('resize'))).toMatchObject({
    code: 'kind.unknown',
    message: expect.stringContaining(`(the oldest is ${misplaced!.id}), but the workers that define it work other queues`),
  })
  const both = db.pawl()
  both.jobs.define('resize', { run: () => undefined })
  await startWorker(both)
  await until('it is done', async () => (await pawl.jobs.get(misplaced!.id))?.state === 'done')
  await look()
  expect((await pawl.alerts()).map(({ subject }) => subject).toSorted()).toEqual(['crashed', 'unknown'])
})

test('[J26] an alert about a kind whose jobs are gone resolves after a while', async () => {
  pawl.jobs.define('known', { run: () => undefined })
  await startWorker(pawl)
  const { id } = await pawl.jobs.enqueue('unknown', {})
  expect(await lookForUnknownKinds(connection, ['default'], -1)).toEqual(['unknown'])
  await pawl.jobs.cancel(id)
  await lookForUnknownKinds(connection, ['default'], -1)
  expect(await pawl.alerts()).toHaveLength(1)
  await db.query("update pawl.alert set last_at = last_at - interval '11 minutes'")
  await lookForUnknownKinds(connection, ['default'], -1)
  expect(await pawl.alerts()).toEqual([])
})

test('an alert of time-outs resolves after an hour without another one', async () => {
  await db.query("select pawl.raise_alert('', 'job.timed-out', 'slow', 'it timed out')")
  await moveClock(db.pool, 59 * 60_000)
  await lookForUnknownKinds(connection, ['default'], 60_000)
  expect(await pawl.alerts()).toHaveLength(1)
  await moveClock(db.pool, 61 * 60_000)
  await lookForUnknownKinds(connection, ['default'], 60_000)
  expect(await pawl.alerts()).toEqual([])
})

const die = (kind: string) =>
  db.query(
    `with dead as (
       insert into pawl.job (queue, kind, state, due, run_at, payload) values ('default', $1, 'dead', pawl.now(), pawl.now(), '1') returning id
     )
     select id::text, pawl.raise_alert('', 'job.dead', $1, 'it died') from dead`,
    [kind],
  ) as Promise<[{ id: string }]>

test('an alert about dead jobs resolves when the last of them was retried or cancelled, and not before', async () => {
  const [[first], [second]] = [await die('fails'), await die('fails')]
  await pawl.jobs.retry(first.id)
  await resolveDeadAlerts(connection)
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.dead', subject: 'fails', count: 2 }])
  await pawl.jobs.cancel(second.id)
  await resolveDeadAlerts(connection)
  expect(await pawl.alerts()).toEqual([])
})

test("a caller's open transaction that retried or cancelled a dead job holds up nobody who raises its alert", async () => {
  const [[first], [second]] = [await die('fails'), await die('other')]
  const caller = await db.pool.connect()
  await caller.query('begin')
  await pawl.jobs.retry(first.id, { tx: caller })
  await pawl.jobs.cancel(second.id, { tx: caller })
  const client = await db.pool.connect()
  await client.query("set lock_timeout = '2s'")
  for (const kind of ['fails', 'other']) await client.query("select pawl.raise_alert('', 'job.dead', $1, 'again')", [kind])
  client.release()
  await caller.query('commit')
  caller.release()
})

test('[J3] a process that pauses while it resolves alerts keeps no job from its end', async () => {
  const [{ id: earlier }] = await die('fails')
  await pawl.jobs.cancel(earlier)
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const paused = new Connection(db.pawl({ databaseUrl: proxy.url }).config.database, 'paused')
  const silence = proxy.loseReply(/for update skip locked$/, { of: /paused/, cut: 'blackhole' })
  const resolving = resolveDeadAlerts(paused).catch(() => undefined)
  await silence.happened
  pawl.jobs.define('fails', {
    retry: { attempts: 1 },
    run: () => {
      throw new Error('planned')
    },
  })
  await startWorker(pawl)
  const { id } = await pawl.jobs.enqueue('fails', {})
  await until('it is dead', async () => (await pawl.jobs.get(id))!.state === 'dead')
  proxy.reset()
  await resolving
  await paused.close()
})

test('an alert that is raised while the last dead job is retried stays open', async () => {
  const [first] = await die('fails')
  const raiser = await db.pool.connect()
  await raiser.query('begin')
  await raiser.query(
    "insert into pawl.job (queue, kind, state, due, run_at, payload) values ('default', 'fails', 'dead', pawl.now(), pawl.now(), '1')",
  )
  await raiser.query("select pawl.raise_alert('', 'job.dead', 'fails', 'another died')")
  const retried = pawl.jobs.retry(first.id)
  await until(
    'the retry is through, or waits for the alert',
    async () =>
      (await db.query("select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")).length >
        0 || (await pawl.jobs.get(first.id))?.state === 'ready',
  )
  await resolveDeadAlerts(connection)
  await raiser.query('commit')
  raiser.release()
  await retried
  await resolveDeadAlerts(connection)
  expect(await pawl.alerts()).toMatchObject([{ code: 'job.dead', subject: 'fails', count: 2 }])
})

test('[J26] why says that nobody works the queue, that nobody defines the kind, and when it is next', async () => {
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
