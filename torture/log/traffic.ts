// The traffic of the log in a storm: transactions of users, an outside source, the projections and sinks that read it, and an operator who
// mends, pauses, rebuilds and switches. Around them a stranger who leaves transactions open, an observer, and readers of their own writes.

import { setTimeout as sleep } from 'node:timers/promises'
import { isPawlError, type LogEvent, type LogProjectionOptions, NonRetryable, type OutsideEvent } from 'pawl'
import type pg from 'pg'
import { Connection } from '../../packages/pawl/src/db/driver.ts'
import type { Statement } from '../../packages/pawl/src/db/statement.ts'
import { defineProjection } from '../../packages/pawl/src/projections/definition.ts'
import { register } from '../../packages/pawl/src/projections/generations/register.ts'
import { type Random, stream } from '../plan.ts'
import { Caller, inTransaction, rollBack } from '../pool.ts'
import type { Subject } from '../process.ts'
import type { Query } from '../recorder.ts'
import { Traffic } from '../scenario.ts'

// ---- transactions of users

/**
 * `append`: one call per key with the caller's transaction; `bulk`: the same with hundreds of events; `sql`: pawl.append() in plain SQL; `insert`:
 * an insert by an application that knows the table only; `trigger`: a trigger of the application's own; `plain`: without a transaction.
 */
const weights = { append: 6, sql: 4, insert: 3, trigger: 2, plain: 3, bulk: 0.3 }
type Way = keyof typeof weights

export interface Transaction {
  readonly batch: string
  readonly way: Way
  /** In this order, which is the same for all writers. */
  readonly writes: readonly { readonly key: string; readonly count: number }[]
  readonly ending: 'commit' | 'rollback' | 'prepare'
  /** It has its id before it has its keys, so that ids do not come in the order of commits. */
  readonly isEarly?: boolean
  /** Number of events that are appended in a savepoint that is rolled back. */
  readonly ghosts?: number
  /** Handlers refuse its first event until the event is mended. */
  readonly isBad?: boolean
  /** What happens while it is open, before it has its keys and after it has appended. */
  begun?(): Promise<unknown>
  filled?(): Promise<unknown>
}

/** `n` is its number within its key: the true order. A live projection answers an `echo` with an event of its own. */
export type EventData = { b: string; i: number; n?: number; amount: number; bad?: boolean; echo?: boolean; ghost?: boolean }

export const keys: readonly string[] = Array.from({ length: 12 }, (_, index) => `k${index + 1}`)

/** A transaction of a story: committed at once by default. */
export function transaction(batch: string, key: string, count: number, more: Partial<Transaction> = {}): Transaction {
  return { batch, way: 'append', writes: [{ key, count }], ending: 'commit', ...more }
}

function drawTransaction(random: Random, batch: string, isBad: boolean): Transaction {
  const way = random.weighted(weights)
  // Hundreds of events go to a key that is never parked.
  const chosen = way === 'bulk' ? ['k12'] : random.shuffled(keys).slice(0, random.pick([1, 1, 1, 2, 3]))
  const countOf = () => (way === 'bulk' ? random.whole(60, 250) : random.pick([1, 1, 2, 4]))
  const writes = [...chosen].sort().map((key) => ({ key, count: countOf() }))
  const openMs = random.chance(0.1) ? random.whole(200, 1200) : random.chance(0.5) ? random.whole(1, 30) : 0
  return {
    batch,
    way,
    writes,
    ending: random.chance(0.15) ? 'rollback' : random.chance(0.06) ? 'prepare' : 'commit',
    isEarly: random.chance(0.5),
    ghosts: random.chance(0.1) ? random.whole(1, 3) : 0,
    // A sink needs half a second for each event that it replays: with more bad ones every key would be parked all the time.
    isBad: (isBad || random.chance(0.02)) && writes[0]!.key !== 'k12',
    filled: () => sleep(openMs),
  }
}

function dataOf({ batch, isBad }: Transaction, i: number, n: number): EventData {
  const amount = (n * 7919) % 101
  return { b: batch, i, n, amount, ...(isBad && i === 0 ? { bad: true } : {}), ...(n % 10 === 4 ? { echo: true } : {}) }
}

const newEvent = (key: string, data: EventData) => ({ type: 'Written', aggregateType: 'thing', key, data })

/** Each reads events of the key $1 from `d`, in order. */
const appendSql: Partial<Record<Way, string>> = {
  sql: "select pawl.append('Written', 'thing', $1, d.value, wake => :wake) from d",
  insert: "insert into pawl.event (aggregatetype, aggregateid, type, payload) select 'thing', $1, 'Written', d.value from d",
  trigger: 'insert into torture.thing (key, data) select $1, d.value from d',
}

/** The token of the last append that gave one, and the number of the last event of each key. */
type Written = { token: string | undefined; readonly last: Map<string, number> }

/** Appends as users do, and writes down what it asked for and what it was answered. A row of torture.wrote exists for each commit. */
class Writer extends Caller {
  async write(transaction: Transaction): Promise<Written | undefined> {
    const { batch, way, writes, ending } = transaction
    const count = way === 'plain' ? writes[0]!.count : writes.reduce((sum, each) => sum + each.count, 0)
    const plain = async (): Promise<Written> => {
      const events = Array.from({ length: count }, (_, i) => newEvent('plain', { b: batch, i, amount: 1 }))
      return { token: (await this.pawl.events.append(events)).token, last: new Map() }
    }
    const write = way === 'plain' ? plain : () => this.#inOwn(transaction)
    return (await this.history.call('append', { batch, way, ending, count }, write)).answer
  }

  #inOwn(transaction: Transaction): Promise<Written> {
    const { batch, ending, isEarly, begun, filled } = transaction
    const work = async (client: pg.PoolClient) => {
      if (isEarly) await client.query('select pg_current_xact_id()')
      await begun?.()
      const written = await this.#fill(client, transaction)
      await filled?.()
      return written
    }
    const prepare = async (client: pg.PoolClient) => {
      await client.query(`prepare transaction '${batch}'`)
      await filled?.()
      await client.query(`commit prepared '${batch}'`)
    }
    if (ending === 'commit') return inTransaction(this.pool, work)
    return inTransaction(this.pool, work, ending === 'rollback' ? rollBack : prepare)
  }

  async #fill(client: pg.PoolClient, transaction: Transaction): Promise<Written> {
    const { batch, writes, ghosts = 0 } = transaction
    const written: Written = { token: undefined, last: new Map() }
    let i = 0
    for (const { key, count } of writes) {
      // The row of the counter stays locked until this transaction ends.
      const { rows } = await client.query<{ n: string }>(
        `with drawn as (update torture.counter set n = n + $4::integer where key = $2 returning n)
         insert into torture.wrote (batch, i, key, n)
         select $1, $3::integer + g - 1, $2, n - $4::integer + g from drawn, generate_series(1, $4::integer) g returning n`,
        [batch, key, i, count],
      )
      const events = rows.map(({ n }, index) => dataOf(transaction, i + index, Number(n)))
      written.token = (await this.#append(client, transaction, key, events)) ?? written.token
      written.last.set(key, events.at(-1)!.n!)
      i += count
    }
    if (ghosts > 0) {
      await client.query('savepoint ghosts')
      const data = Array.from({ length: ghosts }, (_, g) => ({ b: batch, i: -1 - g, amount: 0, ghost: true }))
      await this.#append(client, { ...transaction, way: 'append', ending: 'prepare' }, writes[0]!.key, data)
      await client.query('rollback to savepoint ghosts')
    }
    return written
  }

  async #append(client: pg.PoolClient, { way, ending }: Transaction, key: string, events: readonly EventData[]) {
    // A prepared transaction cannot notify; a plain insert into the table does, and so does a trigger's append.
    const wake = ending !== 'prepare'
    const sql = appendSql[!wake && (way === 'insert' || way === 'trigger') ? 'sql' : way]
    if (sql === undefined) {
      const appended = events.map((data) => newEvent(key, data))
      return (await this.pawl.events.append(appended, { tx: client, wake })).token
    }
    const inOrder = 'select e.value from jsonb_array_elements($2::jsonb) with ordinality e(value, n) order by e.n'
    await client.query(`with d as (${inOrder}) ${sql.replace(':wake', String(wake))}`, [key, JSON.stringify(events)])
    return undefined
  }

  /** Lag of the slowest cursor, in events. Parked events count five times: their replay is slow. */
  async backlog(): Promise<number> {
    const { rows } = await this.pool.query<{ n: string }>(
      `select coalesce(max(s.position - c.position), 0) + 5 * (select count(*) from pawl.parked_event) as n
       from pawl.sequencer s, pawl.cursor_at c where c.kind in ('log', 'reaction')`,
    )
    return Number(rows[0]!.n)
  }
}

// ---- an outside source

const source = 'chain:main'
/** So far ahead that no process comes there: it must be refused. */
export const tooFar = 100_000

export function eventsOf(t: number): OutsideEvent[] {
  const eventOf = (i: number) => ({ id: `${t}/${i}`, type: 'Mined', aggregateType: 'block', key: source, data: { t, i } })
  return Array.from({ length: 1 + (t % 4) }, (_, i) => eventOf(i))
}

/** Ingests what the source says: in parts, again, and now and then with one left out. Several processes do so at once. */
export class Ingester {
  readonly #by: Caller
  #known = 0

  constructor(by: Caller) {
    this.#by = by
  }

  /** The last transaction again, because its sender may be dead; the next one in two parts; sometimes an old one, or one too far. */
  async step(random: Random): Promise<void> {
    const last = this.#known
    if (last > 0 && !(await this.#bring(last, eventsOf(last)))) return
    // Others are further: what they began is brought as a whole first.
    if (this.#known !== last) return
    const events = eventsOf(last + 1)
    const half = Math.ceil(events.length / 2)
    if (!(await this.#bring(last + 1, events.slice(0, half))) || !(await this.#bring(last + 1, events.slice(half)))) return
    if (random.chance(0.2) && last > 3) await this.#bring(last - 2, eventsOf(last - 2))
    if (random.chance(0.1)) await this.#bring(last + tooFar, eventsOf(last + tooFar))
  }

  async #bring(transaction: number, events: readonly OutsideEvent[]): Promise<boolean> {
    const ingest = () => this.#by.pawl.events.ingest(events, { source, position: transaction, after: transaction - 1 })
    const { answer, error } = await this.#by.history.call('ingest', { ids: events.map(({ id }) => id) }, ingest)
    if (answer !== undefined) this.#known = Math.max(this.#known, Number(answer.position ?? 0))
    if (isPawlError(error, 'PAWL_SOURCE_GAP')) this.#known = Number(error.details.was)
    return answer !== undefined
  }
}

// ---- readers of the log

/**
 * A sink that writes down each call; a reaction that writes a row of each event, and answers some by an event and a job; a log projection of one
 * shard and two tables, which is rebuilt and switched; one of three shards in batches; a state projection. All but the last refuse bad events
 * until they are mended.
 */
export const names = { sink: 'calls', reaction: 'reaction', folded: 'folded', sharded: 'sharded', copied: 'copied' } as const

/** Every process defines them all; which of them are there, the operator decides. */
const generationsMax = 8
const shards = 3
/** A stopped process must not keep its cursor's row for long: the server ends its transaction after so much and a second. */
const timeout = 1500
const retry = { attempts: 100_000, crashes: 3, initialMs: 10, factor: 2, maxMs: 100 } as const
/** No event that kills its process by chance is given up. */
const patient = { ...retry, crashes: 1000 }

const tables = [
  { name: 'torture.balance', key: ['key'], columns: ['key', 'events', 'total'] },
  { name: 'torture.journal', key: ['position'], columns: ['position', 'key'] },
] as const

type Given = LogEvent<EventData>
type ProjectionTx = Parameters<NonNullable<LogProjectionOptions['each']>>[1]

function apply(tx: ProjectionTx, name: string, generation: number, { position, id, key, data }: Given, proc: string): void {
  tx.send(
    `insert into torture.applied (name, generation, position, event_id, key, n, proc)
     values ($1::text, $2::integer, $3::bigint, $4::uuid, $5::text, $6::bigint, $7::text)`,
    [name, generation, position, id, key, data.n ?? null, proc],
  )
}

type Asks = { query(text: string, values: unknown[]): Promise<{ rows: readonly unknown[] }> }

async function assertMended({ position, data }: Given, tx: Asks): Promise<void> {
  if (!data.bad) return
  const { rows } = await tx.query('select from torture.mended where what = $1::text', [String(position)])
  if (rows.length === 0) throw new NonRetryable(`event ${position} is bad, and its cause is not mended`)
}

function defineReaders({ pawl, pool, history }: Caller): void {
  const { projections } = pawl
  const { proc } = history
  let calls = 0
  projections.sink(names.sink, {
    ...{ shards, concurrency: 8, timeout, retry: patient },
    handle: async (event, { attempt, idempotencyKey }) => {
      const { position, id, key } = event as Given
      const { error } = await history.call('call', { call: ++calls, position, id, key, attempt, idempotencyKey }, async () => {
        const ms = (position * 7) % 13
        if (ms > 4) await sleep(ms)
        if (attempt === 1 && position % 41 === 7) throw new Error('planned failure')
        await assertMended(event as Given, pool)
      })
      if (error !== undefined) throw error
    },
  })
  projections.react(names.reaction, {
    ...{ shards, tuning: { batchMax: 100 }, timeout, retry: patient },
    each: async (given, tx) => {
      const event = given as Given
      await assertMended(event, tx)
      apply(tx, names.reaction, 1, event, proc)
      if (!event.data.echo) return
      const { position } = event
      await pawl.events.append({ type: 'Echoed', aggregateType: 'thing', key: 'echo', data: { of: position, amount: 0 } }, { tx })
      await pawl.jobs.enqueue('answer', { of: position }, { tx })
    },
  })
  for (let generation = 1; generation <= generationsMax; generation++) projections.define(names.folded, folded(generation, proc))
  projections.define(names.sharded, {
    ...{ shards, tuning: { batchMax: 60 }, timeout, retry },
    batch: async (events, tx, { generation }) => {
      for (const event of events as Given[]) {
        await assertMended(event, tx)
        apply(tx, names.sharded, generation, event, proc)
      }
    },
  })
  const tried = new Set<string>()
  projections.define(names.copied, {
    kind: 'state',
    ...{ concurrency: 3, timeout, retry },
    entity: ({ key }) => (/\d$/.test(key) ? key : undefined),
    refresh: async (key, tx) => {
      const { rows } = await tx.query<{ n: string }>('select n from torture.counter where key = $1::text', [key])
      const n = Number(rows[0]!.n)
      if (n % 29 === 3 && !tried.has(`${key} ${n}`)) {
        tried.add(`${key} ${n}`)
        throw new Error('planned failure')
      }
      if (n % 7 === 0) await sleep(10)
      tx.send('insert into torture.refreshed (key, n) values ($1::text, $2::bigint)', [key, n])
      tx.send('insert into torture.copied values ($1::text, $2::bigint) on conflict (key) do update set n = excluded.n', [key, n])
    },
  })
}

/** Without a process it only declares the tables: for an operator who rebuilds and switches. */
function folded(generation: number, proc = ''): LogProjectionOptions {
  return {
    ...{ generation, tables, tuning: { batchMax: 60 }, timeout, retry },
    each: async (given, tx, { table }) => {
      const event = given as Given
      const { key, position, data } = event
      await assertMended(event, tx)
      apply(tx, names.folded, generation, event, proc)
      tx.send(
        `insert into ${table('torture.balance')} as b (key, events, total) values ($1::text, 1, $2::bigint)
         on conflict (key) do update set events = b.events + 1, total = b.total + excluded.total`,
        [key, data.amount ?? 0],
      )
      tx.send(`insert into ${table('torture.journal')} (position, key) values ($1::bigint, $2::text)`, [position, key])
    },
  }
}

// ---- processes

/** Gives positions and runs every reader. w3 gives few positions in a tick, so that a window of new events takes many ticks. */
export async function worker(subject: Subject): Promise<void> {
  const { proc, options } = subject
  const { leaseMs: lease, beatMs, slot } = options
  if (slot === 'w3') limitTicks(25)
  const caller = new Caller(subject.caller(2))
  const { pawl } = caller
  defineReaders(caller)
  await subject.serve(
    pawl,
    { acquired: 'cursor.acquired', lost: 'cursor.lost', refused: 'cursor.refused', latched: 'cursor.latched' },
    () => pawl.worker({ name: proc, lease, tuning: { beatMs, pollMs: 150 } }),
    (runner) => runner.stop().then(() => caller.close()),
  )
}

function limitTicks(events: number): void {
  const run = Connection.prototype.run
  Connection.prototype.run = function (this: Connection, statement: Statement, values) {
    return run.call(this, statement, statement.name === 'sequence' ? { ...values, limit: events } : values) as never
  }
}

/** A process that only appends, several transactions at once. Its argument is the seed, and the way if it is only one. */
export async function writer(subject: Subject): Promise<void> {
  const { proc, options } = subject
  const [seed, way] = options.how.split(' ')
  const writer = new Writer(subject.caller(6))
  const ingester = new Ingester(writer)
  const random = (name: string) => stream(Number(seed), `${proc} ${name}`)
  /** Events that are not worked on yet: with many of them writers wait, so that a storm does not end as a backlog. */
  let backlog = 0
  const write = (loop: number) => {
    const drawn = random(`writes ${loop}`)
    let n = 0
    const turn = async () => {
      if (backlog > 400) return
      const transaction = drawTransaction(drawn, `${proc}/${loop}/${++n}`, n === 5)
      await writer.write(way === undefined ? transaction : { ...transaction, way: way as Way, ending: 'commit' })
    }
    return subject.every(() => drawn.whole(10, 70), turn)
  }
  const readBacklog = async () => {
    backlog = await writer.backlog()
  }
  const drawn = random('ingests')
  const pauseMs = () => drawn.whole(30, 120)
  const ingest = () => subject.every(pauseMs, () => ingester.step(drawn))
  await subject.live(() => [...[0, 1, 2].map(write), ingest(), subject.every(300, readBacklog)], writer)
}

const act = { reason: 'torture', by: 'torture' }

/** Mends what is parked, pauses and resumes, rebuilds, switches and retires. It may die at any moment; its next start finishes what is open. */
export async function operator(subject: Subject): Promise<void> {
  const { history, options } = subject
  const caller = new Caller(subject.caller(2, 10_000))
  const { projections } = caller.pawl
  /** A rebuild makes the highest generation that is defined here, so they are defined one by one. */
  const defined = new Set<number>()
  const define = (generation: number) => {
    if (!defined.has(generation)) projections.define(names.folded, folded(generation))
    defined.add(generation)
  }

  const pauseForAWhile = async () => {
    // What the last turn could not.
    await resumeAll(caller)
    await projections.pause(names.sharded, act)
    history.write('paused', { name: names.sharded })
    await sleep(150)
    await resumeAll(caller)
  }

  const rebuild = async () => {
    const generations = await projections.status(names.folded)
    const live = generations.find(({ isLive }) => isLive)?.generation
    const other = generations.find(({ isLive }) => !isLive)?.generation
    if (live === undefined || (other === undefined && live === generationsMax)) return
    define(other ?? live + 1)
    if (other === undefined) return projections.rebuild(names.folded, act)
    if (other > live) {
      const { isEqual } = await projections.switchTo(names.folded, { ...act, generation: other, timeout: 4000 })
      history.write('switched', { from: live, to: other, isEqual })
      if (!isEqual) return
    }
    await projections.retire(names.folded, { ...act, generation: Math.min(live, other) })
    history.write('retired', { generation: Math.min(live, other) })
  }

  /** Switches to a second generation, pauses it, and rolls back when the first has gone on as far as it will. */
  const rollBackOnce = async () => {
    const positionOf = async (generation: number) =>
      (await projections.status(names.folded)).find((each) => each.generation === generation)?.position
    define(2)
    if ((await positionOf(2)) === undefined) await projections.rebuild(names.folded, act)
    await projections.switchTo(names.folded, { ...act, generation: 2, timeout: 10_000 })
    await projections.pause(names.folded, { ...act, generation: 2 })
    const paused = await positionOf(2)
    history.write('paused', { name: names.folded, generation: 2, position: paused })
    for (let time = 0; time < 30 && (await positionOf(1))! <= paused!; time++) await sleep(100)
    await projections.rollBack(names.folded, { ...act, generation: 1 })
    await resumeAll(caller)
    history.write('rolled back')
    subject.stop()
  }

  const loops = {
    'roll back': () => [subject.every(100, rollBackOnce)],
    rebuild: () => [subject.every(50, rebuild)],
    '': () => [subject.every(700, rebuild), subject.every(400, () => mendAll(caller)), subject.every(1500, pauseForAWhile)],
  }
  await subject.live(loops[options.how as keyof typeof loops], caller)
}

/** Mends everything that is parked or given up now. What fails again is parked again. */
export async function mendAll({ pawl, pool }: Caller): Promise<void> {
  const { rows } = await pool.query<{ name: string }>(
    `with mended as (
       insert into torture.mended
       select distinct e.position::text from pawl.parked_event e
       where not exists (select from torture.mended m where m.what = e.position::text)
     )
     select distinct k.name from pawl.parked_key k where k.state = 'parked'
     union
     select distinct d.name from pawl.dirty d where d.due_at = 'infinity'`,
  )
  for (const { name } of rows) await pawl.projections.unpark(name, act)
}

async function resumeAll({ pawl, pool }: Caller): Promise<void> {
  const { rows } = await pool.query<{ name: string }>("select distinct name from pawl.cursor where state = 'paused'")
  for (const { name } of rows) await pawl.projections.resume(name, act)
}

// ---- around them

export const writerSlots = ['p1', 'p2']
export const operatorSlot = 'op'

/** Checkpoints by shard and what was applied, in one snapshot; events in each table of the live generation, null where there are none. */
export type Observed = { name: string; positions: number[] } & Record<'generation' | 'applied' | 'parked', number> &
  Record<'balanced' | 'journalled', number | null>

export function observe(query: Query): Promise<Observed[]> {
  return query(
    `select c.name, c.generation, array_agg(c.position::float8 order by c.shard) as positions,
       (select count(*)::integer from torture.applied a where a.name = c.name and a.generation = c.generation) as applied,
       (select count(*)::integer from pawl.parked_event e where e.name = c.name and e.generation = c.generation) as parked,
       case when t.is_folded then (select coalesce(sum(b.events), 0)::integer from torture.balance b) end as balanced,
       case when t.is_folded then (select count(*)::integer from torture.journal j) end as journalled
     from pawl.cursor_at c
     join pawl.projection p on p.tenant = c.tenant and p.name = c.name
     cross join lateral (select c.name = '${names.folded}' and p.live_generation = c.generation as is_folded) t
     where c.kind in ('log', 'reaction')
     group by c.name, c.generation, t.is_folded`,
  )
}

export class LogTraffic extends Traffic {
  readonly user = new Writer(this.caller)
  #batches = 0
  #lastReads = 0

  /** Of generations that are new to the database the highest would be live, and processes define all of them. */
  override async prepare(): Promise<void> {
    const connection = new Connection(this.rig.database, 'register')
    await register(connection, this.rig.database, [defineProjection('', names.folded, folded(1))])
    await connection.close()
  }

  async start(): Promise<void> {
    for (const slot of writerSlots) await this.startUsers(slot, { role: 'writer', how: String(this.plan.seed) })
    await this.startUsers(operatorSlot, { role: 'operator' })
    this.every(300, () => this.holdOpen())
    this.every(500, () => this.endPrepared(1500))
    this.every(150, () => this.observe())
    for (let reader = 0; reader < 3; reader++) this.every(100, () => this.readOwnWrite(8000))
  }

  override async stop(): Promise<void> {
    await super.stop()
    await this.endPrepared(0)
    this.#lastReads = 3
  }

  /**
   * A stranger's transaction is open while a user appends and commits. Two windows of the sequencer later at the most the event has its
   * position: the second of them began after the commit. Until then the stranger does not go.
   */
  async holdOpen(): Promise<void> {
    const hold = async (client: pg.PoolClient) => {
      await client.query('select pg_current_xact_id()')
      const key = this.random.pick(['stranger1', 'stranger2'])
      const written = await this.user.write(transaction(`stranger/${++this.#batches}`, key, 1))
      const xid = written?.token?.split(':')[0]
      if (xid !== undefined) await this.#awaitPosition(xid)
    }
    await inTransaction(this.rig.admin, hold, rollBack).catch(() => undefined)
  }

  async #awaitPosition(xid: string): Promise<void> {
    const ticks = "select count(*) as n from torture.change where source = 'sequencer'"
    const before = await this.rig.count(ticks)
    await this.rig.until(async () => {
      const windows = (await this.rig.count(ticks)) - before
      const [page] = await this.rig.query(
        `select from pawl.log_page p
         where p.tenant = '' and p.last_position > (select max(l.last_position) - 2000 from pawl.log_page l) and $1::xid8 = any (p.xids)`,
        [xid],
      )
      const isOver = page !== undefined || windows >= 3
      if (isOver) this.rig.history.write('stranger', { xid, isThere: page !== undefined, windows })
      return isOver || this.isStopped
    }, 5000)
  }

  /** The process that prepared a transaction may be dead: half of them are committed, half are rolled back. */
  async endPrepared(afterMs: number): Promise<void> {
    const forgotten = await this.rig.query<{ gid: string }>(
      "select gid from pg_prepared_xacts where prepared < clock_timestamp() - $1 * interval '1 millisecond'",
      [afterMs],
    )
    for (const { gid } of forgotten)
      await this.rig.admin.query(`${gid.length % 2 === 0 ? 'commit' : 'rollback'} prepared '${gid}'`).catch(() => undefined)
  }

  async observe(): Promise<void> {
    for (const seen of await observe(this.rig.query.bind(this.rig))) this.rig.history.write('observed', { ...seen })
  }

  /** Writes, waits until it is seen, reads. On keys of its own: it is not about waiting for other writers. */
  async readOwnWrite(timeoutMs: number): Promise<void> {
    const key = this.random.pick(['reader1', 'reader2', 'reader3', 'reader4'])
    const name = this.random.pick([names.folded, names.sharded, names.copied])
    const written = await this.user.write(transaction(`read/${++this.#batches}`, key, this.random.whole(1, 3)))
    if (written?.token === undefined) return
    const n = written.last.get(key)!
    const read = async () => {
      await this.user.pawl.projections.seen(name, written.token!, { timeout: timeoutMs })
      const applied = `torture.applied a join pawl.projection p on p.name = a.name and p.live_generation = a.generation
        where a.name = '${name}' and a.key = $1 and a.n = $2`
      const from = name === names.copied ? 'torture.copied c where c.key = $1 and c.n >= $2' : applied
      return (await this.rig.query(`select from ${from} limit 1`, [key, n])).length === 1
    }
    await this.rig.history.call('seen', { name, key, n }, read, (isThere) => ({ isThere }))
  }

  /** Mends, resumes and lifts what is held, as an operator would; and in a storm that is all faults a last reader reads after healing. */
  async tend(): Promise<void> {
    const { rig, user } = this
    // A hold of an operator that died ends by itself after a minute, or with the next comparison, which does this.
    await rig.query('update pawl.cursor set hold_at = null, hold_until = null where hold_at is not null')
    await Promise.all([mendAll(user), resumeAll(user)]).catch(() => undefined)
    for (; this.#lastReads > 0; this.#lastReads--) await this.readOwnWrite(20_000)
  }
}
