// The packages as npm would publish them, installed into projects outside of the repository, and the programs that check them there.

import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, rmSync } from 'node:fs'
import { cp, mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { packageDir, packageNames, readManifest } from './exports.ts'
import { root } from './phase.ts'

const run = promisify(execFile)

export interface Tarball {
  /** The package's name. */
  readonly name: string
  readonly file: string
}

const quietly = ['--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error']

async function npm(args: readonly string[], cwd: string): Promise<string> {
  return (await run('npm', [...args, ...quietly], { cwd, maxBuffer: 2 ** 26, shell: process.platform === 'win32' })).stdout
}

/** `npm pack` of each, which builds it first. One after the other: they build in the same place. */
export async function packAll(folder: string): Promise<Tarball[]> {
  const tarballs: Tarball[] = []
  for (const each of packageNames) {
    const { name, version } = readManifest(each)
    rmSync(join(packageDir(each), 'dist'), { recursive: true, force: true })
    await npm(['pack', '--pack-destination', folder], packageDir(each))
    tarballs.push({ name, file: join(folder, `${name.replace('@', '').replace('/', '-')}-${version}.tgz`) })
  }
  return tarballs
}

export function temporaryFolder(name: string): Promise<string> {
  return mkdtemp(join(tmpdir(), `pawl-${name}-`))
}

/** What scripts/pack-checks locks, installed once below .pawl for all runs. */
export async function installChecks(): Promise<string> {
  const source = join(root, 'scripts', 'pack-checks')
  const lock = await readFile(join(source, 'package-lock.json'))
  const folder = join(root, '.pawl', 'pack-checks', createHash('sha256').update(lock).digest('hex').slice(0, 16))
  if (existsSync(folder)) return folder
  await mkdir(dirname(folder), { recursive: true })
  const staging = await mkdtemp(`${folder}-`)
  for (const file of ['package.json', 'package-lock.json']) await cp(join(source, file), join(staging, file))
  await npm(['ci', '--ignore-scripts'], staging)
  // Another run may have been quicker; its folder is the same.
  await rename(staging, folder).catch(() => rm(staging, { recursive: true, force: true }))
  return folder
}

/** A Node of npm's, of the major release that is asked for; this one if it is that. Undefined where npm has none for this platform. */
export function nodeOf(checks: string, major: number): string | undefined {
  if (process.versions.node.startsWith(`${major}.`)) return process.execPath
  const node = join(checks, 'node_modules', `node${major}-${process.platform}-${process.arch}`, 'bin', 'node')
  return existsSync(node) ? node : undefined
}

export interface Ended {
  readonly code: number | null
  readonly output: string
}

/** Commands that run in a shell of their own, as in a terminal. */
export class Terminal {
  readonly child: ChildProcess
  output = ''
  readonly #closed: Promise<unknown>

  constructor(child: ChildProcess) {
    this.child = child
    for (const stream of [child.stdout!, child.stderr!])
      stream.setEncoding('utf8').on('data', (text: string) => {
        this.output += text
      })
    this.#closed = once(child, 'close')
  }

  /** Waits for what it says; fails with all of it when it ends before. */
  async until(pattern: RegExp, timeoutMs = 90_000): Promise<RegExpMatchArray> {
    const deadline = performance.now() + timeoutMs
    for (;;) {
      const found = this.output.match(pattern)
      if (found !== null) return found
      if (this.child.exitCode !== null || performance.now() > deadline)
        throw new Error(`it never said ${pattern}:\n${this.output}`)
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }

  async ended(): Promise<Ended> {
    await this.#closed
    return { code: this.child.exitCode, output: this.output }
  }

  /** Ctrl-C: every process of the terminal hears it. */
  interrupt(signal: NodeJS.Signals = 'SIGINT'): void {
    try {
      process.kill(-this.child.pid!, signal)
    } catch {
      // All have ended.
    }
  }
}

export class Project {
  readonly folder: string
  readonly #node: string
  readonly #terminals: Terminal[] = []

  private constructor(folder: string, node: string) {
    this.folder = folder
    this.#node = node
  }

  /** An empty one, made by the commands of the page; for the names of the packages their tarballs stand. */
  static async install(parent: string, commands: string, tarballs: readonly Tarball[]): Promise<Project> {
    let text = commands
    for (const { name, file } of tarballs) text = text.replace(new RegExp(`(npm install.* )${name}(?=\\s)`), `$1${file}`)
    const made = new Project(parent, process.execPath)
    const { code, output } = await made.sh(`set -e\n${text.replaceAll('npm install', `npm install ${quietly.join(' ')}`)}\npwd`)
    if (code !== 0) throw new Error(output)
    return new Project(output.trim().split('\n').at(-1)!, process.execPath)
  }

  /** The same in another folder, for another Node. */
  async copy(folder: string, node: string): Promise<Project> {
    await cp(this.folder, folder, { recursive: true, verbatimSymlinks: true })
    return new Project(folder, node)
  }

  async add(packages: readonly string[]): Promise<void> {
    await npm(['install', '--save-dev', ...packages], this.folder)
  }

  async write(files: Iterable<readonly [path: string, text: string]>): Promise<void> {
    for (const [path, text] of files) await writeFile(join(this.folder, path), text)
  }

  /** A terminal in which these commands run. */
  open(commands: string, env: NodeJS.ProcessEnv = {}): Terminal {
    const path = `${dirname(this.#node)}:${process.env.PATH}`
    const { DATABASE_URL: _url, NODE_OPTIONS: _options, npm_config_user_agent: _agent, ...own } = process.env
    const child = spawn('sh', ['-c', commands], {
      cwd: this.folder,
      env: { ...own, PATH: path, NO_COLOR: '1', ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    })
    const terminal = new Terminal(child)
    this.#terminals.push(terminal)
    return terminal
  }

  sh(commands: string, env: NodeJS.ProcessEnv = {}): Promise<Ended> {
    return this.open(commands, env).ended()
  }

  /** Ends what still runs. */
  close(): void {
    for (const terminal of this.#terminals) terminal.interrupt('SIGKILL')
  }
}
