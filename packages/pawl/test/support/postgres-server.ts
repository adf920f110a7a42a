// One embedded PostgreSQL for the whole test run, and a migrated template that each test file's database is cloned from.

import { mkdtemp, readFile, rm, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startEmbedded } from '@pawl/server/embedded'
import { migrate } from 'pawl/admin'
import pg from 'pg'
import type { TestProject } from 'vitest/node'
import { readSchema, schemaText } from '../../src/db/schema.ts'
import { buildPrograms } from './programs.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** Connection string of the server's own database; tests clone theirs from template database `pawl_template`. */
    serverUrl: string
    serverPid: number
    serverDataDir: string
    /** Of what runs in processes and threads of its own, the compiled files by name. */
    programs: Readonly<Record<Program | 'keeper-thread', string>>
  }
}

const processes = (name: string) => new URL(`../processes/${name}.ts`, import.meta.url)
const programs = {
  worker: processes('worker'),
  projector: processes('projector'),
  'records-worker': processes('records-worker'),
  'records-upload': processes('records-upload'),
  'batches-worker': processes('batches-worker'),
}
export type Program = keyof typeof programs

const memoryFolder = '/dev/shm'
const memoryBytesMin = 4 * 2 ** 30

/** A database per test is copied and dropped a thousand times: in memory that takes 50 ms, on a slow disk 700. */
async function dataFolder(): Promise<string> {
  const memory = await statfs(memoryFolder).catch(() => undefined)
  return memory !== undefined && memory.bavail * memory.bsize >= memoryBytesMin ? memoryFolder : tmpdir()
}

/** Dozens of tests would fail without saying why. */
async function assertSchemaWritten(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    const written = await readFile(new URL('../../schema.json', import.meta.url), 'utf8')
    if (written === schemaText(await readSchema(client))) return
  } finally {
    await client.end()
  }
  throw new Error('packages/pawl/schema.json is stale: run `node scripts/run.mjs scripts/schema.ts` and commit the file')
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const dir = await mkdtemp(join(await dataFolder(), 'pawl-test-'))
  const server = await startEmbedded({
    dir,
    database: 'pawl_template',
    settings: {
      max_prepared_transactions: '20',
      shared_preload_libraries: 'pg_stat_statements',
      'pg_stat_statements.track': 'all',
      // A whole run has more statements than the default keeps: those that a test waits for would be evicted.
      'pg_stat_statements.max': '50000',
    },
  })
  const stop = async () => {
    await server.stop('immediate')
    await rm(dir, { recursive: true, force: true })
  }
  try {
    await migrate({
      url: server.url,
      pooler: 'none',
      connectTimeoutMs: 10_000,
      queryTimeoutMs: 60_000,
      applicationName: 'pawl test',
    })
    await assertSchemaWritten(server.url)
  } catch (error) {
    await stop()
    throw error
  }
  project.provide('serverUrl', server.url)
  project.provide('serverPid', server.pid)
  project.provide('serverDataDir', server.dataDir)
  const built = await buildPrograms(programs)
  const names = [...(Object.keys(programs) as Program[]), 'keeper-thread'] as const
  project.provide(
    'programs',
    Object.fromEntries(names.map((name) => [name, built.fileOf(name)])) as Record<(typeof names)[number], string>,
  )
  return async () => {
    built.remove()
    await stop()
  }
}
