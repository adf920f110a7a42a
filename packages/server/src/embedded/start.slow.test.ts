import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile, readlink, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { ensureBinaries } from './binaries/binaries.ts'
import { startEmbedded } from './index.ts'
import { isAlive, startOf } from './processes.ts'
import { readPidFile } from './server/pidfile.ts'
import { stopPostmaster } from './server/stop.ts'
import { Launch } from './test-support/process.ts'
import { query, Scratch, until } from './test-support/scratch.ts'

const scratch = new Scratch()
afterAll(() => scratch.clear())

const signalsAndEnds = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'exit', 'beforeExit', 'uncaughtException'] as const

describe('a first start in an empty directory', () => {
  test('makes a guarded cluster; a second start finds the data again', async () => {
    const listeners = signalsAndEnds.map((name) => process.listenerCount(name))
    const dir = join(await scratch.dir(), 'not', 'yet', 'there')
    const { server } = await scratch.start({ dir, settings: { work_mem: '7MB' } })
    const password = (await readFile(join(dir, 'password'), 'utf8')).trim()
    expect(server).toMatchObject({ how: 'started', dir, dataDir: join(dir, 'pgdata') })
    expect(server.url).toBe(`postgres://pawl:${password}@127.0.0.1:${server.port}/pawl`)

    expect(await settingsOf(server.url)).toEqual({
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      password_encryption: 'scram-sha-256',
      data_checksums: 'on',
      server_encoding: 'UTF8',
      max_connections: '200',
      wal_level: 'logical',
      fsync: 'on',
      work_mem: '7MB',
    })
    expect(
      await query(server.url, `select datlocprovider as provider, datlocale as locale from pg_database where datname = 'pawl'`),
    ).toEqual([{ provider: 'b', locale: 'C.UTF-8' }])
    expect(await query(server.url, 'select distinct auth_method from pg_hba_file_rules')).toEqual([
      { auth_method: 'scram-sha-256' },
    ])
    expect(await modesOf(dir, ['password', 'pgdata', 'postgres.log'])).toEqual(['600', '700', '600'])
    await expect(query(server.url.replace(password, 'guess'), 'select 1')).rejects.toMatchObject({ code: '28P01' })

    await query(server.url, 'create table kept as select 42 as answer')
    await server.stop()
    expect(await isAlive(server.pid)).toBe(false)
    await server.stop()

    const again = (await scratch.start({ dir, database: `it's "other"` })).server
    expect(again.how).toBe('started')
    expect(await query(again.url.replace(/[^/]*$/, 'pawl'), 'select answer from kept')).toEqual([{ answer: 42 }])
    expect(await query(again.url, 'select current_database() as name')).toEqual([{ name: `it's "other"` }])
    await again.stop()
    expect(signalsAndEnds.map((name) => process.listenerCount(name))).toEqual(listeners)
  })

  test('an initdb that was killed is run again and its remains removed', async () => {
    const dir = await killedHalfWay()
    // It outlives its parent by a moment, and what it still writes would be no remains yet.
    await until('initdb has ended as well', async () => !(await isUsed(join(dir, 'pgdata.new-'))))
    const { server } = await scratch.start({ dir })
    expect(server.how).toBe('started')
    expect((await readdir(dir)).filter((name) => !name.startsWith('lock.')).sort()).toEqual([
      'password',
      'pgdata',
      'postgres.log',
    ])
    await server.stop()
  })

  test('variables for another PostgreSQL and a strict umask change nothing', async () => {
    const env = {
      PGDATA: '/nowhere',
      PGPORT: '1',
      PGHOST: 'elsewhere',
      PGSSLMODE: 'require',
      PGUSER: 'eve',
      LD_LIBRARY_PATH: '/nowhere',
      LC_ALL: 'xx_YY',
    }
    const launch = new Launch({ dir: await scratch.dir(), port: 0, env, through: ['sh', '-c', 'umask 077; exec "$@"', 'sh'] })
    expect((await launch.running()).how).toBe('started')
    await launch.stop()
  })
})

describe('what cannot work is refused with a reason and advice', () => {
  test('data of another major release', async () => {
    const dir = await scratch.cluster()
    await writeFile(join(dir, 'pgdata', 'PG_VERSION'), '17\n')
    const failure = startEmbedded({ dir, port: 0 })
    await expect(failure).rejects.toMatchObject({ name: 'EmbeddedError', code: 'other_major' })
    await expect(failure).rejects.toThrow(/is of PostgreSQL 17, .* has PostgreSQL 18.*pg_dump/)
    expect(await readFile(join(dir, 'pgdata', 'PG_VERSION'), 'utf8')).toBe('17\n')
  })

  test('a directory that holds something else', async () => {
    const dir = await scratch.cluster()
    await rm(join(dir, 'pgdata', 'PG_VERSION'))
    await expect(startEmbedded({ dir, port: 0 })).rejects.toMatchObject({ code: 'not_a_data_directory' })
  })

  test("an unknown setting fails with PostgreSQL's message and is not kept", async () => {
    const dir = await scratch.cluster()
    const failure = startEmbedded({ dir, port: 0, settings: { no_such_setting: '1' } })
    await expect(failure).rejects.toMatchObject({
      code: 'start_failed',
      message: expect.stringContaining('unrecognized configuration parameter "no_such_setting"'),
    })
    const { server } = await scratch.start({ dir })
    await server.stop()
  })

  test('a lost password file', async () => {
    const dir = await scratch.cluster()
    await rm(join(dir, 'password'))
    await expect(startEmbedded({ dir, port: 0 })).rejects.toMatchObject({ code: 'password_missing' })
  })

  test('a changed password file, without leaving a server behind', async () => {
    const dir = await scratch.cluster()
    await writeFile(join(dir, 'password'), 'not this one')
    await expect(startEmbedded({ dir, port: 0 })).rejects.toMatchObject({ code: 'password_refused' })
    await until('the server has ended', async () => !(await readdir(join(dir, 'pgdata'))).includes('postmaster.pid'))
  })
})

describe('stopping', () => {
  test("after stop('immediate') the next start recovers what was committed", async () => {
    const dir = await scratch.cluster()
    const { server } = await scratch.start({ dir })
    await query(server.url, 'create table kept as select 42 as answer')
    await server.stop('immediate')
    expect(await isAlive(server.pid)).toBe(false)
    const again = (await scratch.start({ dir })).server
    expect(await query(again.url, 'select answer from kept')).toEqual([{ answer: 42 }])
    await again.stop()
  })

  test('an old handle does not stop a later server', async () => {
    const dir = await scratch.cluster()
    const old = (await scratch.start({ dir })).server
    await old.stop()
    const { server } = await scratch.start({ dir })
    await old.stop()
    expect(await query(server.url, 'select 1 as one')).toEqual([{ one: 1 }])
    await server.stop()
  })

  test('never signals a younger process with the same pid', async () => {
    const stranger = spawn('sleep', ['600'], { stdio: 'ignore' })
    onTestFinished(() => void stranger.kill())
    await once(stranger, 'spawn')
    await stopPostmaster({
      pid: stranger.pid!,
      started: 'earlier',
      dataDir: '/nowhere',
      mode: 'fast',
      binaries: await ensureBinaries(),
    })
    expect(await isAlive(stranger.pid!)).toBe(true)
  })

  test('works when the directory has been deleted under the server', async () => {
    const dir = await scratch.cluster()
    const { server } = await scratch.start({ dir })
    // The server makes new files in the same time.
    await rm(dir, { recursive: true, maxRetries: 20, retryDelay: 10 })
    await server.stop('immediate')
    expect(await isAlive(server.pid)).toBe(false)
  })

  test('a start during a stop waits for the end and then starts', async () => {
    const dir = await scratch.cluster()
    const first = (await scratch.start({ dir })).server
    const stopping = first.stop()
    await until('it has been told to stop', async () => (await readPidFile(first.dataDir))?.status !== 'ready')
    const { server } = await scratch.start({ dir })
    await stopping
    expect(server.how).toBe('started')
    expect(server.pid).not.toBe(first.pid)
    expect(await query(server.url, 'select 1 as one')).toEqual([{ one: 1 }])
    await server.stop()
  })
})

describe('the parent', () => {
  test('Ctrl-C reaches the parent and not the database', async () => {
    const launch = new Launch({ dir: await scratch.cluster(), port: 0, ownGroup: true })
    const { pid, url } = await launch.running()
    const started = await startOf(pid)
    process.kill(-launch.child.pid!, 'SIGINT')
    await launch.ended()
    expect(await startOf(pid)).toBe(started)
    expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }])
  })

  test('can end without stopping the server, which does not hold it back', async () => {
    const launch = new Launch({ dir: await scratch.cluster(), port: 0, afterwards: 'leave' })
    const { url } = await launch.running()
    expect(await launch.ended()).toBe(0)
    expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }])
  })
})

/** A directory whose first start was killed before its initdb had ended. Where that was quicker than we were, another is begun. */
async function killedHalfWay(): Promise<string> {
  for (;;) {
    const dir = await scratch.dir()
    const launch = new Launch({ dir, port: 0 })
    await until('initdb has begun', async () => (await readdir(dir)).some((name) => name.startsWith('pgdata')))
    await launch.kill()
    if (!(await readdir(dir)).includes('pgdata')) return dir
  }
}

/** Whether a process works in a directory whose path begins so, or names it on its command line. */
async function isUsed(prefix: string): Promise<boolean> {
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name))
  const texts = pids.flatMap((pid) => [
    readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => ''),
    readlink(`/proc/${pid}/cwd`).catch(() => ''),
  ])
  return (await Promise.all(texts)).some((text) => text.includes(prefix))
}

async function settingsOf(url: string): Promise<Record<string, unknown>> {
  const names = [
    'listen_addresses',
    'unix_socket_directories',
    'password_encryption',
    'data_checksums',
    'server_encoding',
    'max_connections',
    'wal_level',
    'fsync',
    'work_mem',
  ]
  const rows = await query(
    url,
    `select name, current_setting(name) as value from pg_settings where name in ('${names.join("','")}')`,
  )
  return Object.fromEntries(rows.map(({ name, value }) => [name, value]))
}

async function modesOf(dir: string, names: readonly string[]): Promise<string[]> {
  const found = await Promise.all(names.map((name) => stat(join(dir, name))))
  return found.map(({ mode }) => (mode & 0o777).toString(8))
}
