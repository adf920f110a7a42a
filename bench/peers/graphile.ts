// graphile-worker: plain, or with batched claims and completions; then the variant is the size of its localQueue.

import pg from 'pg'
import { load } from '../harness/system/load.ts'
import {
  delay,
  effectTable,
  insertEffect,
  type Peer,
  payloadOf,
  type Setup,
  type Started,
  type Work,
} from '../harness/system/protocol.ts'

interface Helpers {
  query(text: string, values: readonly unknown[]): Promise<unknown>
}

interface Runner {
  stop(): Promise<void>
}

interface Utils {
  migrate(): Promise<void>
  addJob(task: string, payload: unknown): Promise<unknown>
  addJobs(jobs: readonly { identifier: string; payload: unknown }[]): Promise<unknown>
  release(): Promise<void>
}

interface Graphile {
  run(options: object): Promise<Runner>
  makeWorkerUtils(options: object): Promise<Utils>
  Logger: new (factory: () => () => void) => object
}

/** Twenty handlers share as many connections, or the plain worker would wait for its default pool of ten. */
const workerConnections = 20

export function open(started: Started, variant: string | undefined): Peer {
  let graphile: Graphile
  let logger: object
  let utils: Utils
  let pool: pg.Pool
  let url: string
  let runner: Runner | undefined

  async function addInCalls(count: number, callSize: number): Promise<void> {
    for (let from = 0; from < count; from += callSize) {
      await utils.addJobs(
        Array.from({ length: Math.min(callSize, count - from) }, (_, index) => ({
          identifier: 'bench',
          payload: payloadOf(from + index),
        })),
      )
    }
  }

  function task(handler: Work['handler']) {
    return async (payload: { n: number }, helpers: Helpers): Promise<void> => {
      started(payload.n)
      if (handler === 'tx') await helpers.query(insertEffect, [payload.n])
      await delay(handler)
    }
  }

  return {
    async prepare(setup: Setup) {
      graphile = await load<Graphile>('graphile-worker')
      logger = new graphile.Logger(() => () => {})
      url = setup.url
      pool = new pg.Pool({ connectionString: url, max: setup.connections })
      utils = await graphile.makeWorkerUtils({ pgPool: pool, logger })
      await utils.migrate()
      await pool.query(effectTable)
    },
    fill: (count) => addInCalls(count, 1_000),
    bulk: addInCalls,
    async work({ handler, concurrency }) {
      const batching =
        variant === undefined ? {} : { localQueue: { size: Number(variant) }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
      runner = await graphile.run({
        connectionString: url,
        logger,
        noHandleSignals: true,
        concurrency,
        maxPoolSize: workerConnections,
        preset: { worker: { concurrentJobs: concurrency, ...batching } },
        taskList: { bench: task(handler) },
        parsedCronItems: [],
      })
    },
    async remaining() {
      const { rows } = await pool.query<{ some: boolean }>('select exists (select from graphile_worker._private_jobs) as some')
      return rows[0]!.some ? 1 : 0
    },
    async enqueue(n) {
      await utils.addJob('bench', payloadOf(n))
      return undefined
    },
    async close() {
      await runner?.stop()
      await utils.release()
      await pool.end()
    },
  }
}
