// The packages as npm would publish them, in an empty project: what docs/getting-started.md says, as it says it.

import { execFile } from 'node:child_process'
import { readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, until } from '../packages/pawl/test/support/database.ts'
import { debianProgram } from '../packages/pawl/test/support/debian.ts'
import { freePort, startPgBouncer } from '../packages/pawl/test/support/pgbouncer.ts'
import { entriesOf, packageNames, readManifest } from './exports.ts'
import { installChecks, nodeOf, Project, packAll, type Tarball, temporaryFolder } from './packed-project.ts'
import { readPage } from './page.ts'
import { root } from './phase.ts'
import { bin } from './static-checks.ts'

// Installs, and starts servers.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 600_000 })

const run = promisify(execFile)
const page = readPage('docs/getting-started.md')
const { devDependencies } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as {
  devDependencies: Record<string, string>
}

let parent: string
let checks: string
let tarballs: Tarball[]
/** The page's project, on this Node. */
let project: Project
beforeAll(async () => {
  parent = await temporaryFolder('packed')
  checks = await installChecks()
  tarballs = await packAll(parent)
  project = await Project.install(parent, page.shell.get('install')!, tarballs)
  await project.write(page.files)
})
afterAll(async () => {
  project?.close()
  await rm(parent, { recursive: true, force: true })
})

const program = (name: string, file: string) => join(checks, 'node_modules', name, file)
const typescripts = [
  ['7', () => [bin('typescript', 'tsc')]],
  ['5.9', () => [program('typescript5', 'bin/tsc')]],
] as const

/** Its output, empty when it found nothing wrong. */
async function tsc(compiler: readonly string[], args: readonly string[]): Promise<string> {
  const ended = run(process.execPath, [...compiler, '--pretty', 'false', ...args], { cwd: project.folder })
  return ended.then(
    ({ stdout }) => stdout,
    ({ stdout }: { stdout: string }) => stdout,
  )
}

test('every block of the page has a name that runs it', () => {
  expect(page.unnamed).toEqual([])
  expect([...page.shell.keys()]).toEqual(['install', 'dev', 'web', 'try', 'test', 'deploy', 'bundle'])
})

test('[G1] each tarball has its README, its licence and no test', async () => {
  for (const { file } of tarballs) {
    const files = (await run('tar', ['tzf', file])).stdout.trim().split('\n')
    expect(files).toEqual(expect.arrayContaining(['package/README.md', 'package/LICENSE', 'package/package.json']))
    expect(files.filter((path) => /\.test\.|test-support/.test(path))).toEqual([])
  }
})

test('[G1] publint and are-the-types-wrong find nothing', async () => {
  for (const { file } of tarballs) {
    const publint = await run(process.execPath, [program('publint', 'src/cli.js'), file, '--strict'])
    expect(publint.stdout).toContain('All good!')
    const attw = await run(process.execPath, [program('@arethetypeswrong/cli', 'dist/index.js'), file, '--format', 'ascii'])
    expect(attw.stdout).toContain('No problems found')
  }
})

test('[G1] import and require give the same objects, every subpath', async () => {
  const specifiers = packageNames.flatMap((name) => entriesOf(name).map(({ specifier }) => specifier))
  const own = await project.copy(join(parent, 'peers'), process.execPath)
  onTestFinished(() => own.close())
  // A subpath may need an optional peer, which the page does not install.
  const peers = packageNames.flatMap((name) => Object.entries(readManifest(name).peerDependencies ?? {}))
  await own.add(peers.map(([name, range]) => `${name}@${range}`))
  await own.write([
    [
      'same.cjs',
      `const names = ${JSON.stringify(specifiers)}
      Promise.all(names.map(async (name) => {
        const [required, imported] = [require(name), await import(name)]
        const differing = Object.keys(required).filter((key) => required[key] !== imported[key])
        return [name, Object.keys(imported).length > 0, differing]
      })).then((found) => console.log(JSON.stringify(found)))`,
    ],
  ])
  const { code, output } = await own.sh('node same.cjs')
  expect(code, output).toBe(0)
  expect(JSON.parse(output)).toEqual(specifiers.map((specifier) => [specifier, true, []]))
})

test.each(typescripts)('[G1] the page compiles with TypeScript %s, libraries checked too', async (_version, compiler) => {
  expect(await tsc(compiler(), [])).toBe('')
})

/** Half of it must not compile: declarations that resolve to nothing would accept everything. */
const typed = `
import { startEmbedded } from '@pawl/server/embedded'
import { createPawl, type JobRow } from 'pawl'
import { runAll } from 'pawl/testing'
const pawl = createPawl({ databaseUrl: 'postgres://localhost/x' })
const mail = pawl.jobs.define<{ to: string }>('mail')
export async function use() {
  const job: JobRow | undefined = await pawl.jobs.get('1')
  await runAll(pawl)
  const kind: string | undefined = job?.kind
  const wrong: number | undefined = job?.kind
  await pawl.jobs.enqueue(mail, { to: 5 })
  const { url }: { url: number } = await startEmbedded({ dir: 'x' })
  return [kind, wrong, url]
}
`

test.each(
  typescripts.flatMap(([version, compiler]) =>
    [
      ['nodenext', 'nodenext'],
      // The second is Nest's, until TypeScript 7 took it away.
      version === '7' ? ['esnext', 'bundler'] : ['commonjs', 'node10'],
    ].map(([module, resolution]) => ({ version, compiler, module: module!, resolution: resolution! })),
  ),
)('[G1] types hold in TypeScript $version with $module and $resolution', async ({ version, compiler, module, resolution }) => {
  await project.write(['ts', 'cts', 'mts'].map((ext) => [`typed.${ext}`, typed] as const))
  onTestFinished(() => project.sh('rm typed.*').then(() => undefined))
  const flags = [
    '--noEmit',
    '--strict',
    '--exactOptionalPropertyTypes',
    '--skipLibCheck',
    'false',
    '--target',
    'es2022',
    '--types',
    'node',
  ]
  const files = resolution === 'node10' ? ['typed.ts'] : ['typed.cts', 'typed.mts']
  const ignore = version === '7' ? ['--ignoreConfig'] : []
  const output = await tsc(compiler(), [...flags, '--module', module, '--moduleResolution', resolution, ...ignore, ...files])
  const errors = output.split('\n').filter((line) => line.includes(': error '))
  expect(errors).toEqual(files.flatMap((file) => [11, 12, 13].map((line) => expect.stringContaining(`${file}(${line},`))))
})

/** On a Node that does not run TypeScript the page says what to write. */
const commandsFor = (major: number) => (name: string) =>
  major >= 22 ? page.shell.get(name)! : page.shell.get(name)!.replace(/^node /gm, 'npx tsx ')

test.each([20, 22, 24])('[G1] the page runs as written on Node %i', async (major) => {
  const node = nodeOf(checks, major)
  if (node === undefined) throw new Error(`npm has no Node ${major} for ${process.platform}-${process.arch}`)
  const own = await project.copy(join(parent, `node-${major}`), node)
  onTestFinished(() => own.close())
  if (major < 22) await own.add([`tsx@${devDependencies.tsx}`])
  expect((await own.sh('node --version')).output).toMatch(new RegExp(`^v${major}\\.`))
  const commands = commandsFor(major)
  const port = String(await freePort())
  const dev = own.open(commands('dev'))
  await dev.until(/^stop +Ctrl-C$/m)
  const web = own.open(commands('web'), { PORT: port })
  const url = /'(http[^']+)'/.exec(commands('try'))![1]!.replace('3000', port)
  const { id } = await until('the web process answers', () =>
    fetch(url).then(
      async (response) => (await response.json()) as { id: string },
      () => (web.child.exitCode === null ? undefined : Promise.reject(new Error(web.output))),
    ),
  )
  await dev.until(new RegExp(`greet +${id} +1  done`))
  const [, ...rest] = commands('try').trim().split('\n')
  expect((await own.sh(rest.join('\n'))).output).toContain(id)
  expect(JSON.parse((await own.sh(`npx pawl jobs get ${id} -o json 2>/dev/null`)).output)).toMatchObject({ result: 'Hello Ada' })
  web.interrupt()
  dev.interrupt()
  // The shell and npx may end by the signal before it does.
  expect((await dev.ended()).output).toMatch(/workers stopped: .*\n.*PostgreSQL stopped/)

  const tested = await own.sh(commands('test'))
  expect(tested).toMatchObject({ code: 0, output: expect.stringMatching(/pass 1\b/) })
})

test('[G1] the CommonJS files run, and the commands of the deploy', async () => {
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  const [migrate, worker] = page.shell.get('deploy')!.trim().split('\n')
  const env = { DATABASE_URL: db.url }
  expect(await project.sh(migrate!, env)).toMatchObject({
    code: 0,
    output: expect.stringContaining('The schema is now up to date.'),
  })
  const working = project.open(worker!.replace('worker.ts', 'worker.cjs'), env)
  await working.until(/worker \d+ \(pid \d+\) runs greet on/)
  await project.write([
    [
      'enqueue.cjs',
      "const { greet, pawl } = require('./app.cjs')\npawl.jobs.enqueue(greet, { name: 'Grace' }).then(({ id }) => console.log(id)).then(() => pawl.close())",
    ],
  ])
  const id = (await project.sh('node enqueue.cjs', env)).output.trim()
  const pawl = db.pawl()
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  expect(await pawl.jobs.get(id)).toMatchObject({ result: 'Hello Grace' })
  // As a supervisor does: only the process that it started.
  working.child.kill('SIGTERM')
  expect((await working.ended()).output).toContain('stopped: ')
})

test.each([
  ['as the page says', (command: string) => command, 'worker.cjs'],
  [
    'as an ES module',
    (command: string) =>
      `${command.replace('worker.cjs', 'worker.mjs')} --format=esm "--banner:js=import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);"`,
    'worker.mjs',
  ],
])('[G1] the bundle of a worker runs jobs by itself: %s', async (_how, change, file) => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const [command, start] = page.shell.get('bundle')!.trim().split('\n')
  const own = await project.copy(join(parent, `bundle-${file}`), process.execPath)
  onTestFinished(() => own.close())
  await own.add([`esbuild@${devDependencies.esbuild}`])
  expect(await own.sh(change(command!))).toMatchObject({ code: 0, output: expect.not.stringMatching(/\[WARNING\]|\[ERROR\]/) })
  // Only the command is left; the bundle has its own copy of everything.
  const command$ = join(project.folder, 'node_modules', '.bin', 'pawl')
  const away = join(await temporaryFolder('bundle'), file)
  onTestFinished(() => rm(join(away, '..'), { recursive: true, force: true }))
  const working = own.open(
    `cp dist/${file} ${away} && cd / && ${start!.replace('node_modules/.bin/pawl', command$).replace('./dist/worker.cjs', away)}`,
    {
      DATABASE_URL: db.url,
    },
  )
  await working.until(/worker \d+ \(pid \d+\) runs greet on/)
  const pawl = db.pawl()
  const { id } = await pawl.jobs.enqueue('greet', { name: 'Edsger' }, { queue: 'hello' })
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  // Its keeper renews the lease.
  const seen = async () => (await db.query<{ at: Date }>('select seen_at as at from pawl.worker'))[0]!.at.getTime()
  const first = await seen()
  await until('its keeper beats', async () => (await seen()) > first, 30_000)
  working.interrupt('SIGTERM')
  expect((await working.ended()).output).toContain('stopped: ')
})

test('[G1] Jest 29 imports it and runs a job', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  await project.write([
    [
      'jobs.jest.cjs',
      `const { PawlError, createPawl } = require('pawl')
      const { runAll } = require('pawl/testing')
      test('a job runs', async () => {
        const pawl = createPawl({ databaseUrl: process.env.DATABASE_URL })
        const mail = pawl.jobs.define('mail', { run: (job) => 'to ' + job.payload.to })
        const { id } = await pawl.jobs.enqueue(mail, { to: 'Ada' })
        expect((await runAll(pawl)).done).toMatchObject([{ id }])
        expect((await pawl.jobs.get(id)).result).toBe('to Ada')
        await expect(pawl.jobs.cancel(id)).rejects.toBeInstanceOf(PawlError)
        await pawl.close()
      })`,
    ],
  ])
  const config = JSON.stringify({ testMatch: ['**/*.jest.cjs'], testEnvironment: 'node', rootDir: project.folder })
  const jest = await project.sh(`node ${program('jest', 'bin/jest.js')} --config '${config}'`, { DATABASE_URL: db.url })
  expect(jest).toMatchObject({ code: 0, output: expect.stringContaining('1 passed, 1 total') })
})

test('the page runs behind pgbouncer, and with a pool of the application', async ({ skip }) => {
  const pgbouncer = await debianProgram('pgbouncer')
  if (!pgbouncer.ok) return skip(pgbouncer.missing)
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const { url } = await startPgBouncer(pgbouncer, db.url)
  const own = await project.copy(join(parent, 'pooled'), nodeOf(checks, 24) ?? process.execPath)
  onTestFinished(() => own.close())
  await own.write([
    [
      'pooled.ts',
      `import { runAll } from 'pawl/testing'
      const { pawl } = await import(process.argv[2]!)
      const mail = pawl.jobs.define('mail', { tx: async (job, tx) => (await tx.query('select 1 as one')).rows[0] })
      const { id } = await pawl.jobs.enqueue(mail, {})
      await runAll(pawl)
      console.log(JSON.stringify((await pawl.jobs.get(id)).result))
      process.exit()`,
    ],
  ])
  const pooled = await own.sh('node pooled.ts ./app-pgbouncer.ts', { DATABASE_URL: url, DIRECT_URL: db.url })
  expect(pooled.output).toContain('{"one":1}')
  const tokens = { TOKEN_DATABASE_URL: 'postgres://nobody@127.0.0.1/nowhere' }
  expect((await own.sh('node pooled.ts ./app-pool.ts', { DATABASE_URL: db.url, ...tokens })).output).toContain('{"one":1}')
})
