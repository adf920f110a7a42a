// A primary and its standby, synchronous or not, from the embedded binaries alone: they bring no pg_basebackup, so the copy is made with the
// server's own backup functions.

import { execFile } from 'node:child_process'
import { chmod, cp, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { type EmbeddedServer, startEmbedded } from '@pawl/server/embedded'
import pg from 'pg'
import { onTestFinished } from 'vitest'
import { until } from './database.ts'

const run = promisify(execFile)

export interface Pair {
  readonly primary: EmbeddedServer
  readonly standby: EmbeddedServer
}

/** A server of the test's own, for faults that would hit every other test on the shared one. It ends with the test. */
export async function startOwnServer(settings: Readonly<Record<string, string>> = {}): Promise<EmbeddedServer> {
  const dir = await mkdtemp(join(tmpdir(), 'pawl-own-'))
  // Under root the server runs as another user, who must be able to enter.
  await chmod(dir, 0o755)
  onTestFinished(() => rm(dir, { recursive: true, force: true }))
  const server = await startEmbedded({ dir, port: 0, settings })
  onTestFinished(() => server.stop('immediate'))
  return server
}

/** Starts a killed or stopped server again, on its old port. */
export async function startAgain(
  server: EmbeddedServer,
  settings: Readonly<Record<string, string>> = {},
): Promise<EmbeddedServer> {
  const again = await startEmbedded({ dir: server.dir, port: server.port, settings })
  onTestFinished(() => again.stop('immediate'))
  return again
}

export async function startPair({ isSynchronous = true } = {}): Promise<Pair> {
  const primary = await startOwnServer()
  await query(primary.url, "select pg_create_physical_replication_slot('standby', true)")
  const dir = await mkdtemp(join(tmpdir(), 'pawl-standby-'))
  await chmod(dir, 0o755)
  onTestFinished(() => rm(dir, { recursive: true, force: true }))
  await copyCluster(primary, dir)
  const { username, password } = new URL(primary.url)
  const standby = await startEmbedded({
    dir,
    port: 0,
    settings: {
      primary_conninfo: `host=127.0.0.1 port=${primary.port} user=${username} password=${decodeURIComponent(password)} application_name=standby`,
      primary_slot_name: 'standby',
    },
  })
  onTestFinished(() => standby.stop('immediate'))
  if (isSynchronous) {
    await query(primary.url, "alter system set synchronous_standby_names = 'standby'")
    await query(primary.url, 'select pg_reload_conf()')
  }
  await until('the standby follows', async () => {
    const [row] = await query<{ n: number }>(
      primary.url,
      "select count(*)::integer as n from pg_stat_replication where sync_state = $1 and state = 'streaming'",
      [isSynchronous ? 'sync' : 'async'],
    )
    return row!.n === 1
  })
  return { primary, standby }
}

/** kill -9 of the postmaster; its backends end by themselves when they notice. */
export async function killPostmaster(server: EmbeddedServer): Promise<void> {
  process.kill(server.pid, 'SIGKILL')
  await until('the postmaster is gone', () => {
    try {
      process.kill(server.pid, 0)
      return isZombie(server.pid)
    } catch {
      return true
    }
  })
}

export async function promote(standby: EmbeddedServer): Promise<void> {
  await query(standby.url, 'select pg_promote(true, 60)')
  await until(
    'the standby has become the primary',
    async () => (await query<{ standby: boolean }>(standby.url, 'select pg_is_in_recovery() as standby'))[0]!.standby === false,
  )
}

/** The backup functions must be called in one session, around the copy. */
async function copyCluster(primary: EmbeddedServer, dir: string): Promise<void> {
  const client = new pg.Client({ connectionString: primary.url })
  await client.connect()
  try {
    await client.query("select pg_backup_start('standby', true)")
    const dataDir = join(dir, 'pgdata')
    await run('cp', ['-a', primary.dataDir, dataDir])
    const { rows } = await client.query<{ labelfile: string }>('select labelfile from pg_backup_stop(false)')
    await writeFile(join(dataDir, 'backup_label'), rows[0]!.labelfile)
    await writeFile(join(dataDir, 'standby.signal'), '')
    // The log comes from the primary through the slot; a half-written file of it would be taken for its end.
    for (const folder of ['pg_wal', 'pg_replslot']) {
      for (const entry of await readdir(join(dataDir, folder)))
        if (!/^(archive_status|summaries)$/.test(entry)) await rm(join(dataDir, folder, entry), { recursive: true })
    }
    for (const file of ['postmaster.pid', 'postmaster.opts']) await rm(join(dataDir, file), { force: true })
    await run('chown', ['-R', '--reference', primary.dataDir, dataDir])
  } finally {
    await client.end()
  }
  // The launcher keeps the password beside the data.
  for (const entry of await readdir(primary.dir, { withFileTypes: true })) {
    if (entry.isFile() && entry.name.startsWith('password')) await cp(join(primary.dir, entry.name), join(dir, entry.name))
  }
}

async function isZombie(pid: number): Promise<boolean> {
  return /^State:\s+Z/m.test(await readFile(`/proc/${pid}/status`, 'utf8').catch(() => 'State: Z'))
}

export async function query<Row = Record<string, unknown>>(url: string, text: string, values: unknown[] = []): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => undefined)
  await client.connect()
  try {
    return (await client.query(text, values)).rows as Row[]
  } finally {
    await client.end()
  }
}
