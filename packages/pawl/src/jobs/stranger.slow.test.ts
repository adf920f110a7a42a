// A stranger's old snapshot keeps vacuum from removing what has passed: every job leaves dead index entries at the front of its queue. A
// claim must not walk over them.

import { installProbe } from 'pawl/testing'
import { afterEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

/** Buffers are sampled while the last tenth passes, when nine tenths lie dead in front; of the few without a stranger, the last half. */
const beside = { jobs: 300_000, sampledFrom: 270_000, hasStranger: true }
const alone = { jobs: 60_000, sampledFrom: 30_000, hasStranger: false }

let databases: TestDatabase[] = []
afterEach(async () => {
  installProbe(undefined)
  await Promise.all(databases.map((db) => db.drop()))
  databases = []
})

interface Sample {
  readonly rows: number
  readonly buffers: number
}

/** Lets the jobs pass through a real worker and gives the buffers of each claim from then on, as the server counted them. */
async function pass({ jobs, sampledFrom, hasStranger }: typeof beside): Promise<Sample[]> {
  const db = await createDatabase()
  databases.push(db)
  await db.query('create extension pg_stat_statements')
  const stranger = await db.pool.connect()
  if (hasStranger) {
    await stranger.query('begin isolation level repeatable read')
    await stranger.query('select count(*) from pawl.job')
  }
  for (let n = 0; n < jobs; n += 10_000) {
    await db.query(
      "select count(*) from pawl.enqueue_many('', 'default', 'pass', (select jsonb_agg(jsonb_build_object('n', n)) from generate_series(1, 10000) n))",
    )
  }
  const pawl = db.pawl()
  pawl.jobs.define('pass', { run: () => undefined })
  const samples = await watchClaims(db, sampledFrom, async () => {
    // The same size of claim in both runs, so that their buffers can be compared.
    const worker = pawl.worker({ concurrency: 100, tuning: { batchMax: 100 } })
    await worker.start()
    await worker.whenIdle()
    await worker.stop()
    expect(worker.metrics()).toMatchObject({ done: jobs, failed: 0, refused: 0 })
  })
  if (hasStranger) {
    // It was there all the time: its snapshot still sees the empty table.
    expect((await stranger.query('select count(*)::int as n from pawl.job_history')).rows).toEqual([{ n: 0 }])
    await stranger.query('commit')
  }
  stranger.release()
  return samples
}

/** One claim is in progress at a time, so between two of them the server's counter grows by the buffers of exactly one. */
async function watchClaims(db: TestDatabase, sampledFrom: number, work: () => Promise<void>): Promise<Sample[]> {
  const samples: Sample[] = []
  let claimed = 0
  let lastRows = 0
  let before: { calls: number; buffers: number } | undefined
  installProbe(async (name, subject) => {
    if (name === 'jobs.claim.after') {
      lastRows = (subject as unknown[]).length
      claimed += lastRows
    }
    if (name !== 'jobs.claim.before' || claimed < sampledFrom) return
    const now = await claimCounters(db)
    if (before !== undefined && now.calls === before.calls + 1 && lastRows > 0)
      samples.push({ rows: lastRows, buffers: now.buffers - before.buffers })
    before = now
  })
  try {
    await work()
  } finally {
    installProbe(undefined)
  }
  return samples
}

async function claimCounters(db: TestDatabase): Promise<{ calls: number; buffers: number }> {
  const [row] = await db.query<{ calls: number; buffers: number }>(
    `select sum(s.calls)::int as calls, sum(s.shared_blks_hit + s.shared_blks_read)::int as buffers
     from pg_stat_statements s
     join pg_database d on d.oid = s.dbid and d.datname = current_database()
     where s.query like 'with holder as materialized%and not j.suspect%for update skip locked%'`,
  )
  return row!
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!
}

test('[J22] during a foreign snapshot, the median claim at most doubles its buffers', async () => {
  const without = await pass(alone)
  const within = await pass(beside)
  const buffers = (samples: readonly Sample[]) => median(samples.map((sample) => sample.buffers))
  const buffersPerRow = (samples: readonly Sample[]) => median(samples.map((sample) => sample.buffers / sample.rows))
  expect(without.length).toBeGreaterThan(50)
  expect(within.length).toBeGreaterThan(50)
  expect(buffers(within)).toBeLessThanOrEqual(2 * buffers(without))
  expect(buffersPerRow(within)).toBeLessThanOrEqual(2 * buffersPerRow(without))
}, 900_000)
