// A process that migrates when it is told to: says 'ready', waits for a line on stdin, then prints its report as one line of JSON.

import { once } from 'node:events'
import { migrate } from 'pawl/admin'

process.stdout.write('ready\n')
await once(process.stdin, 'data')
const report = await migrate({
  url: process.argv[2]!,
  pooler: 'none',
  connectTimeoutMs: 30_000,
  queryTimeoutMs: 60_000,
  applicationName: 'pawl migrate process',
})
process.stdout.write(`${JSON.stringify(report)}\n`)
process.exit(0)
