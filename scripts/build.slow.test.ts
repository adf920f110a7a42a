import { execFile } from 'node:child_process'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase } from '../packages/pawl/test/support/database.ts'
import { root } from './phase.ts'
import { bin } from './static-checks.ts'

const run = promisify(execFile)

/** A user's program: it knows nothing of this repository but the package. */
const program = `
import { createPawl } from 'pawl'
const pawl = createPawl({ databaseUrl: process.argv[2] })
await pawl.migrate()
const greet = pawl.jobs.define('greet', { run: (job) => 'Hello ' + job.payload.name })
const { id } = await pawl.jobs.enqueue(greet, { name: 'Ada' })
const worker = pawl.jobs.worker()
await worker.start()
await worker.whenIdle()
await worker.stop()
console.log(JSON.stringify({ result: (await pawl.jobs.get(id)).result, url: import.meta.resolve('pawl') }))
await pawl.close()
`

/** Half of it must not compile: declarations that resolve to nothing would accept everything. */
const typed = `
import { createPawl, type JobRow } from 'pawl'
const pawl = createPawl({ databaseUrl: 'postgres://localhost/x' })
const job: JobRow | undefined = await pawl.jobs.get('1')
export const good: string | undefined = job?.kind
export const bad: number | undefined = job?.kind
`

test('the built packages run under plain Node and carry their types', async () => {
  await run(process.execPath, ['--import', 'tsx', '--conditions=@pawl/source', 'scripts/build.ts'], { cwd: root })
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())

  // The server's node_modules sees the packages as an installed one would, through the workspace's links.
  const user = join(root, 'packages', 'server', 'node_modules', `pawl-smoke-${db.name}.mjs`)
  await writeFile(user, program)
  onTestFinished(() => rm(user))
  const { stdout } = await run(process.execPath, [user, db.url], { cwd: root })
  const answer = JSON.parse(stdout) as { result: string; url: string }
  expect(answer).toEqual({ result: 'Hello Ada', url: expect.stringMatching(/packages\/pawl\/dist\/index\.js$/) })

  const cli = await run(process.execPath, [join('packages', 'server', 'dist', 'cli', 'main.js'), 'version', '-o', 'jsonl'], {
    cwd: root,
  })
  expect(JSON.parse(cli.stdout)).toMatchObject({ pawl: expect.stringMatching(/^\d+\.\d+\.\d+$/), node: process.versions.node })

  const types = join(root, 'packages', 'server', 'node_modules', `pawl-smoke-${db.name}.mts`)
  await writeFile(types, typed)
  onTestFinished(() => rm(types))
  const args = [
    bin('typescript', 'tsc'),
    '--ignoreConfig',
    '--noEmit',
    '--strict',
    '--module',
    'nodenext',
    '--target',
    'es2023',
    '--types',
    'node',
    types,
  ]
  const compiled = await run(process.execPath, args, { cwd: root }).then(
    () => '',
    (error: { stdout: string }) => error.stdout,
  )
  expect(compiled.split('\n').filter((line) => line.includes(': error '))).toEqual([
    expect.stringMatching(/\(6,14\): error TS2322: .*string.*number/),
  ])
})
