// Processes that migrate the same database at the same moment.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, until } from '../../test/support/database.ts'
import { type MigrateReport, readMigrations } from './migrate.ts'
import { readSchema, releasedSchema } from './schema.ts'

const released = readMigrations().map((migration) => migration.name)

test('[K10] eight processes that start at once migrate once', { timeout: 180_000 }, async () => {
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  const root = fileURLToPath(new URL('../../../../', import.meta.url))
  const script = fileURLToPath(new URL('../../test/support/migrate-process.ts', import.meta.url))
  const processes = Array.from({ length: 8 }, () => {
    const child = spawn(process.execPath, ['--import', 'tsx', '--conditions=@pawl/source', script, db.url], {
      cwd: root,
      stdio: ['pipe', 'pipe', 'pipe'],
    })
    const said = { out: '', err: '' }
    child.stdout.on('data', (bytes) => {
      said.out += bytes
    })
    child.stderr.on('data', (bytes) => {
      said.err += bytes
    })
    return { child, said, ended: once(child, 'close') }
  })
  try {
    await until('all are ready', () => processes.every(({ said }) => said.out.startsWith('ready')), 120_000)
    for (const { child } of processes) child.stdin.write('go\n')
    await Promise.all(processes.map(({ ended }) => ended))
    expect(processes.map(({ said }) => said.err).join('')).toBe('')
    const reports = processes.map(({ said }) => JSON.parse(said.out.split('\n')[1]!) as MigrateReport)
    expect(reports.filter(({ applied }) => applied.length > 0).map(({ applied }) => applied)).toEqual([released])
    expect(reports.filter(({ alreadyThere }) => alreadyThere.length === released.length)).toHaveLength(7)
  } finally {
    for (const { child } of processes) child.kill('SIGKILL')
  }
  const ledger = await db.query<{ name: string }>('select name from pawl.migration order by name')
  expect(ledger.map(({ name }) => name)).toEqual(released)
  expect(await readSchema(db.pool)).toEqual(releasedSchema())
})
