// BullMQ's flows on redis-server with AOF everysec: a parent that runs when its children have ended.

import { now } from '../../harness/machine/clock.ts'
import { load } from '../../harness/system/load.ts'
import { type Peer, payloadOf, type Setup } from '../../harness/system/protocol.ts'

interface Closable {
  close(force?: boolean): Promise<void>
}

interface Node {
  readonly name: string
  readonly queueName: string
  readonly data?: object
  readonly children?: readonly Node[]
}

interface BullMq {
  FlowProducer: new (options: object) => Closable & { add(node: Node): Promise<unknown> }
  Worker: new (queue: string, run: () => Promise<void>, options: object) => Closable & { waitUntilReady(): Promise<unknown> }
}

export function open(): Peer {
  let bullmq: BullMq
  let connection: object
  const closables: Closable[] = []

  async function work(queue: string, concurrency: number, run: () => Promise<void>): Promise<void> {
    const worker = new bullmq.Worker(queue, run, { connection, concurrency })
    closables.push(worker)
    await worker.waitUntilReady()
  }

  return {
    async prepare({ redisPort }: Setup) {
      if (redisPort === undefined) throw new Error('there is no Redis')
      bullmq = await load<BullMq>('bullmq')
      connection = { host: '127.0.0.1', port: redisPort, maxRetriesPerRequest: null }
    },
    async run(_task: string, count: number, concurrency: number) {
      const flows = new bullmq.FlowProducer({ connection })
      closables.push(flows)
      await work('items', concurrency, async () => undefined)
      let to = 0
      const ended = new Promise<void>((resolve) => {
        void work('ends', 1, async () => {
          to = now()
          resolve()
        })
      })
      const children = Array.from({ length: count }, (_, n) => ({ name: 'item', queueName: 'items', data: payloadOf(n) }))
      const from = now()
      await flows.add({ name: 'end', queueName: 'ends', children })
      const startedAt = now()
      await ended
      return { from, startedAt, to }
    },
    async close() {
      for (const one of closables) await one.close(true)
    },
  }
}
