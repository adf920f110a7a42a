// BullMQ on redis-server with AOF everysec: its finished jobs stay in Redis, as its defaults have it.

import { load } from '../harness/load.ts'
import { type Peer, payloadOf, type Setup, type Started, slowMs } from '../harness/protocol.ts'

interface Closable {
  close(force?: boolean): Promise<void>
}

interface Queue extends Closable {
  add(name: string, data: object): Promise<unknown>
  addBulk(jobs: readonly { name: string; data: object }[]): Promise<unknown>
  getJobCounts(...states: readonly string[]): Promise<Record<string, number>>
}

interface BullMq {
  Queue: new (name: string, options: object) => Queue
  Worker: new (
    name: string,
    run: (job: { data: { n: number } }) => Promise<void>,
    options: object,
  ) => Closable & { waitUntilReady(): Promise<unknown> }
}

export function open(started: Started): Peer {
  let bullmq: BullMq
  let connection: { host: string; port: number; maxRetriesPerRequest: null }
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
    async prepare({ redisPort }: Setup) {
      if (redisPort === undefined) throw new Error('there is no Redis')
      bullmq = await load<BullMq>('bullmq')
      connection = { host: '127.0.0.1', port: redisPort, maxRetriesPerRequest: null }
      queue = new bullmq.Queue('bench', { connection })
    },
    fill: (count) => addInCalls(count, 1_000),
    bulk: addInCalls,
    async work({ handler, concurrency }) {
      const made = new bullmq.Worker(
        'bench',
        async ({ data }) => {
          started(data.n)
          if (handler === 'slow') await new Promise((resolve) => setTimeout(resolve, slowMs))
        },
        { connection, concurrency },
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
