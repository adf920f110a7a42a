// BullMQ on redis-server with AOF everysec or, as the variant 'postgres', on PostgreSQL with a connection for each handler. Its finished jobs stay,
// as its defaults have it.

import pg from 'pg'
import { load } from '../harness/system/load.ts'
import { delay, type Peer, payloadOf, type Setup, type Started } from '../harness/system/protocol.ts'

interface Closable {
  close(force?: boolean): Promise<void>
}

interface Queue extends Closable {
  add(name: string, data: object): Promise<unknown>
  addBulk(jobs: readonly { name: string; data: object }[]): Promise<unknown>
  getJobCounts(...states: readonly string[]): Promise<Record<string, number>>
}

interface BullMq {
  Queue: new (name: string, options: object, backend?: unknown) => Queue
  Worker: new (
    name: string,
    run: (job: { data: { n: number } }) => Promise<void>,
    options: object,
    backend?: unknown,
  ) => Closable & { waitUntilReady(): Promise<unknown> }
  readonly createPostgresBackend: unknown
  runMigrations(client: pg.Client): Promise<unknown>
}

export function open(started: Started, variant: string | undefined): Peer {
  let bullmq: BullMq
  let backend: unknown
  let connectionOf: (connections: number) => object
  let queue: Queue
  let worker: Closable | undefined

  async function addInCalls(count: number, callSize: number): Promise<void> {
    for (let from = 0; from < count; from += callSize) {
      await queue.addBulk(
        Array.from({ length: Math.min(callSize, count - from) }, (_, index) => ({
          name: 'bench',
          data: payloadOf(from + index),
        })),
      )
    }
  }

  return {
    async prepare({ url, redisPort, connections }: Setup) {
      bullmq = await load<BullMq>('bullmq')
      if (variant === 'postgres') {
        await migrate(bullmq, url)
        backend = bullmq.createPostgresBackend
        connectionOf = (max) => ({ connectionString: url, max })
      } else {
        if (redisPort === undefined) throw new Error('there is no Redis')
        connectionOf = () => ({ host: '127.0.0.1', port: redisPort, maxRetriesPerRequest: null })
      }
      queue = new bullmq.Queue('bench', { connection: connectionOf(connections) }, backend)
    },
    fill: (count) => addInCalls(count, 1_000),
    bulk: addInCalls,
    async work({ handler, concurrency }) {
      const made = new bullmq.Worker(
        'bench',
        async ({ data }) => {
          started(data.n)
          await delay(handler)
        },
        { connection: connectionOf(concurrency), concurrency },
        backend,
      )
      worker = made
      await made.waitUntilReady()
    },
    async remaining() {
      const counts = await queue.getJobCounts('waiting', 'active', 'delayed', 'prioritized')
      return Object.values(counts).reduce((sum, count) => sum + count, 0)
    },
    async enqueue(n) {
      await queue.add('bench', payloadOf(n))
      return undefined
    },
    async close() {
      await worker?.close(true)
      await queue.close()
    },
  }
}

async function migrate({ runMigrations }: BullMq, url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await runMigrations(client)
  } finally {
    await client.end()
  }
}
