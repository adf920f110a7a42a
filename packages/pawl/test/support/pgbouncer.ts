// pgbouncer in transaction mode in front of a test's database, on a free port of the loopback.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { onTestFinished } from 'vitest'
import { until } from './database.ts'
import type { DebianProgram } from './debian.ts'

export interface PgBouncer {
  readonly url: string
  readonly pid: number
}

/** Ends with the test. The pool is smaller than the clients together, so that no session can be relied on. */
export async function startPgBouncer(
  program: Extract<DebianProgram, { ok: true }>,
  databaseUrl: string,
  poolSize = 4,
): Promise<PgBouncer> {
  const server = new URL(databaseUrl)
  const port = await freePort()
  const dir = await mkdtemp(join(tmpdir(), 'pawl-pgbouncer-'))
  await chmod(dir, 0o755)
  const config = join(dir, 'pgbouncer.ini')
  // No ignore_startup_parameters: a parameter that a transaction pooler refuses must not be sent.
  await writeFile(
    config,
    `[databases]
* = host=${server.hostname} port=${server.port} user=${server.username} password=${decodeURIComponent(server.password)}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = ${poolSize}
max_client_conn = 200
server_reset_query_always = 0
`,
  )
  await chmod(config, 0o644)
  // As root it changes to an account without rights by itself, and refuses to run otherwise.
  const child = spawn(program.path, [...(process.getuid?.() === 0 ? ['-u', 'nobody'] : []), config], {
    cwd: dir,
    env: { ...process.env, ...program.env },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const ended = once(child, 'exit')
  let log = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    log = (log + text).slice(-5000)
  })
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
    await rm(dir, { recursive: true, force: true })
  })
  const url = new URL(databaseUrl)
  url.port = String(port)
  await until('pgbouncer answers', async () => {
    if (child.exitCode !== null) throw new Error(`pgbouncer ended: ${log}`)
    return answers(url.href)
  })
  return { url: url.href, pid: child.pid! }
}

async function answers(url: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 1000 })
  client.on('error', () => undefined)
  try {
    await client.connect()
    await client.query('select 1')
    return true
  } catch {
    return false
  } finally {
    await client.end().catch(() => undefined)
  }
}

export async function freePort(): Promise<number> {
  const server = createServer()
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}
