// Every PostgreSQL that is installed on this machine besides the embedded one, each in a cluster of its own: the migrations run on it, make
// the very schema of schema.json, and a job runs. Where there is none, the test is skipped.

import { execFile, spawn } from 'node:child_process'
import { chown, mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { createPawl, silentLogger } from 'pawl'
import pg from 'pg'
import { expect, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { readSchema, releasedSchema } from './schema.ts'

const run = promisify(execFile)
const debian = '/usr/lib/postgresql'
const installed = (await readdir(debian).catch(() => [])).filter((release) => Number(release) >= 15)

/** PostgreSQL refuses to run as root, so then it runs as nobody. */
async function unprivileged(): Promise<{ uid?: number; gid?: number }> {
  if (process.getuid?.() !== 0) return {}
  const nobody = (await readFile('/etc/passwd', 'utf8')).split('\n').find((line) => line.startsWith('nobody:'))
  const [, , uid, gid] = nobody?.split(':') ?? []
  return { uid: Number(uid), gid: Number(gid) }
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}

async function withServer(bin: string, use: (url: string) => Promise<void>): Promise<void> {
  const account = await unprivileged()
  const dir = await mkdtemp(join(tmpdir(), 'pawl-release-'))
  if (account.uid !== undefined) await chown(dir, account.uid, account.gid!)
  const data = join(dir, 'data')
  await run(join(bin, 'initdb'), ['-D', data, '-U', 'owner', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync'], {
    ...account,
    cwd: dir,
  })
  const port = await freePort()
  const settings = ['listen_addresses=127.0.0.1', `unix_socket_directories=${dir}`, 'fsync=off']
  const server = spawn(join(bin, 'postgres'), ['-D', data, '-p', `${port}`, ...settings.flatMap((each) => ['-c', each])], {
    ...account,
    cwd: dir,
    stdio: 'ignore',
  })
  const ended = new Promise((resolve) => server.once('close', resolve))
  try {
    const url = `postgres://owner@127.0.0.1:${port}/postgres`
    await until('the server answers', async () => {
      const client = new pg.Client({ connectionString: url })
      client.on('error', () => undefined)
      return client.connect().then(
        () => client.end().then(() => true),
        () => false,
      )
    })
    await use(url)
  } finally {
    server.kill('SIGQUIT')
    await ended
    await rm(dir, { recursive: true, force: true })
  }
}

test.skipIf(installed.length === 0).each(installed.length === 0 ? ['(none installed)'] : installed)(
  'PostgreSQL %s gets the same schema and runs a job',
  { timeout: 120_000 },
  async (release) => {
    await withServer(join(debian, release, 'bin'), async (url) => {
      const pawl = createPawl({ databaseUrl: url, logger: silentLogger })
      await pawl.migrate()
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      expect(await readSchema(client)).toEqual(releasedSchema())
      await client.end()
      pawl.jobs.define('double', { run: async (job) => (job.payload as { n: number }).n * 2 })
      const { id } = await pawl.jobs.enqueue('double', { n: 21 })
      const worker = pawl.worker()
      await worker.start()
      await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
      await worker.stop()
      expect(await pawl.jobs.get(id)).toMatchObject({ result: 42 })
      await pawl.close()
    })
  },
)
