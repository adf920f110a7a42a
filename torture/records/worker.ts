// A worker process under test: an ordinary worker that applies submissions, and the faults planned for it.

import { setTimeout as sleep } from 'node:timers/promises'
import { createPawl } from 'pawl'
import { keeperTesting } from 'pawl/testing'
import { besideProgram, underTest } from '../under-test.ts'
import { canaries } from './canaries.ts'
import { defineSets } from './sets.ts'

const { options, proc, history, logger } = underTest(canaries)
const { url, leaseMs, beatMs, concurrency } = options
keeperTesting.probeModule = besideProgram(import.meta.url, 'keeper-probe')

const pawl = createPawl({ databaseUrl: url, applicationName: proc, logger, connectTimeoutMs: 5000, queryTimeoutMs: 5000 })
defineSets(pawl)
pawl.on('job.refused', ({ id, fence, what }) => history.write('refused', { job: id, fence, what }))
pawl.on('job.dead', ({ id, kind }) => history.write('dead', { job: id, kind }))
pawl.on('worker.lost', ({ worker }) => history.write('lost', { worker }))

/** The server may be down at this very moment; a process manager would start us again. */
async function start() {
  for (;;) {
    const worker = pawl.jobs.worker({ name: proc, lease: leaseMs, beatMs, concurrency, pollMs: 200 })
    try {
      await worker.start()
      return worker
    } catch (error) {
      logger.error({ error: String(error) }, 'could not start')
      await sleep(100)
    }
  }
}

const worker = await start()
history.write('started', { pid: process.pid })

process.on('SIGTERM', () => {
  void worker.stop({ grace: 3000 }).then(async ({ stillRunning }) => {
    history.write('stopped', { stillRunning })
    if (stillRunning.length > 0) await worker.abandon().catch(() => undefined)
    process.exit(0)
  })
})
