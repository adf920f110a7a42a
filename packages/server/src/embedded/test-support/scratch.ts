import { execFile } from 'node:child_process'
import { chmod, chown, mkdtemp, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import pg from 'pg'
import type { Account } from '../binaries/account.ts'
import { type EmbeddedOptions, type EmbeddedServer, startEmbedded } from '../index.ts'
import { isAlive, isPostmasterOf } from '../processes.ts'
import { readPidFile } from '../server/pidfile.ts'

const execFileText = promisify(execFile)

/** Directories and servers of one test file, all cleared away at its end. */
export class Scratch {
  readonly #dirs: string[] = []
  #template: Promise<string> | undefined

  /** An empty directory, open to others to pass through unless a mode says otherwise. */
  async dir(owner?: Account, mode = 0o755, parent = tmpdir()): Promise<string> {
    const dir = await realpath(await mkdtemp(join(parent, 'pawl-embedded-test-')))
    this.#dirs.push(dir)
    await chmod(dir, mode)
    if (owner !== undefined) await chown(dir, owner.uid, owner.gid)
    return dir
  }

  /** A directory with a cluster in it that does not run. Copied, since initdb takes a second and a copy a tenth of that. */
  async cluster(): Promise<string> {
    this.#template ??= this.#makeTemplate()
    const dir = join(await this.dir(), 'pawl')
    await execFileText('cp', ['-a', await this.#template, dir])
    return dir
  }

  async #makeTemplate(): Promise<string> {
    const dir = join(await this.dir(), 'pawl')
    const server = await startEmbedded({ dir, port: 0 })
    await server.stop()
    return dir
  }

  /** Starts on any free port, and collects the notices. */
  async start(options: EmbeddedOptions): Promise<{ server: EmbeddedServer; notices: string[] }> {
    const notices: string[] = []
    const server = await startEmbedded({ port: 0, ...options, onNotice: (line) => notices.push(line) })
    return { server, notices }
  }

  /** Ends whatever a failed test has left running: only postmasters whose data are in our own directories. */
  async clear(): Promise<void> {
    for (const dir of this.#dirs) {
      const found = await execFileText('find', [dir, '-name', 'postmaster.pid']).catch(() => ({ stdout: '' }))
      for (const file of found.stdout.split('\n').filter(Boolean)) await endPostmaster(join(file, '..'))
      await rm(dir, { recursive: true, force: true })
    }
  }
}

async function endPostmaster(dataDir: string): Promise<void> {
  const pid = (await readPidFile(dataDir))?.pid
  if (pid === undefined || !(await isAlive(pid)) || (await isPostmasterOf(pid, dataDir)) !== 'yes') return
  process.kill(pid, 'SIGQUIT')
  await until(`postmaster ${pid} has ended`, async () => !(await isAlive(pid)))
}

/** Waits for a condition, never for time; the deadline only turns a hang into a failure with a name. */
export async function until<T>(what: string, look: () => Promise<T | undefined | false>, deadlineMs = 20_000): Promise<T> {
  const deadline = performance.now() + deadlineMs
  for (;;) {
    const found = await look()
    if (found !== undefined && found !== false) return found as T
    if (performance.now() > deadline) throw new Error(`still waiting after ${deadlineMs} ms: ${what}`)
    await sleep(5)
  }
}

export async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url, ssl: false })
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end().catch(() => {})
  }
}
