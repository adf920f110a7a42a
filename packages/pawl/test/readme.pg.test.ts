// The code of the README runs as it is written there.

import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Pawl, Worker } from 'pawl'
import { expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, until } from './support/database.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))

test('the twenty lines charge once and mail with a key', async () => {
  const readme = await readFile(join(root, 'README.md'), 'utf8')
  const [, code] = /<!-- example: quick-start -->\n```ts\n([\s\S]*?)```/.exec(readme)!
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  await db.query('create table account (id integer primary key, cents integer not null); insert into account values (1, 5000)')
  const keys: string[] = []
  vi.stubEnv('DATABASE_URL', db.url)
  vi.stubGlobal('fetch', async (_url: string, { headers }: { headers: Record<string, string> }) => {
    keys.push(headers['Idempotency-Key']!)
    return new Response()
  })
  onTestFinished(() => {
    vi.unstubAllEnvs()
    vi.unstubAllGlobals()
  })
  const folder = join(root, 'packages', 'pawl', 'node_modules', `.readme-${process.pid}`)
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
  await until('both jobs are done', async () => (await pawl.jobs.list({ state: 'done' })).items.length === 2)
  expect(await db.query('select cents from account')).toEqual([{ cents: 3800 }])
  expect(keys).toEqual([expect.stringMatching(/./)])
})
