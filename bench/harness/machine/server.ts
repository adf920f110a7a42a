// The one PostgreSQL of a run: default settings, durable commits, a fresh database for every sample. Statements are counted only in databases of
// measures that ask for it.

import { readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { type EmbeddedServer, startEmbedded } from '@pawl/server/embedded'
import pg from 'pg'
import { mark } from '../mark.ts'

/** What the sessions of a database have done so far. */
export interface Counted {
  readonly statements: number
  readonly claims: number
  /** Of the shared buffers, read or written. */
  readonly pages: number
  readonly walBytes: number
}

export interface Database {
  readonly url: string
  query<Row>(text: string): Promise<Row[]>
  /** All zero unless it was created with `isCounted`. */
  counted(): Promise<Counted>
}

const settings = { shared_preload_libraries: 'pg_stat_statements', 'pg_stat_statements.track': 'none' }
const countedIn = `
  select coalesce(sum(s.calls), 0)::float8 as statements,
    coalesce(sum(s.calls) filter (where s.query ~ 'next_fence' and s.query ~ 'claimed_at' and s.query ~ 'skip locked'), 0)::float8 as claims,
    coalesce(sum(s.shared_blks_hit + s.shared_blks_read), 0)::float8 as pages,
    coalesce(sum(s.wal_bytes), 0)::float8 as "walBytes"
  from pg_stat_statements s
  join pg_database d on d.oid = s.dbid
  where d.datname = $1
    and s.query !~ '${mark}'`

export class Server {
  readonly #embedded: EmbeddedServer
  readonly #admin: pg.Client
  readonly #dir: string
  #lastDatabase = 0

  private constructor(embedded: EmbeddedServer, admin: pg.Client, dir: string) {
    this.#embedded = embedded
    this.#admin = admin
    this.#dir = dir
  }

  static async start(folder: string): Promise<Server> {
    await removeLeftovers(folder)
    const dir = join(folder, `postgres-${process.pid}`)
    const embedded = await startEmbedded({ dir, port: 0, settings })
    const admin = new pg.Client({ connectionString: embedded.url })
    admin.on('error', () => undefined)
    await admin.connect()
    await admin.query('create extension pg_stat_statements')
    return new Server(embedded, admin, dir)
  }

  get pid(): number {
    return this.#embedded.pid
  }

  async release(): Promise<string> {
    const { rows } = await this.#admin.query<{ server_version: string }>('show server_version')
    return rows[0]!.server_version
  }

  /** Dropping it afterwards also makes a checkpoint, so every sample starts with the same amount of unwritten pages: none. */
  async withDatabase<Value>(use: (database: Database) => Promise<Value>, isCounted = false): Promise<Value> {
    const name = `bench_${++this.#lastDatabase}`
    await this.#admin.query(`create database ${name}`)
    if (isCounted) await this.#admin.query(`alter database ${name} set pg_stat_statements.track = 'top'`)
    const url = new URL(this.#embedded.url)
    url.pathname = `/${name}`
    const client = new pg.Client({ connectionString: url.href })
    client.on('error', () => undefined)
    await client.connect()
    try {
      return await use({
        url: url.href,
        query: async <Row>(text: string) => (await client.query(text)).rows as Row[],
        counted: async () => (await this.#admin.query<Counted>(countedIn, [name])).rows[0]!,
      })
    } finally {
      await client.end().catch(() => undefined)
      await this.#admin.query(`drop database if exists ${name} with (force)`)
    }
  }

  async stop(): Promise<void> {
    await this.#admin.end().catch(() => undefined)
    await this.#embedded.stop()
    rmSync(this.#dir, { recursive: true, force: true })
  }
}

/** A run that was killed leaves its server behind. It is adopted, stopped and removed. */
async function removeLeftovers(folder: string): Promise<void> {
  for (const name of readdirSync(folder)) {
    const pid = /^postgres-(\d+)$/.exec(name)?.[1]
    if (pid === undefined || isAlive(Number(pid))) continue
    const dir = join(folder, name)
    const left = await startEmbedded({ dir, port: 0 }).catch(() => undefined)
    await left?.stop('immediate')
    rmSync(dir, { recursive: true, force: true })
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}
