// One way to read the event table, polled every few milliseconds. The variant says which.

import { createPawl } from 'pawl'
import type { DatabaseOptions } from '../../../packages/pawl/src/db/driver.ts'
import { LogReader, MaxIdReader, type Reader, XminReader } from '../../../packages/pawl/test/support/log-readers.ts'
import { pause } from '../../harness/machine/clock.ts'
import type { Peer, Setup, Started } from '../../harness/system/protocol.ts'
import { GapWaitReader } from './gap-wait.ts'

const pollMs = 10

const readers: Readonly<Record<string, new (database: DatabaseOptions) => Reader>> = {
  pawl: LogReader,
  'max(id)': MaxIdReader,
  'snapshot xmin': XminReader,
  'gap wait': GapWaitReader,
}

export function open(started: Started, variant = ''): Peer {
  let reader: Reader
  let loop: Promise<void> | undefined
  let isStopping = false

  async function read(): Promise<void> {
    for (let told = 0; !isStopping; await pause(pollMs)) {
      await reader.poll()
      for (; told < reader.seen.length; told++) started(reader.seen[told]!.n)
    }
  }

  return {
    async prepare({ url }: Setup) {
      const pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      reader = new readers[variant]!(pawl.config.database)
      await pawl.close()
    },
    async work() {
      loop = read()
      loop.catch((error: unknown) => {
        console.error(error)
        process.exit(1)
      })
    },
    async close() {
      isStopping = true
      await loop
      await reader.close()
    },
  }
}
