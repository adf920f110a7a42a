// What the installation is, and what durability its server can give.

import type { Durability } from '../config.ts'
import type { Db } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'

const idStatement = statement(import.meta.url, 'installation')
const standbyStatement = statement(import.meta.url, 'standby-names', 'any')
const durabilityStatement = statement(import.meta.url, 'set-durability', 'any')

export async function installationId(db: Db): Promise<string> {
  const [row] = await db.run<{ id: string }>(idStatement)
  return row!.id
}

export async function assertStandby(db: Db, askers: readonly string[] = []): Promise<void> {
  const [row] = await db.run<{ names: string }>(standbyStatement)
  if (row?.names) return
  throw new PawlError(
    'PAWL_NO_STANDBY',
    `Durability 'replicated'${askers.length === 0 ? '' : ` (of ${askers.slice(0, 5).join(', ')})`} needs a synchronous standby, but synchronous_standby_names of the server is empty. Configure a standby, or use 'durable'.`,
  )
}

/** For the commit of this transaction. A caller's is raised and never lowered. */
export async function setDurability(tx: Db, level: Durability, mayLower = false): Promise<void> {
  if (level === 'replicated') await assertStandby(tx)
  await tx.run(durabilityStatement, { level, may_lower: mayLower })
}
