// The examples of docs/guides/documents.md run as they are written there.

import { readFileSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Pawl, Worker } from 'pawl'
import { errorTable } from 'pawl/admin'
import type pg from 'pg'
import { expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, type TestDatabase, until } from './support/database.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))

const guide = readFileSync(join(root, 'docs/guides/documents.md'), 'utf8')

function codeOf(example: string): string {
  return new RegExp(`<!-- example: ${example} -->\n\`\`\`ts\n([\\s\\S]*?)\`\`\``).exec(guide)![1]!
}

async function load<Module>(name: string, text: string): Promise<Module> {
  const folder = join(root, 'packages', 'pawl', 'node_modules', `.guide-documents-${process.pid}`)
  await mkdir(folder, { recursive: true })
  onTestFinished(() => rm(folder, { recursive: true, force: true }))
  await writeFile(join(folder, `${name}.ts`), text)
  return (await import(join(folder, `${name}.ts`))) as Module
}

async function emptyDatabase(): Promise<TestDatabase> {
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  return db
}

const renamed = { sectionIdentifier: 'ALG', sessionReference: { sessionName: 'Autumn', schoolId: 1 } }

test("[D3] the guide's rename shows at the next read and is stored", async () => {
  const db = await emptyDatabase()
  vi.stubEnv('DATABASE_URL', db.url)
  onTestFinished(() => void vi.unstubAllEnvs())
  const log = vi.spyOn(console, 'log').mockReturnValue(undefined)
  onTestFinished(() => log.mockRestore())
  // Exported, so that both can be ended.
  const text = codeOf('first-documents')
    .replace('const pawl =', 'export const pawl =')
    .replace('await pawl.worker().start()', 'export const worker = pawl.worker()\nawait worker.start()')
  const { pawl, worker } = await load<{ pawl: Pawl; worker: Worker }>('first', text)
  onTestFinished(async () => {
    await worker.stop()
    await pawl.close()
  })
  const sessionReference = { sessionName: 'Winter', schoolId: 1 }
  const refused = pawl.documents.post('Section', { sectionIdentifier: 'ALG', sessionReference })
  const message = await refused.then(String, (error: Error) => error.message)
  expect(/error\.message \/\/ "(.*)"$/m.exec(guide)![1]).toBe(message)
  expect(log.mock.calls).toEqual([[renamed], [{ sectionIdentifier: 'ALG', sessionName: 'Autumn', schoolId: 1 }]])
  await until('it is stored', async () => {
    const [row] = await db.query<{ body: unknown }>("select body from pawl.document where type = 'Section'")
    return JSON.stringify(row!.body).includes('Autumn')
  })
})

/** An index as OpenSearch is one: it keeps the highest version of each document, deleted ones too. */
class Index {
  readonly #versions = new Map<string, number>()
  readonly bodies = new Map<string, object>()

  bulk = async (lines: readonly object[]): Promise<void> => {
    for (let n = 0; n < lines.length; n++) {
      const { index, delete: gone } = lines[n] as Record<'index' | 'delete', { _id: string; version: number } | undefined>
      const { _id, version } = (index ?? gone)!
      const body = index === undefined ? undefined : lines[++n]
      if (version <= (this.#versions.get(_id) ?? 0)) continue
      this.#versions.set(_id, version)
      if (body === undefined) this.bodies.delete(_id)
      else this.bodies.set(_id, body)
    }
  }
}

test("[D5] the guide's search index follows renames and deletes", async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const pawl = db.pawl()
  const { documents } = pawl
  documents.define('School', { identity: ['schoolId'] })
  documents.define('Session', {
    identity: ['sessionName', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'cascade',
  })
  documents.define('Section', {
    identity: ['sectionIdentifier', 'sessionReference'],
    references: { sessionReference: 'Session' },
  })
  const index = new Index()
  const text = `export default async (pawl, pool, bulk) => {\n${codeOf('search-index')}\n}`
  type Define = (pawl: Pawl, pool: pg.Pool, bulk: Index['bulk']) => Promise<void>
  await (await load<{ default: Define }>('search', text)).default(pawl, db.pool, index.bulk)
  const session = (sessionName: string) => ({ sessionName, schoolReference: { schoolId: 1 } })
  await documents.post('School', { schoolId: 1 })
  const fall = await documents.post('Session', session('Fall'))
  const sessionReference = { sessionName: 'Fall', schoolId: 1 }
  const section = await documents.post('Section', { sectionIdentifier: 'ALG', sessionReference })
  const other = await documents.post('Section', { sectionIdentifier: 'BIO', sessionReference })
  const worker = pawl.worker()
  await worker.start()
  onTestFinished(async () => void (await worker.stop()))
  await until('all are in the index', async () => index.bodies.size === 4)
  await documents.put('Session', fall.uuid, session('Autumn'))
  await documents.delete('Section', other.uuid)
  await until('the deleted one is gone', async () => index.bodies.size === 3)
  await until('the dependent has the new key', async () => JSON.stringify(index.bodies.get(section.uuid)).includes('Autumn'))
  expect(index.bodies.get(section.uuid)).toEqual(renamed)
  expect(index.bodies.get(fall.uuid)).toEqual(session('Autumn'))
})

test("the guide's errors have the statuses that callers get", () => {
  const rows = [...guide.matchAll(/^\| `(PAWL_\w+)` (\d+) +\|/gm)].map(([, code, status]) => [code, Number(status)])
  expect(rows).toHaveLength(11)
  expect(rows).toEqual(rows.map(([code]) => [code, errorTable[code as keyof typeof errorTable].status]))
})
