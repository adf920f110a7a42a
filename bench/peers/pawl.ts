// Pawl with its default settings.

import { createPawl, type Kind, type Pawl } from 'pawl'
import pg from 'pg'
import { now } from '../harness/machine/clock.ts'
import { mark } from '../harness/mark.ts'
import {
  delay,
  effectTable,
  type Handler,
  insertEffect,
  type Peer,
  payloadOf,
  type Setup,
  type Started,
  type Via,
} from '../harness/system/protocol.ts'
import { type Stoppable, startWorker } from './worker.ts'

interface Payload {
  readonly n: number
}

/** The variant 'with worker' enqueues from a process that also runs a worker, of another queue. */
export function open(started: Started, variant: string | undefined): Peer {
  let pawl: Pawl
  let pool: pg.Pool
  let kind: Kind<Payload>
  let worker: Stoppable | undefined

  function define(handler: Handler): Kind<Payload> {
    if (handler === 'tx' || handler === 'tx shared') {
      return pawl.jobs.define<Payload>('bench', {
        ...(handler === 'tx shared' ? { share: 20 } : {}),
        tx: async (job, tx) => {
          started(job.payload.n)
          await tx.query(insertEffect, [job.payload.n])
        },
      })
    }
    return pawl.jobs.define<Payload>('bench', {
      run: async (job) => {
        started(job.payload.n)
        if (handler === 'hang') await new Promise(() => setInterval(() => {}, 60_000))
        await delay(handler)
      },
    })
  }

  async function enqueueInTransaction(n: number): Promise<number> {
    const client = await pool.connect()
    try {
      await client.query('begin')
      await client.query(insertEffect, [n])
      const at = now()
      await pawl.jobs.enqueue(kind, payloadOf(n), { tx: client })
      await client.query('commit')
      return at
    } finally {
      client.release()
    }
  }

  async function enqueueInCalls(count: number, callSize: number): Promise<void> {
    for (let from = 0; from < count; from += callSize) {
      await pawl.jobs.enqueueMany(
        kind,
        Array.from({ length: Math.min(callSize, count - from) }, (_, index) => payloadOf(from + index)),
      )
    }
  }

  return {
    async prepare({ url, connections }: Setup) {
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      pool = new pg.Pool({ connectionString: url, max: connections })
      await pool.query(effectTable)
      // A kind without a handler here: enough to enqueue.
      kind = { name: 'bench', queue: 'default' } as Kind<Payload>
      if (variant !== 'with worker') return
      pawl.jobs.define('other', { queue: 'other', run: async () => undefined })
      worker = await startWorker(pawl, 'jobs')
    },
    fill: (count) => enqueueInCalls(count, 1_000),
    bulk: enqueueInCalls,
    async work({ handler, concurrency }) {
      kind = define(handler)
      worker = await startWorker(pawl, 'jobs', concurrency)
    },
    async remaining() {
      const { rows } = await pool.query<{ some: boolean }>(`select exists (select from pawl.job) as some -- ${mark}`)
      return rows[0]!.some ? 1 : 0
    },
    async enqueue(n: number, via: Via) {
      if (via === 'tx') return enqueueInTransaction(n)
      await pawl.jobs.enqueue(kind, payloadOf(n))
      return undefined
    },
    /** Starts a worker that has nothing to do. Its pool for the benchmark itself goes: connections are counted. */
    async run(_task: string, queues: number, hasCursor: boolean) {
      for (let n = 0; n < queues; n++) pawl.jobs.define(`kind-${n}`, { queue: `queue-${n}`, run: async () => undefined })
      if (hasCursor) pawl.projections.define('idle', { each: () => undefined })
      await pool.end()
      worker = await startWorker(pawl, hasCursor ? 'both' : 'jobs')
    },
    async close() {
      await worker?.stop({ grace: 0 })
      await pawl.close()
      if (!pool.ended) await pool.end()
    },
  }
}
