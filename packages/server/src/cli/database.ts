// Which database a command works on: a flag before the environment before the one that `pawl dev` runs in this folder.

import { readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { createPawl, type Pawl, type PawlOptions, silentLogger, type Tenant } from 'pawl'
import pg from 'pg'
import { UsageError } from './failure.ts'

/** The flags that every command has for it. */
export interface DatabaseFlags {
  readonly databaseUrl?: string | undefined
  readonly pooler?: 'none' | 'transaction' | undefined
  readonly directUrl?: string | undefined
}

export interface FoundDatabase {
  readonly url: string
  /** Where the URL came from, as a person would name it. */
  readonly source: string
  /** What createPawl() needs to use it. */
  readonly options: Pick<PawlOptions, 'pooler' | 'directUrl'> & { readonly databaseUrl: string }
}

export function devDir(given: string | undefined): string {
  return resolve(given ?? process.env.PAWL_DEV_DIR ?? join('.pawl', 'dev'))
}

/** Written by `pawl dev` while its database runs, so that other commands in the same folder find it. */
export function urlFile(dir: string): string {
  return join(dir, 'url')
}

export async function findDatabase(flags: DatabaseFlags): Promise<FoundDatabase | undefined> {
  const given = givenDatabase(flags)
  if (given !== undefined) return given
  const url = (await readFile(urlFile(devDir(undefined)), 'utf8').catch(() => '')).trim()
  // No pooler is in front of this one, whatever the environment says of another.
  return url === '' ? undefined : { url, source: "'pawl dev' in this folder", options: { databaseUrl: url } }
}

/** The same without looking for `pawl dev`. */
export function givenDatabase(flags: DatabaseFlags): FoundDatabase | undefined {
  if (flags.databaseUrl !== undefined) return checked(flags.databaseUrl, '--database-url', flags)
  for (const name of ['PAWL_DATABASE_URL', 'DATABASE_URL']) {
    const url = process.env[name]
    if (url) return checked(url, name, flags)
  }
  return undefined
}

export async function requireDatabase(flags: DatabaseFlags): Promise<FoundDatabase> {
  return (await findDatabase(flags)) ?? noDatabase()
}

export function noDatabase(): never {
  throw new UsageError(
    "No database given: --database-url, PAWL_DATABASE_URL and DATABASE_URL are not set, and no 'pawl dev' runs in this folder.",
    "pass --database-url postgres://user:password@host:5432/database, or start one with 'pawl dev'",
  )
}

function checked(url: string, source: string, { pooler, directUrl }: DatabaseFlags): FoundDatabase {
  assertUrl(url, source)
  if (directUrl) assertUrl(directUrl, '--direct-url')
  return { url, source, options: { databaseUrl: url, ...(pooler ? { pooler } : {}), ...(directUrl ? { directUrl } : {}) } }
}

function assertUrl(url: string, source: string): void {
  if (/^postgres(ql)?:\/\//.test(url)) return
  throw new UsageError(
    `${source} must be the URL of a PostgreSQL database.`,
    'use the form postgres://user:password@host:5432/database',
  )
}

/** For terminals and logs, which must not show a password. */
export function withoutPassword(url: string): string {
  try {
    const shown = new URL(url)
    if (shown.password !== '') shown.password = '***'
    return shown.href
  } catch {
    return url.replace(/:[^:@/]*@/, ':***@')
  }
}

interface Place {
  readonly host: string
  readonly port: number
  readonly database: string | undefined
}

/** Where pg would connect to, by the URL or fields, its defaults and its environment variables. Nothing is connected. */
export function placeOf(config: pg.ClientConfig): Place {
  const { host, port, database } = new pg.Client(config)
  return { host, port, database }
}

function placeOfPawl({ config: { database } }: Pawl): Place {
  return placeOf((database.login ?? { connectionString: database.url }) as pg.ClientConfig)
}

/** For a person. */
export function databaseText(pawl: Pawl): string {
  const { host, port, database } = placeOfPawl(pawl)
  return `${database} on ${host.startsWith('/') ? host : `${host}:${port}`}`
}

/** True for a tunnel to another host, too. */
export function isLocal(url: string): boolean {
  const { host } = placeOf({ connectionString: url })
  return host.startsWith('/') || /^(localhost|127(\.\d+){3}|::1|\[::1\])$/i.test(host)
}

/** A module whose Pawl has another database would run its jobs there, whatever the command says that it does. */
export function assertSameDatabase(pawl: Pawl, url: string): void {
  const [theirs, ours] = [placeOfPawl(pawl), placeOf({ connectionString: url })]
  if (theirs.host === ours.host && theirs.port === ours.port && theirs.database === ours.database) return
  throw new UsageError(
    `The Pawl of the module uses another database: ${databaseText(pawl)}, not ${ours.database} on ${ours.host}:${ours.port}.`,
    'use createPawl({ databaseUrl: process.env.DATABASE_URL }) in the module: the command sets it',
  )
}

export interface PawlRequest {
  readonly database: DatabaseFlags
  readonly tenant: string | undefined
}

/** Opens Pawl for one short command and closes it after. */
export async function withPawl<T>(request: PawlRequest, work: (handle: Tenant, pawl: Pawl) => Promise<T>): Promise<T> {
  const { options } = await requireDatabase(request.database)
  const pawl = createPawl({
    ...options,
    applicationName: 'pawl cli',
    logger: silentLogger,
    tuning: { callerConnectionsMax: 2, connectTimeoutMs: 5000 },
  })
  try {
    return await work(request.tenant === undefined ? pawl : pawl.for(request.tenant), pawl)
  } finally {
    await pawl.close()
  }
}
