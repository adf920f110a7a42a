// The jobs of a storm, one kind for each way in which a job can have an effect or go wrong; the processes that run and enqueue them; and
// the users who enqueue, cancel, mend and retry, and leave transactions open.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Job, JobContext, Pawl, Tx } from 'pawl'
import type pg from 'pg'
import { Caller, type CallerOptions, inTransaction, rollBack } from '../pool.ts'
import type { Subject } from '../process.ts'
import { Traffic } from '../scenario.ts'

// ---- kinds

export interface Payload {
  readonly key: string
  /** How long the handler takes, and how long when it runs again. */
  readonly ms?: number
  readonly againMs?: number
  /** How often it fails before it succeeds. */
  readonly failures?: number
}

/** Kinds whose effect is a row in the ledger of the same database: each done job has exactly one. */
export const exactKinds: readonly string[] = ['tx', 'shared', 'complete', 'slow', 'flaky']
/** Kinds whose effect is outside: at least once, with a stable key. */
export const outsideKinds: readonly string[] = ['outside', 'doomed', 'snoozing']
/** How many crashes of its process end a job of the kind. A poison job causes them; others are bystanders. */
export const crashesMax = (kind: string): number => (kind === 'poison' ? 2 : 6)

type Kinds = Omit<Parameters<Pawl['jobs']['define']>[1], 'tx' | 'run'>
type Run = (job: Job<Payload>, context: JobContext) => unknown
type InTx = (job: Job<Payload>, tx: Tx) => unknown

/** A producer defines the same kinds as a worker, and runs none. */
function defineKinds({ pawl: { jobs }, pool, history }: Caller): void {
  const retry = { attempts: 30, crashes: crashesMax('any'), initialMs: 10, factor: 2, maxMs: 200 }
  const begun = <Given>(run: (job: Job<Payload>, given: Given) => unknown) => {
    return async (job: Job<Payload>, given: Given) => {
      history.write('start', { job: job.id, fence: job.fence })
      return run(job, given)
    }
  }
  const defineRun = (kind: string, run: Run, more: Kinds = {}) => jobs.define<Payload>(kind, { retry, ...more, run: begun(run) })
  const defineTx = (kind: string, tx: InTx, more: Kinds = {}) => jobs.define<Payload>(kind, { retry, ...more, tx: begun(tx) })
  const effect = (tx: Tx, { id, fence, kind }: Job<Payload>) =>
    tx.query('insert into torture.effect values ($1::bigint, $2::bigint, $3::text, $4::text)', [id, fence, kind, history.proc])
  const takesMs = ({ attempt, payload: { ms = 0, againMs = ms } }: Job<Payload>) => (attempt > 1 ? againMs : ms)
  const wait = async (ms: number, { signal }: JobContext) => ms > 0 && sleep(ms, undefined, { signal })
  // The stored result must carry the fence under which the handler ran.
  const answer = ({ fence }: Job<Payload>) => ({ fence })

  const inTx: InTx = async (job, tx) => {
    await effect(tx, job)
    await sleep(takesMs(job))
    return answer(job)
  }
  defineTx('tx', inTx)
  defineTx('shared', inTx, { share: 10 })
  defineTx('flaky', async (job, tx) => {
    await effect(tx, job)
    if (job.attempt - job.crashes <= (job.payload.failures ?? 1)) throw new Error('planned failure')
    return answer(job)
  })

  const inOwnTransaction: Run = (job, context) =>
    inTransaction(pool, async (client) => {
      await job.guard(client)
      await effect(client, job)
      await wait(takesMs(job), context)
      await job.complete(client, answer(job))
    })
  defineRun('complete', inOwnTransaction)
  const slow: Run = async (job, context) => {
    for (let step = 0; step < 4; step++) {
      await context.touch({ step })
      await wait(takesMs(job) / 4, context)
    }
    return inOwnTransaction(job, context)
  }
  defineRun('slow', slow, { concurrency: 3 })

  /** It does not listen to its signal. */
  const outside: Run = async (job) => {
    history.write('delivered', { job: job.id, fence: job.fence, idempotencyKey: job.idempotencyKey })
    await sleep(takesMs(job))
    return answer(job)
  }
  defineRun('outside', outside)
  const doomed: Run = async (job, context) => {
    const { rows } = await pool.query('select from torture.mended where what = $1', [job.id])
    if (rows.length === 0) throw new Error('not mended yet')
    return outside(job, context)
  }
  defineRun('doomed', doomed, { retry: { ...retry, attempts: 2 } })
  const snoozed = new Set<string>()
  defineRun('snoozing', (job, context) => {
    if (snoozed.has(job.id)) return outside(job, context)
    snoozed.add(job.id)
    return job.snooze(30)
  })
  const poison: Run = (job) => {
    history.write('poison', { job: job.id })
    process.kill(process.pid, 'SIGKILL')
    return new Promise(() => undefined)
  }
  defineRun('poison', poison, { retry: { ...retry, crashes: crashesMax('poison') } })
}

// ---- processes

export async function worker(subject: Subject): Promise<void> {
  const { leaseMs, beatMs, concurrency } = subject.options
  const caller = new Caller(subject.caller(concurrency))
  defineKinds(caller)
  await serveJobs(subject, caller.pawl, {
    name: subject.proc,
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
      if (stillRunning.length > 0) await running.stop({ abandon: true })
    },
  )
}

/** A process that only enqueues, in the given way or alternately in both. It meets its faults between its insert and its commit. */
export async function producer(subject: Subject): Promise<void> {
  const { options, proc } = subject
  const enqueuer = new Enqueuer(subject.caller(4))
  let batch = 0
  const turn = () => {
    const way = options.how === 'both' ? (['own', 'plain'] as const)[batch % 2]! : (options.how as Way)
    const key = `${proc}/${batch++}`
    return enqueuer.enqueue(way, { key, kind: 'tx', payloads: [{ key: `${key}/0` }, { key: `${key}/1` }] })
  }
  await subject.live(() => [subject.every(150, turn)], enqueuer)
}

// ---- users

/** `own`: in a transaction of the caller's, which may be rolled back. `plain`: without one. */
export type Way = 'own' | 'plain' | 'rolled back'

export type Batch = { readonly key: string; readonly kind: string; readonly payloads: readonly Payload[] }

class Enqueuer extends Caller {
  constructor(options: CallerOptions) {
    super(options)
    defineKinds(this)
  }

  /** Returns the ids that are certainly there. */
  async enqueue(way: Way, { key, kind, payloads }: Batch): Promise<readonly string[]> {
    const { jobs } = this.pawl
    const asked = { batch: key, kind, keys: payloads.map((payload) => payload.key), via: way === 'plain' ? 'plain' : 'own' }
    const inOwn = async (tx: pg.PoolClient) => {
      // Tells whether the transaction happened.
      await tx.query('insert into torture.produced values ($1)', [key])
      return jobs.enqueueMany(kind, payloads, { tx })
    }
    const enqueue = () => {
      if (way === 'plain') return jobs.enqueueMany(kind, payloads)
      return way === 'own' ? inTransaction(this.pool, inOwn) : inTransaction(this.pool, inOwn, rollBack)
    }
    return (await this.history.call('enqueue', asked, enqueue)).answer?.ids ?? []
  }
}

/** With this many live jobs an enqueue waits, so that a storm does not end as a backlog. */
const liveMax = 400
const weights = { tx: 5, shared: 5, complete: 4, outside: 4, flaky: 2, slow: 1, doomed: 1, snoozing: 1 }

/** The slot of lost answers to the rig's own enqueues, and the producer in a process of its own. */
export const rigSlot = 'producer'
export const producerSlot = 'p1'

export class JobsTraffic extends Traffic {
  readonly user = new Enqueuer(this.caller)
  readonly #known: string[] = []
  /** Answers still to be lost: each after that number of enqueues without a transaction. */
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
    const ids = await this.user.enqueue(way, { key, kind, payloads })
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
    const cancel = () => this.user.pawl.jobs.cancel(job, { reason: 'torture' })
    await this.rig.history.call('cancel', { job }, cancel, ({ was }) => ({ was }))
  }

  async #mend(): Promise<void> {
    const [dead] = await this.rig.query<{ id: string }>(
      "select id::text as id from pawl.job where state = 'dead' and kind = 'doomed' order by id limit 1",
    )
    if (dead === undefined || this.random.chance(0.3)) return
    await this.rig.query('insert into torture.mended values ($1)', [dead.id])
    await this.rig.history.call('retry', { job: dead.id }, () => this.user.pawl.jobs.retry(dead.id))
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
      await this.user.pawl.jobs.cancel(id, { tx })
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
