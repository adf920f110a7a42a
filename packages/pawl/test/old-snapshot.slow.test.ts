// An hour of beats and delayed jobs while a stranger's snapshot stays open. Vacuum can remove nothing, so every periodic statement meets what
// the hour left behind: dead versions of each worker's row, and dead entries at the front of each index of jobs. The planner knows the jobs as
// they were when all of them waited, and then as they are when all of them are gone: no statement may leave its index for that.

import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { Connection } from '../src/db/driver.ts'
import { bind, numbersLiteral, type Parameter, type Statement, statement } from '../src/db/statement.ts'
import { Fetcher } from '../src/jobs/claim/fetcher.ts'
import { defineKind } from '../src/jobs/kinds.ts'
import { prune } from '../src/jobs/maintenance.ts'
import { Watch } from '../src/jobs/watch.ts'
import { type Holder, leaseStatements, Trouble } from '../src/kernel/lease.ts'
import { createDatabase, type TestDatabase, until } from './support/database.ts'
import { asHolder, openIncarnation } from './support/incarnation.ts'

const workersCount = 20
const leaseMs = 30_000
const beatMs = leaseMs / 4
const minutes = 60
const jobsPerMinute = 1700
const kinds = ['email', 'report', 'invoice', 'thumbnail', 'search-index'].map((name) =>
  defineKind(name, { run: () => undefined }),
)
/** As long as names of processes and hosts in a cluster are. */
const longName = (what: string) => `${what}-`.padEnd(60, 'x')
const jobsModule = new URL('../src/jobs/any.ts', import.meta.url).href
const settle = statement(jobsModule, 'settle')
const fates = statement(jobsModule, 'fates')
const projectionsLook = statement(new URL('../src/projections/any.ts', import.meta.url).href, 'survey')

interface Sent {
  readonly statement: Statement
  readonly values: Readonly<Record<string, Parameter>>
}

/** Remembers what the engine sent last, with its values: that is what is measured. */
class Recorder extends Connection {
  readonly sent = new Map<string, Sent>()

  override run<Row>(sent: Statement, values: Readonly<Record<string, Parameter>> = {}): Promise<Row[]> {
    this.sent.set(sent.preparedName, { statement: sent, values })
    return super.run<Row>(sent, values)
  }
}

let db: TestDatabase
let connection: Recorder
let skewMs = 0
beforeEach(async () => {
  const now = performance.now.bind(performance)
  vi.spyOn(performance, 'now').mockImplementation(() => now() + skewMs)
  db = await createDatabase()
  connection = new Recorder(db.pawl().config.database, 'test')
  // A clock without rows: moving it leaves nothing behind.
  await db.query('create sequence public.shift minvalue 0 start 0')
  await db.query(`create or replace function pawl.now() returns timestamptz language sql volatile as
    'select clock_timestamp() + (select last_value from public.shift) * interval ''1 millisecond'''`)
})
afterEach(async () => {
  vi.restoreAllMocks()
  await connection.close()
  await db.drop()
})

/** Each periodic statement once, as the engine sends it when there is nothing to do. */
class Periodic {
  readonly #workers: readonly Holder[]
  readonly #watch = new Watch({
    sweeps: connection,
    trouble: new Trouble(),
    maxAttempts: 5,
    maxCrashes: 3,
    onClosed: () => undefined,
    onSwept: () => undefined,
  })
  readonly #fetcher = new Fetcher(connection, 10_000)

  constructor(workers: readonly Holder[]) {
    this.#workers = workers
  }

  async run(): Promise<void> {
    const [self] = this.#workers as [Holder]
    await connection.run(leaseStatements.look, asHolder(self))
    await connection.run(leaseStatements.beat, { ...asHolder(self), lease_ms: leaseMs })
    await this.#watch.look(connection, self)
    await this.#watch.sweep()
    await this.#watch.promote()
    await this.#fetcher.claim(self, ['default'], kinds, 100)
    const rooms = kinds.map((kind) => ({ kind, room: 10 }))
    await this.#fetcher.claimSuspects(self, ['default'], rooms, { limit: 10, deciding: 'alone' })
    await connection.run(fates, { tenants: '{""}', ids: '{1}', fences: '{1}' })
    await prune(connection)
    await connection.run(projectionsLook, {
      worker: self.id,
      fences: '{}',
      tenants: '{""}',
      names: '{totals}',
      generations: '{1}',
      kinds: '{totals}',
    })
  }

  /** Until each has found out by itself that its scan from the beginning is slow. */
  async findOut(): Promise<void> {
    const isStarted = (file: string, parameter: string) =>
      [...connection.sent.values()].some(
        (sent) => sent.statement.name === file && !String(sent.values[parameter]).includes('-infinity'),
      )
    await until('claims look behind what has passed', async () => {
      await this.run()
      return isStarted('claim', 'after_dues') && isStarted('promote', 'after_run_at')
    })
    let rounds = 0
    await until(
      'so are time-outs and scheduled jobs',
      async () => {
        skewMs += 26_000
        await this.#watch.look(connection, this.#workers[0]!)
        await this.#watch.sweep()
        // The first may still start before the time that was passed over at once.
        return ++rounds > 2 && isStarted('time-out', 'after') && isStarted('watch', 'after')
      },
      1_000_000,
    )
  }

  /** By both clocks: the database's alone would be set forward. */
  async pass(ms: number): Promise<void> {
    skewMs += ms
    await db.query("select setval('public.shift', (select last_value from public.shift) + $1)", [ms])
    await Promise.all(
      this.#workers.map((worker) => connection.run(leaseStatements.beat, { ...asHolder(worker), lease_ms: leaseMs })),
    )
  }

  /** One minute of a fleet. */
  async minute(): Promise<void> {
    for (let ms = 0; ms < 60_000; ms += beatMs) await this.pass(beatMs)
    await this.#watch.look(connection, this.#workers[0]!)
    await this.#watch.sweep()
    for (let n = 0; ; n++) {
      const { rows } = await this.#fetcher.claim(this.#workers[n % workersCount]!, ['default'], kinds, 200)
      if (rows.length === 0) return
      await connection.run(settle, {
        tenants: `{${rows.map(() => '""').join(',')}}`,
        ids: numbersLiteral(rows.map(({ id }) => id)),
        fences: numbersLiteral(rows.map(({ fence }) => fence)),
        results: numbersLiteral(rows.map(() => null)),
        progress: '{}',
        at_least: 0,
        ran_ms: numbersLiteral(rows.map(() => 1)),
      })
    }
  }
}

interface Usage {
  readonly 'Shared Hit Blocks': number
  readonly 'Shared Read Blocks': number
}

/** Executes it prepared, as the engine does: explained as it stands it would get a plan for these values. */
async function pages({ statement: sent, values }: Sent): Promise<number> {
  const client = await connection.client()
  const literals = bind(sent, values).map((value) => (value === null ? 'null' : client.escapeLiteral(String(value))))
  await connection.query(`begin; prepare measured as ${sent.text}`)
  try {
    // The first one fills the caches of the catalogue.
    let used = 0
    for (let time = 0; time < 2; time++) {
      const [row] = await connection.query<{ 'QUERY PLAN': { Plan: Usage }[] }>(
        `explain (analyze, buffers, format json) execute measured${literals.length > 0 ? `(${literals.join()})` : ''}`,
      )
      const { Plan } = row!['QUERY PLAN'][0]!
      used = Plan['Shared Hit Blocks'] + Plan['Shared Read Blocks']
    }
    return used
  } finally {
    await connection.query('rollback; deallocate measured')
  }
}

async function measure(): Promise<Map<Statement, number>> {
  const measured = new Map<Statement, number>()
  for (const sent of connection.sent.values()) if (isPeriodic(sent)) measured.set(sent.statement, await pages(sent))
  return measured
}

function mostOf(one: ReadonlyMap<Statement, number>, other: ReadonlyMap<Statement, number>): Map<Statement, number> {
  return new Map([...one].map(([sent, used]) => [sent, Math.max(used, other.get(sent)!)]))
}

const isPeriodic = ({ statement: { name } }: Sent) => !['settle', 'open-worker'].includes(name)
const readsWorkers = ({ text }: Statement) => /pawl\.(worker|live_workers)\b/.test(text)
const sentOf = (file: string) => [...connection.sent.values()].find((sent) => sent.statement.name === file)!.statement

test('[K18] after an hour beside an old snapshot each periodic statement stays cheap', { timeout: 600_000 }, async () => {
  const workers: Holder[] = []
  for (let n = 0; n < workersCount; n++)
    workers.push(
      await openIncarnation(connection, {
        name: longName(`worker-${n}`),
        host: longName(`host-${n}`),
        kinds: kinds.map(({ name }) => name),
        leaseMs,
      }),
    )
  const periodic = new Periodic(workers)
  const stranger = await db.pool.connect()
  try {
    // Statistics are taken below and at no other time.
    await db.query(
      'alter table pawl.job set (autovacuum_enabled = false); alter table pawl.worker set (autovacuum_enabled = false)',
    )
    await db.query(`insert into pawl.projection (name, kind, live_generation) values ('totals', 'log', 1);
      insert into pawl.cursor (name, kind) values ('totals', 'log');
      insert into pawl.cursor_position (name) values ('totals')`)
    // It waits all the time and nobody takes it, so what looks for such a kind reads what the workers take.
    await db.query("select pawl.enqueue('nobodys', priority => -100)")
    await stranger.query('begin isolation level repeatable read')
    await stranger.query('select count(*) from pawl.job')
    for (let minute = 1; minute <= minutes; minute++) {
      await db.query(
        `select count(*) from pawl.enqueue_many('', 'default', 'email', (select jsonb_agg(n) from generate_series(1, $1::integer) n),
           p_delay_ms => $2::bigint)`,
        [jobsPerMinute, minute * 60_000 - 1000],
      )
    }
    await db.query('analyze')
    for (let minute = 1; minute <= minutes; minute++) await periodic.minute()
    expect(await db.query('select count(*)::integer as n from pawl.job_history')).toEqual([{ n: minutes * jobsPerMinute }])
    // The time limits of the last jobs pass too.
    await periodic.pass(20 * 60_000)
    await periodic.findOut()
    const asTheyWaited = await measure()
    await db.query('analyze')
    const beside = mostOf(asTheyWaited, await measure())
    // It was there all the time.
    expect((await stranger.query('select count(*)::integer as n from pawl.job_history')).rows).toEqual([{ n: 0 }])
    await stranger.query('commit')
    await db.query('vacuum')
    const alone = await measure()
    expect(beside.size).toBe(11)
    const tooMany = [...beside].filter(([sent, used]) => used > (readsWorkers(sent) ? 300 : 3 * alone.get(sent)!))
    expect(tooMany.map(([{ name }, used]) => `${name}: ${alone.get(sentOf(name))} -> ${used} pages`)).toEqual([])
  } finally {
    stranger.release(true)
  }
})
