import { readFile, rm, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { root } from '../../../../scripts/phase.ts'
import { createDatabase, deferred, until } from '../../../pawl/test/support/database.ts'
import { startEmbedded } from '../embedded/index.ts'
import { withLock } from '../embedded/lock.ts'
import { isAlive } from '../embedded/processes.ts'
import { Scratch } from '../embedded/test-support/scratch.ts'
import { openDevDatabase } from './dev/dev-database.ts'
import { pawlJson } from './test-support/cli.ts'
import { pawl as cli, moduleFolder, type ProcessOptions, RunningCli } from './test-support/cli-process.ts'

vi.mock('../embedded/index.ts', { spy: true })
// Each starts servers and processes more than once, and some wait for jobs that are due in seconds.
vi.setConfig({ testTimeout: 180_000, hookTimeout: 120_000 })

const jobsModule = fileURLToPath(new URL('./test-support/jobs-module.mjs', import.meta.url))

interface Ready {
  /** With its password, which is not in what the command says. */
  readonly url: string
  readonly databaseUrl: string
  readonly urlFile: string
  readonly how: string
  readonly pid: number
  readonly port: number
  readonly workerPids: readonly number[]
}

let scratch: Scratch
let dir: string
beforeEach(async () => {
  scratch = new Scratch()
  dir = await scratch.dir()
})
afterEach(() => scratch.clear())

/** As npm start does it: from the sources, through the script that installs what is missing. */
const asNpmStart = { through: ['scripts/run.mjs', 'packages/server/src/cli/main.ts'], cwd: root }

async function startDev(more: readonly string[] = [], options: ProcessOptions = {}): Promise<{ dev: RunningCli; ready: Ready }> {
  const dev = await RunningCli.start(['dev', '--dir', dir, '--port', '0', '-o', 'jsonl', ...more], options)
  const event = await dev.until('everything runs', () => dev.events().find(({ event }) => event === 'ready'))
  const ready = event as unknown as Omit<Ready, 'url'>
  return { dev, ready: { ...ready, url: (await readFile(ready.urlFile, 'utf8')).trim() } }
}

function killIfAlive(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch (error) {
    expect((error as NodeJS.ErrnoException).code).toBe('ESRCH')
  }
}

async function query<Row>(url: string, text: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => undefined)
  await client.connect()
  try {
    return (await client.query(text)).rows as Row[]
  } finally {
    await client.end()
  }
}

function ended(dev: RunningCli, kind: string, outcome: string): () => Record<string, unknown> | undefined {
  return () => dev.events().find((line) => line.kind === kind && line.outcome === outcome)
}

async function doneCount(url: string): Promise<number> {
  const [row] = await query<{ count: number }>(
    url,
    "select count(*)::integer as count from pawl.job_history where outcome = 'done'",
  )
  return row!.count
}

test('npm start runs the demonstration, and Ctrl-C drains and stops everything', async () => {
  const { dev, ready } = await startDev([], asNpmStart)
  expect(ready.how).toBe('started')
  for (const kind of ['demo.greet', 'demo.transfer']) await dev.until(`${kind} was done`, ended(dev, kind, 'done'))
  expect(await query(ready.url, 'select sum(amount)::integer as sum, count(*) > 0 as some from pawl_demo.transfer')).toEqual([
    { sum: 0, some: true },
  ])
  // Other commands in the same folder find the database by themselves.
  const done = await pawlJson<{ items: unknown[] }>(['jobs', 'list', '--state', 'done'], { env: { PAWL_DEV_DIR: dir } })
  expect(done.items.length).toBeGreaterThan(0)
  expect((await stat(join(dir, 'url'))).mode & 0o777).toBe(0o600)

  dev.signal('SIGINT')
  const { code, stderr } = await dev.ended()
  expect(code).toBe(0)
  expect(stderr).toMatch(/workers stopped: .*\nPostgreSQL stopped; its data is kept in /)
  for (const pid of [ready.pid, ...ready.workerPids]) expect(await isAlive(pid)).toBe(false)
  await expect(readFile(join(dir, 'url'))).rejects.toThrow()
})

test('the demonstration retries and delays jobs; started again it has its data', async () => {
  const { dev, ready } = await startDev()
  for (const kind of ['demo.flaky', 'demo.remind']) await dev.until(`${kind} was done`, ended(dev, kind, 'done'))
  // The other worker may have run the second attempt, and have told of it first.
  const failed = await dev.until('demo.flaky had failed', ended(dev, 'demo.flaky', 'failed'))
  expect(failed).toMatchObject({ attempt: 1, note: expect.stringContaining('retry in 1s') })
  const done = await doneCount(ready.url)
  dev.signal('SIGINT')
  expect((await dev.ended()).code).toBe(0)
  const again = await startDev()
  expect(again.ready.how).toBe('started')
  expect(done).toBeGreaterThan(0)
  expect(await doneCount(again.ready.url)).toBeGreaterThanOrEqual(done)
  again.dev.signal('SIGINT')
  expect((await again.dev.ended()).code).toBe(0)
})

test('after kill -9 its workers stop, and the next start adopts PostgreSQL', async () => {
  const { dev, ready } = await startDev()
  dev.signal('SIGKILL')
  await dev.ended()
  await until(
    'the workers have gone',
    async () => (await Promise.all(ready.workerPids.map(isAlive))).every((alive) => !alive),
    40_000,
  )
  expect(await isAlive(ready.pid)).toBe(true)
  const again = await startDev()
  expect(again.ready).toMatchObject({ how: 'adopted', pid: ready.pid, port: ready.port })
  await again.dev.until('a job was done', () => again.dev.events().find(({ outcome }) => outcome === 'done'))
  again.dev.signal('SIGTERM')
  expect((await again.dev.ended()).code).toBe(0)
  expect(await isAlive(ready.pid)).toBe(false)
})

test('after kill -9 of everything the next start recovers the data', async () => {
  const { dev, ready } = await startDev()
  await dev.until('a job was done', () => dev.events().find(({ outcome }) => outcome === 'done'))
  // The workers end by themselves when their parent has, and may be gone before we come to them.
  for (const pid of [dev.child.pid!, ready.pid, ...ready.workerPids]) killIfAlive(pid)
  await dev.ended()
  const again = await startDev()
  expect(again.ready.how).toBe('started')
  expect(await doneCount(again.ready.url)).toBeGreaterThan(0)
  again.dev.signal('SIGINT')
  expect((await again.dev.ended()).code).toBe(0)
})

test('a worker that is killed is replaced, and its jobs go on', async () => {
  const { dev, ready } = await startDev([jobsModule])
  const { id } = await pawlJson<{ id: string }>(['jobs', 'add', 'patient', '{"isOver": false}'], { env: { PAWL_DEV_DIR: dir } })
  const [holder] = await until('it runs', async () => {
    const rows = await query<{ pid: number }>(
      ready.url,
      "select p.pid from pawl.job j join pawl.worker_process p on p.id = j.holder where j.state = 'running'",
    )
    return rows.length > 0 && rows
  })
  expect(ready.workerPids).toContain(holder!.pid)
  // The process that has read it does not end; the next one does.
  await query(ready.url, `update pawl.job set payload = '{"isOver": true}' where id = ${id}`)
  process.kill(holder!.pid, 'SIGKILL')
  await dev.until('another was started', () => /worker \d restarted \(pid \d+\)/.test(dev.stderr))
  await dev.until('the job was done', () => dev.events().find((line) => line.id === id && line.outcome === 'done'))
  dev.signal('SIGINT')
  expect((await dev.ended()).code).toBe(0)
})

test('two at once share the database, and the last one stops it', async () => {
  const [first, second] = await Promise.all([startDev(), startDev()])
  expect(first.ready.pid).toBe(second.ready.pid)
  first.dev.signal('SIGINT')
  expect((await first.dev.ended()).stderr).toContain('PostgreSQL keeps running: another pawl dev uses it')
  expect(await isAlive(second.ready.pid)).toBe(true)
  second.dev.signal('SIGINT')
  expect((await second.dev.ended()).code).toBe(0)
  expect(await isAlive(second.ready.pid)).toBe(false)
})

test('one that starts while the last other stops keeps its database', async () => {
  const options = { database: {}, dir, port: 0, isRemote: false, isPasswordShown: false, onNotice: () => undefined }
  const first = await openDevDatabase(options)
  const adopted = deferred()
  const go = deferred()
  const { startEmbedded: start } = await vi.importActual<typeof import('../embedded/index.ts')>('../embedded/index.ts')
  vi.mocked(startEmbedded).mockImplementationOnce(async (given) => {
    const server = await start(given)
    adopted.resolve()
    await go.promise
    return server
  })
  const opening = openDevDatabase(options)
  await adopted.promise
  const stopping = first.stop()
  // A stop that does not see the other has stopped the server by then.
  await Promise.race([stopping, new Promise((resolve) => setTimeout(resolve, 3000))])
  go.resolve()
  const second = await opening
  expect(await stopping).toContain('another pawl dev uses it')
  expect(await query(second.url, 'select 1 as one')).toEqual([{ one: 1 }])
  expect(await second.stop()).toContain('PostgreSQL stopped')
})

test('Ctrl-C while it waits for another migration ends it at once', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const migrator = await db.pool.connect()
  await migrator.query('select pg_advisory_lock($1::integer, 0)', [0x7061776d])
  const dev = await RunningCli.start(['dev', '--dir', dir, '--database-url', db.url])
  await until('it asks for the lock', async () => {
    const sessions = await db.query(
      "select from pg_stat_activity where application_name = 'pawl dev caller migrate lock' and datname = current_database()",
    )
    return sessions.length > 0
  })
  dev.signal('SIGINT')
  const { code, stdout, stderr } = await dev.ended()
  migrator.release(true)
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: expect.stringContaining('another process is migrating this database; waiting'),
  })
  expect(stdout).toContain('the database is yours and keeps running')
})

test('Ctrl-C during the start is answered; a second one exits at once', async () => {
  await withLock(join(dir, 'lock'), { waitMs: 0 }, async () => {
    const dev = await RunningCli.start(['dev', '--dir', dir, '--port', '0', '-o', 'jsonl'])
    await dev.until('it waits for the lock', () => dev.stderr.includes('is starting the database'))
    dev.signal('SIGINT')
    await dev.until('it says what it does', () =>
      dev.stderr.includes('stopping as soon as everything has started; Ctrl-C again exits at once'),
    )
    // Signals within a second of the first are the same Ctrl-C; so it is sent until it is heard.
    const again = setInterval(() => dev.signal('SIGINT'), 200)
    const { code } = await dev.ended()
    clearInterval(again)
    expect(code).toBe(130)
  })
})

test('when nobody reads its output any more, it stops everything', async () => {
  const { dev, ready } = await startDev()
  dev.child.stdout!.destroy()
  expect((await dev.ended()).code).toBe(1)
  for (const pid of [ready.pid, ...ready.workerPids]) expect(await isAlive(pid)).toBe(false)
})

test('on a terminal it prints aligned lines; a taken port is moved', async () => {
  const taken = createServer()
  const port = await new Promise<number>((resolve) => {
    taken.listen(0, '127.0.0.1', () => resolve((taken.address() as { port: number }).port))
  })
  try {
    const dev = await RunningCli.start(['dev', '--dir', dir, '--port', String(port)], asNpmStart)
    await dev.until('a job was done', () => /demo\.greet .* done /.test(dev.stdout))
    expect(dev.stdout).toMatch(/^database {2}PostgreSQL 18\.\d+ on 127\.0\.0\.1:\d+, started \(pid \d+\)$/m)
    expect(dev.stdout).toMatch(/^url {7}postgres:\/\/app:\*{3}@127\.0\.0\.1:\d+\/app \(password in \S+url\)$/m)
    expect(dev.stdout).toMatch(/^ {10}PGPASSFILE=\S+pgpass psql -h 127\.0\.0\.1 -p \d+ -U app app$/m)
    expect(dev.stdout).toMatch(/^try {7}npm run pawl -- jobs list {2}/m)
    expect(dev.stdout).toMatch(/^stop {6}Ctrl-C$/m)
    expect(dev.stdout).toMatch(new RegExp(`^note {6}.*${port}`, 'm'))
    expect(dev.stdout).toMatch(/^\d\d:\d\d:\d\d\.\d{3} {2}demo\.greet +\d{19} +1 {2}done +\d+ {2}w[12]$/m)
    expect(dev.stdout).not.toContain('\u001b')
    await dev.until('a job failed', () => / failed .* retry in 1s: on purpose/.test(dev.stdout))
    const { password } = new URL((await readFile(join(dir, 'url'), 'utf8')).trim())
    dev.signal('SIGINT')
    const { stdout, stderr } = await dev.ended()
    expect(stdout).toContain('PostgreSQL stopped')
    expect(`${stdout}${stderr}`.split('\n').filter((line) => line.length > 100)).toEqual([])
    expect(`${stdout}${stderr}`).not.toContain(password)
  } finally {
    taken.close()
  }
})

test('given a database it starts none, hides the password, leaves it running', async () => {
  const db = await createDatabase({ isEmpty: true })
  try {
    const dev = await RunningCli.start(['dev', '--dir', dir, '--database-url', db.url])
    await dev.until('a job was done', () => / done /.test(dev.stdout))
    expect(dev.stdout).toContain('yours, from --database-url')
    expect(dev.stdout).not.toContain(new URL(db.url).password)
    dev.signal('SIGTERM')
    const { code, stdout } = await dev.ended()
    expect(code).toBe(0)
    expect(stdout).toContain('the database is yours and keeps running')
    expect(await db.query("select count(*) > 0 as some from pawl.job_history where outcome = 'done'")).toEqual([{ some: true }])
  } finally {
    await db.drop()
  }
})

test('jobs run as a plain role whose tables are outside schema pawl', async () => {
  const { dev, ready } = await startDev()
  expect(new URL(ready.url).username).toBe('app')
  expect(dev.stdout).not.toContain(new URL(ready.url).password)
  expect(await query(ready.url, 'select usesuper, usecreatedb, userepl from pg_user where usename = current_user')).toEqual([
    { usesuper: false, usecreatedb: false, userepl: false },
  ])
  await query(ready.url, 'create table mine (id integer)')
  expect(await query(ready.url, "select schemaname from pg_tables where tablename = 'mine'")).toEqual([{ schemaname: 'public' }])
  const env = { PAWL_DEV_DIR: dir }
  expect(await cli(['doctor'], { env })).toMatchObject({ code: 0, stdout: expect.not.stringContaining('fault') })
  dev.signal('SIGINT')
  expect((await dev.ended()).code).toBe(0)
})

test('--show-password prints the URL whole, for people and for machines', async () => {
  const { dev, ready } = await startDev(['--show-password', '--no-demo'])
  expect(ready.databaseUrl).toBe(ready.url)
  const person = await RunningCli.start(['dev', '--dir', dir, '--show-password', '--no-demo'])
  await person.until('it says it', () => person.stdout.includes(`url       ${ready.url}\n`))
  for (const each of [person, dev]) {
    each.signal('SIGINT')
    expect((await each.ended()).code).toBe(0)
  }
})

test('without workers it stays, and comes back when it is cut off', async () => {
  const { dev, ready } = await startDev(['--workers', '0'])
  const [first] = await query<{ pid: number }>(ready.url, "select pid from pg_stat_activity where application_name = 'pawl dev'")
  await query(
    ready.url,
    'select pg_terminate_backend(pid) from pg_stat_activity where usename = current_user and pid <> pg_backend_pid()',
  )
  await until('it is back', async () => {
    const rows = await query<{ pid: number }>(ready.url, "select pid from pg_stat_activity where application_name = 'pawl dev'")
    return rows.some(({ pid }) => pid !== first!.pid)
  })
  dev.signal('SIGINT')
  expect(await dev.ended()).toMatchObject({ code: 0, stderr: expect.stringContaining('PostgreSQL stopped') })
  expect(await isAlive(ready.pid)).toBe(false)
})

test('without --remote a database on another host is left alone', async () => {
  const elsewhere = 'postgres://me:secret@db.example.invalid/production'
  const { code, stdout, stderr } = await cli(['dev', '--dir', dir], { env: { DATABASE_URL: elsewhere } })
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
  expect(stderr).toMatch(/DATABASE_URL is a database on another host, postgres:\/\/me:\*\*\*@db\.example\.invalid\/production: /)
  expect(stderr).toMatch(/next +unset DATABASE_URL to use an embedded database, or add --remote/)
  const flag = await cli(['dev', '--dir', dir, '--database-url', elsewhere])
  expect(flag).toMatchObject({ code: 2, stderr: expect.stringMatching(/next +add --remote if that is what you want/) })
  // Then it is tried.
  const remote = await cli(['dev', '--dir', dir, '--database-url', elsewhere, '--remote'])
  expect(remote).toMatchObject({ code: 5, stderr: expect.stringContaining('db.example.invalid') })
})

test('a module that exports its Pawl gets the database in DATABASE_URL', async () => {
  const folder = await moduleFolder()
  const own = join(folder, `dev-own-${process.pid}.mjs`)
  const other = join(folder, `dev-other-${process.pid}.mjs`)
  onTestFinished(() => Promise.all([own, other].map((file) => rm(file, { force: true }))).then(() => undefined))
  const text = (url: string) =>
    `import { createPawl } from 'pawl'\nexport const pawl = createPawl({ databaseUrl: ${url} })\npawl.jobs.define('mine', { run: () => 'done by mine' })`
  await writeFile(own, text('process.env.DATABASE_URL'))
  await writeFile(other, text("'postgres://me@127.0.0.1:1/elsewhere'"))
  const { dev, ready } = await startDev([own])
  await pawlJson(['jobs', 'add', 'mine', '{}'], { env: { PAWL_DEV_DIR: dir } })
  await dev.until('it was done', ended(dev, 'mine', 'done'))
  expect(await cli(['dev', other, '--dir', dir])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('The Pawl of the module uses another database: elsewhere on 127.0.0.1:1'),
  })
  expect(await isAlive(ready.pid)).toBe(true)
  dev.signal('SIGINT')
  expect((await dev.ended()).code).toBe(0)
})

test('a module that cannot be loaded ends it with the reason', async () => {
  const { code, stderr } = await cli(['dev', './not-there.js', '--dir', dir, '--port', '0'])
  // As `pawl worker` does.
  expect(code).toBe(2)
  expect(stderr).toContain('The module ./not-there.js does not exist')
  await expect(stat(join(dir, 'pgdata', 'postmaster.pid'))).rejects.toThrow()
})
