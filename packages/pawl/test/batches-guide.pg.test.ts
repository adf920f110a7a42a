// The examples of docs/guides/batches.md run as they are written there.

import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Pawl, Worker } from 'pawl'
import { expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, type TestDatabase, until } from './support/database.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const guide = await readFile(join(root, 'docs/guides/batches.md'), 'utf8')

async function database(): Promise<TestDatabase> {
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  vi.stubEnv('DATABASE_URL', db.url)
  onTestFinished(() => void vi.unstubAllEnvs())
  return db
}

/** What the example exports, once it is changed so that it can be ended. */
async function run<Exports>(example: string, change: (code: string) => string): Promise<Exports & { readonly pawl: Pawl }> {
  const [, code] = new RegExp(`<!-- example: ${example} -->\n\`\`\`ts\n([\\s\\S]*?)\`\`\``).exec(guide)!
  const folder = join(root, 'packages', 'pawl', 'node_modules', `.guide-${example}-${process.pid}`)
  await mkdir(folder, { recursive: true })
  onTestFinished(() => rm(folder, { recursive: true, force: true }))
  await writeFile(join(folder, 'main.ts'), change(code!.replace('const pawl =', 'export const pawl =')))
  return (await import(join(folder, 'main.ts'))) as Exports & { readonly pawl: Pawl }
}

test("the guide's first batch parses both files and reports once", async () => {
  const db = await database()
  const [, tables] = /<!-- example: first-tables -->\n```sql\n([\s\S]*?)```/.exec(guide)!
  await db.query(tables!)
  const started = 'export const worker = pawl.worker()\nawait worker.start()'
  const { pawl, worker } = await run<{ worker: Worker }>('first-batch', (code) =>
    code.replace('await pawl.worker().start()', started),
  )
  onTestFinished(async () => {
    await worker.stop()
    await pawl.close()
  })
  await until('the report is written', async () => (await db.query('select from report')).length === 1)
  expect(await db.query('select * from report')).toEqual([{ state: 'finished', lines: 500 }])
  expect(await db.query('select file from parsed order by file')).toEqual([{ file: 'q1.txt' }, { file: 'q2.txt' }])
})

test("the guide's batch without handlers runs once they are given", async () => {
  const db = await database()
  const said = vi.spyOn(console, 'log').mockImplementation(() => undefined)
  onTestFinished(() => said.mockRestore())
  await db.pawl().migrate()
  const { pawl } = await run<{ pawl: Pawl }>('apart', (code) => code)
  const worker = pawl.worker()
  onTestFinished(async () => {
    await worker.stop()
    await pawl.close()
  })
  await worker.start()
  await until(
    'onEnd has run',
    async () => said.mock.calls.length,
    (calls) => calls === 2,
  )
  expect(said.mock.calls).toEqual([['account-7', 2030], ['finished']])
})
