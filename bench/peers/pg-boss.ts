// pg-boss, tuned: burst, two pollers, and the variant is the size of its batches. With its defaults it takes one job every two seconds.
// The variant 'notify' wakes its pollers by LISTEN.

import pg from 'pg'
import { load } from '../harness/system/load.ts'
import { delay, type Peer, payloadOf, type Setup, type Started } from '../harness/system/protocol.ts'

interface BossJob {
  readonly data: { readonly n: number }
}

interface Boss {
  on(event: 'error', listener: (error: Error) => void): void
  start(): Promise<unknown>
  stop(options: object): Promise<void>
  createQueue(name: string, options: object): Promise<void>
  send(name: string, data: object): Promise<unknown>
  insert(name: string, jobs: readonly { data: object }[]): Promise<unknown>
  work(name: string, options: object, handler: (jobs: readonly BossJob[]) => Promise<unknown>): Promise<unknown>
}

const queue = 'bench'

export function open(started: Started, variant = '1000'): Peer {
  const listens = variant === 'notify'
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
      boss = new PgBoss({ connectionString: url, max: connections, useListenNotify: listens })
      boss.on('error', () => undefined)
      await boss.start()
      await boss.createQueue(queue, { notify: listens })
      pool = new pg.Pool({ connectionString: url, max: 1 })
    },
    fill: (count) => insertInCalls(count, 1_000),
    bulk: insertInCalls,
    async work({ handler, concurrency }) {
      // A handler gets a batch and runs it at once. Those that take time, or must start at once, are as many as elsewhere.
      const batch = handler === 'noop' ? { batchSize: Number(variant), localConcurrency: 2 } : { batchSize: concurrency }
      await boss.work(queue, { ...batch, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }, async (jobs) => {
        await Promise.all(
          jobs.map(async ({ data }) => {
            started(data.n)
            await delay(handler)
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
