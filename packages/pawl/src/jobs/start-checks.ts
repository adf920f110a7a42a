// What must be true before a worker starts: the schema is there, and the durability that was asked for can be given.

import type { Config } from '../config.ts'
import type { Connection } from '../db/driver.ts'
import { pendingMigrations } from '../db/migrate.ts'
import { PawlError } from '../errors.ts'
import type { DefinedKind } from './kinds.ts'

/** Gives the installation's id. */
export async function assertReady(
  engine: Connection,
  core: { config: Config; kinds: ReadonlyMap<string, DefinedKind> },
): Promise<string> {
  await assertMigrated(engine)
  const wantsReplica =
    core.config.durability === 'replicated' || [...core.kinds.values()].some((kind) => kind.durability === 'replicated')
  if (wantsReplica) await assertStandby(engine)
  const [row] = await engine.query<{ id: string }>("select id::text as id from pawl.installation where tenant = ''")
  return row!.id
}

export async function assertMigrated(engine: Connection): Promise<void> {
  const pending = await pendingMigrations(engine)
  if (pending === undefined || pending.length > 0) {
    const missing = pending === undefined ? 'is not there' : `lacks ${pending.join(', ')}`
    throw new PawlError(
      'PAWL_SCHEMA_MISSING',
      `Pawl's schema ${missing}. Run 'pawl migrate', or call pawl.migrate() before you start a worker.`,
    )
  }
}

export async function assertStandby(engine: Connection): Promise<void> {
  const [row] = await engine.query<{ names: string }>("select pg_catalog.current_setting('synchronous_standby_names') as names")
  if (row?.names) return
  throw new PawlError(
    'PAWL_NO_STANDBY',
    "Durability 'replicated' was asked for, but the server has no synchronous_standby_names: commits would not wait for a standby. Configure one, or use 'durable'.",
  )
}
