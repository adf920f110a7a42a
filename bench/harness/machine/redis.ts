// Debian's redis-server for BullMQ: the installed one, or its packages unpacked into a folder of our own, which needs no rights.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { createConnection, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pause } from './clock.ts'

const packages = ['redis-server', 'redis-tools', 'liblzf1', 'libjemalloc2']

export interface Redis {
  readonly port: number
  readonly pid: number
  readonly release: string
  /** Forgets everything that the last sample left. */
  flush(): Promise<void>
  stop(): Promise<void>
}

/** Gives a running server or, in one sentence, why there is none. */
export async function startRedis(folder: string): Promise<Redis | string> {
  const found = find(folder) ?? unpack(folder)
  if (typeof found === 'string') return found
  const version = spawnSync(found.file, ['--version'], { env: found.env, encoding: 'utf8' })
  if (version.status !== 0) return `redis-server does not run here: ${(version.stderr ?? '').trim() || version.error?.message}`
  const dir = mkdtempSync(join(tmpdir(), 'pawl-bench-redis-'))
  const port = await freePort()
  const settings = {
    port,
    bind: '127.0.0.1',
    dir,
    appendonly: 'yes',
    appendfsync: 'everysec',
    save: '',
    daemonize: 'no',
    loglevel: 'warning',
  }
  const server = spawn(
    found.file,
    Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)]),
    { env: found.env, stdio: 'ignore' },
  )
  if (!(await answers(port))) {
    server.kill('SIGKILL')
    return 'redis-server did not answer within 10 s of its start'
  }
  return {
    port,
    pid: server.pid!,
    release: /v=([\d.]+)/.exec(version.stdout)?.[1] ?? 'unknown',
    flush: () => flush(port),
    stop: () => stop(server, dir),
  }
}

interface Found {
  readonly file: string
  readonly env: NodeJS.ProcessEnv
}

function find(folder: string): Found | undefined {
  const installed = (process.env.PATH ?? '').split(':').map((path) => join(path, 'redis-server'))
  const file = installed.find((path) => existsSync(path))
  return file === undefined ? unpacked(folder) : { file, env: process.env }
}

function unpacked(folder: string): Found | undefined {
  const file = join(folder, 'redis', 'usr', 'bin', 'redis-server')
  if (!existsSync(file)) return undefined
  const lib = join(folder, 'redis', 'usr', 'lib')
  const libraries = readdirSync(lib, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map((entry) => join(lib, entry.name))
  return { file, env: { ...process.env, LD_LIBRARY_PATH: libraries.join(':') } }
}

function unpack(folder: string): Found | string {
  const debs = join(folder, 'debs')
  mkdirSync(debs, { recursive: true })
  const download = () => spawnSync('apt-get', ['download', '-q', ...packages], { cwd: debs, encoding: 'utf8' })
  let got = download()
  if (got.error !== undefined) return 'redis-server is not installed, and this system has no apt-get to fetch it with'
  if (got.status !== 0 && process.getuid?.() === 0) {
    spawnSync('apt-get', ['update', '-q'], { stdio: 'ignore' })
    got = download()
  }
  if (got.status !== 0)
    return `redis-server is not installed and apt-get could not download it: ${got.stderr.trim().split('\n').at(-1)}`
  for (const deb of readdirSync(debs)) {
    const done = spawnSync('dpkg', ['-x', join(debs, deb), join(folder, 'redis')], { encoding: 'utf8' })
    if (done.status !== 0) return `dpkg could not unpack ${deb}: ${done.stderr?.trim()}`
  }
  return unpacked(folder) ?? 'the unpacked packages of redis hold no redis-server'
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer().once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const address = server.address()
      server.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0))
    })
  })
}

async function answers(port: number): Promise<boolean> {
  for (let tries = 0; tries < 200; tries++) {
    const isOpen = await new Promise<boolean>((resolve) => {
      const socket = createConnection({ port, host: '127.0.0.1' }, () => resolve(true)).on('error', () => resolve(false))
      socket.once('connect', () => socket.destroy())
    })
    if (isOpen) return true
    await pause(50)
  }
  return false
}

/** One inline command; its answer comes when the data is gone. */
function flush(port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = createConnection({ port, host: '127.0.0.1' }, () => socket.write('FLUSHALL SYNC\r\n'))
    socket.once('error', reject)
    socket.once('data', (answer) => {
      socket.destroy()
      if (answer.toString().startsWith('+OK')) resolve()
      else reject(new Error(`FLUSHALL: ${answer}`))
    })
  })
}

async function stop(server: ChildProcess, dir: string): Promise<void> {
  const ended = new Promise((resolve) => server.once('exit', resolve))
  if (server.exitCode === null && server.signalCode === null) {
    server.kill('SIGKILL')
    await ended
  }
  rmSync(dir, { recursive: true, force: true })
}
