// A worker under test, from its start to its end: what happens to it goes into the history.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Pawl, WorkerOptions } from 'pawl'
import type { UnderTest } from './under-test.ts'

export async function serve(pawl: Pawl, options: WorkerOptions, { history, logger }: UnderTest): Promise<void> {
  pawl.on('job.refused', ({ id, fence, what }) => history.write('refused', { job: id, fence, what }))
  pawl.on('job.dead', ({ id, kind }) => history.write('dead', { job: id, kind }))
  pawl.on('worker.lost', ({ worker }) => history.write('lost', { worker }))
  pawl.on('worker.opened', ({ worker }) => history.write('opened', { worker }))

  /** The server may be down at this very moment; a process manager would start us again. */
  async function start() {
    for (;;) {
      const worker = pawl.jobs.worker(options)
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
}
