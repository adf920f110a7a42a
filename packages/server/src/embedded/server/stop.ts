import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Binaries } from '../binaries/binaries.ts'
import { run } from '../binaries/run.ts'
import { codeOf, EmbeddedError } from '../errors.ts'
import { startOf } from '../processes.ts'

export interface StopRequest {
  readonly pid: number
  /** When that process started, so that a later process with the same pid is never signalled. */
  readonly started: string | undefined
  readonly dataDir: string
  readonly mode: 'fast' | 'immediate'
  readonly binaries: Binaries
}

const stopMs = 60_000
const pollMs = 10

/**
 * Stops exactly this postmaster, and returns once its process has ended. It takes no lock: an impatient stop('immediate') must not
 * wait for a stop('fast') that hangs, and a start at the same time waits for a postmaster that is going down.
 */
export async function stopPostmaster(request: StopRequest): Promise<void> {
  if (!(await isRunning(request))) return
  await signal(request)
  const deadline = performance.now() + stopMs
  while (await isRunning(request)) {
    if (performance.now() > deadline) throw stopError(request, `did not stop within ${stopMs / 1000} s`)
    await sleep(pollMs)
  }
}

async function isRunning({ pid, started }: StopRequest): Promise<boolean> {
  const found = await startOf(pid)
  return found !== undefined && found === started
}

/** A signal works even when the directory has been deleted, where pg_ctl would find no pid. Windows has no signals, so pg_ctl there. */
async function signal(request: StopRequest): Promise<void> {
  const { pid, mode, dataDir, binaries } = request
  if (process.platform === 'win32') {
    const args = ['stop', '-D', dataDir, '-m', mode, '-W']
    const result = await run(join(binaries.bin, 'pg_ctl'), args, { cwd: binaries.bin, env: binaries.env, runAs: undefined })
    if (!result.ok) throw stopError(request, `could not be stopped: ${result.output}`)
    return
  }
  try {
    process.kill(pid, mode === 'fast' ? 'SIGINT' : 'SIGQUIT')
  } catch (error) {
    if (codeOf(error) !== 'ESRCH') throw stopError(request, `could not be stopped: ${String(error)}`)
  }
}

function stopError({ pid, dataDir, mode }: StopRequest, why: string): EmbeddedError {
  const advice = mode === 'fast' ? `Try stop('immediate'): it stops at once and recovers at the next start` : 'Kill the process'
  return new EmbeddedError('stop_failed', `PostgreSQL (pid ${pid}) on ${dataDir} ${why}. ${advice}; no data is lost.`)
}
