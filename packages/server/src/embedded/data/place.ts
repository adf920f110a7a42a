import { access, chmod, constants, mkdir, readdir, realpath, stat } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { type Account, canReach, isRoot } from '../binaries/account.ts'
import { codeOf, EmbeddedError } from '../errors.ts'
import { checkPointed, placeElsewhere, readPointer } from './elsewhere.ts'

/** Makes the launcher's directory and returns its real path, the one that PostgreSQL and /proc will name. */
export async function ensureDir(wanted: string): Promise<string> {
  const dir = resolve(wanted)
  try {
    await mkdir(dir, { recursive: true })
    await access(dir, constants.W_OK | constants.X_OK)
    return await realpath(dir)
  } catch (cause) {
    throw new EmbeddedError(
      'not_writable',
      `${dir} cannot be used (${codeOf(cause) ?? String(cause)}). The embedded PostgreSQL keeps its data there. ` +
        'Choose a directory that this user can write to.',
      { cause },
    )
  }
}

/**
 * Where the data directory is, or is to be made. That is `<dir>/pgdata`, except for root in a place that PostgreSQL's account cannot
 * enter, such as a project under /root: PostgreSQL opens its files by absolute path, so no trick with the working directory helps,
 * and changing the modes of a user's home is not ours to do. Then the data are kept elsewhere. Called under the lock of `dir`.
 */
export async function findDataDir(dir: string, runAs: Account | undefined, onNotice: (line: string) => void): Promise<string> {
  const pointed = await readPointer(dir)
  if (pointed !== undefined) return checkPointed(dir, pointed)
  // The postmaster is recognised by its working directory, which is the real path even where the data directory is a link.
  const inside = await realpath(join(dir, 'pgdata')).catch(() => join(dir, 'pgdata'))
  if (runAs === undefined || (await canReach(runAs, dirname(inside)))) return inside
  if (await openIfOnlyOurs(dir, runAs)) return inside
  await refuseUnreachable(inside, runAs)
  return placeElsewhere(dir, runAs, onNotice)
}

/**
 * A fresh temporary directory has mode 0700. If nothing is in it but what the launcher guards by modes of its own, others may be
 * let through (not let in: without r they cannot list it), and the data can stay where they are wanted and looked for.
 */
async function openIfOnlyOurs(dir: string, runAs: Account): Promise<boolean> {
  const { uid, mode } = await stat(dir)
  const onlyOurs = (await readdir(dir)).every((name) => /^(lock\.|dev-lock\.|password|pgdata|postgres\.log)/.test(name))
  if (uid !== 0 || !onlyOurs || !(await canReach(runAs, dirname(dir)))) return false
  await chmod(dir, (mode & 0o777) | 0o011)
  return canReach(runAs, dir)
}

/** Data that were made in the directory when it could still be entered must not be forgotten in favour of an empty place. */
async function refuseUnreachable(inside: string, runAs: Account): Promise<void> {
  if ((await stat(inside).catch(() => undefined)) === undefined) return
  throw new EmbeddedError(
    'no_data_place',
    `${inside} contains data, but PostgreSQL, which runs as uid ${runAs.uid} because it refuses root, cannot enter a directory above it. ` +
      'Run chmod o+x on those directories, or move the data back to where it was.',
  )
}

/** Whose server this must be: files of an existing data directory decide, since PostgreSQL only opens its own. */
export async function accountOf(dataDir: string, runAs: Account | undefined): Promise<Account | undefined> {
  if (process.getuid === undefined) return undefined
  const found = await stat(dataDir).catch((error: unknown) => {
    if (codeOf(error) === 'ENOENT') return undefined
    throw ownerError(dataDir, codeOf(error) ?? String(error))
  })
  const isEmpty = found !== undefined && (await readdir(dataDir).catch(() => ['unreadable'])).length === 0
  if (found === undefined || isEmpty) return runAs
  if (isRoot() && found.uid !== 0) return { uid: found.uid, gid: found.gid }
  if (!isRoot() && found.uid === process.getuid()) return undefined
  throw ownerError(dataDir, `it belongs to uid ${found.uid}`)
}

function ownerError(dataDir: string, why: string): EmbeddedError {
  return new EmbeddedError(
    'data_owner',
    `The data in ${dataDir} cannot be used by uid ${process.getuid?.()}: ${why}. PostgreSQL only opens files of the account it runs as, ` +
      'and never runs as root. Start Pawl as the user that owns them, or give them to this user with chown -R.',
  )
}
