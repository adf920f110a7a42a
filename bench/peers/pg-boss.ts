// pg-boss, tuned: batches of 500, burst, two pollers. With its defaults it takes one job every two seconds.

import pg from 'pg'
import { load } from '../harness/load.ts'
import { type Peer, payloadOf, type Setup, type Started, slowMs } from '../harness/protocol.ts'

interface BossJob {
  readonly data: { readonly n: number }
}

interface Boss {
  on(event: 'error', listener: (error: Error) => void): void
  start(): Promise<unknown>
  stop(options: object): Promise<void>
  createQueue(name: string): Promise<void>
  send(name: string, data: object): Promise<unknown>
  insert(name: string, jobs: readonly { data: object }[]): Promise<unknown>
  work(name: string, options: object, handler: (jobs: readonly BossJob[]) => Promise<unknown>): Promise<unknown>
}

const queue = 'bench'

export function open(started: Started): Peer {
  let boss: Boss
  let pool: pg.Pool

  async function insertInCalls(count: number, callSize: number): Promise<void> {
    for (let from = 0; from < count; from += callSize) {
      await boss.insert(
        queue,
        Array.from({ length: Math.min(callSize, count - from) }, (_, index) => ({ data: payloadOf(from + index) })),
      )
    }
  }

  return {
    async prepare({ url, connections }: Setup) {
      const { PgBoss } = await load<{ PgBoss: new (options: object) => Boss }>('pg-boss')
      boss = new PgBoss({ connectionString: url, max: connections })
      boss.on('error', () => undefined)
      await boss.start()
      await boss.createQueue(queue)
      pool = new pg.Pool({ connectionString: url, max: 1 })
    },
    fill: (count) => insertInCalls(count, 1_000),
    bulk: insertInCalls,
    async work({ handler, concurrency }) {
      const isSlow = handler === 'slow'
      const options = isSlow
        ? { batchSize: 1, localConcurrency: concurrency, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }
        : { batchSize: 500, localConcurrency: 2, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }
      await boss.work(queue, options, async (jobs) => {
        await Promise.all(
          jobs.map(async ({ data }) => {
            started(data.n)
            if (isSlow) await new Promise((resolve) => setTimeout(resolve, slowMs))
          }),
        )
      })
    },
    async remaining() {
      const { rows } = await pool.query<{ some: boolean }>(
        `select exists (select from pgboss.job where state < 'completed') as some`,
      )
      return rows[0]!.some ? 1 : 0
    },
    async enqueue(n) {
      await boss.send(queue, payloadOf(n))
      return undefined
    },
    async close() {
      await boss.stop({ graceful: false, close: true })
      await pool.end()
    },
  }
}
