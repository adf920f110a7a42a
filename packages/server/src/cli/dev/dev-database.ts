// The database of `pawl dev`: the one that was named, or an embedded PostgreSQL whose data stay between runs.

import { chmod, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import pg from 'pg'
import { EmbeddedError, type EmbeddedServer, startEmbedded } from '../../embedded/index.ts'
import { withLock } from '../../embedded/lock.ts'
import { ensureDir } from '../../embedded/place.ts'
import { type DatabaseFlags, devDir, type FoundDatabase, givenDatabase, urlFile, withoutPassword } from '../database.ts'

export interface DevDatabase {
  readonly url: string
  /** What createPawl() needs to use it. */
  readonly options: FoundDatabase['options']
  /** Lines for a person: what it is, the URL to paste, where the data are. */
  readonly about: readonly (readonly [name: string, value: string])[]
  /** For machines. */
  readonly facts: Readonly<Record<string, unknown>>
  /** Gives it back, and says what became of it. */
  stop(): Promise<string>
}

export interface DevDatabaseOptions {
  readonly database: DatabaseFlags
  readonly dir: string | undefined
  readonly port: number | undefined
  readonly onNotice: (line: string) => void
}

/** Marks the sessions of running `pawl dev` commands; whoever leaves last stops the server. */
const markName = 'pawl dev'

export async function openDevDatabase(options: DevDatabaseOptions): Promise<DevDatabase> {
  const given = givenDatabase(options.database)
  if (given === undefined) return openEmbedded(options)
  const client = await mark(given.url)
  const version = await serverVersion(client)
  return {
    url: given.url,
    options: given.options,
    about: [
      ['database', `PostgreSQL ${version}, yours, from ${given.source}`],
      ['url', withoutPassword(given.url)],
    ],
    facts: { databaseUrl: withoutPassword(given.url), postgresql: version, isEmbedded: false },
    stop: async () => {
      await client.end()
      return 'the database is yours and keeps running'
    },
  }
}

const lockWaitMs = 180_000

/** Opening and leaving take turns: between the last one's look for others and its stop of the server nobody else comes in. */
async function openEmbedded(options: DevDatabaseOptions): Promise<DevDatabase> {
  const dir = await ensureDir(devDir(options.dir))
  const onWait = (pid: number): void =>
    options.onNotice(`Process ${pid}, another pawl dev, is starting or stopping the database in ${dir}; waiting for it.`)
  return withLock(lockPath(dir), { waitMs: lockWaitMs, onWait }, () => openLocked(dir, options))
}

function lockPath(dir: string): string {
  return join(dir, 'dev-lock')
}

async function openLocked(dir: string, { port, onNotice }: DevDatabaseOptions): Promise<DevDatabase> {
  const server = await startEmbedded({ dir, onNotice, ...(port === undefined ? {} : { port }) })
  const client = await mark(server.url)
  const version = await serverVersion(client)
  await writeUrlFile(urlFile(dir), server.url)
  const how = server.how === 'started' ? 'started' : 'was running already and was adopted'
  return {
    url: server.url,
    options: { databaseUrl: server.url },
    about: [
      ['database', `PostgreSQL ${version} on 127.0.0.1:${server.port}, ${how} (pid ${server.pid})`],
      ['psql', `psql ${server.url}`],
      ['data', `${server.dataDir} (kept between runs)`],
    ],
    facts: {
      databaseUrl: server.url,
      postgresql: version,
      isEmbedded: true,
      how: server.how,
      port: server.port,
      dataDir: server.dataDir,
      pid: server.pid,
    },
    stop: async () => {
      const isStopped = await stopUnlessUsed(dir, client, server)
      return isStopped
        ? `PostgreSQL stopped; the data stay in ${server.dataDir}`
        : 'PostgreSQL keeps running: another pawl dev uses it'
    },
  }
}

async function stopUnlessUsed(dir: string, client: pg.Client, server: EmbeddedServer): Promise<boolean> {
  try {
    return await withLock(lockPath(dir), { waitMs: lockWaitMs }, async () => {
      if ((await othersUsing(client)) > 0) return false
      await rm(urlFile(dir), { force: true })
      await client.end().catch(() => undefined)
      await server.stop()
      return true
    })
  } catch (error) {
    // Somebody who has been starting for so long will use it.
    if (error instanceof EmbeddedError && error.code === 'locked') return false
    throw error
  } finally {
    await client.end().catch(() => undefined)
  }
}

async function mark(url: string): Promise<pg.Client> {
  const client = new pg.Client({
    connectionString: url,
    application_name: markName,
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
  })
  client.on('error', () => undefined)
  await client.connect()
  return client
}

async function serverVersion(client: pg.Client): Promise<string> {
  const { rows } = await client.query<{ version: string }>(
    "select split_part(current_setting('server_version'), ' ', 1) as version",
  )
  return rows[0]!.version
}

async function othersUsing(client: pg.Client): Promise<number> {
  try {
    const { rows } = await client.query<{ count: number }>(
      'select count(*)::integer as count from pg_stat_activity where application_name = $1 and pid <> pg_backend_pid() and datname = current_database()',
      [markName],
    )
    return rows[0]!.count
  } catch {
    // It does not answer any more, so nobody uses it.
    return 0
  }
}

/** It holds a password, so nobody else may read it, also when an earlier one with other rights is there. */
async function writeUrlFile(path: string, url: string): Promise<void> {
  await writeFile(path, `${url}\n`, { mode: 0o600 })
  await chmod(path, 0o600)
}
