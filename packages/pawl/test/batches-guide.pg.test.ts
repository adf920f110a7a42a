// The first example of docs/guides/batches.md runs as it is written there.

import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Pawl, Worker } from 'pawl'
import { expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, until } from './support/database.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))

test("the guide's first batch parses both files and reports once", async () => {
  const guide = await readFile(join(root, 'docs/guides/batches.md'), 'utf8')
  const [, code] = /<!-- example: first-batch -->\n```ts\n([\s\S]*?)```/.exec(guide)!
  const [, tables] = /<!-- example: first-tables -->\n```sql\n([\s\S]*?)```/.exec(guide)!
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  await db.query(tables!)
  vi.stubEnv('DATABASE_URL', db.url)
  onTestFinished(() => void vi.unstubAllEnvs())
  const folder = join(root, 'packages', 'pawl', 'node_modules', `.guide-${process.pid}`)
  await mkdir(folder, { recursive: true })
  onTestFinished(() => rm(folder, { recursive: true, force: true }))
  // Exported, so that both can be ended.
  const text = code!
    .replace('const pawl =', 'export const pawl =')
    .replace('await pawl.worker().start()', 'export const worker = pawl.worker()\nawait worker.start()')
  await writeFile(join(folder, 'main.ts'), text)
  const { pawl, worker } = (await import(join(folder, 'main.ts'))) as { pawl: Pawl; worker: Worker }
  onTestFinished(async () => {
    await worker.stop()
    await pawl.close()
  })
  await until('the report is written', async () => (await db.query('select from report')).length === 1)
  expect(await db.query('select * from report')).toEqual([{ state: 'finished', lines: 500 }])
  expect(await db.query('select file from parsed order by file')).toEqual([{ file: 'q1.txt' }, { file: 'q2.txt' }])
})
