import { installProbe } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, until } from '../../test/support/database.ts'
import { csv, defineLoads, loadRows } from '../../test/support/records.ts'

test('[R8] what counts a whole submission may take longer than an ordinary statement', async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  // Everything before it has this long for its answer, also on a machine that stalls.
  const pawl = db.pawl({ tuning: { queryTimeoutMs: 3000 } })
  const scope = pawl.records.in(defineLoads(pawl), { organisation: '17', registration: '4' })
  const client = await db.pool.connect()
  installProbe(async (name, subject) => {
    if (name !== 'records.validate.before') return
    await client.query('begin')
    await client.query('select from pawl.submission where id = $1 for update', [(subject as { id: string }).id])
  })
  onTestFinished(() => installProbe(undefined))
  const upload = scope.upload(csv(loadRows(5)), { format: 'csv' }).catch((caught: unknown) => caught)
  const waits = `select now() - query_start > interval '4 seconds' as long from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`
  try {
    await until('it has waited longer than that', async () => (await db.query<{ long: boolean }>(waits)).some(({ long }) => long))
    // It has not been given up and begun again.
    expect(await db.query(waits)).toHaveLength(1)
  } finally {
    await client.query('commit')
    client.release()
  }
  expect(await upload).toMatchObject({ state: 'validated' })
})
