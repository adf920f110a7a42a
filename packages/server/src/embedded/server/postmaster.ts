import { type ChildProcess, spawn } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Account } from '../binaries/account.ts'
import type { Binaries } from '../binaries/binaries.ts'
import { EmbeddedError } from '../errors.ts'
import type { Running } from './adopt.ts'
import { untilAnswer } from './answer.ts'
import { lastLines, logPath, openLog, readLog } from './log.ts'
import { freePort, isFree } from './port.ts'

export interface StartRequest {
  readonly dir: string
  readonly dataDir: string
  readonly password: string
  readonly port: number
  readonly settings: Readonly<Record<string, string>>
  readonly binaries: Binaries
  readonly runAs: Account | undefined
  readonly onNotice: (line: string) => void
}

type Attempt = { readonly ok: true; readonly running: Running } | { readonly ok: false; readonly lastWords: string }

const startMs = 60_000

/** Starts a postmaster and returns once it answers with our password. Called under the lock of the directory. */
export async function startPostmaster(request: StartRequest): Promise<Running> {
  const deadline = performance.now() + startMs
  let wanted = request.port
  for (;;) {
    const port = await freePort(wanted)
    if (wanted !== 0 && port !== wanted) request.onNotice(`Port ${wanted} is taken; PostgreSQL uses ${port} instead.`)
    const outcome = await attempt(request, port)
    if (outcome.ok) return outcome.running
    if (performance.now() > deadline) throw startError(request, outcome.lastWords)
    // Another program took the port between our probe and PostgreSQL's bind: try the next one.
    if (!(await isFree(port))) wanted = request.port === 0 ? 0 : port
    // Backends outlive a killed postmaster by the query that they are in. The new one must not run beside them, and refuses to.
    else if (outcome.lastWords.includes('pre-existing shared memory block')) await sleep(100)
    else throw startError(request, outcome.lastWords)
  }
}

async function attempt(request: StartRequest, port: number): Promise<Attempt> {
  const { dir, dataDir, password } = request
  const { child, logOffset, spawnError } = await spawnPostmaster(request, port)
  // Asked of the child rather than heard as an event: a postmaster that refuses may be gone before a listener is added.
  const isGone = async (): Promise<boolean> => child.pid === undefined || child.exitCode !== null || child.signalCode !== null
  let answers = false
  try {
    // Without a pid it could not be spawned, and is gone.
    const pid = child.pid ?? 0
    const answer = await untilAnswer({ pid, port, password, dataDir }, startMs, isGone)
    answers = answer.state === 'ours'
    if (answers) return { ok: true, running: { pid, port } }
    const why = answer.state === 'silent' ? `It is running but does not answer: ${answer.why}` : spawnError()
    return { ok: false, lastWords: `${await readLog(dir, logOffset)}\n${why}` }
  } finally {
    if (!answers) child.kill('SIGQUIT')
  }
}

interface Spawned {
  readonly child: ChildProcess
  readonly logOffset: number
  /** Why it could not even be spawned; empty when it could. */
  readonly spawnError: () => string
}

/**
 * Detached, so that it has a process group of its own: Ctrl-C in the terminal goes to the whole group of the parent, which wants to
 * drain first and still needs the database for that. Unreferenced, so that it does not keep the parent from ending.
 */
async function spawnPostmaster(request: StartRequest, port: number): Promise<Spawned> {
  const { dir, dataDir, settings, binaries, runAs } = request
  const log = await openLog(dir)
  try {
    const child = spawn(join(binaries.bin, 'postgres'), ['-D', dataDir, ...serverArguments(settings, port)], {
      cwd: binaries.bin,
      env: binaries.env,
      detached: true,
      windowsHide: true,
      stdio: ['ignore', log.file.fd, log.file.fd],
      ...runAs,
    })
    child.unref()
    let spawnError = ''
    child.once('error', (error) => {
      spawnError = error.message
    })
    return { child, logOffset: log.offset, spawnError: () => spawnError }
  } catch (cause) {
    throw startError(request, String(cause))
  } finally {
    await log.file.close()
  }
}

/** Loopback only, and no Unix socket: its usual place is shared by all users, and paths to other places are often too long for one. */
function serverArguments(settings: Readonly<Record<string, string>>, port: number): string[] {
  const all = { ...settings, port: String(port), listen_addresses: '127.0.0.1', unix_socket_directories: '' }
  return Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`])
}

function startError({ dir, dataDir }: StartRequest, lastWords: string): EmbeddedError {
  return new EmbeddedError(
    'start_failed',
    `PostgreSQL did not start on ${dataDir}. The last lines of ${logPath(dir)}:\n${lastLines(lastWords, 15)}\nFix that and start again.`,
  )
}
