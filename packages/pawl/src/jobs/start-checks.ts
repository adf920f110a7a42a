// What must be true before a worker starts: the schema is there, and the durability that was asked for can be given.

import type { Config } from '../config.ts'
import type { Connection } from '../db/driver.ts'
import { pendingMigrations } from '../db/migrate.ts'
import { PawlError } from '../errors.ts'
import { assertStandby, installationId } from '../kernel/installation.ts'
import type { DefinedKind } from './kinds.ts'

/** Gives the installation's id. */
export async function assertReady(
  engine: Connection,
  core: { config: Config; kinds: ReadonlyMap<string, DefinedKind> },
): Promise<string> {
  await assertMigrated(engine)
  const wantsReplica = [...core.kinds.values()].filter((kind) => kind.durability === 'replicated').map(({ name }) => `'${name}'`)
  if (core.config.durability === 'replicated') wantsReplica.push('createPawl')
  if (wantsReplica.length > 0) await assertStandby(engine, wantsReplica)
  return installationId(engine)
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
