// The jobs of a storm: one kind for each way in which a job can have an effect, and for each way in which it can go wrong.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Job, JobContext, Pawl, Tx } from 'pawl'
import type pg from 'pg'
import { deliver, type History } from '../history.ts'

export interface Payload {
  /** Names this job in the producer's own history. */
  readonly key: string
  /** How long the handler takes. */
  readonly ms?: number
  /** How long it takes when it runs again. */
  readonly againMs?: number
  /** How often it fails before it succeeds. */
  readonly failures?: number
}

/** What the handlers of a worker process work with. The producer defines the same kinds without it, and runs none. */
export interface Surroundings {
  readonly dir: string
  readonly history: History
  /** Connections of the handlers' own, as an application has them. */
  readonly pool: pg.Pool
}

/** Kinds whose effect is a row in the ledger of the same database: each done job has exactly one. */
export const exactKinds = ['tx', 'shared', 'complete', 'slow', 'flaky'] as const
/** Kinds whose effect is outside: at least once, with a stable key. */
export const outsideKinds = ['outside', 'doomed', 'snoozing'] as const
/** Dead at this many crashes, and never done. */
export const poisonCrashes = 2
/** What a kill of somebody else may cost a bystander before it would be dead. */
export const bystanderCrashes = 6

const patient = { attempts: 30, crashes: bystanderCrashes, initialMs: 10, factor: 2, maxMs: 200 } as const

export function defineKinds(pawl: Pawl, around?: Surroundings): void {
  const { jobs } = pawl
  const begin = (job: Job<Payload>) => {
    if (around === undefined) throw new Error('Only a worker process runs jobs.')
    around.history.write('start', { job: job.id, fence: job.fence, attempt: job.attempt, crashes: job.crashes, kind: job.kind })
    return around
  }
  const effect = (tx: Tx, job: Job<Payload>) =>
    tx.query(
      'insert into torture.effect (job_id, fence, attempt, kind, proc) values ($1::bigint, $2::bigint, $3::integer, $4::text, $5::text)',
      [job.id, job.fence, job.attempt, job.kind, around!.history.proc],
    )
  const takesMs = (job: Job<Payload>) => (job.attempt > 1 ? (job.payload.againMs ?? job.payload.ms ?? 0) : (job.payload.ms ?? 0))
  /** The fence that this handler was given: the stored result must carry the fence that settled it. */
  const answer = (job: Job<Payload>) => ({ fence: job.fence })

  const inTx = async (job: Job<Payload>, tx: Tx) => {
    begin(job)
    await effect(tx, job)
    await sleep(takesMs(job))
    return answer(job)
  }
  jobs.define<Payload>('tx', { retry: patient, tx: inTx })
  jobs.define<Payload>('shared', { retry: patient, share: 10, tx: inTx })

  jobs.define<Payload>('flaky', {
    retry: patient,
    tx: async (job, tx) => {
      const { history } = begin(job)
      await effect(tx, job)
      if (job.attempt - job.crashes <= (job.payload.failures ?? 1)) {
        history.write('threw', { job: job.id, fence: job.fence })
        throw new Error('planned failure')
      }
      return answer(job)
    },
  })

  const inOwnTransaction = async (job: Job<Payload>, context: JobContext) => {
    const { pool } = begin(job)
    const client = await pool.connect()
    try {
      await client.query('begin')
      await job.guard(client)
      await effect(client, job)
      await waitMs(takesMs(job), context)
      await job.complete(client, answer(job))
      await client.query('commit')
      client.release()
    } catch (error) {
      // Whatever state it is in, its transaction ends with its connection.
      client.release(true)
      throw error
    }
  }
  jobs.define<Payload>('complete', { retry: patient, run: inOwnTransaction })
  jobs.define<Payload>('slow', {
    retry: patient,
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

  const outside = async (job: Job<Payload>, context: JobContext) => {
    const { dir, history } = begin(job)
    deliver(dir, { job: job.id, fence: job.fence, attempt: job.attempt, idempotencyKey: job.idempotencyKey, proc: history.proc })
    await waitMs(takesMs(job), context, false)
    return answer(job)
  }
  jobs.define<Payload>('outside', { retry: patient, run: outside })

  jobs.define<Payload>('doomed', {
    retry: { ...patient, attempts: 2 },
    run: async (job, context) => {
      const { pool, history } = begin(job)
      const { rows } = await pool.query('select 1 from torture.mended where job_id = $1::bigint', [job.id])
      if (rows.length === 0) {
        history.write('threw', { job: job.id, fence: job.fence })
        throw new Error('not mended yet')
      }
      return outside(job, context)
    },
  })

  const snoozed = new Set<string>()
  jobs.define<Payload>('snoozing', {
    retry: patient,
    run: (job, context) => {
      if (snoozed.has(job.id)) return outside(job, context)
      snoozed.add(job.id)
      begin(job)
      return job.snooze(30)
    },
  })

  jobs.define<Payload>('poison', {
    retry: { ...patient, crashes: poisonCrashes },
    run: (job) => {
      begin(job).history.write('poison', { job: job.id, fence: job.fence })
      process.kill(process.pid, 'SIGKILL')
      return new Promise(() => undefined)
    },
  })
}

/** An orderly handler stops when it is told to; one that does not listen goes on. */
async function waitMs(ms: number, context: JobContext, listens = true): Promise<void> {
  if (ms <= 0) return
  await sleep(ms, undefined, listens ? { signal: context.signal } : {})
}
