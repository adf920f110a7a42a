// A worker in a process of its own: it brings the stored bodies after renames. The example kills one in the middle of that.

import { createPawl, silentLogger } from 'pawl'
import { installProbe } from 'pawl/testing'
import { defineTypes } from './types.ts'

const [databaseUrl, stopAt] = process.argv.slice(2)
const pawl = createPawl({ databaseUrl: databaseUrl!, logger: silentLogger })
defineTypes(pawl)

// In the transaction number `stopAt` of the refresh, after its writes and before its commit, it says so and waits to be killed.
if (stopAt !== undefined) {
  let transactions = 0
  installProbe((point) => {
    if (point !== 'documents.refresh.written' || ++transactions < Number(stopAt)) return undefined
    process.stdout.write('in the middle\n')
    return new Promise(() => undefined)
  })
}
await pawl.worker({ name: stopAt === undefined ? 'survivor' : 'victim' }).start()
