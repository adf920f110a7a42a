import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase } from '../../../pawl/test/support/database.ts'
import { debianProgram } from '../../../pawl/test/support/debian.ts'
import { startEmbedded } from '../embedded/index.ts'
import { pawl as cli, type ProcessOptions } from './test-support/cli-process.ts'
import { faultsIn } from './test-support/faults.ts'

async function faults(url: string, options: ProcessOptions = {}): Promise<string[]> {
  return faultsIn(await cli(['doctor', '-o', 'json', '--database-url', url], options))
}

test('[S6] doctor finds settings of the server that risk committed work', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'pawl-doctor-'))
  const server = await startEmbedded({ dir, port: 0, settings: { fsync: 'off', full_page_writes: 'off' } })
  onTestFinished(async () => {
    await server.stop('immediate')
    await rm(dir, { recursive: true, force: true })
  })
  expect(await faults(server.url)).toEqual([
    expect.stringMatching(/^fsync: off: .* -> start the server without -c fsync=off$/),
    expect.stringMatching(/^full_page_writes: off: .* -> start the server without/),
    expect.stringMatching(/^schema: .* -> pawl migrate$/),
  ])
})

test('[S6] doctor finds clocks of process and database that disagree', async (context) => {
  const faketime = await debianProgram('faketime')
  if (!faketime.ok) return context.skip(faketime.missing)
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const env = { ...faketime.env, LD_PRELOAD: faketime.path, FAKETIME: '+5h', FAKETIME_DONT_FAKE_MONOTONIC: '1' }
  expect(await faults(db.url, { env })).toEqual([expect.stringMatching(/^clock: the database is 5h behind this process/)])
})
