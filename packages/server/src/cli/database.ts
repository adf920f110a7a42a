// Which database a command works on: a flag before the environment before the one that `pawl dev` runs in this folder.

import { readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { createPawl, type Logger, type Pawl, silentLogger, type Tenant } from 'pawl'
import { UsageError } from './failure.ts'

export interface FoundDatabase {
  readonly url: string
  /** Where the URL came from, as a person would name it. */
  readonly source: string
}

export function devDir(given: string | undefined): string {
  return resolve(given ?? process.env.PAWL_DEV_DIR ?? join('.pawl', 'dev'))
}

/** Written by `pawl dev` while its database runs, so that other commands in the same folder find it. */
export function urlFile(dir: string): string {
  return join(dir, 'url')
}

export async function findDatabase(flag: string | undefined): Promise<FoundDatabase | undefined> {
  const given = givenDatabase(flag)
  if (given !== undefined) return given
  const url = (await readFile(urlFile(devDir(undefined)), 'utf8').catch(() => '')).trim()
  return url === '' ? undefined : { url, source: "'pawl dev' in this folder" }
}

/** The same without looking for `pawl dev`. */
export function givenDatabase(flag: string | undefined): FoundDatabase | undefined {
  if (flag !== undefined) return checked({ url: flag, source: '--database-url' })
  for (const name of ['PAWL_DATABASE_URL', 'DATABASE_URL']) {
    const url = process.env[name]
    if (url) return checked({ url, source: name })
  }
  return undefined
}

export async function requireDatabase(flag: string | undefined): Promise<FoundDatabase> {
  const found = await findDatabase(flag)
  if (found !== undefined) return found
  throw new UsageError(
    'No database was named: neither --database-url nor PAWL_DATABASE_URL nor DATABASE_URL is set, and no pawl dev has run in this folder.',
    "pass --database-url postgres://user:password@host:5432/database, or start one with 'pawl dev'",
  )
}

function checked(found: FoundDatabase): FoundDatabase {
  if (/^postgres(ql)?:\/\//.test(found.url)) return found
  throw new UsageError(
    `${found.source} is not the URL of a PostgreSQL database.`,
    'use the form postgres://user:password@host:5432/database',
  )
}

/** For printing a URL that is not ours: whoever looks over a shoulder or at a log need not see the password. */
export function withoutPassword(url: string): string {
  try {
    const shown = new URL(url)
    if (shown.password !== '') shown.password = '***'
    return shown.href
  } catch {
    return url.replace(/:[^:@/]*@/, ':***@')
  }
}

export interface PawlRequest {
  readonly databaseUrl: string | undefined
  readonly tenant: string | undefined
  readonly logger?: Logger
}

/** Opens Pawl for one short command and closes it after. */
export async function withPawl<T>(request: PawlRequest, work: (handle: Tenant, pawl: Pawl) => Promise<T>): Promise<T> {
  const { url } = await requireDatabase(request.databaseUrl)
  const pawl = createPawl({
    databaseUrl: url,
    applicationName: 'pawl cli',
    callerConnectionsMax: 2,
    connectTimeoutMs: 5000,
    logger: request.logger ?? silentLogger,
  })
  try {
    return await work(request.tenant === undefined ? pawl : pawl.for(request.tenant), pawl)
  } finally {
    await pawl.close()
  }
}
