// Emmett's event store and its consumer, with pages as large as Pawl's and no pause between them. It stores a checkpoint for every event.

import { load } from '../../harness/system/load.ts'
import type { Peer, Setup, Started } from '../../harness/system/protocol.ts'
import { eventOf } from './event.ts'

interface Message {
  readonly type: string
  readonly data: unknown
}

interface Consumer {
  reactor(options: { processorId: string; eachMessage(message: Message): Promise<void> }): unknown
  start(): Promise<void>
  stop(): Promise<void>
  close(): Promise<void>
}

interface Store {
  readonly schema: { migrate(): Promise<unknown> }
  appendToStream(stream: string, events: readonly Message[]): Promise<unknown>
  consumer(options: { pulling: { batchSize: number; pullingFrequencyInMs: number } }): Consumer
  close(): Promise<void>
}

interface Emmett {
  getPostgreSQLEventStore(url: string): Store
}

const pageEvents = 500

export function open(started: Started): Peer {
  let store: Store
  let consumer: Consumer | undefined
  let [appended, handled] = [0, 0]

  return {
    async prepare({ url }: Setup) {
      store = (await load<Emmett>('@event-driven-io/emmett-postgresql')).getPostgreSQLEventStore(url)
      await store.schema.migrate()
    },
    async fill(count) {
      for (let from = 0; from < count; from += 100) {
        const events = Array.from({ length: Math.min(100, count - from) }, (_, index) => eventOf(from + index))
        await store.appendToStream(
          `mail-${from}`,
          events.map(({ type, data }) => ({ type, data })),
        )
      }
      appended += count
    },
    async work() {
      consumer = store.consumer({ pulling: { batchSize: pageEvents, pullingFrequencyInMs: 0 } })
      consumer.reactor({
        processorId: 'bench',
        eachMessage: async ({ data }) => {
          handled++
          started((data as { readonly n: number }).n)
        },
      })
      consumer.start().catch((error: unknown) => {
        console.error(error)
        process.exit(1)
      })
    },
    remaining: async () => appended - handled,
    async close() {
      await consumer?.close()
      await store.close()
    },
  }
}
