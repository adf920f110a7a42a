import { chown, mkdtemp, readdir, readFile, rename, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { Account } from '../binaries/account.ts'
import type { Binaries } from '../binaries/binaries.ts'
import { run } from '../binaries/run.ts'
import { codeOf, EmbeddedError } from '../errors.ts'
import { lastLines } from '../server/log.ts'
import { superuser } from '../server/probe.ts'
import { removeTree } from './remove.ts'

/** Whether a cluster is there that these binaries can serve. Throws when there is one, or something else, that they cannot. */
export async function hasCluster(dataDir: string, { major, version }: Binaries): Promise<boolean> {
  const entries = await readdir(dataDir).catch((error: unknown) => {
    if (codeOf(error) === 'ENOENT') return []
    throw error
  })
  if (entries.length === 0) return false
  const found = (await readFile(join(dataDir, 'PG_VERSION'), 'utf8').catch(() => '')).trim()
  if (found === String(major)) return true
  if (found === '') {
    throw new EmbeddedError(
      'not_a_data_directory',
      `${dataDir} contains files but no PG_VERSION, so it is not a PostgreSQL data directory and is left as it is. ` +
        'Move the files away, or choose another directory.',
    )
  }
  throw new EmbeddedError(
    'other_major',
    `The data in ${dataDir} is of PostgreSQL ${found}, but this release of Pawl has PostgreSQL ${version}, which cannot open ` +
      `data of another major version. To keep it, dump it with PostgreSQL ${found} (pg_dump) and restore it into a new directory; ` +
      `to start with an empty database, move ${dirname(dataDir)} away.`,
  )
}

/**
 * Makes a cluster. initdb works in a folder beside, and only a finished cluster gets its name, by rename: one that was killed half-way
 * leaves nothing but a folder for the next start to remove. Called under the lock of the directory.
 */
export async function makeCluster(
  dataDir: string,
  password: string,
  binaries: Binaries,
  runAs: Account | undefined,
): Promise<void> {
  await removeLeftovers(dataDir)
  const staging = await mkdtemp(stagingPrefix(dataDir))
  try {
    // Not /dev/stdin: after a change of user its pipe can no longer be opened.
    const passwordFile = join(staging, 'password')
    await writeFile(passwordFile, password, { mode: 0o600 })
    if (runAs !== undefined) await Promise.all([staging, passwordFile].map((path) => chown(path, runAs.uid, runAs.gid)))
    const args = initdbArguments(join(staging, 'pgdata'), passwordFile)
    const result = await run(join(binaries.bin, 'initdb'), args, { cwd: binaries.bin, env: binaries.env, runAs })
    if (!result.ok) throw initdbError(dataDir, result.output, result.error)
    await rename(join(staging, 'pgdata'), dataDir)
  } finally {
    await removeTree(staging)
  }
}

function initdbArguments(into: string, passwordFile: string): string[] {
  return [
    `--pgdata=${into}`,
    `--username=${superuser}`,
    `--pwfile=${passwordFile}`,
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    // The same sort order on every system, and no dependence on the machine's locales.
    '--locale=C',
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
    '--data-checksums',
    // A power failure in the first second loses an empty database.
    '--no-sync',
  ]
}

function stagingPrefix(dataDir: string): string {
  return `${dataDir}.new-`
}

/** Under the lock every such folder is the work of a dead process. Its initdb may still be dying: what it re-creates, the next start removes. */
async function removeLeftovers(dataDir: string): Promise<void> {
  const prefix = basename(stagingPrefix(dataDir))
  const names = (await readdir(dirname(dataDir))).filter((name) => name.startsWith(prefix))
  await Promise.all(names.map((name) => removeTree(join(dirname(dataDir), name))))
}

function initdbError(dataDir: string, output: string, cause: Error): EmbeddedError {
  return new EmbeddedError(
    'initdb_failed',
    `The database in ${dataDir} could not be created: initdb failed. Its last lines:\n${lastLines(output, 15)}\nFix that and start again; no files were left.`,
    { cause },
  )
}
