// Pawl with its default settings.

import { createPawl, type Kind, type Pawl, type Worker } from 'pawl'
import pg from 'pg'
import { now } from '../harness/clock.ts'
import {
  effectTable,
  type Handler,
  insertEffect,
  type Peer,
  payloadOf,
  type Setup,
  type Started,
  slowMs,
  type Via,
} from '../harness/protocol.ts'

interface Payload {
  readonly n: number
}

/** The variant 'with worker' enqueues from a process that also runs a worker, of another queue. */
export function open(started: Started, variant: string | undefined): Peer {
  let pawl: Pawl
  let pool: pg.Pool
  let kind: Kind<Payload>
  let worker: Worker | undefined

  function define(handler: Handler): Kind<Payload> {
    switch (handler) {
      case 'tx':
      case 'tx shared':
        return pawl.jobs.define<Payload>('bench', {
          ...(handler === 'tx shared' ? { share: 20 } : {}),
          tx: async (job, tx) => {
            started(job.payload.n)
            await tx.query(insertEffect, [job.payload.n])
          },
        })
      case 'slow':
        return pawl.jobs.define<Payload>('bench', {
          run: (job) => {
            started(job.payload.n)
            return new Promise((resolve) => setTimeout(resolve, slowMs))
          },
        })
      case 'hang':
        return pawl.jobs.define<Payload>('bench', {
          run: (job) => {
            started(job.payload.n)
            return new Promise(() => setInterval(() => {}, 60_000))
          },
        })
      default:
        return pawl.jobs.define<Payload>('bench', {
          run: async (job) => started(job.payload.n),
        })
    }
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
      worker = pawl.worker()
      await worker.start()
    },
    fill: (count) => enqueueInCalls(count, 1_000),
    bulk: enqueueInCalls,
    async work({ handler, concurrency }) {
      kind = define(handler)
      worker = pawl.worker({ concurrency })
      await worker.start()
    },
    async remaining() {
      const { rows } = await pool.query<{ some: boolean }>('select exists (select from pawl.job) as some')
      return rows[0]!.some ? 1 : 0
    },
    async enqueue(n: number, via: Via) {
      if (via === 'tx') return enqueueInTransaction(n)
      await pawl.jobs.enqueue(kind, payloadOf(n))
      return undefined
    },
    metrics: () => ({ ...worker!.metrics() }),
    async close() {
      await worker?.stop({ grace: 0 })
      await pawl.close()
      await pool.end()
    },
  }
}
