import { endLease, moveClock } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { closed, files, startWorker } from '../../test/support/batches.ts'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'

async function scene(): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  return db
}

test('[B3] through kills and double deliveries counts are exact, one hook runs', { timeout: 120_000 }, async () => {
  const db = await scene()
  await db.query('create table hook (batch text, waiting integer)')
  const workers = new Map<number, number>()
  const seen = new Set<number>()
  let delivered = 0
  for (let each = 0; each < 16; each++) {
    const pawl = db.pawl()
    pawl.batches.define('reparse', {
      item: {
        retry: { crashes: 1000 },
        run: async ({ batch, n }) => {
          if (++delivered % 50 === 0) for (const id of [...workers.values()].slice(0, 1)) await endLease(db.pool, id)
          // Its job is taken over, and delivered again; this handler becomes a zombie whose settle is refused.
          const isFirst = !seen.has(n)
          seen.add(n)
          if (isFirst)
            await db.query(
              `update pawl.job set state = 'ready', fence = fence + 1, holder = null, run_until = null, claimed_at = null
               where payload ->> 'batch' = $1 and (payload ->> 'n')::integer = $2 and kind like '%.item' and state = 'running'`,
              [batch, n],
            )
          return { ones: 1 }
        },
      },
      onEnd: ({ id, counts }, tx) => tx.query('insert into hook values ($1, $2)', [id, counts.waiting]),
    })
    const worker = await startWorker(pawl, 4)
    const note = setInterval(() => worker.id !== undefined && workers.set(each, worker.id), 20)
    onTestFinished(() => clearInterval(note))
  }
  const pawl = db.pawl()
  pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start('reparse', files(1000))
  const batch = await closed(pawl, id, 100_000)
  expect(batch).toMatchObject({ state: 'finished', isSuccess: true, sums: { ones: 1000 } })
  expect(batch.counts).toEqual({ total: 1000, done: 1000, failed: 0, late: 0, restored: 0, waiting: 0 })
  expect(await db.query('select batch, waiting from hook')).toEqual([{ batch: id, waiting: 0 }])
  expect(delivered).toBeGreaterThanOrEqual(2000)
})

/** What freeing the track wrote, and the pages that it touched. */
async function freeing(
  db: TestDatabase,
  id: string,
  state = 'timed-out',
): Promise<{ rows: Record<string, number>; pages: number }> {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    const plan = await client.query(
      `explain (analyze, buffers, format json) select pawl.end_batch('', ${id}, '${state}', 'measured')`,
    )
    const root = (plan.rows as { 'QUERY PLAN': { Plan: Record<string, number> }[] }[])[0]!['QUERY PLAN'][0]!.Plan
    const written = await client.query(
      `select relname, (n_tup_ins + n_tup_upd + n_tup_del)::integer as rows from pg_stat_xact_user_tables
       where n_tup_ins + n_tup_upd + n_tup_del > 0`,
    )
    await client.query('commit')
    const rows = Object.fromEntries(
      (written.rows as { relname: string; rows: number }[]).map((each) => [each.relname, each.rows]),
    )
    return { rows, pages: root['Shared Hit Blocks']! + root['Shared Read Blocks']! }
  } finally {
    // The statistics of a session's transactions add up: each gets a session of its own.
    client.release(true)
  }
}

test.each([0, 90_000])('[B5] freeing a track costs the same for 100,000 items, %i ended', { timeout: 120_000 }, async (ended) => {
  const db = await scene()
  const pawl = db.pawl()
  pawl.batches.define('reparse', { item: { run: () => undefined }, allowance: { maxMs: 50_000 } })
  const [warm, small, large] = [
    await pawl.batches.start('reparse', files(10), { track: 'warm' }),
    await pawl.batches.start('reparse', files(10), { track: 'small' }),
    await pawl.batches.start('reparse', files(100_000), { track: 'large' }),
  ]
  await db.query("update pawl.batch_item set outcome = 'done', ended_at = now() where batch_id = $1 and n <= $2", [
    large.id,
    ended,
  ])
  await db.query('vacuum analyze pawl.batch_item')
  // A process that has started batches ends overdue ones.
  await pawl.close()
  await moveClock(db.pool, 60_000)
  await freeing(db, warm.id)
  const few = await freeing(db, small.id)
  const many = await freeing(db, large.id)
  expect(many.rows).toEqual(few.rows)
  expect(many.pages).toBeLessThan(few.pages * 1.2)
  expect(await db.pawl().batches.get(large.id)).toMatchObject({ state: 'timed-out', counts: { waiting: 100_000 - ended } })
})

test('[B5] freeing a track costs the same when one item hangs midway', { timeout: 120_000 }, async () => {
  const db = await scene()
  const pawl = db.pawl()
  pawl.batches.define('reparse', {
    item: { run: ({ key }) => (key === 'file-15000' ? new Promise(() => undefined) : undefined) },
    allowance: { minMs: 3_600_000 },
  })
  const worker = await startWorker(pawl)
  const large = await pawl.batches.start('reparse', files(20_000), { track: 'large' })
  const upto = () => db.query<{ upto: number }>('select upto from pawl.batch_cursor where batch_id = $1', [large.id])
  await until('the cursor is before the item that hangs', upto, ([row]) => row?.upto === 14_999, 60_000)
  await until(
    'the others have ended',
    () => pawl.batches.get(large.id),
    ({ counts }) => counts.waiting === 1,
    60_000,
  )
  void worker.stop({ grace: 0 })
  const few = [
    await pawl.batches.start('reparse', files(10), { track: 'warm' }),
    await pawl.batches.start('reparse', files(10), { track: 'small' }),
  ]
  await db.query('vacuum analyze')
  await freeing(db, few[0]!.id, 'cancelled')
  const small = await freeing(db, few[1]!.id, 'cancelled')
  const many = await freeing(db, large.id, 'cancelled')
  expect(many.pages).toBeLessThan(small.pages * 1.2)
})
