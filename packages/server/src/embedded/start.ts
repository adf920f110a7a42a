import { join, resolve } from 'node:path'
import { type Binaries, ensureBinaries } from './binaries/binaries.ts'
import { hasCluster, makeCluster } from './data/initdb.ts'
import { ensurePassword } from './data/password.ts'
import { accountOf, ensureDir, findDataDir } from './data/place.ts'
import { EmbeddedError } from './errors.ts'
import { withLock } from './lock.ts'
import { type CheckedOptions, checkOptions } from './options.ts'
import { startOf } from './processes.ts'
import { type AdoptRequest, adopt, differingSettings, type Running } from './server/adopt.ts'
import { ensureDatabase } from './server/database.ts'
import { startPostmaster } from './server/postmaster.ts'
import { superuser } from './server/probe.ts'
import { stopPostmaster } from './server/stop.ts'
import type { EmbeddedOptions, EmbeddedServer } from './types.ts'

const lockWaitMs = 180_000

/** Everything happens under one lock of the directory: of two starts at once, the second finds the first one's server and shares it. */
export async function startEmbedded(given: EmbeddedOptions): Promise<EmbeddedServer> {
  const options = checkOptions(given)
  const binaries = await ensureBinaries()
  const dir = await ensureDir(options.dir)
  const onWait = (pid: number): void => options.onNotice(`Process ${pid} is starting the database in ${dir}; waiting for it.`)
  return withLock(join(dir, 'lock'), { waitMs: lockWaitMs, onWait }, () => startLocked(dir, options, binaries))
}

async function startLocked(dir: string, options: CheckedOptions, binaries: Binaries): Promise<EmbeddedServer> {
  const { onNotice, database, settings, port } = options
  const dataDir = await findDataDir(dir, binaries.runAs, onNotice)
  const runAs = await accountOf(dataDir, binaries.runAs)
  const existed = await hasCluster(dataDir, binaries)
  const password = await ensurePassword(dir, existed)
  if (!existed) await makeCluster(dataDir, password, binaries, runAs)
  const adopted = await adoptWithDatabase({ dataDir, password, onNotice }, database)
  if (adopted !== undefined) await sayDifferences(adopted, dataDir, options)
  const running = adopted ?? (await startPostmaster({ dir, dataDir, password, port, settings, binaries, runAs, onNotice }))
  if (adopted === undefined) await ensureDatabase({ port: running.port, password, database })
  const started = await startOf(running.pid)
  return {
    url: `postgres://${superuser}:${encodeURIComponent(password)}@127.0.0.1:${running.port}/${encodeURIComponent(database)}`,
    port: running.port,
    dir: resolve(options.dir),
    dataDir,
    pid: running.pid,
    how: adopted === undefined ? 'started' : 'adopted',
    stop: (mode = 'fast') => stopPostmaster({ pid: running.pid, started, dataDir, mode, binaries }),
  }
}

/** Another process that shares the server may stop it during the adoption: then wait for its end and adopt nothing. */
async function adoptWithDatabase(request: AdoptRequest, database: string): Promise<Running | undefined> {
  for (let triesLeft = 3; ; triesLeft -= 1) {
    const adopted = await adopt(request)
    if (adopted === undefined) return undefined
    try {
      await ensureDatabase({ port: adopted.port, password: request.password, database })
      return adopted
    } catch (cause) {
      if (triesLeft > 1) continue
      const why = cause instanceof Error ? cause.message : String(cause)
      throw new EmbeddedError(
        'not_answering',
        `PostgreSQL is running on ${request.dataDir} (pid ${adopted.pid}), but the database "${database}" could not be created: ${why}. See postgres.log.`,
        { cause },
      )
    }
  }
}

async function sayDifferences(adopted: Running, dataDir: string, { port, settings, onNotice }: CheckedOptions): Promise<void> {
  if (port !== 0 && port !== adopted.port) onNotice(`PostgreSQL is already running, on port ${adopted.port} instead of ${port}.`)
  const names = await differingSettings(dataDir, settings)
  if (names.length > 0)
    onNotice(
      `PostgreSQL is already running and keeps the settings it was started with; to apply ${names.join(', ')}, restart it.`,
    )
}
