import { rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Pawl } from 'pawl'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../../../pawl/test/support/database.ts'
import { FaultProxy } from '../../../../pawl/test/support/fault-proxy.ts'
import { pawl as cli, moduleFolder, RunningCli } from '../test-support/cli-process.ts'

const jobsModule = fileURLToPath(new URL('../test-support/jobs-module.mjs', import.meta.url))
const otherModule = fileURLToPath(new URL('../test-support/other-module.mjs', import.meta.url))

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(() => db.drop())

async function startWorker(more: readonly string[] = []): Promise<RunningCli> {
  const worker = await RunningCli.start(['worker', jobsModule, '--database-url', db.url, ...more])
  await worker.until('it started', () => /worker \d+ \(pid/.test(worker.stderr))
  return worker
}

/** A worker with one kind more, 'gated', which runs until it is let go: it runs during the check however slow the machine is. */
async function startGatedWorker(more: readonly string[]): Promise<{ worker: RunningCli; letGo: () => Promise<void> }> {
  const gate = join(tmpdir(), `pawl-gate-${db.name}`)
  const gated = join(tmpdir(), `pawl-gated-${db.name}.mjs`)
  onTestFinished(async () => {
    await Promise.all([gate, gated].map((file) => rm(file, { force: true })))
  })
  await writeFile(
    gated,
    `import { existsSync } from 'node:fs'
    import { setTimeout as sleep } from 'node:timers/promises'
    const run = async () => {
      while (!existsSync(${JSON.stringify(gate)})) await sleep(20)
      return 'finished'
    }
    export default (pawl) => pawl.jobs.define('gated', { run })`,
  )
  return { worker: await startWorker([gated, ...more]), letGo: () => writeFile(gate, '') }
}

test("runs a module's jobs, a line for each; SIGTERM lets them finish", async () => {
  const { worker, letGo } = await startGatedWorker(['--each', '-o', 'jsonl'])
  const { id: quick } = await pawl.jobs.enqueue('quick', {})
  const { id: broken } = await pawl.jobs.enqueue('broken', {})
  await worker.until('both ended', () => worker.events().length >= 2)
  expect(worker.events()).toContainEqual(expect.objectContaining({ id: quick, kind: 'quick', attempt: 1, outcome: 'done' }))
  expect(worker.events()).toContainEqual(
    expect.objectContaining({ id: broken, kind: 'broken', outcome: 'dead', note: 'Error: it broke' }),
  )
  const { id: slow } = await pawl.jobs.enqueue('gated', {})
  await until('it runs', async () => (await pawl.jobs.get(slow))?.state === 'running')
  worker.signal('SIGTERM')
  await worker.until('it stops', () => worker.stderr.includes('stopping'))
  await letGo()
  const { code, stderr } = await worker.ended()
  expect(code).toBe(0)
  expect(stderr).toContain('stopped: 1 finished, 0 released')
  expect(await pawl.jobs.get(slow)).toMatchObject({ state: 'done', result: 'finished', attempt: 1 })
  expect(await db.query('select close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
})

test('a second signal exits 130, and another worker runs the job uncharged', async () => {
  const worker = await startWorker()
  const { id } = await pawl.jobs.enqueue('patient', { isOver: false })
  await until('it runs', async () => (await pawl.jobs.get(id))?.state === 'running')
  worker.signal('SIGINT')
  await worker.until('it stops', () => worker.stderr.includes('stopping'))
  // Signals within a second of the first are the same Ctrl-C, passed on by npm or a shell; so it is sent until it is heard.
  const again = setInterval(() => worker.signal('SIGINT'), 200)
  const { code, stderr } = await worker.ended()
  clearInterval(again)
  expect(code).toBe(130)
  expect(stderr).toContain(`1 given up while running: ${id}`)
  await db.query(`update pawl.job set payload = '{"isOver": true}' where id = $1`, [id])
  const other = await startWorker()
  await until('the other has done it', async () => (await pawl.jobs.get(id))?.state === 'done')
  expect(await pawl.jobs.get(id)).toMatchObject({ crashes: 0 })
  other.signal('SIGTERM')
  expect((await other.ended()).code).toBe(0)
})

test('when handlers hang and the database is away it exits 7', async () => {
  const proxy = await FaultProxy.start(db.url)
  onTestFinished(() => proxy.stop())
  const worker = await RunningCli.start(['worker', jobsModule, '--database-url', proxy.url, '--grace', '10ms'])
  await worker.until('it started', () => /worker \d+ \(pid/.test(worker.stderr))
  const { id } = await pawl.jobs.enqueue('patient', { isOver: false })
  await until('it runs', async () => (await pawl.jobs.get(id))?.state === 'running')
  await proxy.refuse()
  proxy.reset()
  worker.signal('SIGTERM')
  const { code, stderr } = await worker.ended()
  expect(code).toBe(7)
  expect(stderr).toMatch(
    /could not be given up in the database .*; other workers take them over when the lease ends\nstopped: .*1 given up while running/,
  )
})

test('when its output is closed running jobs finish, and it exits 1', async () => {
  const { worker, letGo } = await startGatedWorker(['--each'])
  const { id } = await pawl.jobs.enqueue('gated', {})
  await until('it runs', async () => (await pawl.jobs.get(id))?.state === 'running')
  worker.child.stdout!.destroy()
  worker.child.stderr!.destroy()
  const { id: quick } = await pawl.jobs.enqueue('quick', {})
  await until('there was something to say', async () => (await pawl.jobs.get(quick))?.state === 'done')
  await letGo()
  expect((await worker.ended()).code).toBe(1)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', result: 'finished', attempt: 1, crashes: 0 })
  expect(await db.query('select close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
})

test('--queue takes one queue each time and no module', async () => {
  const worker = await RunningCli.start([
    'worker',
    '--database-url',
    db.url,
    '--queue',
    'a',
    jobsModule,
    '--queue',
    'b',
    otherModule,
  ])
  await worker.until('it started', () => /worker \d+ \(pid/.test(worker.stderr))
  expect(await db.query('select queues, kinds @> $1 as both from pawl.worker_process', [['quick', 'other']])).toEqual([
    { queues: ['a', 'b'], both: true },
  ])
  worker.signal('SIGTERM')
  expect((await worker.ended()).code).toBe(0)
})

test('loads TypeScript; a missing or empty module is refused with the reason', async () => {
  const typed = join(tmpdir(), `pawl-kinds-${db.name}.mts`)
  await writeFile(
    typed,
    'export default (pawl: { jobs: { define(name: string, options: object): void } }): void => pawl.jobs.define("typed", { run: () => 1 })\n',
  )
  const worker = await RunningCli.start(['worker', typed, '--database-url', db.url])
  await worker.until('it started', () => /worker \d+ \(pid/.test(worker.stderr))
  const { id } = await pawl.jobs.enqueue('typed', {})
  await until('it ran', async () => (await pawl.jobs.get(id))?.state === 'done')
  worker.signal('SIGTERM')
  expect((await worker.ended()).code).toBe(0)
  const empty = join(tmpdir(), `pawl-empty-${db.name}.mjs`)
  await writeFile(empty, 'export const number = 1\n')
  const [missing, useless] = await Promise.all([
    cli(['worker', './not-there.js', '--database-url', db.url]),
    cli(['worker', empty, '--database-url', db.url]),
  ])
  expect(missing).toMatchObject({ code: 2, stderr: expect.stringContaining('The module ./not-there.js does not exist') })
  expect(useless).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('export const pawl = createPawl(...), or export default (pawl) =>'),
  })
})

/** A module that makes its own Pawl, beside a copy of the library, with a pool of its own that stays open. */
async function pawlModule(text: string): Promise<string> {
  const path = join(await moduleFolder(), `app-${db.name}.mjs`)
  onTestFinished(() => rm(path, { force: true }))
  await writeFile(path, `import { createPawl } from 'pawl'\n${text}`)
  return path
}

const ownPawl = `
export const pawl = createPawl({ databaseUrl: process.env.DATABASE_URL, applicationName: 'mine' })
export const quick = pawl.jobs.define('quick')
pawl.jobs.define('left')
pawl.jobs.handle(quick, { run: () => 'by my own Pawl' })
setInterval(() => undefined, 1000)`

test.each([
  ['DATABASE_URL', [], true],
  ['--database-url', ['--database-url'], false],
])('a module that exports its Pawl runs on the database of %s', async (_how, flag, isEnv) => {
  const path = await pawlModule(ownPawl)
  const worker = await RunningCli.start(['worker', path, ...flag.flatMap((name) => [name, db.url])], {
    env: isEnv ? { DATABASE_URL: db.url } : {},
  })
  const { hostname, port } = new URL(db.url)
  await worker.until('it started', () => worker.stderr.includes(`runs quick on ${db.name} on ${hostname}:${port}; Ctrl-C`))
  const { id } = await pawl.jobs.enqueue('quick', {})
  await until('it ran', async () => (await pawl.jobs.get(id))?.state === 'done')
  expect(await pawl.jobs.get(id)).toMatchObject({ result: 'by my own Pawl' })
  expect(await db.query("select from pg_stat_activity where application_name like 'mine claim %'")).toHaveLength(1)
  worker.signal('SIGTERM')
  // What the module left open does not keep it.
  expect((await worker.ended()).code).toBe(0)
})

test('a module with its own Pawl is refused flags without effect', async () => {
  const path = await pawlModule(`export const pawl = createPawl({ databaseUrl: 'postgres://me:secret@127.0.0.1:1/elsewhere' })`)
  const other = await cli(['worker', path, '--database-url', db.url])
  expect(other).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('The Pawl of the module uses another database: elsewhere on 127.0.0.1:1, not'),
  })
  expect(other.stderr).not.toContain('secret')
  const pooler = await cli(['worker', path, '--pooler', 'transaction'])
  expect(pooler).toMatchObject({ code: 2, stderr: expect.stringContaining('--pooler and --direct-url have no effect') })
  const nowhere = await cli(['worker', await pawlModule(ownPawl)])
  expect(nowhere).toMatchObject({ code: 2, stderr: expect.stringContaining('databaseUrl must be a URL such as') })
})

test('without the schema it exits 6 and prints the command to run', async () => {
  await db.query('drop schema pawl cascade')
  const { code, stderr } = await cli(['worker', jobsModule, '--database-url', db.url])
  expect({ code, stderr }).toEqual({ code: 6, stderr: expect.stringMatching(/next +pawl migrate/) })
})

test('[P1] runs the projections and sinks of a module, and says so', async () => {
  const path = await pawlModule(`
export const pawl = createPawl({ databaseUrl: process.env.DATABASE_URL })
pawl.jobs.define('quick', { run: () => 'done' })
pawl.projections.define('sales', { each: (event, tx) => tx.send('insert into seen values ($1)', [event.key]) })
pawl.projections.sink('mailer', { handle: () => undefined })`)
  await db.query('create table seen (key text)')
  const worker = await RunningCli.start(['worker', path, '--database-url', db.url])
  await worker.until('it started', () => /runs quick and the projections and sinks sales, mailer on /.test(worker.stderr))
  await pawl.events.append({ type: 'Sold', aggregateType: 'shop', key: 'a', data: {} })
  await until('it is applied', async () => (await db.query('select from seen')).length === 1)
  worker.signal('SIGTERM')
  expect((await worker.ended()).code).toBe(0)
  expect(await db.query('select distinct close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
})

test('a module with only a projection runs', async () => {
  const path = await pawlModule(`
export default (pawl) => pawl.projections.define('sales', { each: () => undefined })`)
  const worker = await RunningCli.start(['worker', path, '--database-url', db.url])
  await worker.until('it started', () => /worker \d+ \(pid \d+\) runs the projections and sinks sales on /.test(worker.stderr))
  await until('it holds the cursor', async () => (await pawl.projections.status('sales'))[0]?.holder != null)
  worker.signal('SIGTERM')
  expect((await worker.ended()).code).toBe(0)
})

test('a module that starts its own worker is refused with the fix', async () => {
  const path = await pawlModule(`
export const pawl = createPawl({ databaseUrl: process.env.DATABASE_URL })
pawl.jobs.define('quick', { run: () => 'done' })
await pawl.worker().start()`)
  const { code, stderr } = await cli(['worker', path, '--database-url', db.url])
  expect(code).toBe(2)
  expect(stderr).toMatch(/app-\w+\.mjs starts a worker itself.*\n.*run it with node .*remove worker\(\)\.start\(\)/)
  expect(await db.query('select close_reason from pawl.worker')).toEqual([{ close_reason: 'stopped' }])
})

test('a worker that the module starts later is noted and stopped', async () => {
  const path = await pawlModule(`
export const pawl = createPawl({ databaseUrl: process.env.DATABASE_URL })
pawl.jobs.define('long', { queue: 'theirs', run: () => new Promise((resolve) => process.once('SIGTERM', resolve)) })
setImmediate(async () => {
  await pawl.migrate()
  await pawl.worker().start()
})`)
  const { id } = await pawl.jobs.enqueue('long', {}, { queue: 'theirs' })
  const worker = await RunningCli.start(['worker', path, '--database-url', db.url, '--queue', 'ours'])
  await worker.until('the note', () =>
    /app-\w+\.mjs started a worker itself, beside that of this command: run it with node/.test(worker.stderr),
  )
  await until('its worker runs the job', async () => (await pawl.jobs.get(id))?.state === 'running')
  worker.signal('SIGTERM')
  const { code, stderr } = await worker.ended()
  expect(code).toBe(0)
  expect(stderr).toContain('stopped: 1 finished, 0 released')
  expect(await db.query('select close_reason from pawl.worker')).toEqual([
    { close_reason: 'stopped' },
    { close_reason: 'stopped' },
  ])
})

test('a queue that no kind is defined for is pointed out', async () => {
  const worker = await startWorker(['--queue', 'nobody'])
  await worker.until('the note', () =>
    /no kind here is defined for queue 'nobody': .* The kinds are defined for 'default'/.test(worker.stderr),
  )
  worker.signal('SIGTERM')
  expect((await worker.ended()).code).toBe(0)
})

test('an uncaught error of a handler is printed with job and kind', async () => {
  const path = await pawlModule(`
export default (pawl) => pawl.jobs.define('careless', {
  tx: (job, tx) => {
    void tx.query('select 1').then(() => { throw new Error('nobody awaits this') })
  },
})`)
  const worker = await RunningCli.start(['worker', path, '--database-url', db.url])
  await worker.until('it started', () => /worker \d+ \(pid/.test(worker.stderr))
  const { id } = await pawl.jobs.enqueue('careless', {})
  const { code, stderr } = await worker.ended()
  expect(code).toBe(1)
  expect(stderr).toContain(`exits on an uncaught error of job careless ${id}: Error: nobody awaits this`)
})

test("a failed job of a module's own Pawl takes one line", async () => {
  const path = await pawlModule(`
export const pawl = createPawl({ databaseUrl: process.env.DATABASE_URL })
pawl.jobs.define('broken', { retry: { attempts: 1 }, run: () => Promise.reject(new Error('it broke')) })`)
  const worker = await RunningCli.start(['worker', path, '--database-url', db.url])
  await worker.until('it started', () => /worker \d+ \(pid/.test(worker.stderr))
  await pawl.jobs.enqueue('broken', {})
  await worker.until('it is told', () => worker.stdout.includes('it broke'))
  worker.signal('SIGTERM')
  const { stdout, stderr } = await worker.ended()
  expect(`${stdout}${stderr}`.match(/it broke/g)).toHaveLength(1)
})
