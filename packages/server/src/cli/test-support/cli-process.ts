// The real command as a child process, compiled as it is published: run to its end, or in the hands of a test.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { compile } from '../../../../../scripts/compile.ts'
import { root } from '../../../../../scripts/phase.ts'
import { fingerprint } from '../../../../../scripts/results.ts'
import { type CliEnd, type CliOptions, commandEnv, parsed } from './cli.ts'

let main: Promise<string> | undefined

/** A folder from which 'pawl' is the copy that the command has, for modules that import it. */
export async function moduleFolder(): Promise<string> {
  return join(await compiledMain(), '..', '..', '..', '..', '..', '..')
}

/** Compiled once for all test files: it starts five times as fast as from TypeScript, and commands are started often here. */
function compiledMain(): Promise<string> {
  main ??= compiled()
  return main
}

async function compiled(): Promise<string> {
  // From here it finds the same packages as the server does.
  const builds = join(root, 'packages', 'server', 'node_modules', '.pawl-cli-builds')
  const folder = join(
    builds,
    fingerprint([
      'packages/pawl/src',
      'packages/pawl/migrations',
      'packages/pawl/schema.json',
      'packages/pawl/package.json',
      'packages/server/src',
      'tsconfig.json',
      'scripts/compile.ts',
      'scripts/inline.ts',
    ]).slice(0, 16),
  )
  const found = join(folder, 'node_modules', '@pawl', 'server', 'dist', 'cli', 'main.cjs')
  if (existsSync(found)) return found
  await mkdir(builds, { recursive: true })
  const staging = await mkdtemp(join(builds, 'new-'))
  const ends = await Promise.all([
    compile('pawl', join(staging, 'node_modules', 'pawl')),
    compile('server', join(staging, 'node_modules', '@pawl', 'server')),
  ])
  for (const { ok, output } of ends) if (!ok) throw new Error(output)
  // Another test file may have been quicker; its build is the same.
  await rename(staging, folder).catch(() => rm(staging, { recursive: true, force: true }))
  await removeOld(builds)
  return found
}

async function removeOld(builds: string): Promise<void> {
  for (const name of await readdir(builds)) {
    const { mtimeMs } = await stat(join(builds, name)).catch(() => ({ mtimeMs: Date.now() }))
    if (Date.now() - mtimeMs > 3_600_000) await rm(join(builds, name), { recursive: true, force: true })
  }
}

export interface ProcessOptions extends CliOptions {
  readonly cwd?: string
  /** Another way to start it than the compiled main module. */
  readonly through?: readonly string[]
  /** Runs it on a terminal of its own, and types this. */
  readonly typed?: string
}

function cleanEnv(env: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  return { ...process.env, ...commandEnv, ...env }
}

/** A command that is still running. */
export class RunningCli {
  readonly child: ChildProcess
  stdout = ''
  stderr = ''
  readonly #closed: Promise<unknown>

  static async start(args: readonly string[], { env, cwd, through }: ProcessOptions = {}): Promise<RunningCli> {
    const program = through ?? [await compiledMain()]
    return new RunningCli(
      spawn(process.execPath, [...program, ...args], { env: cleanEnv(env), stdio: 'pipe', ...(cwd ? { cwd } : {}) }),
    )
  }

  constructor(child: ChildProcess) {
    this.child = child
    this.child.stdout!.setEncoding('utf8').on('data', (text: string) => (this.stdout += text))
    this.child.stderr!.setEncoding('utf8').on('data', (text: string) => (this.stderr += text))
    this.#closed = once(this.child, 'close')
    onTestFinished(() => void this.child.kill('SIGKILL'))
  }

  /** The JSON objects on stdout so far. */
  events(): Record<string, unknown>[] {
    return this.stdout
      .split('\n')
      .slice(0, -1)
      .flatMap((line) => (line.startsWith('{') ? [JSON.parse(line) as Record<string, unknown>] : []))
  }

  /** Waits for something in what it says; fails with all that it said when it ends before. */
  async until<T>(what: string, look: () => T | undefined | false): Promise<T> {
    const deadline = performance.now() + 60_000
    for (;;) {
      const seen = look()
      if (seen !== undefined && seen !== false) return seen
      if (this.child.exitCode !== null || performance.now() > deadline)
        throw new Error(`never ${what}.\nstdout:\n${this.stdout}\nstderr:\n${this.stderr}`)
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
  }

  signal(signal: NodeJS.Signals): void {
    this.child.kill(signal)
  }

  async ended(): Promise<CliEnd> {
    await this.#closed
    return { code: this.child.exitCode, stdout: this.stdout, stderr: this.stderr }
  }
}

export async function pawl(args: readonly string[], options: ProcessOptions = {}): Promise<CliEnd> {
  if (options.typed !== undefined) return onTerminal(args, options)
  const running = await RunningCli.start(args, options)
  running.child.stdin!.end(options.input ?? '')
  return running.ended()
}

export async function pawlJson<T = Record<string, unknown>>(args: readonly string[], options: ProcessOptions = {}): Promise<T> {
  return parsed(await pawl([...args, '-o', 'json'], options))
}

/** util-linux's script gives it a terminal; what it prints on both streams comes back as stdout. */
async function onTerminal(args: readonly string[], { env, typed = '' }: ProcessOptions): Promise<CliEnd> {
  const command = [process.execPath, await compiledMain(), ...args].map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ')
  const child = spawn('script', ['-qec', command, '/dev/null'], { env: { ...cleanEnv(env), TERM: 'xterm' }, stdio: 'pipe' })
  onTestFinished(() => void child.kill('SIGKILL'))
  let stdout = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    const wasAsked = stdout.includes('[y/N]')
    stdout += text
    if (!wasAsked && stdout.includes('[y/N]')) child.stdin.write(typed)
  })
  await once(child, 'close')
  return { code: child.exitCode, stdout, stderr: '' }
}
