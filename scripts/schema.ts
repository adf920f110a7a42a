// Writes packages/pawl/schema.json from a freshly migrated database. Run it after adding or changing a migration: node scripts/run.mjs scripts/schema.ts

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startEmbedded } from '@pawl/server/embedded'
import { Connection } from '../packages/pawl/src/db/driver.ts'
import { migrate } from '../packages/pawl/src/db/migrate.ts'
import { readSchema, schemaText } from '../packages/pawl/src/db/schema.ts'

const dir = await mkdtemp(join(tmpdir(), 'pawl-schema-'))
const server = await startEmbedded({ dir, database: 'pawl' })
const database = {
  url: server.url,
  pooler: 'none',
  connectTimeoutMs: 10_000,
  queryTimeoutMs: 60_000,
  applicationName: 'pawl schema',
} as const
const connection = new Connection(database, 'read')
try {
  await migrate(database)
  await writeFile(
    new URL('../packages/pawl/schema.json', import.meta.url),
    schemaText(await readSchema(await connection.client())),
  )
} finally {
  await connection.close()
  await server.stop('immediate')
  await rm(dir, { recursive: true, force: true })
}
