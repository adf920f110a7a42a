import { createHash, randomBytes } from 'node:crypto'
import { access, chmod, constants, mkdir, readdir, readFile, realpath, rename, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, isAbsolute, join, resolve } from 'node:path'
import { type Account, canReach, isRoot } from './account.ts'
import { codeOf, EmbeddedError } from './errors.ts'

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
 * and loosening the modes of somebody's home is not ours to do. Then the data live under /var/lib, and `<dir>/pgdata.location`
 * says where. Called under the lock of `dir`.
 */
export async function findDataDir(dir: string, runAs: Account | undefined, onNotice: (line: string) => void): Promise<string> {
  const pointer = join(dir, 'pgdata.location')
  const pointed = (await readFile(pointer, 'utf8').catch(() => '')).trim()
  if (pointed !== '') return checkPointed(dir, pointed)
  // The postmaster is recognised by its working directory, which is the real path even if somebody put the data behind a link.
  const inside = await realpath(join(dir, 'pgdata')).catch(() => join(dir, 'pgdata'))
  if (runAs === undefined || (await canReach(runAs, dirname(inside)))) return inside
  if (await openIfOnlyOurs(dir, runAs)) return inside
  await refuseUnreachable(inside, runAs)
  const home = await makeHomeElsewhere(dir, runAs, onNotice)
  await writeFile(`${pointer}.new`, `${join(home, 'pgdata')}\n`)
  await rename(`${pointer}.new`, pointer)
  onNotice(`The data are kept in ${home}, since PostgreSQL does not run as root and uid ${runAs.uid} cannot enter ${dir}.`)
  return join(home, 'pgdata')
}

/**
 * A fresh temporary directory has mode 0700. If nothing is in it but what the launcher guards by modes of its own, others may be
 * let through (not let in: without r they cannot list it), and the data can stay where they are wanted and looked for.
 */
async function openIfOnlyOurs(dir: string, runAs: Account): Promise<boolean> {
  const { uid, mode } = await stat(dir)
  const onlyOurs = (await readdir(dir)).every((name) => /^(lock\.|password|pgdata|postgres\.log)/.test(name))
  if (uid !== 0 || !onlyOurs || !(await canReach(runAs, dirname(dir)))) return false
  await chmod(dir, (mode & 0o777) | 0o011)
  return canReach(runAs, dir)
}

const belongsTo = 'belongs-to'

/** A pointer that was copied along with its directory would have two databases believe they own the same files. */
async function checkPointed(dir: string, dataDir: string): Promise<string> {
  const owner = isAbsolute(dataDir) ? (await readFile(join(dataDir, '..', belongsTo), 'utf8').catch(() => '')).trim() : ''
  if (owner === dir) return dataDir
  const ownerStillPoints =
    owner !== '' && (await readFile(join(owner, 'pgdata.location'), 'utf8').catch(() => '')).trim() === dataDir
  if (owner !== '' && !ownerStillPoints) {
    // The directory was moved, and its data stayed where they were.
    await writeFile(join(dataDir, '..', belongsTo), `${dir}\n`)
    return dataDir
  }
  throw new EmbeddedError(
    'no_data_place',
    `${join(dir, 'pgdata.location')} names ${dataDir}, which ${owner === '' ? 'is not there' : `belongs to ${owner}`}. ` +
      'The directory was copied, or its data were removed. Delete that file to begin with an empty database, or bring the data back.',
  )
}

/** Data that were made in the directory when it could still be entered must not be forgotten in favour of an empty place. */
async function refuseUnreachable(inside: string, runAs: Account): Promise<void> {
  if ((await stat(inside).catch(() => undefined)) === undefined) return
  throw new EmbeddedError(
    'no_data_place',
    `${inside} holds data, but uid ${runAs.uid}, as which PostgreSQL runs because it refuses root, cannot enter a directory above it. ` +
      'Give others the right to pass (chmod o+x) on those directories, or move the directory to where it was.',
  )
}

async function makeHomeElsewhere(dir: string, runAs: Account, onNotice: (line: string) => void): Promise<string> {
  const prefix = createHash('sha256').update(dir).digest('hex').slice(0, 12)
  for (const parent of ['/var/lib', '/var/tmp', tmpdir()]) {
    const root = join(parent, 'pawl-postgres-data')
    if (!(await ensureOpen(root, runAs).catch(() => false))) continue
    const older = (await readdir(root)).filter((name) => name.startsWith(prefix))
    if (older.length > 0)
      onNotice(
        `Older data of ${dir} are still in ${older.map((name) => join(root, name)).join(', ')}; delete them if you removed it on purpose.`,
      )
    const home = join(root, `${prefix}-${randomBytes(4).toString('hex')}`)
    await ensureOpen(home, runAs)
    await writeFile(join(home, belongsTo), `${dir}\n`)
    return home
  }
  throw new EmbeddedError(
    'no_data_place',
    `No place for the data: PostgreSQL does not run as root, uid ${runAs.uid} cannot enter ${dir}, and neither /var/lib nor /var/tmp ` +
      'can be written to. Use a directory that others may enter, or start Pawl as a normal user.',
  )
}

/** A directory of root's that others can pass through but not list. The mode is set apart from mkdir, which obeys the umask. */
async function ensureOpen(path: string, runAs: Account): Promise<boolean> {
  await mkdir(path, { recursive: true })
  const { uid, mode } = await stat(path)
  if (uid !== 0 || (mode & 0o022) !== 0) return false
  if ((mode & 0o777) !== 0o711) await chmod(path, 0o711)
  return canReach(runAs, path)
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
      'and never runs as root. Start Pawl as the user that made them, or give them to this one with chown -R.',
  )
}
