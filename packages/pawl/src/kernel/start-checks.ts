// What must be true before a worker starts: the schema is there.

import type { Connection } from '../db/driver.ts'
import { pendingMigrations } from '../db/migrate.ts'
import { PawlError } from '../errors.ts'

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
