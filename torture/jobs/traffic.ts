// The jobs of a storm, one kind for each way in which a job can have an effect or go wrong; the processes that run and enqueue them; and
// the users who enqueue, cancel, mend and retry, and leave transactions open.

import { appendFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Job, JobContext, Pawl, Tx } from 'pawl'
import type pg from 'pg'
import type { History } from '../history.ts'
import { inTransaction, rollBack } from '../pool.ts'
import type { Subject } from '../process.ts'
import { Traffic } from '../scenario.ts'

// ---- kinds

export interface Payload {
  /** Names this job in the producer's history. */
  readonly key: string
  /** How long the handler takes, and how long when it runs again. */
  readonly ms?: number
  readonly againMs?: number
  /** How often it fails before it succeeds. */
  readonly failures?: number
}

/** What the handlers of a worker process work with. A producer defines the same kinds without it, and runs none. */
interface Surroundings {
  readonly dir: string
  readonly history: History
  /** Connections of the handlers' own, as an application has them. */
  readonly pool: pg.Pool
}

/** Kinds whose effect is a row in the ledger of the same database: each done job has exactly one. */
export const exactKinds: readonly string[] = ['tx', 'shared', 'complete', 'slow', 'flaky']
/** Kinds whose effect is outside: at least once, with a stable key. */
export const outsideKinds: readonly string[] = ['outside', 'doomed', 'snoozing']
/** How many crashes of its process end a job of the kind. A poison job causes them; others are bystanders. */
export const crashesMax = (kind: string): number => (kind === 'poison' ? 2 : 6)

export const deliveriesFile = 'deliveries.jsonl'
export interface Delivery {
  readonly job: string
  readonly fence: string
  readonly idempotencyKey: string
}

export function defineKinds(pawl: Pawl, around?: Surroundings): void {
  const { jobs } = pawl
  const retry = { attempts: 30, crashes: crashesMax('any'), initialMs: 10, factor: 2, maxMs: 200 } as const
  const begin = (job: Job<Payload>) => {
    if (around === undefined) throw new Error('Only a worker process runs jobs.')
    around.history.write('start', { job: job.id, fence: job.fence })
    return around
  }
  const effect = (tx: Tx, job: Job<Payload>) =>
    tx.query('insert into torture.effect (job_id, fence, kind, proc) values ($1::bigint, $2::bigint, $3::text, $4::text)', [
      job.id,
      job.fence,
      job.kind,
      around!.history.proc,
    ])
  const takesMs = ({ attempt, payload: { ms = 0, againMs = ms } }: Job<Payload>) => (attempt > 1 ? againMs : ms)
  /** The stored result must carry the fence under which the handler ran. */
  const answer = (job: Job<Payload>) => ({ fence: job.fence })

  const inTx = async (job: Job<Payload>, tx: Tx) => {
    begin(job)
    await effect(tx, job)
    await sleep(takesMs(job))
    return answer(job)
  }
  jobs.define<Payload>('tx', { retry, tx: inTx })
  jobs.define<Payload>('shared', { retry, share: 10, tx: inTx })

  jobs.define<Payload>('flaky', {
    retry,
    tx: async (job, tx) => {
      begin(job)
      await effect(tx, job)
      if (job.attempt - job.crashes <= (job.payload.failures ?? 1)) throw new Error('planned failure')
      return answer(job)
    },
  })

  const inOwnTransaction = async (job: Job<Payload>, context: JobContext) => {
    const { pool } = begin(job)
    await inTransaction(pool, async (client) => {
      await job.guard(client)
      await effect(client, job)
      await waitMs(takesMs(job), context)
      await job.complete(client, answer(job))
    })
  }
  jobs.define<Payload>('complete', { retry, run: inOwnTransaction })
  jobs.define<Payload>('slow', {
    retry,
    concurrency: 3,
    run: async (job, context) => {
      begin(job)
      for (let step = 0; step < 4; step++) {
        await context.touch({ step })
        await waitMs(takesMs(job) / 4, context)
      }
      return inOwnTransaction(job, context)
    },
  })

  /** The outside world is a file that gets a line for each delivery and makes none of them unique. */
  const outside = async (job: Job<Payload>) => {
    const { dir } = begin(job)
    const delivery: Delivery = { job: job.id, fence: job.fence, idempotencyKey: job.idempotencyKey }
    appendFileSync(join(dir, deliveriesFile), `${JSON.stringify(delivery)}\n`)
    // It does not listen to its signal.
    await sleep(takesMs(job))
    return answer(job)
  }
  jobs.define<Payload>('outside', { retry, run: outside })

  jobs.define<Payload>('doomed', {
    retry: { ...retry, attempts: 2 },
    run: async (job) => {
      const { rows } = await begin(job).pool.query('select from torture.mended where what = $1', [job.id])
      if (rows.length === 0) throw new Error('not mended yet')
      return outside(job)
    },
  })

  const snoozed = new Set<string>()
  jobs.define<Payload>('snoozing', {
    retry,
    run: (job) => {
      if (snoozed.has(job.id)) return outside(job)
      snoozed.add(job.id)
      begin(job)
      return job.snooze(30)
    },
  })

  jobs.define<Payload>('poison', {
    retry: { ...retry, crashes: crashesMax('poison') },
    run: (job) => {
      begin(job).history.write('poison', { job: job.id })
      process.kill(process.pid, 'SIGKILL')
      return new Promise(() => undefined)
    },
  })
}

async function waitMs(ms: number, { signal }: JobContext): Promise<void> {
  if (ms > 0) await sleep(ms, undefined, { signal })
}

// ---- processes

export async function worker(subject: Subject): Promise<void> {
  const { proc, history, options } = subject
  const { dir, leaseMs, beatMs, concurrency } = options
  const { pawl, pool } = subject.connect(concurrency)
  defineKinds(pawl, { dir, history, pool })
  await serveJobs(subject, pawl, {
    name: proc,
    lease: leaseMs,
    concurrency,
    tuning: { beatMs, pollMs: 300, bufferMs: 3000, touchMs: 100 },
  })
}

export function serveJobs(subject: Subject, pawl: Pawl, options: Parameters<Pawl['worker']>[0]): Promise<void> {
  return subject.serve(
    pawl,
    { refused: 'job.refused', dead: 'job.dead', lost: 'worker.lost' },
    () => pawl.worker(options),
    async (running) => {
      const { stillRunning } = await running.stop({ grace: 3000 })
      if (stillRunning.length > 0) await running.abandon().catch(() => undefined)
    },
  )
}

/** A process that only enqueues, in the way it is told or in both by turns. It meets its faults between its insert and its commit. */
export async function producer(subject: Subject): Promise<void> {
  const { options, proc, history } = subject
  const { pawl, pool, close } = subject.connect(4)
  const enqueue = enqueuer(pawl, pool, history)
  let batch = 0
  const turn = () => {
    const way = options.how === 'both' ? (['own', 'plain'] as const)[batch % 2]! : (options.how as Way)
    const key = `${proc}/${batch++}`
    return enqueue(way, { key, kind: 'tx', payloads: [{ key: `${key}/0` }, { key: `${key}/1` }] })
  }
  await subject.live(() => [subject.every(150, turn)], close)
}

// ---- users

/** `own`: in a transaction of the caller's, which may be rolled back. `plain`: without one. */
export type Way = 'own' | 'plain' | 'rolled back'

export interface Batch {
  readonly key: string
  readonly kind: string
  readonly payloads: readonly Payload[]
}

/** Enqueues as users do and writes down what it asked for and what it was answered. Returns the ids that are certainly there. */
function enqueuer(pawl: Pawl, pool: pg.Pool, history: History) {
  defineKinds(pawl)
  return async (way: Way, { key, kind, payloads }: Batch): Promise<readonly string[]> => {
    const asked = { batch: key, kind, keys: payloads.map((payload) => payload.key), via: way === 'plain' ? 'plain' : 'own' }
    const inOwn = async (tx: pg.PoolClient) => {
      // Tells whether the transaction happened.
      await tx.query('insert into torture.produced values ($1)', [key])
      return pawl.jobs.enqueueMany(kind, payloads, { tx })
    }
    const enqueue = () => {
      if (way === 'plain') return pawl.jobs.enqueueMany(kind, payloads)
      return way === 'own' ? inTransaction(pool, inOwn) : inTransaction(pool, inOwn, rollBack)
    }
    return (await history.call('enqueue', asked, enqueue)).answer?.ids ?? []
  }
}

/** Jobs that are enqueued while so many are live wait, so that a storm does not end as a backlog. */
const liveMax = 400
const weights = { tx: 5, shared: 5, complete: 4, outside: 4, flaky: 2, slow: 1, doomed: 1, snoozing: 1 }

/** The slot of lost answers to the rig's own enqueues, and the producer in a process of its own. */
export const rigSlot = 'producer'
export const producerSlot = 'p1'

export class JobsTraffic extends Traffic {
  readonly #enqueue = enqueuer(this.pawl, this.pool, this.rig.history)
  readonly #known: string[] = []
  /** Answers still to be lost: the next one after so many enqueues without a transaction. */
  readonly #toLose = [...(this.plan.faults[rigSlot] ?? [])]
  #batch = 0
  #plain = 0

  async start(): Promise<void> {
    await this.startUsers(producerSlot, { role: 'producer', how: 'both' })
    this.every(70, () => this.#produce())
    this.every(90, () => this.#operate())
    this.every(400, () => this.#leaveOpen())
  }

  // ---- producing

  async #produce(): Promise<void> {
    const { random } = this
    const batch = ++this.#batch
    // A poison job every few seconds: each costs a process or two.
    const kind = batch % 180 === 40 ? 'poison' : random.weighted(weights)
    const length = ['poison', 'slow', 'doomed'].includes(kind) ? 1 : random.whole(1, 8)
    const payloads = Array.from({ length }, (_, index): Payload => {
      const key = `${batch}/${index}`
      const ms = kind === 'slow' ? random.whole(200, 800) : random.chance(0.2) ? random.whole(1, 40) : 0
      return kind === 'flaky' ? { key, failures: random.whole(1, 2) } : { key, ms }
    })
    const way: Way = random.chance(0.6) ? (random.chance(0.1) ? 'rolled back' : 'own') : 'plain'
    if ((await this.rig.count("select count(*) as n from pawl.job where state <> 'dead'")) > liveMax) return
    const [next] = this.#toLose
    if (way === 'plain' && next !== undefined && ++this.#plain >= next.hit) {
      this.#toLose.shift()
      this.#plain = 0
      this.loseNextAnswer()
    }
    await this.enqueue(String(batch), kind, payloads, way)
  }

  async enqueue(key: string, kind: string, payloads: readonly Payload[], way: Way = 'own'): Promise<void> {
    const ids = await this.#enqueue(way, { key, kind, payloads })
    if (kind !== 'poison') this.#known.push(...ids)
  }

  /** The next enqueue without a transaction is committed, and its answer never arrives. */
  loseNextAnswer(): void {
    this.rig.loseNextCommit(this.proxy, rigSlot, 'caller')
  }

  // ---- operating

  async #operate(): Promise<void> {
    const known = this.#known
    if (this.random.chance(0.5)) await this.#mend()
    else if (known.length > 0) await this.cancel(known[known.length - 1 - this.random.whole(0, Math.min(11, known.length - 1))]!)
  }

  async cancel(job: string): Promise<void> {
    const cancel = () => this.pawl.jobs.cancel(job, { reason: 'torture' })
    await this.rig.history.call('cancel', { job }, cancel, ({ was }) => ({ was }))
  }

  /** Removes the cause of a dead job's failures, and gives the job its attempts back. */
  async #mend(): Promise<void> {
    const [dead] = await this.rig.query<{ id: string }>(
      "select id::text as id from pawl.job where state = 'dead' and kind = 'doomed' order by id limit 1",
    )
    if (dead === undefined || this.random.chance(0.3)) return
    await this.rig.query('insert into torture.mended values ($1)', [dead.id])
    await this.rig.history.call('retry', { job: dead.id }, () => this.pawl.jobs.retry(dead.id))
  }

  /** A stranger's transaction has a ready job locked for a while and rolls back. */
  async #leaveOpen(): Promise<void> {
    const [ready] = await this.rig.query<{ id: string }>(
      "select id::text as id from pawl.job where state = 'ready' order by due desc limit 1",
    )
    const until = performance.now() + 120
    if (ready !== undefined) await this.holdOpen(ready.id, () => performance.now() > until)
  }

  /** No claim may wait for that transaction: claims skip locked rows. */
  async holdOpen(id: string, isEnough: () => boolean): Promise<void> {
    const hold = async (tx: pg.PoolClient) => {
      await tx.query('set local lock_timeout = 500')
      await this.pawl.jobs.cancel(id, { tx })
      while (!isEnough()) {
        // Read on another connection: inside one transaction PostgreSQL shows the same picture of the sessions.
        const waiting = await this.rig.query<{ application: string }>(
          `select application_name as application from pg_stat_activity
           where application_name like '% claim %' and wait_event_type = 'Lock' and wait_event in ('transactionid', 'tuple')
             and query like '%picked as materialized%'`,
        )
        for (const { application } of waiting) this.rig.history.write('claim waits', { application, behind: id })
        await sleep(20)
      }
    }
    await inTransaction(this.rig.admin, hold, rollBack).catch(() => undefined)
  }
}
