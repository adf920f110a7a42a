// The batches of a storm; what a user of batches can do; the processes that run and start them; and around them an operator who cancels,
// extends, reruns and reads.

import { randomInt } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { type BatchOptions, type Item, type JobTx, NonRetryable, type Started, type TrackPolicy } from 'pawl'
import type pg from 'pg'
import { serveJobs } from '../jobs/traffic.ts'
import { type Random, stream } from '../plan.ts'
import { Caller, type CallerOptions, inTransaction, rollBack } from '../pool.ts'
import type { Subject } from '../process.ts'
import { Traffic } from '../scenario.ts'

// ---- batches

/** How an item ends: `plain` by its answer, `exact` with its transaction, `guarded` in a transaction of the application's own. */
export const names = ['plain', 'exact', 'guarded'] as const
export type Name = (typeof names)[number]

export interface Work {
  readonly ms?: number
  /** How often it fails before it succeeds. */
  readonly failures?: number
  /** It waits for this flag of `torture.mended`; 'waiter': until a session waits for an advisory lock. */
  readonly until?: string
}

const waitMs = 8000

function defineBatches({ pawl: { batches }, pool, history }: Caller): void {
  type Query = Pick<JobTx, 'query'>
  const note = (db: Query, table: string, ...values: readonly unknown[]) =>
    db.query(`insert into torture.${table} values (${values.map((_, index) => `$${index + 1}`).join(', ')})`, [...values])
  const isSet = async (flag: string) => {
    const waiter = "select 1 from pg_locks l where l.locktype = 'advisory' and not l.granted"
    const { rows } = await (flag === 'waiter'
      ? pool.query(waiter)
      : pool.query('select 1 from torture.mended where what = $1', [flag]))
    return rows.length > 0
  }
  /** It does not listen to its signal: after the end of its batch it is a zombie. */
  const work = async ({ attempt, data: { ms = 0, failures = 0, until } }: Item<Work>) => {
    await sleep(ms)
    for (const end = performance.now() + waitMs; until !== undefined && performance.now() < end && !(await isSet(until)); )
      await sleep(5)
    if (attempt <= failures) throw new Error('planned failure')
  }
  const begin = ({ batch, n }: Item<Work>) => history.write('item', { batch, n })
  /** Each answer is another, so the one that was stored names its process. */
  const answer = ({ batch, n }: Item<Work>) => {
    const mark = randomInt(2 ** 40)
    history.write('answer', { batch, n, mark })
    return { mark }
  }
  const common: Omit<BatchOptions<Work>, 'item'> = {
    // Units are milliseconds.
    allowance: { perItemMs: 0, perUnitMs: 1, safety: 1, minMs: 300 },
    prepare: ({ id }) => history.write('prepare', { batch: id }),
    async boundary({ id, meta }, tx) {
      await note(tx, 'crossed', id)
      if ((meta as { isDoomed?: boolean }).isDoomed) throw new NonRetryable('planned failure')
    },
    async restore(items, tx) {
      for (const { batch, n } of items) await note(tx, 'restored', batch, n)
    },
    onEnd: ({ id, state, counts, sums }, tx) =>
      note(tx, 'hook', id, state, counts.done, counts.failed, counts.waiting, sums.mark ?? 0),
  }
  const item = { retry: { attempts: 3, crashes: 6, initialMs: 10, maxMs: 100 } }
  batches.define<Work>('plain', {
    ...common,
    item: {
      ...item,
      async run(given) {
        begin(given)
        await work(given)
        return answer(given)
      },
    },
  })
  batches.define<Work>('exact', {
    ...common,
    item: {
      ...item,
      async tx(given, tx) {
        begin(given)
        await note(tx, 'effect', given.batch, given.n)
        await work(given)
        return answer(given)
      },
    },
  })
  batches.define<Work>('guarded', {
    ...common,
    item: {
      ...item,
      async run(given) {
        // An item that waits for a waiter must have the lock that one waits for.
        if (given.data.until !== 'waiter') await work(given)
        await inTransaction(pool, async (client) => {
          await given.guard(client)
          begin(given)
          await note(client, 'effect', given.batch, given.n)
          if (given.data.until === 'waiter') await work(given)
          await given.complete(client, answer(given))
        })
      },
    },
  })
}

// ---- what a user can do

export interface Asked {
  readonly key: string
  readonly name: Name
  readonly track: string
  readonly items: readonly Work[]
  readonly policy?: TrackPolicy
  readonly allowanceMs?: number
  readonly isDoomed?: boolean
  /** In a transaction of the caller's own, which may be rolled back. */
  readonly way?: 'plain' | 'own' | 'rolled back'
}

export class User extends Caller {
  constructor(options: CallerOptions) {
    super(options)
    defineBatches(this)
  }

  async start(asked: Asked): Promise<Started | undefined> {
    const { key, name, track, items, policy = 'refuse', allowanceMs = 20_000, isDoomed = false, way = 'plain' } = asked
    const given = items.map((data, index) => ({ key: `${key}/${index}`, data, units: allowanceMs / items.length }))
    const options = { track, policy, meta: { key, isDoomed }, by: this.history.proc }
    const inOwn = (tx: pg.PoolClient) => this.pawl.batches.start(name, given, { ...options, tx })
    const start = () => {
      if (way === 'plain') return this.pawl.batches.start(name, given, options)
      return way === 'own' ? inTransaction(this.pool, inOwn) : inTransaction(this.pool, inOwn, rollBack)
    }
    const told = ({ id, state }: Started) => ({ id, state })
    return (await this.history.call('start', { key, total: items.length, allowanceMs }, start, told)).answer
  }

  async cancel(batch: string): Promise<boolean> {
    const cancel = () => this.pawl.batches.cancel(batch, { by: 'operator', reason: 'torture' })
    return (await this.history.call('cancel', { batch }, cancel)).error === undefined
  }

  async extend(batch: string, ms: number): Promise<void> {
    await this.history.call('extend', { batch, ms }, () =>
      this.pawl.batches.extend(batch, { for: ms, by: 'operator', reason: 'torture' }),
    )
  }

  async rerun(of: string): Promise<void> {
    await this.history.call(
      'rerun',
      { of },
      () => this.pawl.batches.rerun(of, { only: 'both' }),
      ({ id }) => ({ id }),
    )
  }
}

// ---- processes

export async function worker(subject: Subject): Promise<void> {
  const { leaseMs, beatMs, concurrency } = subject.options
  const { pawl } = new User(subject.caller(concurrency))
  await serveJobs(subject, pawl, { name: subject.proc, lease: leaseMs, concurrency, tuning: { beatMs, pollMs: 200 } })
}

/** A process that only starts batches. It meets its faults before its commit. */
export async function starter(subject: Subject): Promise<void> {
  const { proc, options } = subject
  const user = new User(subject.caller(4))
  const random = stream(Number(options.how), `starter ${proc}`)
  let turn = 0
  await subject.live(
    () => [
      subject.every(
        () => random.whole(80, 320),
        () => user.start(draw(random, `${proc}/${turn++}`)),
      ),
    ],
    user,
  )
}

export const tracks = ['a', 'b', 'c', 'd'] as const

/** Now and then too long for its allowance, so that zombies come back after its end. */
function draw(random: Random, key: string): Asked {
  const track = random.pick(tracks)
  const isLate = random.chance(0.25)
  const items = Array.from({ length: random.pick([0, 1, 2, 5, 12, 40]) }, (): Work => {
    if (random.chance(0.1)) return { failures: random.whole(1, 3) }
    return { ms: isLate && random.chance(0.3) ? random.whole(700, 1500) : random.chance(0.3) ? random.whole(1, 60) : 0 }
  })
  return {
    ...{ key, track, items, name: random.pick(names), isDoomed: random.chance(0.12) },
    policy: ({ a: 'refuse', b: 'queue', c: 'replace', d: random.pick(['refuse', 'queue', 'replace'] as const) } as const)[track],
    allowanceMs: isLate ? random.whole(300, 900) : random.whole(4000, 9000),
    way: random.chance(0.5) ? 'plain' : random.chance(0.1) ? 'rolled back' : 'own',
  }
}

// ---- around them

export const starters = ['s1', 's2']
/** With this many in the queue of one track no start is sent, so that a storm does not end as a backlog. */
const queuedMax = 6

export class BatchesTraffic extends Traffic {
  readonly user = new User(this.caller)
  #turn = 0

  async start(): Promise<void> {
    for (const slot of starters) await this.startUsers(slot, { role: 'starter', how: String(this.plan.seed) })
    this.every(120, () => this.#operate())
  }

  /** A flag that items wait for. */
  async set(flag: string): Promise<void> {
    await this.rig.query('insert into torture.mended values ($1)', [flag])
  }

  async #operate(): Promise<void> {
    const { random, user } = this
    const [open] = await this.rig.query<{ id: string; queued: number }>(
      `select id::text as id, count(*) filter (where state = 'queued') over (partition by track)::integer as queued
       from pawl.batch where state in ('queued', 'running') order by 2 desc, random() limit 1`,
    )
    const [ended] = await this.rig.query<{ id: string }>(
      "select id::text as id from pawl.batch where state in ('timed-out', 'cancelled', 'failed') order by random() limit 1",
    )
    const action = random.next()
    if (open !== undefined && (open.queued > queuedMax || action < 0.25)) await user.cancel(open.id)
    else if (open !== undefined && action < 0.4) await user.extend(open.id, random.whole(100, 2000))
    else if (ended !== undefined && action < 0.5) await user.rerun(ended.id)
    else if (action < 0.6) await user.start(draw(random, `rig/${this.#turn++}`))
    else if (open !== undefined) await Promise.all([user.pawl.batches.why(open.id), user.pawl.batches.stuck({ limit: 20 })])
  }
}
