import { execFile } from 'node:child_process'
import { stat } from 'node:fs/promises'
import { dirname } from 'node:path'
import { promisify } from 'node:util'
import { EmbeddedError } from '../errors.ts'

const execFileText = promisify(execFile)

/** An account by its numbers, as `spawn` wants it. */
export interface Account {
  readonly uid: number
  readonly gid: number
}

export function isRoot(): boolean {
  return process.getuid?.() === 0
}

/**
 * The account under which PostgreSQL runs: undefined (ourselves) for a normal user. PostgreSQL refuses to run as root, so root
 * lends it `postgres` where a system package has made that account, else `nobody`. It must have a passwd entry (an unmapped uid
 * dies with "could not look up effective user ID"), and we create no accounts on other people's machines.
 */
export async function accountForPostgres(): Promise<Account | undefined> {
  if (!isRoot()) return undefined
  for (const name of ['postgres', 'nobody']) {
    const account = await lookUp(name)
    if (account !== undefined && account.uid !== 0) return account
  }
  throw new EmbeddedError(
    'no_account',
    'PostgreSQL cannot be started: it refuses to run as root, and this machine has neither a "postgres" nor a "nobody" account ' +
      'to run it as. Start Pawl as a normal user, or set DATABASE_URL to a running PostgreSQL.',
  )
}

async function lookUp(name: string): Promise<Account | undefined> {
  try {
    const [uid, gid] = await Promise.all([execFileText('id', ['-u', name]), execFileText('id', ['-g', name])])
    return { uid: Number(uid.stdout), gid: Number(gid.stdout) }
  } catch {
    return undefined
  }
}

/** Whether the account may pass through `dir` and everything above it. Decided by modes alone; access lists are not read. */
export async function canReach(account: Account, dir: string): Promise<boolean> {
  const { mode, uid, gid } = await stat(dir)
  const execute = uid === account.uid ? 0o100 : gid === account.gid ? 0o010 : 0o001
  if ((mode & execute) === 0) return false
  const parent = dirname(dir)
  return parent === dir || canReach(account, parent)
}
