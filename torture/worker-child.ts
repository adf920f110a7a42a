// A worker process under test: an ordinary worker, the kinds of the storm, and the faults planned for it.

import { appendFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { createPawl, type Logger } from 'pawl'
import { keeperTesting } from 'pawl/testing'
import { plantInProcess } from './canaries/plant.ts'
import { childOptions, procOf } from './child.ts'
import { ControlClient } from './control.ts'
import { History } from './history.ts'
import { defineKinds } from './kinds.ts'
import { hardyPool } from './pool.ts'
import { installFaults } from './probe-faults.ts'

const options = childOptions()
const { dir, slot, url, leaseMs, beatMs, concurrency, controlPort } = options
const proc = procOf(options)
const history = new History(dir, proc)
const log =
  (level: string) =>
  (fields: Parameters<Logger['warn']>[0], message: string): void =>
    appendFileSync(join(dir, `${slot}.log`), `${JSON.stringify({ wall: Date.now(), proc, level, message, ...fields })}\n`)
const logger: Logger = { debug() {}, info() {}, warn: log('warn'), error: log('error') }

plantInProcess(options.canary, slot)
keeperTesting.probeModule = new URL(
  import.meta.url.endsWith('.ts') ? './keeper-probe.ts' : './keeper-probe.js',
  import.meta.url,
).href
// Without its supervisor nobody would ever end it.
const control = new ControlClient(controlPort, () => process.kill(process.pid, 'SIGKILL'))
const pool = hardyPool({ url, name: `${proc} own`, max: concurrency })
const pawl = createPawl({ databaseUrl: url, applicationName: proc, logger, connectTimeoutMs: 5000, queryTimeoutMs: 5000 })
defineKinds(pawl, { dir, history, pool })
pawl.on('job.refused', ({ id, fence, what }) => history.write('refused', { job: id, fence, what }))
pawl.on('job.dead', ({ id, kind }) => history.write('dead', { job: id, kind }))
pawl.on('worker.lost', ({ worker }) => history.write('lost', { worker }))
pawl.on('worker.opened', ({ worker }) => history.write('opened', { worker }))

/** The server may be down at this very moment; a process manager would start us again. */
async function start() {
  for (;;) {
    const worker = pawl.jobs.worker({
      name: proc,
      lease: leaseMs,
      beatMs,
      concurrency,
      pollMs: 300,
      bufferMs: 3000,
      touchMs: 100,
    })
    try {
      await worker.start()
      return worker
    } catch (error) {
      log('error')({ error: String(error) }, 'could not start')
      await sleep(100)
    }
  }
}

process.on('unhandledRejection', (error) => {
  log('error')({ error: error instanceof Error ? (error.stack ?? error.message) : String(error) }, 'unhandled rejection')
  process.exit(1)
})
installFaults({ slot, faults: options.faults, history, control })
const worker = await start()
history.write('started', { pid: process.pid })

process.on('SIGTERM', () => {
  void worker.stop({ grace: 3000 }).then(async ({ stillRunning }) => {
    history.write('stopped', { stillRunning })
    if (stillRunning.length > 0) await worker.abandon().catch(() => undefined)
    process.exit(0)
  })
})
