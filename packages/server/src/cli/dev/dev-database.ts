// The database of `pawl dev`: the one that was named, or an embedded PostgreSQL whose data stay between runs.

import { createHmac } from 'node:crypto'
import { chmod, rm, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import pg from 'pg'
import { ensureDir } from '../../embedded/data/place.ts'
import { EmbeddedError, type EmbeddedServer, startEmbedded } from '../../embedded/index.ts'
import { withLock } from '../../embedded/lock.ts'
import { type DatabaseFlags, devDir, type FoundDatabase, givenDatabase, isLocal, urlFile, withoutPassword } from '../database.ts'
import { UsageError } from '../failure.ts'
import { Mark } from './mark.ts'

export interface DevDatabase {
  readonly url: string
  /** What createPawl() needs to use it. */
  readonly options: FoundDatabase['options']
  /** Lines for a person: what it is, where the data are, how to connect. */
  readonly about: readonly (readonly [name: string, value: string])[]
  /** The command that opens psql on it. */
  readonly psql: string | undefined
  /** For machines. */
  readonly facts: Readonly<Record<string, unknown>>
  /** Gives it back, and says what became of it. */
  stop(): Promise<string>
}

export interface DevDatabaseOptions {
  readonly database: DatabaseFlags
  readonly dir: string | undefined
  readonly port: number | undefined
  /** Takes also a database of another host. */
  readonly isRemote: boolean
  readonly isPasswordShown: boolean
  readonly onNotice: (line: string) => void
}

export async function openDevDatabase(options: DevDatabaseOptions): Promise<DevDatabase> {
  const given = givenDatabase(options.database)
  if (given === undefined) return openEmbedded(options)
  if (!options.isRemote) refuseRemote(given)
  const mark = await Mark.set(given.url)
  const version = await serverVersion(mark)
  const shown = shownUrl(given.url, options)
  return {
    url: given.url,
    options: given.options,
    about: [
      ['database', `PostgreSQL ${version}, yours, from ${given.source}`],
      ['url', shown],
    ],
    psql: undefined,
    facts: { databaseUrl: shown, postgresql: version, isEmbedded: false },
    stop: async () => {
      await mark.remove()
      return 'the database is yours and keeps running'
    },
  }
}

function shownUrl(url: string, { isPasswordShown }: DevDatabaseOptions): string {
  return isPasswordShown ? url : withoutPassword(url)
}

/** A DATABASE_URL that is set for something else must not be migrated, nor get demonstration jobs. */
function refuseRemote({ url, source }: FoundDatabase): void {
  if (isLocal(url)) return
  throw new UsageError(
    `${source} is a database on another host, ${withoutPassword(url)}: pawl dev would migrate it and run jobs in it.`,
    source === '--database-url'
      ? 'add --remote if that is what you want'
      : `unset ${source} to use an embedded database, or add --remote if that is what you want`,
  )
}

const lockWaitMs = 180_000

/** Opening and leaving exclude each other: no process joins between the last one's check for others and its stop of the server. */
async function openEmbedded(options: DevDatabaseOptions): Promise<DevDatabase> {
  const dir = await ensureDir(devDir(options.dir))
  const onWait = (pid: number): void =>
    options.onNotice(`Process ${pid}, another pawl dev, is starting or stopping the database in ${dir}; waiting for it.`)
  return withLock(lockPath(dir), { waitMs: lockWaitMs, onWait }, () => openLocked(dir, options))
}

function lockPath(dir: string): string {
  return join(dir, 'dev-lock')
}

/** Of the application: a role without special rights, so that what works here works in production. It owns its database. */
const appRole = 'app'

async function openLocked(dir: string, options: DevDatabaseOptions): Promise<DevDatabase> {
  const { port, onNotice } = options
  const server = await startEmbedded({ dir, onNotice, database: appRole, ...(port === undefined ? {} : { port }) })
  const url = await ensureApp(server)
  const mark = await Mark.set(url)
  const version = await serverVersion(mark)
  await writeSecrets(dir, server, url)
  const how = server.how === 'started' ? 'started' : 'already running'
  const shown = shownUrl(url, options)
  return {
    url,
    options: { databaseUrl: url },
    about: [
      ['database', `PostgreSQL ${version} on 127.0.0.1:${server.port}, ${how} (pid ${server.pid})`],
      ['data', `${here(server.dataDir)} (kept between runs)`],
      ['url', options.isPasswordShown ? shown : `${shown} (password in ${here(urlFile(dir))})`],
    ],
    psql: `PGPASSFILE=${here(passFile(dir))} psql -h 127.0.0.1 -p ${server.port} -U ${appRole} ${appRole}`,
    facts: {
      databaseUrl: shown,
      urlFile: urlFile(dir),
      postgresql: version,
      isEmbedded: true,
      how: server.how,
      port: server.port,
      dataDir: server.dataDir,
      pid: server.pid,
    },
    stop: async () => {
      const isStopped = await stopUnlessUsed(dir, mark, server)
      return isStopped
        ? `PostgreSQL stopped; its data is kept in ${here(server.dataDir)}`
        : 'PostgreSQL keeps running: another pawl dev uses it'
    },
  }
}

/** As a person in this folder would write it. */
function here(path: string): string {
  const near = relative('', path)
  return near.startsWith('..') ? path : near
}

/** The role and its database. Its password follows from the superuser's, so that no second file can be lost. */
async function ensureApp(server: EmbeddedServer): Promise<string> {
  const url = new URL(server.url)
  const password = createHmac('sha256', url.password).update(appRole).digest('base64url')
  const client = new pg.Client({
    connectionString: server.url,
    application_name: 'pawl dev setup',
    connectionTimeoutMillis: 10_000,
  })
  client.on('error', () => undefined)
  await client.connect()
  try {
    const { rows } = await client.query('select from pg_catalog.pg_roles where rolname = $1', [appRole])
    await client.query(`${rows.length === 0 ? 'create' : 'alter'} role ${appRole} login password '${password}'`)
    await client.query(`alter database ${appRole} owner to ${appRole}`)
  } finally {
    await client.end()
  }
  url.username = appRole
  url.password = password
  return url.href
}

async function stopUnlessUsed(dir: string, mark: Mark, server: EmbeddedServer): Promise<boolean> {
  try {
    return await withLock(lockPath(dir), { waitMs: lockWaitMs }, async () => {
      if (await mark.hasOthers()) return false
      await Promise.all([urlFile(dir), passFile(dir)].map((file) => rm(file, { force: true })))
      await mark.remove()
      await server.stop()
      return true
    })
  } catch (error) {
    // A process that has been starting this long will use it.
    if (error instanceof EmbeddedError && error.code === 'locked') return false
    throw error
  } finally {
    await mark.remove()
  }
}

async function serverVersion(mark: Mark): Promise<string> {
  const [row] = await mark.query<{ version: string }>("select split_part(current_setting('server_version'), ' ', 1) as version")
  return row!.version
}

function passFile(dir: string): string {
  return join(dir, 'pgpass')
}

/** For other commands in the same folder, and for psql. They hold a password, so only their owner may read them, even where older files exist. */
async function writeSecrets(dir: string, { port }: EmbeddedServer, url: string): Promise<void> {
  const { password } = new URL(url)
  const texts: [string, string][] = [
    [urlFile(dir), url],
    [passFile(dir), `127.0.0.1:${port}:*:${appRole}:${password}`],
  ]
  for (const [file, text] of texts) {
    await writeFile(file, `${text}\n`, { mode: 0o600 })
    await chmod(file, 0o600)
  }
}
