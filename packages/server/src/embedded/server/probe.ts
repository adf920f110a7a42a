import { open } from 'node:fs/promises'
import { join } from 'node:path'
import pg from 'pg'
import { codeOf } from '../errors.ts'

export interface ProbeTarget {
  readonly port: number
  readonly password: string
  readonly dataDir: string
}

export type ProbeResult =
  /** It answers with our password and serves our data directory. */
  | { readonly state: 'ours' }
  /** A PostgreSQL, but over other data. */
  | { readonly state: 'other' }
  /** A PostgreSQL that is starting, recovering or stopping: it lives, so waiting makes sense. */
  | { readonly state: 'busy'; readonly why: string }
  | { readonly state: 'password refused'; readonly why: string }
  | { readonly state: 'silent'; readonly why: string }

export const superuser = 'pawl'

/** Identifies the server. The only sign of readiness we trust: log lines are translated, and a port alone may be any program's. */
export async function probe(target: ProbeTarget): Promise<ProbeResult> {
  try {
    return await withClient({ ...target, database: 'postgres' }, (client) => identify(client, target.dataDir))
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error)
    const code = codeOf(error)
    if (code === '28P01' || code === '28000') return { state: 'password refused', why }
    if (code === '57P03' || code === '57P01' || code === '53300') return { state: 'busy', why }
    return { state: 'silent', why }
  }
}

export async function withClient<T>(
  { port, password, database }: { port: number; password: string; database: string },
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  // `ssl: false` is said aloud because the driver would otherwise obey a PGSSLMODE meant for another server.
  const client = new pg.Client({
    host: '127.0.0.1',
    port,
    user: superuser,
    password,
    database,
    ssl: false,
    connectionTimeoutMillis: 5_000,
    query_timeout: 30_000,
  })
  // An error event after connecting also rejects the query in flight; without a listener it would end the process.
  client.on('error', () => {})
  try {
    await client.connect()
    return await work(client)
  } finally {
    await client.end().catch(() => {})
  }
}

/** Path and system identifier: the path alone would accept the server of another container that mounts its own disk there. */
async function identify(client: pg.Client, dataDir: string): Promise<ProbeResult> {
  const { rows } = await client.query<{ dir: string; id: string }>(
    `select current_setting('data_directory') as dir, system_identifier::text as id from pg_catalog.pg_control_system()`,
  )
  const row = rows[0]
  return row !== undefined && row.dir === dataDir && row.id === (await systemIdentifier(dataDir))
    ? { state: 'ours' }
    : { state: 'other' }
}

/** The first eight bytes of pg_control. All platforms that we have binaries for are little-endian. */
async function systemIdentifier(dataDir: string): Promise<string> {
  const file = await open(join(dataDir, 'global', 'pg_control'))
  try {
    const { buffer } = await file.read({ buffer: Buffer.alloc(8), length: 8, position: 0 })
    return buffer.readBigUInt64LE(0).toString()
  } finally {
    await file.close()
  }
}
