// A worker in a process of its own. The example kills one.

import { createPawl, silentLogger } from 'pawl'
import pg from 'pg'
import { defineReparse } from './portal.ts'

const [databaseUrl, storage, name] = process.argv.slice(2)
const pawl = createPawl({ databaseUrl: databaseUrl!, logger: silentLogger })
defineReparse(pawl, new pg.Pool({ connectionString: databaseUrl }), storage!)
await pawl.worker({ name: name! }).start()
