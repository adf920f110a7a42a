// A smoke of the build, in seconds: build.slow.test.ts installs the packed packages and tries them in every way.

import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { build } from 'esbuild'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase } from '../packages/pawl/test/support/database.ts'
import { compile } from './compile.ts'
import { root } from './phase.ts'

const program = `
import { createPawl } from 'pawl'
const pawl = createPawl({ databaseUrl: process.argv[2] })
const greet = pawl.jobs.define('greet', { run: (job) => 'Hello ' + job.payload.name })
const worker = pawl.worker()
const main = async () => {
  const { id } = await pawl.jobs.enqueue(greet, { name: 'Ada' })
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
  console.log((await pawl.jobs.get(id)).result)
  await pawl.close()
}
main()
`

test('a bundle of the build runs a job', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  // Below the repository, so that pg is found from there.
  await mkdir(join(root, '.pawl'), { recursive: true })
  const folder = await mkdtemp(join(root, '.pawl', 'smoke-'))
  onTestFinished(() => rm(folder, { recursive: true, force: true }))
  await compile('pawl', join(folder, 'node_modules', 'pawl'))
  const [plain, bundled] = [join(folder, 'plain.mjs'), join(folder, 'bundled.cjs')]
  await writeFile(plain, program)
  await build({
    entryPoints: [plain],
    outfile: bundled,
    bundle: true,
    platform: 'node',
    external: ['pg-native'],
    logLevel: 'error',
  })
  await rm(join(folder, 'node_modules', 'pawl', 'dist', 'keeper-thread.cjs'))
  const said = promisify(execFile)(process.execPath, [bundled, db.url])
  expect((await said).stdout).toBe('Hello Ada\n')
})
