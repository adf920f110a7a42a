// TLS to a server that takes nothing else, with a client certificate: every connection of a worker's process has it, the keeper's too.

import { execFile } from 'node:child_process'
import { chown, mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { startEmbedded } from '@pawl/server/embedded'
import { createPawl, type PawlOptions, silentLogger } from 'pawl'
import pg from 'pg'
import { expect, onTestFinished, test } from 'vitest'

const run = promisify(execFile)

interface Tls {
  readonly url: string
  readonly ca: string
  readonly cert: string
  readonly key: string
}

/** A server with a certificate for 127.0.0.1, and a client's key and certificate of the same authority: itself. */
async function serverWithTls(): Promise<Tls> {
  const dir = await mkdtemp(join(tmpdir(), 'pawl-tls-'))
  onTestFinished(() => rm(dir, { recursive: true, force: true }))
  const made = await startEmbedded({ dir, port: 0 })
  await made.stop()
  const [key, cert] = [join(made.dataDir, 'tls.key'), join(made.dataDir, 'tls.crt')]
  const subject = ['-subj', '/CN=127.0.0.1', '-addext', 'subjectAltName=IP:127.0.0.1']
  await run('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-keyout', key, '-out', cert, ...subject])
  const { uid, gid } = await stat(made.dataDir)
  await Promise.all([key, cert].map((file) => chown(file, uid, gid)))
  const settings = { ssl: 'on', ssl_key_file: key, ssl_cert_file: cert, ssl_ca_file: cert }
  const server = await startEmbedded({ dir, port: 0, settings })
  onTestFinished(() => server.stop('immediate'))
  const [keyText, certText] = await Promise.all([key, cert].map((file) => readFile(file, 'utf8')))
  return { url: server.url, ca: certText!, cert: certText!, key: keyText! }
}

test.each(['databaseUrl', 'pool'])('with ssl and %s every connection is encrypted and presents its key', async (way) => {
  const { url, ...ssl } = await serverWithTls()
  const pool = new pg.Pool({ connectionString: url, ssl: { ...ssl }, max: 2 })
  onTestFinished(() => pool.end())
  const options: PawlOptions = way === 'pool' ? { pool } : { databaseUrl: url, ssl }
  const pawl = createPawl({ ...options, applicationName: 'tls', logger: silentLogger })
  onTestFinished(() => pawl.close())
  await pawl.migrate()
  const kind = pawl.jobs.define('mail', { tx: () => 1 })
  await pawl.jobs.enqueue(kind, {})
  const worker = pawl.worker()
  await worker.start()
  await worker.whenIdle()
  const { rows } = await pool.query(`
    select a.application_name as name, s.ssl, s.client_dn from pg_stat_activity a join pg_stat_ssl s using (pid) where a.application_name like 'tls %'`)
  const names = rows.map(({ name }) => String(name)).join(', ')
  for (const purpose of ['keeper', 'claim', 'listen', 'handler']) expect(names).toContain(`tls ${purpose}`)
  for (const { ssl: isEncrypted, client_dn } of rows)
    expect({ isEncrypted, client_dn }).toEqual({ isEncrypted: true, client_dn: '/CN=127.0.0.1' })
  await worker.stop()
})

test('a server that no authority vouches for is refused', async () => {
  const { url } = await serverWithTls()
  const pawl = createPawl({ databaseUrl: url, ssl: true, logger: silentLogger })
  onTestFinished(() => pawl.close())
  await expect(pawl.jobs.get('1')).rejects.toThrow(/self-signed certificate/)
})
