// The database of `pawl dev`: the one that was named, or an embedded PostgreSQL whose data stay between runs.

import { chmod, rm, writeFile } from 'node:fs/promises'
import pg from 'pg'
import { startEmbedded } from '../../embedded/index.ts'
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

async function openEmbedded({ dir: givenDir, port, onNotice }: DevDatabaseOptions): Promise<DevDatabase> {
  const dir = devDir(givenDir)
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
      const others = await othersUsing(client)
      await client.end().catch(() => undefined)
      if (others > 0) return 'PostgreSQL keeps running: another pawl dev uses it'
      await rm(urlFile(dir), { force: true })
      await server.stop()
      return `PostgreSQL stopped; the data stay in ${server.dataDir}`
    },
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
