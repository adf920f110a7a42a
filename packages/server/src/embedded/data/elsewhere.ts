import { createHash, randomBytes } from 'node:crypto'
import { chmod, lstat, mkdir, readdir, readFile, realpath, rename, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, isAbsolute, join, relative } from 'node:path'
import { type Account, canReach } from '../binaries/account.ts'
import { whyNotSafe } from '../binaries/trust.ts'
import { EmbeddedError } from '../errors.ts'
import { isAlive } from '../processes.ts'
import { readPidFile } from '../server/pidfile.ts'
import { removeTree } from './remove.ts'

/*
 * For root only: data that cannot be in the wanted directory are in a home of their own, `<root>/<hash of dir>-<random>/pgdata`, under
 * /var/lib or, if the wanted directory is a temporary one, under the temporary directory. `<dir>/pgdata.location` points there, and
 * `belongs-to` in the home points back.
 */

/** The data directory that this directory points to, if it points to one. */
export async function readPointer(dir: string): Promise<string | undefined> {
  const text = (await readFile(pointerPath(dir), 'utf8').catch(() => '')).trim()
  return text === '' ? undefined : text
}

/** A pointer that was copied along with its directory would have two databases believe they own the same files. */
export async function checkPointed(dir: string, dataDir: string): Promise<string> {
  const owner = isAbsolute(dataDir) ? await readOwner(dirname(dataDir)) : ''
  if (owner === dir) return dataDir
  if (owner !== '' && (await readPointer(owner)) !== dataDir) {
    // The directory was moved, and its data stayed where they were.
    await writeOwner(dirname(dataDir), dir)
    return dataDir
  }
  throw new EmbeddedError(
    'no_data_place',
    `${pointerPath(dir)} names ${dataDir}, which ${owner === '' ? 'does not exist' : `belongs to ${owner}`}. ` +
      'The directory was copied, or its data was removed. Delete that file to start with an empty database, or restore the data.',
  )
}

/** Makes a home and a pointer to it, and returns the data directory to be. */
export async function placeElsewhere(dir: string, runAs: Account, onNotice: (line: string) => void): Promise<string> {
  const home = await makeHome(dir, runAs, onNotice)
  const dataDir = join(home, 'pgdata')
  await writeFile(`${pointerPath(dir)}.new`, `${dataDir}\n`)
  await rename(`${pointerPath(dir)}.new`, pointerPath(dir))
  onNotice(`The data is kept in ${home}, because PostgreSQL does not run as root and uid ${runAs.uid} cannot enter ${dir}.`)
  return dataDir
}

async function makeHome(dir: string, runAs: Account, onNotice: (line: string) => void): Promise<string> {
  const prefix = createHash('sha256').update(dir).digest('hex').slice(0, 12)
  const temporary = await realpath(tmpdir())
  const isTemporary = !relative(temporary, dir).startsWith('..')
  for (const parent of isTemporary ? [temporary] : ['/var/lib', '/var/tmp']) {
    const root = join(parent, 'pawl-postgres-data')
    if (!(await ensureOpen(root, runAs).catch(() => false))) continue
    if (isTemporary) await sweep(root)
    const older = (await readdir(root)).filter((name) => name.startsWith(prefix)).map((name) => join(root, name))
    if (older.length > 0) onNotice(`Older data of ${dir} is still in ${older.join(', ')}; delete it if you no longer need it.`)
    const home = join(root, `${prefix}-${randomBytes(4).toString('hex')}`)
    await ensureOpen(home, runAs)
    await writeOwner(home, dir)
    return home
  }
  throw new EmbeddedError(
    'no_data_place',
    `No directory for the data: PostgreSQL does not run as root, uid ${runAs.uid} cannot enter ${dir}, and no other directory can be used. ` +
      'Use a directory that others may enter, or start Pawl as a normal user.',
  )
}

/**
 * Removes homes whose directory has been deleted. Only among temporary ones: elsewhere a directory that is not there may come back,
 * as when a disk is mounted again, and would need its data.
 */
async function sweep(root: string): Promise<void> {
  for (const name of await readdir(root)) {
    const home = join(root, name)
    const owner = await readOwner(home)
    const ownerIsThere =
      owner === '' ||
      (await stat(owner).then(
        () => true,
        () => false,
      ))
    const pid = (await readPidFile(join(home, 'pgdata')))?.pid
    if (ownerIsThere || (pid !== undefined && (await isAlive(pid)))) continue
    await removeTree(join(home, 'pgdata'))
    await removeTree(home)
  }
}

/** A directory of root's that others can pass through but not list. The mode is set apart from mkdir, which obeys the umask. */
async function ensureOpen(path: string, runAs: Account): Promise<boolean> {
  if ((await whyNotSafe(dirname(path), 0)) !== undefined) return false
  await mkdir(path, { recursive: true })
  const found = await lstat(path)
  if (!found.isDirectory() || found.uid !== 0 || (found.mode & 0o022) !== 0) return false
  if ((found.mode & 0o777) !== 0o711) await chmod(path, 0o711)
  return canReach(runAs, path)
}

function pointerPath(dir: string): string {
  return join(dir, 'pgdata.location')
}

async function readOwner(home: string): Promise<string> {
  return (await readFile(join(home, 'belongs-to'), 'utf8').catch(() => '')).trim()
}

async function writeOwner(home: string, dir: string): Promise<void> {
  await writeFile(join(home, 'belongs-to'), `${dir}\n`)
}
