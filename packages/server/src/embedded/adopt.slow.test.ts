import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile, rename, stat, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { accountForPostgres } from './binaries/account.ts'
import { withLock } from './lock.ts'
import { isAlive } from './processes.ts'
import { logPath } from './server/log.ts'
import { pidFilePath, readPidFile } from './server/pidfile.ts'
import { Launch } from './test-support/process.ts'
import { query, Scratch, until } from './test-support/scratch.ts'

const scratch = new Scratch()
afterAll(() => scratch.clear())

describe('a postmaster that runs already', () => {
  test('is adopted when its parent was killed; other settings are only noted', async () => {
    const dir = await scratch.cluster()
    const launch = new Launch({ dir, port: 0, settings: { work_mem: '5MB' } })
    const orphan = await launch.running()
    await query(orphan.url, 'create table kept as select 42 as answer')
    await launch.kill()

    const { server, notices } = await scratch.start({ dir, port: 1, settings: { work_mem: '6MB' } })
    expect(server).toMatchObject({ how: 'adopted', pid: orphan.pid, port: orphan.port, url: orphan.url })
    expect(await query(server.url, `select answer, current_setting('work_mem') as work_mem from kept`)).toEqual([
      { answer: 42, work_mem: '5MB' },
    ])
    expect(notices).toEqual([
      `PostgreSQL is already running, on port ${orphan.port} instead of 1.`,
      'PostgreSQL is already running and keeps the settings it was started with; to apply work_mem, restart it.',
    ])
    await server.stop()
    expect(await isAlive(orphan.pid)).toBe(false)
  })

  test('is adopted when its parent was killed before it was ready', async () => {
    const dir = await scratch.cluster()
    const launch = new Launch({ dir, port: 0 })
    const { pid } = await until('the postmaster has begun', () => readPidFile(join(dir, 'pgdata')))
    await launch.kill()
    const { server } = await scratch.start({ dir })
    expect(server).toMatchObject({ how: 'adopted', pid })
    await server.stop()
  })

  test('is adopted through a link to its data', async () => {
    const [dir, disk] = [await scratch.cluster(), await scratch.dir()]
    await rename(join(dir, 'pgdata'), join(disk, 'data'))
    await symlink(join(disk, 'data'), join(dir, 'pgdata'))
    const first = (await scratch.start({ dir })).server
    const second = (await scratch.start({ dir })).server
    expect([first.how, second.how, second.pid]).toEqual(['started', 'adopted', first.pid])
    await second.stop()
  })

  test('is left alone when it does not accept our password', async () => {
    const dir = await scratch.cluster()
    const { server } = await scratch.start({ dir })
    await writeFile(join(dir, 'password'), 'not this one')
    await expect(scratch.start({ dir })).rejects.toMatchObject({ code: 'password_refused' })
    expect(await query(server.url, 'select 1 as one')).toEqual([{ one: 1 }])
    await server.stop()
  })
})

describe('two starts at once on one directory', () => {
  test('of two starts on an empty directory one waits and shares', async () => {
    const dir = await scratch.dir()
    // One of them may be up long after the other. So both come to a lock that is held, and begin when it is freed.
    const launches = await withLock(join(dir, 'lock'), { waitMs: 0 }, async () => {
      const waiting = [new Launch({ dir, port: 0 }), new Launch({ dir, port: 0 })]
      await until('both wait', async () => waiting.every(({ notices }) => notices.length > 0))
      return waiting
    })
    const running = await Promise.all(launches.map((launch) => launch.running()))
    expect(running.map(({ how }) => how).sort()).toEqual(['adopted', 'started'])
    expect(new Set(running.map(({ pid, url }) => `${pid} ${url}`)).size).toBe(1)
    for (const { notices } of launches)
      expect(notices).toEqual([`Process ${process.pid} is starting the database in ${dir}; waiting for it.`])
    await launches[0]!.stop()
    await launches[1]!.kill()
  })

  test('in one process', async () => {
    const dir = await scratch.cluster()
    const started = await Promise.all([1, 2, 3].map(() => scratch.start({ dir })))
    expect(started.map(({ server }) => server.how).sort()).toEqual(['adopted', 'adopted', 'started'])
    expect(new Set(started.map(({ server }) => server.pid)).size).toBe(1)
    await started[0]!.server.stop()
  })

  test('a waiting start takes over when the starting one is killed', async () => {
    const { dir, first } = await stoppedHalfWay()
    const second = new Launch({ dir, port: 0 })
    await until('the second one waits', async () => second.notices.length > 0)
    await first.kill()
    expect((await second.running()).how).toBe('started')
    await second.stop()
  })
})

describe('a postmaster.pid that names no postmaster', () => {
  test('of a postmaster that was killed: the data are recovered', async () => {
    const dir = await scratch.cluster()
    const killed = (await scratch.start({ dir })).server
    await query(killed.url, 'create table kept as select 42 as answer')
    process.kill(killed.pid, 'SIGKILL')
    await until('the postmaster has ended', async () => !(await isAlive(killed.pid)))
    expect((await readPidFile(killed.dataDir))?.pid).toBe(killed.pid)
    const { server } = await scratch.start({ dir })
    expect(server.how).toBe('started')
    expect(await query(server.url, 'select answer from kept')).toEqual([{ answer: 42 }])
    await server.stop()
  })

  test('whose pid now belongs to another program of the account', async () => {
    const dir = await scratch.cluster()
    const stranger = await spawnStranger()
    await plantPidFile(dir, stranger.pid!)
    const { server, notices } = await scratch.start({ dir })
    expect(server.how).toBe('started')
    expect(notices).toEqual([
      expect.stringMatching(
        new RegExp(`crashed and its pid ${stranger.pid} now belongs to another process; removed its stale postmaster.pid`),
      ),
    ])
    await server.stop()
    expect(stranger.exitCode).toBeNull()
    expect(stranger.signalCode).toBeNull()
  })

  test('whose pid now belongs to the postmaster of other data', async () => {
    const [dir, otherDir] = [await scratch.cluster(), await scratch.cluster()]
    const other = (await scratch.start({ dir: otherDir })).server
    await plantPidFile(dir, other.pid, other.port)
    const { server } = await scratch.start({ dir })
    expect(server.how).toBe('started')
    expect(await query(other.url, 'show data_directory')).toEqual([{ data_directory: other.dataDir }])
    await Promise.all([server.stop(), other.stop()])
  })

  test('a start waits until the last backend of a killed postmaster ends', async () => {
    const dir = await scratch.cluster()
    const killed = (await scratch.start({ dir })).server
    const client = new pg.Client({ connectionString: killed.url })
    client.on('error', () => {})
    await client.connect()
    const backend = Number((await client.query('select pg_backend_pid() as pid')).rows[0].pid)
    // A busy loop does not notice that the postmaster is gone, as a sleep would.
    const busy = `do $$ declare t timestamptz := clock_timestamp(); begin while clock_timestamp() < t + interval '40 s' loop end loop; end $$`
    const cutOff = client.query(busy).catch(() => 'cut off')
    onTestFinished(() => killIfAlive(backend))
    await until('it is in the loop', async () => {
      const [row] = await query(killed.url, `select state from pg_stat_activity where pid = ${backend} and query like 'do %'`)
      return row?.state === 'active'
    })
    process.kill(killed.pid, 'SIGKILL')
    await until('the postmaster has ended', async () => !(await isAlive(killed.pid)))
    const starting = scratch.start({ dir })
    const refusal = 'pre-existing shared memory block'
    await until('the next one has refused to run beside it', async () => (await readFile(logPath(dir), 'utf8')).includes(refusal))
    expect(await isAlive(backend)).toBe(true)
    await killIfAlive(backend)
    const { server } = await starting
    expect(await isAlive(backend)).toBe(false)
    await cutOff
    await client.end().catch(() => {})
    await server.stop()
  })
})

/** A start that stands still while it has the lock, before it has made a cluster. Where it was quicker than we were, another is begun. */
async function stoppedHalfWay(): Promise<{ dir: string; first: Launch }> {
  for (;;) {
    const dir = await scratch.dir()
    const first = new Launch({ dir, port: 0 })
    await until('the first one has the lock', () =>
      stat(join(dir, 'lock.1')).then(
        () => true,
        () => false,
      ),
    )
    first.child.kill('SIGSTOP')
    const status = () => readFile(`/proc/${first.child.pid}/status`, 'utf8').catch(() => 'State: T')
    await until('it stands still', async () => /^State:\s+T/m.test(await status()))
    if (!(await readdir(dir)).includes('pgdata')) return { dir, first }
    await first.kill()
  }
}

async function killIfAlive(pid: number): Promise<void> {
  if (await isAlive(pid)) process.kill(pid, 'SIGKILL')
}

/** A program that runs as PostgreSQL's account does. */
async function spawnStranger(): Promise<ChildProcess> {
  const child = spawn('sleep', ['600'], { stdio: 'ignore', cwd: '/', ...(await accountForPostgres()) })
  onTestFinished(() => void child.kill())
  await once(child, 'spawn')
  return child
}

async function plantPidFile(dir: string, pid: number, port = 15_999): Promise<void> {
  const dataDir = join(dir, 'pgdata')
  await writeFile(pidFilePath(dataDir), `${pid}\n${dataDir}\n1700000000\n${port}\n\n127.0.0.1\n\nready   \n`)
}
