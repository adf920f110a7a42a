import {
  chmod,
  copyFile,
  cp,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { codeOf } from '../errors.ts'
import { withLock } from '../lock.ts'
import { type Account, canReach } from './account.ts'
import { whyNotSafe } from './trust.ts'

export interface CacheRequest {
  /** The package's `native` folder. It is only read: it may be read-only, or under a home that PostgreSQL's account cannot enter. */
  readonly source: string
  readonly version: string
  /** An existing directory in which our cache folder is made, such as the system's temporary directory. */
  readonly parent: string
  /** The account that must be able to run the copy; undefined when only we do. */
  readonly reader: Account | undefined
}

/** A place we cannot or must not use, with the reason. */
export type CacheResult = { readonly ok: true; readonly dir: string } | { readonly ok: false; readonly why: string }

/**
 * A complete copy of the binaries, links included, in a folder only we can write to. Made once per machine, user and release.
 *
 * Why a copy and not links in node_modules: install scripts are blocked nowadays and node_modules may be read-only; root's account
 * for PostgreSQL cannot enter a 0700 home; and `npm ci` must not pull the libraries out from under a running server.
 */
export async function ensureCopy(request: CacheRequest): Promise<CacheResult> {
  const home = await ensureOwnFolder(request)
  if (!home.ok) return home
  const dir = join(home.dir, request.version)
  if (await isComplete(dir)) return { ok: true, dir }
  // Two processes may come here at once: one copies, the other waits and finds the copy complete.
  await withLock(join(home.dir, 'lock'), { waitMs: 120_000 }, async () => {
    if (!(await isComplete(dir))) await makeCopy(request.source, home.dir, dir)
  })
  return { ok: true, dir }
}

const marker = 'complete.json'

/** The folder that holds all our copies. In a shared /tmp another user may have made one of that name, so it is checked. */
async function ensureOwnFolder({ parent, reader }: CacheRequest): Promise<CacheResult> {
  try {
    // A new account may not have a ~/.cache yet.
    await mkdir(parent, { mode: 0o700 }).catch(() => {})
    const realParent = await realpath(parent)
    const uid = process.getuid?.()
    const why = uid === undefined ? undefined : await whyNotSafe(realParent, uid)
    if (why !== undefined) return { ok: false, why }
    if (reader !== undefined && !(await canReach(reader, realParent)))
      return { ok: false, why: `uid ${reader.uid} cannot enter ${realParent}` }
    const dir = join(realParent, `pawl-postgres-${uid ?? 'user'}`)
    await mkdir(dir, { mode: 0o755 }).catch((error: unknown) => {
      if (codeOf(error) !== 'EEXIST') throw error
    })
    const found = await lstat(dir)
    if (!found.isDirectory()) return { ok: false, why: `${dir} is not a directory` }
    if (uid !== undefined && found.uid !== uid)
      return { ok: false, why: `${dir} belongs to uid ${found.uid}, not to us (uid ${uid})` }
    if (uid !== undefined && (found.mode & 0o022) !== 0) return { ok: false, why: `${dir} can be written to by others` }
    // A strict umask would have shut out the account that PostgreSQL runs as.
    if (uid !== undefined && (found.mode & 0o055) !== 0o055) await chmod(dir, 0o755)
    return { ok: true, dir }
  } catch (error) {
    return { ok: false, why: error instanceof Error ? error.message : String(error) }
  }
}

/** Copies beside, then renames: a copy that was cut short never has the right name. */
async function makeCopy(source: string, home: string, dir: string): Promise<void> {
  await removeLeftovers(home, dir)
  const staging = await mkdtemp(`${dir}.part-`)
  await cp(source, staging, { recursive: true, verbatimSymlinks: true })
  await makeLinks(staging)
  const sizes = await openToReaders(staging)
  await writeFile(join(staging, marker), JSON.stringify(sizes), { mode: 0o644 })
  await chmod(staging, 0o755)
  await rename(staging, dir)
}

/** Under the lock every `.part-` is the work of a dead process. An incomplete copy is moved away first, as removing takes time. */
async function removeLeftovers(home: string, dir: string): Promise<void> {
  await rename(dir, `${dir}.part-broken-${process.pid}`).catch((error: unknown) => {
    if (codeOf(error) !== 'ENOENT') throw error
  })
  const prefix = `${basename(dir)}.part-`
  const parts = (await readdir(home)).filter((name) => name.startsWith(prefix))
  await Promise.all(parts.map((name) => rm(join(home, name), { recursive: true, force: true })))
}

/** npm packages cannot hold symbolic links, so the package lists them for its install script, which is blocked: we make them. */
async function makeLinks(staging: string): Promise<void> {
  const text = await readFile(join(staging, 'pg-symlinks.json'), 'utf8').catch(() => '[]')
  for (const { source, target } of JSON.parse(text) as { source: string; target: string }[]) {
    // Both are written as native/lib/<name>, and always within one folder.
    const folder = join(staging, dirname(target).replace(/^native\/?/, ''))
    const link = join(folder, basename(target))
    await rm(link, { force: true })
    // Windows lets only administrators make links.
    if (process.platform === 'win32') await copyFile(join(folder, basename(source)), link)
    else await symlink(basename(source), link)
  }
}

/** Sets every mode, since a strict umask or package manager may have shut others out; returns the size of each entry by path. */
async function openToReaders(root: string, below = ''): Promise<Record<string, number>> {
  const sizes: Record<string, number> = {}
  for (const entry of await readdir(join(root, below), { withFileTypes: true })) {
    const path = below === '' ? entry.name : `${below}/${entry.name}`
    if (entry.isDirectory()) Object.assign(sizes, await openToReaders(root, path))
    else sizes[path] = (await lstat(join(root, path))).size
    if (!entry.isSymbolicLink()) await chmod(join(root, path), entry.isDirectory() || below === 'bin' ? 0o755 : 0o644)
  }
  return sizes
}

/** The marker alone proves little: cleaners of temporary directories delete old files one by one. So every entry is looked at. */
async function isComplete(dir: string): Promise<boolean> {
  try {
    const sizes = JSON.parse(await readFile(join(dir, marker), 'utf8')) as Record<string, number>
    const checks = Object.entries(sizes).map(async ([path, size]) => (await lstat(join(dir, path))).size === size)
    return (await Promise.all(checks)).every(Boolean)
  } catch {
    return false
  }
}
