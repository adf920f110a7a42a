// A worker in a process of its own. The example kills it.

import { createPawl, silentLogger } from 'pawl'
import { defineWasteRecords } from './summary-logs.ts'

const pawl = createPawl({ databaseUrl: process.argv[2]!, logger: silentLogger })
defineWasteRecords(pawl)
await pawl.worker({ name: process.argv[3] ?? 'worker' }).start()
