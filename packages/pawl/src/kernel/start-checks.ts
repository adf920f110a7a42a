// What must be true before a worker starts: the schema is there, and the durability that was asked for can be given.

import type { Connection } from '../db/driver.ts'
import { pendingMigrations } from '../db/migrate.ts'
import { PawlError } from '../errors.ts'

/** Returns the installation's id. */
export async function readInstallation(engine: Connection): Promise<string> {
  const [row] = await engine.query<{ id: string }>("select id::text as id from pawl.installation where tenant = ''")
  return row!.id
}

export async function assertMigrated(engine: Connection): Promise<void> {
  const pending = await pendingMigrations(engine)
  if (pending === undefined || pending.length > 0) {
    const missing = pending === undefined ? 'is missing from this database' : `lacks ${pending.join(', ')}`
    throw new PawlError(
      'PAWL_SCHEMA_MISSING',
      `Pawl's schema ${missing}. Run 'pawl migrate', or call pawl.migrate() before you start a worker.`,
    )
  }
}

export async function assertStandby(engine: Connection, askers: readonly string[] = []): Promise<void> {
  const [row] = await engine.query<{ names: string }>("select pg_catalog.current_setting('synchronous_standby_names') as names")
  if (row?.names) return
  throw new PawlError(
    'PAWL_NO_STANDBY',
    `Durability 'replicated'${askers.length === 0 ? '' : ` (of ${askers.slice(0, 5).join(', ')})`} needs a synchronous standby, but synchronous_standby_names of the server is empty. Configure a standby, or use 'durable'.`,
  )
}
