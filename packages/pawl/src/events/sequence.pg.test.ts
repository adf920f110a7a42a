// The sequencer under every schedule that writers can make: nothing lost, nothing twice, each key in its order, positions without a hole.
// Two popular readers run beside it on the same load and show what they do wrong.

import fc from 'fast-check'
import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import { faultsOf, LogReader, MaxIdReader, noFaults, type ReadEvent, XminReader } from '../../test/support/log-readers.ts'

/** PAWL_FULL=1 plays all of them. */
const isFull = process.env.PAWL_FULL === '1'
const schedules = isFull ? 150 : 20
const roundsOfWriter = isFull ? 120 : 40

let db: TestDatabase
const open: { close(): Promise<void> }[] = []
beforeEach(async () => {
  db = await createDatabase()
  await db.query('create table account (key text primary key, version integer not null default 0)')
  await db.query('create table other (n integer)')
})
afterEach(async () => {
  await Promise.all(open.splice(0).map((each) => each.close()))
  await db.drop()
})

function readers() {
  const { database } = db.pawl().config
  const all = { log: new LogReader(database), max: new MaxIdReader(database), xmin: new XminReader(database) }
  open.push(...Object.values(all))
  return all
}

async function client(): Promise<pg.Client> {
  const connected = new pg.Client({ connectionString: db.url })
  await connected.connect()
  open.push({ close: () => connected.end() })
  return connected
}

let numbered = 0
const levels = ['read committed', 'repeatable read', 'serializable'] as const

/** A writer's session. It appends while it holds the key's row, as the guide says. */
class Session {
  readonly client: pg.Client
  readonly #committed: ReadEvent[]
  #own: ReadEvent[] = []
  #saved: ReadEvent[] | undefined
  #prepared: string | undefined
  isOpen = false

  constructor(connected: pg.Client, committed: ReadEvent[]) {
    this.client = connected
    this.#committed = committed
  }

  get isPrepared(): boolean {
    return this.#prepared !== undefined
  }

  get keys(): string[] {
    return this.#own.map(({ key }) => key)
  }

  async begin(level: string, takesIdEarly: boolean): Promise<void> {
    if (this.isOpen || this.isPrepared) return
    await this.client.query(`begin isolation level ${level}`)
    this.isOpen = true
    if (takesIdEarly) await this.client.query('insert into other values (1)')
    else await this.client.query('select count(*) from other')
  }

  async emit(key: string, byFunction: boolean): Promise<void> {
    await this.begin('read committed', false)
    if (!this.isOpen) return
    try {
      const { rows } = await this.client.query<{ version: number }>(
        'insert into account (key, version) values ($1, 1) on conflict (key) do update set version = account.version + 1 returning version',
        [key],
      )
      const event = { key, version: rows[0]!.version, n: ++numbered }
      await this.client.query(
        byFunction
          ? "select pawl.append('Changed', 'account', $1, $2::jsonb, wake => false)"
          : "insert into pawl.event (aggregatetype, aggregateid, type, payload) values ('account', $1, 'Changed', $2::jsonb)",
        [key, JSON.stringify(event)],
      )
      this.#own.push(event)
    } catch (error) {
      // Above READ COMMITTED the row may have changed since the snapshot.
      expect((error as { code: string }).code).toBe('40001')
      await this.rollback()
    }
  }

  async savepoint(): Promise<void> {
    if (!this.isOpen) return
    await this.client.query('savepoint s')
    this.#saved = [...this.#own]
  }

  async rollbackTo(): Promise<void> {
    if (!this.isOpen || this.#saved === undefined) return
    await this.client.query('rollback to savepoint s')
    this.#own = [...this.#saved]
  }

  async commit(): Promise<void> {
    if (this.#prepared !== undefined) await this.client.query(`commit prepared '${this.#prepared}'`)
    else if (!this.isOpen) return
    else {
      try {
        await this.client.query('commit')
      } catch (error) {
        expect((error as { code: string }).code).toBe('40001')
        await this.client.query('rollback')
        this.#own = []
      }
    }
    this.#committed.push(...this.#own)
    this.#reset()
  }

  async rollback(): Promise<void> {
    if (this.#prepared !== undefined) await this.client.query(`rollback prepared '${this.#prepared}'`)
    else if (this.isOpen) await this.client.query('rollback')
    this.#reset()
  }

  async prepare(): Promise<void> {
    if (!this.isOpen) return
    const name = `g${++numbered}`
    try {
      await this.client.query(`prepare transaction '${name}'`)
      this.#prepared = name
      this.isOpen = false
    } catch (error) {
      expect((error as { code: string }).code).toBe('40001')
      await this.client.query('rollback')
      this.#reset()
    }
  }

  #reset(): void {
    this.#own = []
    this.#saved = undefined
    this.#prepared = undefined
    this.isOpen = false
  }
}

const sessionsCount = 5
const step = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('begin' as const),
      session: fc.nat(sessionsCount - 1),
      level: fc.constantFrom(...levels),
      early: fc.boolean(),
    }),
  },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('emit' as const),
      session: fc.nat(sessionsCount - 1),
      key: fc.nat(3),
      byFunction: fc.boolean(),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constantFrom(
        'commit' as const,
        'commit' as const,
        'rollback' as const,
        'prepare' as const,
        'savepoint' as const,
        'rollbackTo' as const,
      ),
      session: fc.nat(sessionsCount - 1),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('read' as const),
      eventsMax: fc.constantFrom(2, 1000, 1000),
      racers: fc.constantFrom(1, 1, 3),
    }),
  },
)

test('[O2] random schedules of five sessions keep every event, order and density', async () => {
  const committed: ReadEvent[] = []
  const sessions: Session[] = []
  for (let n = 0; n < sessionsCount; n++) sessions.push(new Session(await client(), committed))
  const { log, max, xmin } = readers()
  const rivals = [readers().log, readers().log]
  // Schedules follow each other in one database, so each begins with whatever the last one left to the sequencer.
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 60 }), async (steps) => {
      for (const each of steps) {
        if (each.do === 'read') {
          await Promise.all([
            log.poll(each.eventsMax),
            ...rivals.slice(1 - (each.racers - 1)).map((rival) => rival.poll(each.eventsMax)),
          ])
          await Promise.all([max.poll(), xmin.poll()])
          continue
        }
        const session = sessions[each.session]!
        if (each.do === 'begin') await session.begin(each.level, each.early)
        else if (each.do === 'emit') {
          // Waiting for another session's row would stop the schedule.
          const key = `k${each.key}`
          if (!sessions.some((other) => other !== session && other.keys.includes(key))) await session.emit(key, each.byFunction)
        } else await session[each.do]()
      }
      for (const session of sessions) await session.commit()
      await log.catchUp()
      expect(faultsOf(log.seen, committed)).toEqual(noFaults)
      expect(log.seen).toHaveLength(committed.length)
      expect(log.positions).toEqual(log.positions.map((_, index) => index + 1))
    }),
    { numRuns: schedules, endOnFailure: true },
  )
  await Promise.all(rivals.map((rival) => rival.read()))
  for (const rival of rivals) expect(rival.seen).toEqual(log.seen)
  await max.poll()
  await xmin.catchUp(committed.length)
  expect(committed.length).toBeGreaterThan(3 * schedules)
  // The popular readers on the same schedules.
  expect(faultsOf(max.seen, committed).lost).toBeGreaterThan(0)
  expect(faultsOf(xmin.seen, committed)).toMatchObject({ lost: 0, repeated: 0 })
  // About one in every 15 schedules: too rare for the short run.
  if (isFull) expect(faultsOf(xmin.seen, committed).swapped).toBeGreaterThan(0)
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true, head: committed.length, eventsWithoutPosition: 0 })
}, 180_000)

test('[O2] under load at every isolation level nothing is lost, repeated or swapped', async () => {
  const committed: ReadEvent[] = []
  const { log, max, xmin } = readers()
  const rival = readers().log
  let isWriting = true
  const write = async (writer: number) => {
    const session = new Session(await client(), committed)
    for (let n = 0; n < roundsOfWriter; n++) {
      await session.begin(levels[(n + writer) % 3]!, n % 2 === 0)
      // One key per transaction: two in any order would be a deadlock of our own making.
      await session.emit(`k${(n * 7 + writer) % 20}`, n % 3 === 0)
      if (n % 5 === 0) await session.savepoint()
      if (n % 10 === 0) await session.rollbackTo()
      if (n % 50 === 7) await session.rollback()
      else if (n % 40 === 11) await session.prepare()
      await session.commit()
    }
  }
  const read = async (poll: () => Promise<void>) => {
    while (isWriting) await poll()
  }
  const reading = [log, rival, max, xmin].map((reader) => read(() => reader.poll()))
  await Promise.all(Array.from({ length: 10 }, (_, writer) => write(writer)))
  isWriting = false
  await Promise.all(reading)
  await log.catchUp()
  await Promise.all([rival.read(), max.poll(), xmin.catchUp(committed.length)])
  expect(committed.length).toBeGreaterThan(4 * roundsOfWriter)
  expect(faultsOf(log.seen, committed)).toEqual(noFaults)
  expect(log.positions).toEqual(committed.map((_, index) => index + 1))
  expect(rival.seen).toEqual(log.seen)
  expect(faultsOf(max.seen, committed).lost).toBeGreaterThan(0)
  // About one in every ten rounds.
  if (isFull) expect(faultsOf(xmin.seen, committed).swapped).toBeGreaterThan(0)
  expect(await db.pawl().events.audit()).toMatchObject({ isSound: true, head: committed.length })
}, 180_000)

test('[O2] two writers of one key are ordered by their writes', async () => {
  const { log, xmin } = readers()
  const committed: ReadEvent[] = []
  const [first, second, stranger] = [
    new Session(await client(), committed),
    new Session(await client(), committed),
    await client(),
  ]
  await second.begin('read committed', true)
  await stranger.query('begin')
  await stranger.query('insert into other values (1)')
  await first.emit('k', true)
  await first.commit()
  await xmin.poll()
  await log.poll()
  await second.emit('k', true)
  await second.commit()
  await Promise.all([xmin.poll(), log.poll()])
  expect(log.seen.map(({ version }) => version)).toEqual([1, 2])
  await stranger.query('commit')
  await xmin.catchUp(2)
  // The popular reader cuts the key in two at the stranger.
  expect(xmin.seen.map(({ version }) => version)).toEqual([2, 1])
}, 180_000)

test('[O2] a transaction that ticks, then appends, loses nothing', async () => {
  const { log } = readers()
  await log.poll()
  const writer = await client()
  await writer.query('begin')
  await writer.query("select pawl.append('Before', 'a', 'k', '{\"n\": 1}')")
  await db.query("select pawl.append('Other', 'a', 'o', '{\"n\": 0}')")
  await db.query('insert into other values (1)')
  await writer.query('select pawl.sequence_events()')
  await writer.query("select pawl.append('After', 'a', 'k', '{\"n\": 2}')")
  await db.query('insert into other values (1)')
  await writer.query('commit')
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([0, 1, 2])
})

test('[O2] a window larger than a tick is sequenced at once', async () => {
  const { log } = readers()
  await log.poll()
  await db.query(`insert into pawl.event (aggregatetype, aggregateid, type, payload)
    select 'a', (n % 3)::text, 'Counted', jsonb_build_object('key', n % 3, 'version', n, 'n', n) from generate_series(1, 450) n`)
  await db.query(`select pawl.append('Counted', 'a', '1', '{"key": 1, "version": 451, "n": 451}')`)
  await log.poll(200)
  expect(log.seen.map(({ n }) => n)).toEqual(Array.from({ length: 451 }, (_, index) => index + 1))
})

test('[O2] a tick with too much to take sorts its limit, sequences nothing', async () => {
  const { log } = readers()
  await log.poll()
  await db.query(`insert into pawl.event (aggregatetype, aggregateid, type, payload)
    select 'a', (n % 3)::text, 'Counted', jsonb_build_object('n', n) from generate_series(1, 20000) n`)
  const session = await client()
  // Sorting all of them in so little memory would need the disk.
  await session.query("set work_mem = '64kB'")
  await session.query('set temp_file_limit = 0')
  expect((await session.query('select outcome, sequenced, head::int from pawl.sequence_events(200)')).rows).toEqual([
    { outcome: 'large', sequenced: 0, head: 0 },
  ])
  expect(await db.query('select from pawl.log_page')).toEqual([])
})

test('[O3] an open foreign write transaction delays only its own events', async () => {
  const { log, xmin } = readers()
  const stranger = await client()
  await stranger.query('begin')
  await stranger.query("select pawl.append('Late', 'a', 'stranger', '{\"n\": -1}')")
  for (let n = 1; n <= 50; n++) {
    await db.query(`select pawl.append('Counted', 'a', 'k', '{"key": "k", "version": ${n}, "n": ${n}}')`)
    await Promise.all([log.poll(), xmin.poll()])
    expect(log.seen).toHaveLength(n)
  }
  // The popular reader delivers nothing at all.
  expect(xmin.seen).toEqual([])
  await stranger.query('commit')
  await log.catchUp()
  expect(log.seen.map(({ n }) => n)).toEqual([...Array.from({ length: 50 }, (_, index) => index + 1), -1])
})

test('[O3] an idle look writes nothing: it takes no transaction id', async () => {
  const { log } = readers()
  await log.poll()
  const session = await client()
  // Once a second a tick moves past transactions that others have open, which is a write; the next one is idle.
  await until('a look is idle', async () => {
    await session.query('begin')
    const { rows } = await session.query<{ outcome: string }>('select outcome from pawl.sequence_events()')
    const { rows: ids } = await session.query<{ id: string | null }>('select pg_current_xact_id_if_assigned()::text as id')
    await session.query('commit')
    if (rows[0]!.outcome !== 'idle') return false
    expect(ids).toEqual([{ id: null }])
    return true
  })
})

test("whatever the session's settings, a position is durable before it is visible", async () => {
  const session = await client()
  await session.query('set synchronous_commit = off')
  await session.query("select pawl.append('A', 'a', 'k')")
  await session.query('begin')
  await session.query('select pawl.rebase_events()')
  const { rows } = await session.query<{ synchronous_commit: string }>('show synchronous_commit')
  await session.query('commit')
  expect(rows).toEqual([{ synchronous_commit: 'on' }])
  await session.query("select pawl.append('A', 'a', 'k')")
  await session.query('begin')
  await session.query('select pawl.sequence_events()')
  expect((await session.query('show synchronous_commit')).rows).toEqual([{ synchronous_commit: 'on' }])
  await session.query('commit')
})

test('[O2] a tick that dies before its commit leaves nothing and blocks nothing', async () => {
  const { log } = readers()
  await log.poll()
  for (let n = 1; n <= 3; n++)
    await db.query(`select pawl.append('Counted', 'a', 'k', '{"key": "k", "version": ${n}, "n": ${n}}')`)
  const dying = new pg.Client({ connectionString: db.url })
  dying.on('error', () => undefined)
  await dying.connect()
  await dying.query('begin')
  const { rows } = await dying.query<{ pid: number; head: number }>(
    'select pg_backend_pid() as pid, head::int from pawl.sequence_events()',
  )
  expect(rows[0]!.head).toBe(3)
  // No other tick can work during that, and none waits: each gets 'busy'.
  expect(await db.query('select outcome, sequenced from pawl.sequence_events()')).toEqual([{ outcome: 'busy', sequenced: 0 }])
  await db.query('select pg_terminate_backend($1)', [rows[0]!.pid])
  await until('others give positions', async () => {
    await log.poll()
    return log.seen.length === 3
  })
  expect(log.positions).toEqual([1, 2, 3])
  await dying.end().catch(() => undefined)
})
