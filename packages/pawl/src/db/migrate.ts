// Pawl's own migrations: numbered SQL files, forward only, each applied once. One migrator works at a time; the others poll for the lock
// instead of waiting in it, because a waiting statement holds a snapshot and would block `create index concurrently`.

import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { PawlError } from '../errors.ts'
import { sqlState } from './classify.ts'
import { Connection, type DatabaseOptions } from './driver.ts'
import { namesIn, readText } from './files.ts'
import { ownPathSql } from './own-session.ts'
import { begin } from './packet.ts'

export interface Migration {
  readonly name: string
  readonly sql: string
  readonly checksum: string
  /** false for steps such as `create index concurrently`; they begin with the line `-- pawl: no transaction` and are repeatable. */
  readonly isTransactional: boolean
}

export interface MigrateReport {
  readonly applied: readonly string[]
  readonly alreadyThere: readonly string[]
}

const lockClass = 0x7061776d // "pawm"
const stepTimeoutMs = 24 * 3_600_000
const ledger = `create schema if not exists pawl;
create table if not exists pawl.migration (
  name text primary key,
  checksum text not null,
  applied_at timestamptz not null default clock_timestamp()
)`

export function readMigrations(): Migration[] {
  const folder = new URL('../../migrations/', import.meta.url)
  return namesIn(folder)
    .filter((file) => file.endsWith('.sql'))
    .map((file) => {
      const sql = readText(new URL(file, folder))
      return {
        name: file.replace(/\.sql$/, ''),
        sql,
        checksum: createHash('sha256').update(sql).digest('hex'),
        isTransactional: !/^-- pawl: no transaction$/m.test(sql),
      }
    })
}

/** Everything as one script, for a role with DDL rights or a tool such as Flyway. */
export function exportSql(migrations: readonly Migration[] = readMigrations(), applied: ReadonlySet<string> = new Set()): string {
  const steps = migrations
    .filter((migration) => !applied.has(migration.name))
    .map((migration) => {
      const record = `insert into pawl.migration (name, checksum) values ('${migration.name}', '${migration.checksum}');`
      return migration.isTransactional
        ? `-- ${migration.name}\nbegin;\n${ownPathSql};\n${migration.sql.trim()}\n${record}\ncommit;\n`
        : `-- ${migration.name}: run outside a transaction\n${migration.sql.trim()}\n${record}\n`
    })
  // Defaults and bodies of functions are resolved when they are made, by the search path of the session that runs this.
  return `begin;\n${ownPathSql};\n${ledger};\ncommit;\n\n${steps.join('\n')}`
}

export interface MigrateOptions {
  /** Called before each step. */
  readonly onStep?: (name: string) => void
  /** Called once, when another process migrates and is waited for. */
  readonly onWait?: () => void
  /** Ends the waiting for another process; a step that has begun is finished. */
  readonly signal?: AbortSignal
}

export async function migrate(
  database: DatabaseOptions,
  options: MigrateOptions & { migrations?: readonly Migration[]; lockTimeoutMs?: number } = {},
): Promise<MigrateReport> {
  const { migrations = readMigrations(), lockTimeoutMs = 5000, onStep, signal } = options
  const lock = new Connection(database, 'migrate lock')
  // A step may take long on a large table; the keepalive still notices a dead server.
  const work = new Connection({ ...database, queryTimeoutMs: stepTimeoutMs }, 'migrate')
  let applied = new Map<string, string>()
  try {
    await takeLock(lock, options)
    const found = await readLedger(work)
    if (found === undefined) await work.query(ledger)
    applied = found ?? applied
    assertSame(applied, migrations)
    const missing = migrations.filter((migration) => !applied.has(migration.name))
    for (const migration of missing) {
      signal?.throwIfAborted()
      onStep?.(migration.name)
      await applyWithPatience(work, migration, lockTimeoutMs)
    }
    return { applied: missing.map((migration) => migration.name), alreadyThere: [...applied.keys()] }
  } catch (error) {
    throw sqlState(error) === '42501' ? noRights(error, exportSql(migrations, new Set(applied.keys()))) : error
  } finally {
    await lock.query('rollback').catch(() => undefined)
    await Promise.all([lock.close(), work.close()])
  }
}

async function takeLock(lock: Connection, { onWait, signal }: MigrateOptions): Promise<void> {
  for (let tried = 1; ; tried++) {
    signal?.throwIfAborted()
    // At a higher level it would keep a snapshot, which `create index concurrently` waits for.
    await lock.query(begin)
    const [row] = await lock.query<{ got: boolean }>(`select pg_try_advisory_xact_lock(${lockClass}, 0) as got`)
    if (row?.got) {
      // The lock lives as long as this transaction; an idle timeout of the role must not end it during a long step.
      await lock.query('set local idle_in_transaction_session_timeout = 0')
      return
    }
    await lock.query('rollback')
    if (tried === 1) onWait?.()
    await sleep(100)
  }
}

/** The applied migrations with their checksums; undefined when the schema is not there at all. */
async function readLedger(connection: Connection): Promise<Map<string, string> | undefined> {
  const [row] = await connection.query<{ there: boolean }>("select to_regclass('pawl.migration') is not null as there")
  if (!row?.there) return undefined
  const rows = await connection.query<{ name: string; checksum: string }>(
    'select name, checksum from pawl.migration order by name',
  )
  return new Map(rows.map(({ name, checksum }) => [name, checksum]))
}

/** Refuses a ledger that does not belong to these files. */
function assertSame(applied: ReadonlyMap<string, string>, migrations: readonly Migration[]): void {
  const changed = migrations.find(({ name, checksum }) => applied.has(name) && applied.get(name) !== checksum)
  if (changed === undefined) return
  throw new PawlError(
    'PAWL_SCHEMA_DRIFT',
    `Migration ${changed.name} was applied with different SQL than this release has. Run 'pawl doctor' to see the differences, and restore the released file.`,
  )
}

// A step waits at most lockTimeoutMs for a lock, so that it never queues in front of everyone else's work; then it tries again.
async function applyWithPatience(work: Connection, migration: Migration, lockTimeoutMs: number): Promise<void> {
  for (let tried = 1; ; tried++) {
    try {
      return await apply(work, migration, lockTimeoutMs)
    } catch (error) {
      if (sqlState(error) !== '55P03' || tried >= 10) throw error
      await sleep(200 * tried)
    }
  }
}

async function apply(work: Connection, migration: Migration, lockTimeoutMs: number): Promise<void> {
  const record = `insert into pawl.migration (name, checksum) values ('${migration.name}', '${migration.checksum}')`
  if (migration.isTransactional) {
    try {
      await work.query(
        `${begin}; set local lock_timeout = ${lockTimeoutMs}; set local statement_timeout = 0;\n${migration.sql}\n;${record}; commit`,
      )
    } catch (error) {
      await work.query('rollback').catch(() => undefined)
      throw error
    }
    return
  }
  await dropInvalidIndexes(work)
  await work.query(`set lock_timeout = ${lockTimeoutMs}; set statement_timeout = 0`)
  try {
    for (const step of splitStatements(migration.sql)) await work.query(step)
    await work.query(record)
  } catch (error) {
    await dropInvalidIndexes(work).catch(() => undefined)
    throw error
  } finally {
    await work.query('reset lock_timeout; reset statement_timeout').catch(() => undefined)
  }
}

/** A `create index concurrently` that failed leaves an invalid index, which slows writes and serves no read. */
async function dropInvalidIndexes(work: Connection): Promise<void> {
  const invalid = await work.query<{ name: string }>(
    `select format('%I.%I', n.nspname, c.relname) as name
     from pg_index i
     join pg_class c on c.oid = i.indexrelid
     join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'pawl' and not i.indisvalid and c.relkind = 'i'`,
  )
  for (const { name } of invalid) await work.query(`drop index concurrently if exists ${name}`)
}

/** Splits at semicolons at the end of a line; steps without a transaction hold plain statements only. */
function splitStatements(sql: string): string[] {
  return sql
    .replace(/^\s*--.*$/gm, '')
    .split(/;\s*(?:\n|$)/)
    .map((step) => step.trim())
    .filter((step) => step.length > 0)
}

function noRights(cause: unknown, sql: string): PawlError {
  return new PawlError(
    'PAWL_SCHEMA_MISSING',
    "This database role has no permission to create Pawl's schema. Run the SQL in details.sql (or the output of 'pawl migrate --sql') as a role that has, then grant this role usage on schema pawl, DML on its tables, usage on its sequences and execute on its functions (docs/guides/roles-and-tenants.md has the SQL).",
    { cause, details: { sql } },
  )
}

/** Which migrations are missing, or undefined when the schema is not there at all. */
export async function pendingMigrations(
  connection: Connection,
  migrations: readonly Migration[] = readMigrations(),
): Promise<string[] | undefined> {
  const applied = await readLedger(connection)
  return applied && migrations.filter(({ name }) => !applied.has(name)).map(({ name }) => name)
}
