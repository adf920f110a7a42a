// A process that enqueues 400 MB of payloads from a generator, and prints how many ids it got.

import { createPawl } from 'pawl'

const [databaseUrl, given] = process.argv.slice(2)
const count = Number(given)

async function* payloads() {
  for (let n = 0; n < count; n++) yield { n, text: String(n % 10).repeat(2000) }
}

const pawl = createPawl({ databaseUrl: databaseUrl! })
const { ids } = await pawl.jobs.enqueueMany('many', payloads())
process.stdout.write(`${ids.length}\n`)
await pawl.close()
