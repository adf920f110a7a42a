// Batches through pgbouncer in transaction mode, with a pool smaller than the number of clients.

import { expect, onTestFinished, test } from 'vitest'
import { closed, files, startWorker } from '../support/batches.ts'
import { createDatabase } from '../support/database.ts'
import { debianProgram } from '../support/debian.ts'
import { startPgBouncer } from '../support/pgbouncer.ts'

const pgbouncer = await debianProgram('pgbouncer')

for (const shape of ['run', 'tx'] as const)
  test(`[K8] a batch of ${shape} items works through pgbouncer`, { timeout: 60_000 }, async ({ skip }) => {
    if (!pgbouncer.ok) return skip(`missing ${pgbouncer.missing}`)
    const db = await createDatabase()
    onTestFinished(() => db.drop())
    const bouncer = await startPgBouncer(pgbouncer, db.url, 4)
    const pawl = db.pawl({ databaseUrl: bouncer.url, pooler: 'transaction' })
    const ends: string[] = []
    const work = () => ({ ones: 1 })
    pawl.batches.define('reparse', {
      prepare: () => ({ backup: 1 }),
      item: shape === 'run' ? { run: work } : { tx: work },
      onEnd: ({ id }) => void ends.push(id),
    })
    const { id } = await pawl.batches.start('reparse', files(200))
    await expect(pawl.batches.start('reparse', files(1))).rejects.toMatchObject({ details: { blocker: id } })
    await startWorker(pawl)
    expect(await closed(pawl, id)).toMatchObject({ state: 'finished', isSuccess: true, sums: { ones: 200 } })
    expect(ends).toEqual([id])
  })
