import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../test/support/incarnation.ts'
import { Connection, type DatabaseOptions } from '../db/driver.ts'
import { bind, numbersLiteral, type Statement, statement, textsLiteral } from '../db/statement.ts'
import type { Job } from '../jobs/types.ts'
import { moveClock } from '../testing/index.ts'
import { type Holder, leaseStatements } from './lease.ts'

// The kernel's promises are shown on the statements that carry them, those of the one claim engine.
const jobsModule = new URL('../jobs/jobs.ts', import.meta.url).href
const claim = statement(jobsModule, 'claim')
const settle = statement(jobsModule, 'settle')
const settleFailed = statement(jobsModule, 'settle-failed')

interface Claimed {
  readonly id: string
  readonly fence: string
}

let db: TestDatabase
let connections: Connection[]
beforeEach(async () => {
  db = await createDatabase()
  connections = []
})
afterEach(async () => {
  await Promise.all(connections.map((connection) => connection.close()))
  await db.drop()
})

function options(): DatabaseOptions {
  return { url: db.url, pooler: 'none', connectTimeoutMs: 10_000, queryTimeoutMs: 60_000, applicationName: 'pawl test' }
}

/** A connection and an incarnation of its own. */
async function claimer(): Promise<{ connection: Connection; worker: Holder; claim: (limit: number) => Promise<Claimed[]> }> {
  const connection = new Connection(options(), 'claim')
  connections.push(connection)
  const worker = await openIncarnation(connection, { name: 'one name for all', kinds: ['k'] })
  return { connection, worker, claim: (limit) => connection.run<Claimed>(claim, claimValues(worker, limit)) }
}

function claimValues(worker: Holder, limit: number) {
  return {
    ...asHolder(worker),
    queues: textsLiteral(['default']),
    limit,
    kinds: textsLiteral(['k']),
    timeouts_ms: numbersLiteral([900_000]),
    max_attempts: numbersLiteral([10]),
    max_crashes: numbersLiteral([3]),
    after_dues: textsLiteral(['-infinity']),
    after_ids: numbersLiteral([0]),
  }
}

async function addJobs(count: number): Promise<void> {
  await db.query(
    "select count(*) from pawl.enqueue_many('', 'default', 'k', (select jsonb_agg(n) from generate_series(1, $1::integer) n))",
    [count],
  )
}

async function run<Row>(
  client: { query(text: string, values: unknown[]): Promise<{ rows: unknown[] }> },
  query: Statement,
  values: Parameters<typeof bind>[1],
) {
  return (await client.query(query.text, bind(query, values) as unknown[])).rows as Row[]
}

function identity({ id, fence }: Claimed) {
  return { tenants: textsLiteral(['']), ids: numbersLiteral([id]), fences: numbersLiteral([fence]) }
}

async function settleOne(connection: Connection, job: Claimed): Promise<number> {
  const [row] = await connection.run<{ settled: number }>(settle, {
    ...identity(job),
    results: '{null}',
    progress: '{}',
    at_least: 0,
    ran_ms: '{1}',
  })
  return row!.settled
}

test('[K1] two claimers race for one row: one of them gets it', async () => {
  const [one, other] = [await claimer(), await claimer()]
  for (let round = 0; round < 200; round++) {
    await addJobs(1)
    const [mine, theirs] = await Promise.all(round % 2 ? [one.claim(1), other.claim(1)] : [other.claim(1), one.claim(1)])
    expect(mine.length + theirs.length).toBe(1)
  }
})

test('[K1] an open claim hides its row; its rollback frees the row', async () => {
  const [one, other] = [await claimer(), await claimer()]
  await addJobs(1)
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    expect(await run<Claimed>(client, claim, claimValues(one.worker, 1))).toHaveLength(1)
    // It does not wait either: its answer is there while the other's transaction is open.
    expect(await other.claim(1)).toEqual([])
    await client.query('rollback')
    expect(await other.claim(1)).toHaveLength(1)
    expect(await one.claim(1)).toEqual([])
  } finally {
    client.release()
  }
})

const racedRows = 10_000

/** Claimers that each pause as long between two claims. What one gets then depends on how the claims treat it. */
async function race(pause: (index: number, claims: () => number) => Promise<unknown>) {
  await addJobs(racedRows)
  const claimers = await Promise.all(Array.from({ length: 16 }, claimer))
  let claims = 0
  const got = await Promise.all(
    claimers.map(async (each, index) => {
      const mine: Claimed[] = []
      for (;;) {
        await pause(index, () => claims)
        const batch = await each.claim(20)
        claims++
        if (batch.length === 0) return mine
        mine.push(...batch)
      }
    }),
  )
  return { claimers, got, least: Math.min(...got.map((mine) => mine.length)) }
}

test('[K1] 16 claimers claim 10,000 rows once, each at least 1 %', async () => {
  const { claimers, got, least } = await race(() => sleep(10))
  const ids = got.flat().map((job) => job.id)
  expect(ids).toHaveLength(racedRows)
  expect(new Set(ids).size).toBe(racedRows)
  expect(least).toBeGreaterThanOrEqual(racedRows / 100)
  // The database agrees about who holds what, and no two claims were given the same number.
  const held = await db.query<{ holder: number; n: number }>(
    "select holder, count(*)::int as n from pawl.job where state = 'running' group by holder",
  )
  expect(new Map(held.map(({ holder, n }) => [holder, n]))).toEqual(
    new Map(claimers.map(({ worker }, index) => [worker.id, got[index]!.length])),
  )
  expect(await db.query('select fence from pawl.job group by fence having count(distinct holder) > 1')).toEqual([])
})

test('a claimer that pauses between its claims gets less than 1 %', async () => {
  const { least } = await race(async (index, claims) => {
    const before = claims()
    // 120 of the 500 claims: it makes at most five of twenty rows, and the last finds nothing.
    if (index === 0) await until('the others have claimed', () => claims() >= Math.min(before + 120, 500))
    else await sleep(10)
  })
  expect(least).toBeLessThan(racedRows / 100)
})

test('[K3] a row claimed again by its holder refuses the earlier fence', async () => {
  const { connection, worker, claim } = await claimer()
  await addJobs(1)
  const [earlier] = await claim(1)
  const release = {
    ...identity(earlier!),
    holders: `{${worker.id}}`,
    outcomes: '{released}',
    delays_ms: '{0}',
    errors: '{null}',
    progress: '{}',
    ran_ms: '{null}',
  }
  expect(await connection.run(settleFailed, release)).toHaveLength(1)
  const [later] = await claim(1)
  expect(later!.id).toBe(earlier!.id)
  expect(later!.fence).not.toBe(earlier!.fence)
  const [before] = await db.query('select j.* from pawl.job j')

  expect(await settleOne(connection, earlier!)).toBe(0)
  expect(await connection.run(settleFailed, release)).toEqual([])
  await expect(db.query("select pawl.guard_job('', $1, $2)", [earlier!.id, earlier!.fence])).rejects.toMatchObject({
    code: 'PW001',
  })
  await expect(db.query("select pawl.complete_job('', $1, $2)", [earlier!.id, earlier!.fence])).rejects.toMatchObject({
    code: 'PW001',
  })
  const touch = { tenant: '', id: earlier!.id, fence: earlier!.fence, progress: '1' }
  expect(await connection.run(statement(jobsModule, 'touch'), touch)).toEqual([{ answer: 'lost' }])
  expect(await db.query('select j.* from pawl.job j')).toEqual([before])

  expect(await settleOne(connection, later!)).toBe(1)
})

test('[K3] a timed-out handler cannot complete the job that runs again', async () => {
  const pawl = db.pawl()
  let earlier: Job | undefined
  const goOn = deferred()
  const refusals: unknown[] = []
  const neverAsked = { query: () => Promise.reject(new Error('it was asked')) }
  pawl.jobs.define('twice', {
    timeout: '500ms',
    retry: { initialMs: 1, jitter: false },
    run: async (job) => {
      if (job.attempt === 1) {
        earlier = job
        await goOn.promise
        return 'stale'
      }
      refusals.push(
        await earlier!.guard(neverAsked).catch((error: unknown) => error),
        await earlier!.complete(neverAsked, 'stale').catch((error: unknown) => error),
        // The database refuses it as well, whatever the process remembers.
        await db.query("select pawl.complete_job('', $1, $2)", [job.id, earlier!.fence]).catch((error: unknown) => error),
      )
      goOn.resolve()
      return 'fresh'
    },
  })
  const { id } = await pawl.jobs.enqueue('twice', {})
  const worker = pawl.worker()
  await worker.start()
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  await worker.stop()
  expect(refusals.slice(0, 3)).toMatchObject([{ code: 'PAWL_TIMED_OUT' }, { code: 'PAWL_TIMED_OUT' }, { code: 'PW001' }])
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', result: 'fresh' })
  expect(await db.query('select count(*)::int as n from pawl.job_history')).toEqual([{ n: 1 }])
})

test('[K3] after a restore set the sequence back, the first holder is refused', async () => {
  const { connection, claim } = await claimer()
  await addJobs(1)
  const [{ last_value: serial }] = (await db.query('select last_value from pawl.fence_serial')) as [{ last_value: string }]
  const [first] = await claim(1)
  await db.query("update pawl.job set state = 'ready', holder = null, run_until = null, attempt = 0")
  await db.query('select setval($1::regclass, $2::bigint, false)', ['pawl.fence_serial', serial])
  const [second] = await claim(1)
  expect(second!.id).toBe(first!.id)
  expect(second!.fence).not.toBe(first!.fence)
  expect(await settleOne(connection, first!)).toBe(0)
  expect(await settleOne(connection, second!)).toBe(1)
})

test('[K2] ended but not closed, a lease is renewed; closed, it is not', async () => {
  const { connection, worker, claim } = await claimer()
  await addJobs(3)
  const [held] = await claim(1)
  // Two hours later, twice the lease.
  await moveClock(db.pool, 7_200_000)
  const beat = () => connection.run(leaseStatements.beat, { ...asHolder(worker), lease_ms: 30_000 })
  const isEnded = async () =>
    (await db.query<{ ended: boolean }>('select lease_until < pawl.now() as ended from pawl.worker'))[0]!.ended
  expect(await isEnded()).toBe(true)
  expect(await claim(1)).toHaveLength(1)
  expect(await settleOne(connection, held!)).toBe(1)
  expect(await beat()).toHaveLength(1)
  expect(await isEnded()).toBe(false)
  expect(await connection.run(leaseStatements.close, { ...asHolder(worker), reason: 'lease ended' })).toHaveLength(1)
  expect(await beat()).toEqual([])
  expect(await connection.run(leaseStatements.look, asHolder(worker))).toEqual([])
  expect(await claim(1)).toEqual([])
})

test('[K2] an incarnation whose id was given out again writes nothing', async () => {
  const { connection, worker, claim } = await claimer()
  await addJobs(2)
  expect(await claim(1)).toHaveLength(1)
  // A restore set the sequence back, and another process opened under the same number.
  await db.query('update pawl.worker set nonce = gen_random_uuid()')
  const [before] = await db.query('select w.* from pawl.worker w')
  expect(await connection.run(leaseStatements.look, asHolder(worker))).toEqual([])
  expect(await connection.run(leaseStatements.beat, { ...asHolder(worker), lease_ms: 30_000 })).toEqual([])
  expect(await connection.run(leaseStatements.close, { ...asHolder(worker), reason: 'stopped' })).toEqual([])
  expect(await connection.run(leaseStatements.lock, asHolder(worker))).toEqual([])
  expect(await claim(1)).toEqual([])
  expect(
    await connection.run(statement(jobsModule, 'release-unknown'), { ...asHolder(worker), ids: '{}', fences: '{}' }),
  ).toEqual([])
  expect(await db.query('select w.* from pawl.worker w')).toEqual([before])
})
